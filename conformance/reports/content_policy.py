"""The Content-Security-Policy of a page that is one file: it loads nothing, and runs its own script alone."""

from __future__ import annotations

import base64
import hashlib


def content_policy(style: str, script: str = "") -> str:
    """The value of the `meta` element, for the text of the page's style element, and of its script if it has one."""
    own_script = f"; script-src {_hash(script)}" if script else ""
    return f"default-src 'none'; style-src {_hash(style)}{own_script}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
