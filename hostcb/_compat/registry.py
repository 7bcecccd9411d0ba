"""The registry of JAX's private objects that hostcb reads or replaces: one `Entry` for each object.

An entry says where JAX has the object, how hostcb uses it, what is lost without it, and which promises of the contract
then do not hold. At import, hostcb probes each entry once: the object exists, has the attributes that hostcb reads, and
takes the arguments that hostcb passes. `import hostcb` succeeds with lost entries, and gives one warning that lists
them. If a value, an order or a number of calls could be wrong without an entry, that use raises `UnknownJaxError`.

The modules of this package define the entries, beside the code that uses them.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import inspect
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax

# The oldest and the newest JAX that hostcb was tried with.
KNOWN = ("0.10.2", "0.12.0.1")


class UnknownJaxWarning(RuntimeWarning):
    """This JAX has a private object in a way unknown to hostcb: the text names it, the lost promises, and the remedy.

    `import hostcb` gives this warning once. To silence it, filter by the beginning of its text before the import:
    `warnings.filterwarnings("ignore", "hostcb", RuntimeWarning)`, or set `PYTHONWARNINGS=ignore:hostcb`.
    """


class UnknownJaxError(NotImplementedError):
    """Raised for a use of a callback that could be wrong silently, because hostcb does not know a part of this JAX."""


class Cost(enum.Enum):
    """The consequence of a lost entry; `hostcb.doctor` prints the value."""

    ALL = "every callback is refused"
    EFFECTS = "every callback but pure ones is refused"
    SOME = "some uses are refused"
    COMFORT = "nothing is refused"


@dataclasses.dataclass(frozen=True)
class Signature:
    """How hostcb calls a function of JAX's, or how JAX calls one that hostcb replaces."""

    # The number of positional arguments, and the names of the keyword arguments.
    positional: int = 0
    keywords: tuple[str, ...] = ()
    # For a replacement that handles all arguments: the lists of parameters that hostcb knows, each in one string.
    exactly: tuple[str, ...] = ()
    # For a replacement that handles some arguments and passes the others on: the parameters that it handles.
    among: tuple[str, ...] = ()
    # For a function whose code hostcb exchanges: it is written in Python, and has no variables of an outer one.
    plain: bool = False

    def problem(self, function: Any) -> str | None:
        if not callable(function):
            return f"is {function!r}, which cannot be called"
        if self.plain and not (isinstance(function, types.FunctionType) and function.__closure__ is None):
            return f"is {function!r}, and no plain function"
        try:
            found = inspect.signature(function)
        except (TypeError, ValueError):
            # A function of jaxlib, whose signature Python cannot inspect.
            return None
        names = [*found.parameters]
        if self.exactly or self.among:
            known = " ".join(names) in self.exactly if self.exactly else {*self.among} <= {*names}
            return None if known else f"takes ({', '.join(names)})"
        try:
            found.bind(*[None] * self.positional, **dict.fromkeys(self.keywords))
        except TypeError as error:
            return f"takes {found}: {error}"
        return None


def called_with(positional: int, *keywords: str) -> Signature:
    """The signature of a function that takes so many arguments by position, and these by keyword."""
    return Signature(positional, keywords)


def known_as(*parameters: str) -> Signature:
    """The signature of a function whose parameters are exactly these, in one of several releases."""
    return Signature(exactly=parameters)


def with_parameters(*names: str) -> Signature:
    """The signature of a function that has these parameters, and may have any others."""
    return Signature(among=names)


def plain_function(*parameters: str) -> Signature:
    """The signature of a function of Python with exactly these parameters, in one of several releases."""
    return Signature(exactly=parameters, plain=True)


