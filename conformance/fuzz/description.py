"""A random program as plain data: what is drawn, shrunk, kept in the corpus and printed as source.

A variable's type is the first letter of its name: `f` is a float32 scalar, `v` a float32 vector of four, `i` an int32
scalar. Each name is bound once. All numbers are whole and small, so that every sum is exact in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

WIDTH = 4
"""The length of a vector: the number of lanes of a vmap, and of steps of a scan over a vector."""

MODULUS = 16
"""Every computed number is smaller than this, but for derivatives."""

MOST_TRIPS = 3
"""The most steps of a loop whose trip count depends on data."""

LAYOUTS = ("jit", "eager", "mesh", "pmap", "shard_map")
"""How the program runs: `mesh` is one computation over several devices."""

ON_ONE_DEVICE = ("jit", "eager")
ON_EACH_DEVICE = ("pmap", "shard_map")

ORDERED_KINDS = (
    "id_tap",
    "id_print",
    "call",
    "io_callback_ordered",
    "debug_callback_ordered",
    "debug_print_ordered",
)
EFFECTS_ON_BUFFERS = ("buffer_callback_side_effect", "dlpack_callback_side_effect")
UNORDERED_KINDS = ("io_callback", "debug_callback", "debug_print", *EFFECTS_ON_BUFFERS)
PURE_KINDS = ("pure_callback", "buffer_callback", "dlpack_callback")
KINDS = (*ORDERED_KINDS, *UNORDERED_KINDS, *PURE_KINDS)
"""The callbacks of programs; each is the name of a callback of `spec`."""

OWN_KINDS = ("id_tap", "id_print", "call", "dlpack_callback", "dlpack_callback_side_effect")
"""Those that JAX has not."""

EXACTLY_ONCE = ("io_callback", "io_callback_ordered", *EFFECTS_ON_BUFFERS)
"""Kinds that are refused where JAX could not run them exactly once."""

WITH_RESULTS = ("call", *EXACTLY_ONCE, *PURE_KINDS)
BATCHABLE = ("call", *EFFECTS_ON_BUFFERS, *PURE_KINDS)
"""Kinds with a `vmap_method`."""

TOLD = ("id_tap", "id_print")
"""Kinds that run once for all lanes, and are told of each vmap."""

PASS_DERIVATIVES = (
    "id_tap",
    "id_print",
    "debug_callback",
    "debug_callback_ordered",
    "debug_print",
    "debug_print_ordered",
)
"""The others refuse a differentiated value."""


@dataclass(frozen=True)
class Compute:
    """`target = operation(*operands)`; `source.OPERATIONS` has the operations."""

    target: str
    operation: str
    operands: tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """A callback. The host gets the number of the device and the operands as a tree."""

    target: str
    label: int
    kind: str
    operands: tuple[str, ...]
    tree: str
    """`tuple`, `list` or `dict`."""
    vmap_method: str = "sequential"


@dataclass(frozen=True)
class Block:
    """The body of a function: of a loop, of a branch, of a rule."""

    parameters: tuple[str, ...]
    statements: tuple[Statement, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Loop:
    """`fori`, `scan` or `while`. The first parameter of a `fori`'s or `while`'s body is the number of the step."""

    targets: tuple[str, ...]
    kind: str
    trips: int | str
    """The number of steps, or the variable that it depends on."""
    carry: tuple[str, ...]
    body: Block
    condition: Block | None = None
    """Of a `while`: it goes on while the result is positive, and for as many trips at most."""
    sliced: str = ""
    """Of a `scan`: the vector that it runs over.

    The body's last parameter is the element, and its last result is stacked.
    """


@dataclass(frozen=True)
class Branch:
    """`cond` with two branches, of which the second is for positive numbers, or `switch` with three."""

    targets: tuple[str, ...]
    on: str
    operands: tuple[str, ...]
    branches: tuple[Block, ...]


@dataclass(frozen=True)
class Wrapped:
    """A function under `jit`, `checkpoint`, `vmap`, `grad`, `jvp`, `custom_jvp` or `custom_vjp`, and its call.

    `vmap` runs over its vectors. `grad` gives the value and the derivative by the first operand. `jvp` gives the value
    and the derivative by the first operand along the last, which the function does not get. A custom derivative
    has one operand. The rule of a `custom_vjp` gets the operand and the cotangent and returns the operand's
    cotangent; that of a `custom_jvp` gets the operand and the tangent and returns the tangent, which it may only tap
    and scale.
    """

    targets: tuple[str, ...]
    kind: str
    operands: tuple[str, ...]
    body: Block
    rule: Block | None = None


@dataclass(frozen=True)
class Collective:
    """`psum`, `all_gather` (and the sum over devices of number times part) or `ppermute` of a value of each device."""

    target: str
    operation: str
    operand: str


Statement: TypeAlias = Compute | Call | Loop | Branch | Wrapped | Collective


@dataclass(frozen=True)
class Input:
    name: str
    value: int
    donated: bool = False


@dataclass(frozen=True)
class Program:
    layout: str
    devices: int
    inputs: tuple[Input, ...]
    body: Block
    """Its parameters are the inputs."""


_CLASSES = {each.__name__: each for each in (Compute, Call, Block, Loop, Branch, Wrapped, Collective, Input, Program)}


def to_json(value: Any) -> Any:
    if type(value).__name__ in _CLASSES:
        return {"is": type(value).__name__} | {one.name: to_json(getattr(value, one.name)) for one in fields(value)}
    return [to_json(one) for one in value] if isinstance(value, tuple) else value


def from_json(data: Any) -> Any:
    if isinstance(data, dict):
        values = {name: from_json(value) for name, value in data.items() if name != "is"}
        return _CLASSES[data["is"]](**values)
    return tuple(from_json(one) for one in data) if isinstance(data, list) else data


def statements_of(block: Block) -> Iterator[Statement]:
    """All statements, those of inner blocks after the statement that has them."""
    for statement in block.statements:
        yield statement
        inner: tuple[Block | None, ...] = ()
        if isinstance(statement, Loop):
            inner = (statement.body, statement.condition)
        elif isinstance(statement, Branch):
            inner = statement.branches
        elif isinstance(statement, Wrapped):
            inner = (statement.body, statement.rule)
        for one in inner:
            if one is not None:
                yield from statements_of(one)


def calls_of(program: Program) -> dict[int, Call]:
    """The callbacks of a program by their labels."""
    return {one.label: one for one in statements_of(program.body) if isinstance(one, Call)}
