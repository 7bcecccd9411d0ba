"""What Markdown has and Sphinx lacks: in pages links to folders, in docstrings the plural of a word in code."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

SOURCES = os.environ.get("HOSTCB_SOURCES_URL", "").rstrip("/")
"""Where a browser finds the files of this checkout, such as `https://example.org/hostcb/tree/v1.0`."""


def resolve_folders(app: Sphinx, page: nodes.document) -> None:
    """Let a link to a folder of the checkout lead to the repository; without its URL only the link's text stays."""
    for link in list(page.findall(addnodes.pending_xref)):
        if link["reftype"] != "myst" or link["refdomain"] == "doc":
            continue
        folder = Path(app.env.relfn2path(link["reftarget"], link["refdoc"])[1])
        if not folder.is_dir():
            continue
        if SOURCES:
            path = folder.resolve().relative_to(Path(app.srcdir).resolve()).as_posix()
            shown = nodes.reference("", "", *link.children, refuri=f"{SOURCES}/{path}", internal=False)
            link.replace_self(shown)
        else:
            link.replace_self(link.children)


def separate_plurals(_app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """In reStructuredText, code ends only before a space or a sign; so "`Array`s" of a docstring gets a mark."""
    # Each pair of backticks is matched, since what stands between two pairs could be taken for one.
    text = re.sub(r"(`[^`]+`)(\w?)", lambda pair: "\\ ".join(filter(None, pair.groups())), "\n".join(lines))
    lines[:] = text.split("\n")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", resolve_folders)
    # Before napoleon, which reads the same lines.
    app.connect("autodoc-process-docstring", separate_plurals, priority=100)
    return {"parallel_read_safe": True}
