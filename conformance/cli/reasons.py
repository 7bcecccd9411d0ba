"""The errors that the commands print in one line: something in the options, or around them, is wrong."""

from __future__ import annotations

from ..bisecting.probe_journal import JournalError
from ..engine.cluster import ClusterError
from ..engine.preparation import UNUSABLE_BECAUSE
from ..engine.tools import DaskClusterError, MissingToolError
from ..fuzz.trying import WorkerError
from ..mutants.ranking import NoMatrixError
from ..releases.known_bugs import KnownBugsError
from ..releases.release import ReleaseError
from ..reports.merging import MergeError
from ..soak.watching import RefusedError
from ..standalone.programs import NotStandaloneError
from .fuzz import UnfitChoiceError
from .minimise import SuiteFailedError

REASONS = (
    *UNUSABLE_BECAUSE,
    ClusterError,
    DaskClusterError,
    JournalError,
    KnownBugsError,
    MergeError,
    MissingToolError,
    NoMatrixError,
    NotStandaloneError,
    RefusedError,
    ReleaseError,
    SuiteFailedError,
    UnfitChoiceError,
    WorkerError,
)