@dataclasses.dataclass(eq=False)
class Entry:
    """One private object of JAX."""

    # The module, a colon, and the attribute in it.
    place: str
    # How hostcb uses it, and the consequence of its absence: each is a sentence.
    use: str
    without: str
    # The promises of docs/contract.md that do not hold without it.
    promises: tuple[str, ...]
    cost: Cost
    signature: Signature | None = None
    # The attributes that hostcb reads, and the methods that hostcb calls.
    attributes: tuple[str, ...] = ()
    methods: Mapping[str, Signature] = dataclasses.field(default_factory=dict)
    # For a table of rules: the primitive of the rule.
    key: Any = None
    # The places in other releases of JAX.
    other_places: tuple[str, ...] = ()
    # The first JAX that needs this entry, and the first that does not need it any more; None if all newer ones do.
    since: str = "0.10.2"
    until: str | None = None
    link: str | None = None
    # Its module takes long to import, so hostcb probes the entry after JAX or the user has imported the module.
    deferred: bool = False

    # Set by the probe: the object, and its difference from what hostcb knows.
    value: Any = dataclasses.field(default=None, init=False)
    problem: str | None = dataclasses.field(default=None, init=False)
    probed: bool = dataclasses.field(default=False, init=False)
    _found_at: str = dataclasses.field(default="", init=False)

    @property
    def needed(self) -> bool:
        """Whether hostcb needs this entry with this JAX."""
        if _version(self.since) > jax.__version_info__:
            return False
        return self.until is None or jax.__version_info__ < _version(self.until)

    @property
    def holds(self) -> bool:
        return self.value is not None

    @property
    def lost(self) -> bool:
        return self.probed and self.problem is not None

    @property
    def name(self) -> str:
        return self.place if self.key is None else f"{self.place}[{getattr(self.key, '__name__', self.key)}]"

    @property
    def module(self) -> str:
        return self.place.partition(":")[0]

    @property
    def state(self) -> str:
        """A text of the state, for reports."""
        if not self.needed:
            return "not needed any more"
        if not self.probed:
            return "not imported yet"
        return self.problem or "holds"

    def probe(self) -> None:
        """Look the object up, and compare it with what hostcb knows."""
        self.probed = True
        if not self.needed:
            return
        self.problem = "is missing"
        for place in (self.place, *self.other_places):
            found = _find(place)
            if found is not None and self.key is not None:
                found = found.get(self.key) if isinstance(found, dict) else None
            if found is not None:
                self.problem = self._difference(found)
                self.value = found if self.problem is None else None
                self._found_at = place
                break

    def put(self, replacement: Any) -> None:
        """Let JAX find `replacement` in place of the object.

        A function gets the names and the signature of JAX's, and stands wherever JAX's modules have it by its name. So
        pickle and cloudpickle refer to it by JAX's name, where a process without hostcb has JAX's own.
        """
        plain = self.value
        if isinstance(plain, types.FunctionType):
            functools.update_wrapper(replacement, plain)
            name = plain.__name__
            for module in (plain.__module__, plain.__module__.replace("jax._src.", "jax.")):
                names = vars(sys.modules[module]) if module in sys.modules else {}
                if names.get(name) is plain:
                    names[name] = replacement
        if self.key is not None:
            self.table[self.key] = replacement
            return
        module, _, path = self._found_at.partition(":")
        owner, _, name = path.rpartition(".")
        holder = _find(f"{module}:{owner}")
        is_static = isinstance(vars(holder).get(name), staticmethod)
        setattr(holder, name, staticmethod(replacement) if is_static else replacement)

    @property
    def table(self) -> Any:
        """JAX's table, for an entry with a key."""
        return _find(self._found_at)

    def now(self) -> Any:
        """The present object in its place: JAX's new one, or hostcb's."""
        return _find(self._found_at) if self.key is None else self.table[self.key]

    def _difference(self, found: Any) -> str | None:
        absent = [name for name in (*self.attributes, *self.methods) if not _has(found, name)]
        if absent:
            return f"has no {' and no '.join(absent)}"
        for name, signature in self.methods.items():
            problem = signature.problem(getattr(found, name))
            if problem is not None:
                return f"has a method {name} that {problem}"
        return self.signature.problem(found) if self.signature is not None else None

    def refusal(self, subject: Any) -> UnknownJaxError:
        """The error for a use of `subject`, a callback or a function, that could go wrong without this."""
        return UnknownJaxError(
            f"{subject} cannot be used here with JAX {jax.__version__}: {self.name} {self.problem}. {self.without} "
            f"Use a JAX from {KNOWN[0]} to {KNOWN[1]}, or a newer hostcb; `python -m hostcb` lists what this JAX lacks."
        )


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _find(place: str) -> Any:
    """The object at a place; None if JAX does not have the name, or has set it to None."""
    module, _, path = place.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in filter(None, path.split(".")):
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return None
    return found


def _has(found: Any, name: str) -> bool:
    """Whether objects of the class `found`, or `found` itself, have an attribute."""
    return hasattr(found, name) or name in getattr(found, "__dataclass_fields__", ())


# Every entry, in the order of the modules that define them.
entries: list[Entry] = []
_blocking: list[Entry] = []
_warned = False


def private(
    place: str,
    use: str,
    without: str,
    promises: tuple[str, ...],
    cost: Cost,
    signature: Signature | None = None,
    **others: Any,
) -> Entry:
    """Register a private object of JAX, and probe it unless it is deferred. The parameters are fields of `Entry`.

    Entries that serve one purpose, and whose loss costs the same, are made by one `functools.partial` of this.
    """
    entry = Entry(place, use, without, promises, cost, signature, **others)
    entries.append(entry)
    if not entry.deferred:
        _probe(entry)
    return entry


def probe_late(entry: Entry) -> None:
    """Probe a deferred entry when hostcb first needs it."""
    if not entry.probed:
        _probe(entry)
        if entry.lost and _warned:
            _warn([entry], stacklevel=3)


def _probe(entry: Entry) -> None:
    entry.probe()
    if entry.lost and entry.cost in (Cost.ALL, Cost.EFFECTS):
        _blocking.append(entry)


def first_lost(*group: Entry) -> Entry | None:
    """The first of several entries that is lost; None if all hold."""
    return next((entry for entry in group if entry.lost), None)


def losses() -> list[Entry]:
    """The lost entries, without the entries that are part of another lost one."""
    lost = [entry for entry in entries if entry.lost]
    return [entry for entry in lost if not any(entry.place.startswith(f"{other.place}.") for other in lost)]


def refuse_if_unusable(subject: Any, effectful: bool) -> None:
    """Refuse `subject`, a callback, if hostcb cannot lower it, or cannot keep its effects, with this JAX."""
    for entry in _blocking:
        if effectful or entry.cost is Cost.ALL:
            raise entry.refusal(subject)


def warn_of_losses() -> None:
    """Warn once of the lost entries. The module `hostcb` itself calls this at the end of its import."""
    global _warned
    _warned = True
    lost = losses()
    if lost:
        _warn(lost, stacklevel=4)


def _warn(lost: Sequence[Entry], stacklevel: int) -> None:
    lines = [f"- {each.name} {each.problem}. Lost: {', '.join(each.promises)}. {each.without}" for each in lost]
    warnings.warn(
        f"hostcb does not know a part of JAX {jax.__version__}, so some promises of docs/contract.md do not hold:\n"
        + "\n".join(lines)
        + f"\nUse a JAX from {KNOWN[0]} to {KNOWN[1]}, or a newer hostcb. `python -m hostcb` says more. To silence "
        'this, call warnings.filterwarnings("ignore", "hostcb", RuntimeWarning) before the import.',
        UnknownJaxWarning,
        stacklevel=stacklevel,
    )
