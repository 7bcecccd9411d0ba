"""What Markdown has and Sphinx lacks: links to any file or folder, and in docstrings the plural of code."""

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


def resolve_others(app: Sphinx, page: nodes.document) -> None:
    """Let a link to a folder, or to a page that the site leaves out, lead to the repository.

    Without the URL of the repository only the link's text stays.
    """
    for link in list(page.findall(addnodes.pending_xref)):
        path = _left_out(app, link) if link["reftype"] == "myst" else None
        if path is None:
            continue
        if SOURCES:
            shown = nodes.reference("", "", *link.children, refuri=f"{SOURCES}/{path}", internal=False)
            link.replace_self(shown)
        else:
            link.replace_self(link.children)


def _left_out(app: Sphinx, link: addnodes.pending_xref) -> str | None:
    """The path of a link's target in the checkout, if it is there and the site does not have it."""
    target = link["reftarget"]
    if link["refdomain"] == "doc":
        path = Path(app.srcdir) / f"{target}.md"
        missing = target not in app.env.found_docs and path.is_file()
    else:
        path = Path(app.env.relfn2path(target, link["refdoc"])[1])
        missing = path.is_dir()
    return path.resolve().relative_to(Path(app.srcdir).resolve()).as_posix() if missing else None


def separate_plurals(_app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """In reStructuredText, code ends only before a space or a sign; so "`Array`s" of a docstring gets a mark."""
    # Each pair of backticks is matched, since what stands between two pairs could be taken for one.
    text = re.sub(r"(`[^`]+`)(\w?)", lambda pair: "\\ ".join(filter(None, pair.groups())), "\n".join(lines))
    lines[:] = text.split("\n")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", resolve_others)
    # Before napoleon, which reads the same lines.
    app.connect("autodoc-process-docstring", separate_plurals, priority=100)
    return {"parallel_read_safe": True}
