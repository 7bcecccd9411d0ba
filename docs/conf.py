"""The site of the documentation, which Sphinx makes of the Markdown pages of this checkout; `nox -s docs` builds it.

The source folder is the whole checkout, so that a link from a page to a file outside of `docs/` leads to the same place
as it does in the repository.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from hostcb import __version__  # noqa: E402

project = "hostcb"
version = release = __version__
html_title = f"hostcb {release}"
html_show_copyright = False

root_doc = "docs/index"
include_patterns = ["docs/**.md", "conformance/README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
# Sphinx walks through every folder that no pattern excludes: environments and results have thousands.
exclude_patterns = [path.name for path in HERE.parent.iterdir() if path.is_dir()]
exclude_patterns = [name for name in exclude_patterns if name not in ("docs", "conformance")]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_extension"]
# A block of a console may show a whole program.
suppress_warnings = ["misc.highlighting_failure"]

# Anchors as in the repository.
myst_heading_anchors = 4

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["site"]
html_copy_source = False
# It would have the two modules of one page, and no page leads to it.
html_domain_indices = False
templates_path: list[str] = []

# Docstrings have code in single backticks, as Markdown has it.
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
# No inventories are downloaded, so names of other packages lead nowhere.
nitpick_ignore_regex = [("py:.*", r"(jax|numpy|np)\..*|[A-Z]\w*(Error|Exception|Warning)")]
