"""In an editable installation `hostcb_conformance` finds its modules where `conformance` has them, in the checkout."""

from __future__ import annotations

import importlib.util

_spec = importlib.util.find_spec("conformance")
__path__ = list((_spec and _spec.submodule_search_locations) or ())
