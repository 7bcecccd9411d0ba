"""Draws programs with hypothesis, which also shrinks them. Needs hypothesis, and no JAX."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from .description import (
    BATCHABLE,
    EFFECTS_ON_BUFFERS,
    EXACTLY_ONCE,
    KINDS,
    LAYOUTS,
    MODULUS,
    MOST_TRIPS,
    ON_EACH_DEVICE,
    ON_ONE_DEVICE,
    ORDERED_KINDS,
    OWN_KINDS,
    PURE_KINDS,
    Block,
    Branch,
    Call,
    Collective,
    Compute,
    Input,
    Loop,
    Program,
    Statement,
    Wrapped,
)
from .source import DRAWN, OPERATIONS

DEEPEST = 3
MOST_STATEMENTS = 6
MOST_IN_PROGRAM = 40
"""A program with more statements is compiled for seconds."""
MOST_VMAPS = 2
MOST_DERIVATIVES = 2


@dataclass(frozen=True)
class Place:
    """Where a statement is, which decides what it may be."""

    depth: int = 0
    uniform: bool = False
    """Whether every device comes here equally often, so that a collective may be here."""
    vmaps: int = 0
    branching: bool = False
    """Whether a branch or a trip count that depends on data is around it."""
    derivatives: tuple[str, ...] = ()
    """`grad` and `jvp`, the outermost first."""
    checkpointed: bool = False
    looped: bool = False
    """Whether a loop that is differentiated in reverse mode is around it."""

    @property
    def batched(self) -> bool:
        return self.vmaps > 0

    def inside(self, **changes: Any) -> Place:
        return replace(self, depth=self.depth + 1, **changes)


@dataclass
class Drawer:
    draw: Any
    kinds: Sequence[str]
    apart: bool = False
    """Whether each device runs the program for itself."""
    own: bool = True
    """Whether hostcb's own kinds are drawn, so that it is not JAX that is tried."""
    numbers: Counter[str] = field(default_factory=Counter)
    statements: int = 0

    def new(self, type_: str) -> str:
        self.numbers[type_] += 1
        return f"{type_}{self.numbers[type_] - 1}"

    def one_of(self, values: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(values)))

    def whole(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most))

    def variable(self, names: Sequence[str], type_: str, made: list[Statement]) -> str:
        """A variable of a type; where there is none, a statement makes one of another."""
        if found := [name for name in reversed(names) if name[0] == type_]:
            return self.one_of(found)
        operation = {"f": "sum", "v": "spread", "i": "to_whole"}[type_]
        if type_ == "f" and not any(name[0] == "v" for name in names):
            operation = "to_float"
        operand = self.variable(names, OPERATIONS[operation][0][0], made)
        target = self.new(type_)
        made.append(Compute(target, operation, (operand,)))
        return target

    def block(
        self, parameters: Sequence[str], outer: Sequence[str], results: Sequence[str], place: Place, least: int = 0
    ) -> Block:
        """A block whose results have these types."""
        names = [*outer, *parameters]
        made: list[Statement] = []
        # A choice before each statement lets hypothesis delete one without a change of the others.
        for place_in_block in range(max(least, MOST_STATEMENTS - place.depth)):
            if place_in_block >= least and self.whole(0, 3) == 0:
                break
            if self.statements < MOST_IN_PROGRAM:
                self.statement(names, made, place)
        found = []
        for type_ in results:
            # The newest variables first: what a block computes is mostly what it returns.
            found.append(
                self.variable([*names, *(one.target for one in made if isinstance(one, Compute))], type_, made)
            )
        return Block(tuple(parameters), tuple(made), tuple(found))

    def statement(self, names: list[str], made: list[Statement], place: Place) -> None:
        self.statements += 1
        choices = ["call", "call", "compute"]
        if place.depth < DEEPEST:
            choices += ["loop", "loop", "branch", "wrapped", "wrapped", "wrapped"]
        if place.uniform:
            choices += ["collective", "collective"]
        before = len(made)
        one = getattr(self, self.one_of(choices))(names, made, place)
        # Conversions that the statement needed come before it.
        names.extend(each.target for each in made[before:] if isinstance(each, Compute))
        if one is not None:
            made.append(one)
            names.extend(one.targets if isinstance(one, Loop | Branch | Wrapped) else [one.target])

    def compute(self, names: list[str], made: list[Statement], place: Place) -> Statement:
        operation = self.one_of(DRAWN)
        types, result = OPERATIONS[operation][0].split()
        operands = tuple(self.variable(names, type_, made) for type_ in types)
        return Compute(self.new(result), operation, operands)

    def collective(self, names: list[str], made: list[Statement], place: Place) -> Statement:
        operand = self.variable(names, self.one_of("fv"), made)
        return Collective(self.new(operand[0]), self.one_of(("psum", "all_gather", "ppermute")), operand)

    def call(self, names: list[str], made: list[Statement], place: Place) -> Statement | None:
        kinds = [kind for kind in self.kinds if self.fits(kind, place)]
        if not kinds:
            return None
        return self.callback(self.one_of(kinds), names, made)

    def fits(self, kind: str, place: Place) -> bool:
        """Whether a callback promises to work in a place. JAX's own lose effects in a differentiated loop."""
        return _fits(kind, place) and (self.own or kind in PURE_KINDS or not place.looped)

    def callback(self, kind: str, names: Sequence[str], made: list[Statement]) -> Call:
        operands = [self.variable(names, self.one_of("fvi"), made) for _ in range(self.whole(1, 3))]
        if kind.startswith("buffer_callback") and operands[0][0] == "i":
            operands[0] = self.variable(names, "f", made)
        self.numbers["label"] += 1
        method = self.one_of(("sequential", "broadcast_all")) if kind in BATCHABLE else "sequential"
        tree = self.one_of(("tuple", "list", "dict"))
        return Call(self.new(operands[0][0]), self.numbers["label"], kind, tuple(operands), tree, method)

    def carried(self, names: list[str], made: list[Statement]) -> tuple[str, ...]:
        return tuple(self.variable(names, type_, made) for type_ in self.one_of(("f", "fi", "v", "fv", "ffi")))

    def loop(self, names: list[str], made: list[Statement], place: Place) -> Statement:
        # Reverse mode needs the number of steps.
        reverse = "grad" in place.derivatives
        kinds = ("fori", "scan") if reverse else ("fori", "scan", "while")
        kind = self.one_of(kinds)
        carry = self.carried(names, made)
        parameters, results = [self.new(name[0]) for name in carry], [name[0] for name in carry]
        trips: int | str = self.whole(1, MOST_TRIPS)
        if kind == "while" or (kind == "fori" and not reverse and self.draw(st.booleans())):
            trips = self.variable(names, "i", made)
        depends = isinstance(trips, str)
        inner = place.inside(
            uniform=place.uniform and not depends,
            branching=place.branching or (depends and place.batched),
            looped=place.looped or reverse,
        )
        sliced = ""
        if kind == "scan":
            if self.draw(st.booleans()):
                sliced = self.variable(names, "v", made)
                parameters, results = [*parameters, self.new("f")], [*results, "f"]
        else:
            parameters = [self.new("i"), *parameters]
        condition = None
        if kind == "while" and self.draw(st.booleans()):
            asked = [self.new(name[0]) for name in parameters]
            condition = self.block(asked, names, "i", inner)
        body = self.block(parameters, names, results, inner, least=1)
        targets = [self.new(name[0]) for name in carry] + ([self.new("v")] if sliced else [])
        return Loop(tuple(targets), kind, trips, carry, body, condition, sliced)

    def branch(self, names: list[str], made: list[Statement], place: Place) -> Statement:
        on, operands = self.variable(names, "i", made), self.carried(names, made)
        results = self.one_of(("f", "v", "fi"))
        inner = place.inside(uniform=False, branching=place.branching or place.batched)
        branches = tuple(
            self.block([self.new(name[0]) for name in operands], names, results, inner)
            for _ in range(self.one_of((2, 2, 3)))
        )
        return Branch(tuple(self.new(type_) for type_ in results), on, operands, branches)

    def wrapped(self, names: list[str], made: list[Statement], place: Place) -> Statement:
        kinds = ["jit", "custom_jvp"]
        # How often a checkpoint runs for derivatives of derivatives is not promised.
        kinds += ["checkpoint"] if len(place.derivatives) < MOST_DERIVATIVES else []
        # JAX refuses forward mode of a custom_vjp.
        kinds += [] if "jvp" in place.derivatives else ["custom_vjp"]
        kinds += ["vmap"] * 4 if place.vmaps < MOST_VMAPS else []
        kinds += (
            ["grad", "grad", "jvp", "jvp"]
            if len(place.derivatives) < MOST_DERIVATIVES and not place.checkpointed
            else []
        )
        kind = self.one_of(kinds)
        if kind in ("custom_jvp", "custom_vjp"):
            return self.custom(kind, names, made, place)
        inner = place.inside(uniform=place.uniform and kind != "checkpoint")
        if kind in ("grad", "jvp"):
            operand = self.variable(names, self.one_of("fv"), made)
            operands: tuple[str, ...] = (operand, *self.carried(names, made))
            results = "f" if kind == "grad" else self.one_of("fv")
            targets = [results, operand[0] if kind == "grad" else results]
            inner = replace(inner, derivatives=(*place.derivatives, kind), checkpointed=False)
        elif kind == "vmap":
            operands = (self.variable(names, "v", made), *self.carried(names, made))
            results = self.one_of(("f", "ff"))
            targets = ["v" for _ in results]
            inner = replace(inner, vmaps=place.vmaps + 1)
        else:
            operands, results = self.carried(names, made), self.one_of(("f", "v", "fi"))
            targets = list(results)
            inner = replace(inner, checkpointed=place.checkpointed or kind == "checkpoint")
        parameters = [self.new("f" if kind == "vmap" and name[0] == "v" else name[0]) for name in operands]
        body = self.block(parameters, (), results, inner, least=1)
        if kind == "jvp":
            operands = (*operands, self.variable(names, operands[0][0], made))
        return Wrapped(tuple(self.new(type_) for type_ in targets), kind, operands, body)

    def custom(self, kind: str, names: list[str], made: list[Statement], place: Place) -> Statement:
        operand = self.variable(names, self.one_of("fv"), made)
        type_ = operand[0]
        inner = place.inside(uniform=False)
        body = self.block([self.new(type_)], (), type_, inner)
        kept, slope = self.new(type_), self.new(type_)
        if kind == "custom_vjp":
            # Not by its own derivative, but by those around it. What it computes may depend on anything.
            within = replace(inner, derivatives=place.derivatives[:-1], depth=max(inner.depth, DEEPEST - 1))
            rule = self.block([kept, slope], (), type_, replace(within, branching=place.branching))
            # Zero for zero: JAX may run no rule for a cotangent that it knows to be zero.
            times = Compute(self.new(type_), "multiply" if type_ == "f" else "multiply_vectors", (*rule.results, slope))
            rule = replace(rule, statements=(*rule.statements, times), results=(times.target,))
            return Wrapped((self.new(type_),), kind, (operand,), body, rule)
        statements: list[Statement] = []
        kinds = [one for one in self.kinds if one in ("id_tap", "debug_callback") and self.fits(one, inner)]
        if kinds and self.draw(st.booleans()):
            statements.append(replace(self.callback(self.one_of(kinds), (kept,), []), operands=(kept,)))
        result = slope
        # Transposed, it cannot tell its device.
        if "id_tap" in self.kinds and not self.apart and self.draw(st.booleans()):
            tap = self.callback("id_tap", (slope,), [])
            tap = replace(tap, target=self.new(type_), operands=(slope,))
            statements.append(tap)
            result = tap.target
        if self.draw(st.booleans()):
            factor = Compute(self.new(type_), self.one_of(("triple", "negative")), (result,))
            statements.append(factor)
            result = factor.target
        return Wrapped((self.new(type_),), kind, (operand,), body, Block((kept, slope), tuple(statements), (result,)))


