"""An implementation for tests of the mutants' machinery: it is not broken."""

from __future__ import annotations

import hostcb
from conformance.implementations.hostcb import Hostcb

HARMLESS = Hostcb(hostcb)
