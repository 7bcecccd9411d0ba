"""The cause of a platform's refusal: the part of its message that all cells with the same cause share."""

from __future__ import annotations

import re

from .verdicts import Stage

_REFUSALS = (
    # JAX has no lowering rule for the platform, by its several words for that.
    r"MLIR translation rule for primitive '?[^' ]+'? not found for platform [\w.-]+",
    r"[Ll]owering rule (?:for [^\n]*? )?not found[^\n.;]*",
    r"No translation rule[^\n.;]*",
    # hostcb, and JAX's emitters.
    r"host callbacks are not supported on [\w.-]+",
    r"`?[\w.]+`? not supported on [\w.-]+ backend",
    r"Partitioned callback not implemented on [\w.-]+ backend",
    # The plugin.
    r"No (?:FFI handler|registered implementation)(?: was)?(?: registered)? for [^\n;]*?(?= on a platform|[,.;\n]|$)",
    r"UNIMPLEMENTED:? ?[^\n]*",
    r"[^\n.;:]* not supported on [^\n.;:]*",
)
_EARLY = (Stage.LOWER, Stage.COMPILE)
_FROM_THE_RUNTIME = re.compile(r"^(?:\w+: )?(?:UNIMPLEMENTED|NOT_FOUND: No (?:FFI handler|registered implementation))")
_NUMBERS = re.compile(r"0x[0-9a-f]+|\b\d{3,}\b")


def refusal_in(text: str, stage: Stage | None) -> str | None:
    """The cause, if this is the text of a platform's refusal of a program; otherwise None.

    While a program runs, only the runtime's own words count: the text of a callback's exception may quote anything.
    """
    if stage not in _EARLY and (not _FROM_THE_RUNTIME.match(text) or "CpuCallback" in text):
        return None
    for pattern in _REFUSALS:
        if found := re.search(pattern, text):
            # Addresses and numbers of objects differ from cell to cell.
            return " ".join(_NUMBERS.sub("#", found[0]).split())[:300]
    return None