def _fits(kind: str, place: Place) -> bool:
    """Whether a callback promises to work in a place; in all others it is refused."""
    if kind == "io_callback_ordered" and place.batched:
        return False
    if kind in EXACTLY_ONCE:
        return not (place.batched and place.branching) and not (place.derivatives and place.checkpointed)
    return True


@st.composite
def programs(draw: Any, most_devices: int, kinds: Sequence[str] = KINDS, layouts: Sequence[str] = LAYOUTS) -> Program:
    """A program for at most so many devices, with callbacks of these kinds.

    Without hostcb's own kinds there are none in an order on several devices, since JAX refuses them there, and none
    with an effect in a loop that is differentiated, where JAX loses some.
    """
    drawer = Drawer(draw, kinds)
    several = most_devices > 1
    layout = drawer.one_of([one for one in layouts if several or one in ON_ONE_DEVICE])
    counts = (1,) if layout in ON_ONE_DEVICE else tuple(count for count in (2, 4) if count <= most_devices)
    devices = drawer.one_of(counts)
    drawer.own = bool(set(kinds) & set(OWN_KINDS))
    if devices > 1 and not drawer.own:
        drawer.kinds = [one for one in kinds if one not in ORDERED_KINDS]
    if layout == "mesh":
        # The compiler cannot place their effect.
        drawer.kinds = [one for one in drawer.kinds if one not in EFFECTS_ON_BUFFERS]
    drawer.apart = layout in ON_EACH_DEVICE
    inputs = tuple(
        Input(drawer.new(type_), drawer.whole(-3, MODULUS - 1), layout != "eager" and draw(st.booleans()))
        for type_ in ("f", "v", "i")
    )
    place = Place(uniform=layout in ON_EACH_DEVICE)
    body = drawer.block([one.name for one in inputs], (), draw(st.sampled_from(("f", "fv", "fvi", ""))), place, least=1)
    return Program(layout, devices, inputs, body)
