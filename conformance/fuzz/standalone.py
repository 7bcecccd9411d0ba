"""A finding as a program of its own: plain JAX and hostcb, or JAX alone, with what must come written into it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from ..oracle import literals
from . import printed
from .description import KINDS, ON_EACH_DEVICE, PURE_KINDS, UNORDERED_KINDS, Program, calls_of
from .expected import Expected
from .inputs import inputs_of
from .judging import JUDGING
from .matching import ONE_ORDER, ORDERS_OF_JAX
from .source import VALUE_AND_JVP, function_of

_PREAMBLE = '''\
"""{title}"""

import ast
import contextlib
import functools
import itertools
import os
import re
import sys
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count={devices}")

import numpy as np

{imports}
import jax
import jax.numpy as jnp
from jax import checkpoint, custom_jvp, custom_vjp, jit, lax, value_and_grad, vmap
from jax.numpy import float32, int32
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

events = []


def host(label, answers, operand, transforms=None):
    where, tree = operand
    leaves = [np.array(leaf) for leaf in jax.tree.leaves(tree)]
    # A tap of cotangents has no value for an integer.
    device = 0 if where.dtype == jax.dtypes.float0 else int(np.ravel(where)[0])
    events.append((label, device, leaves, transforms))
    if answers:
        of_type = leaves[0].dtype.type
        return np.asarray(np.fmod(leaves[0] * of_type(label % 3 + 1) + of_type(label % 5), of_type(16)))


def wanted(tree):
    first = jax.tree.leaves(tree)[0]
    return jax.ShapeDtypeStruct(jnp.shape(first), first.dtype)


def first_of(tree):
    return jax.tree.leaves(tree)[0]


'''

_KINDS = {
    "id_tap": """\
def id_tap(label, where, tree, method):
    _, tapped = hostcb.id_tap(functools.partial(host, label, False), (where, tree))
    return first_of(tapped)
""",
    "id_print": """\
def id_print(label, where, tree, method):
    _, shown = hostcb.id_print((where, tree), what=label, output_stream=Stream(label, type(tree), len(tree)))
    return first_of(shown)


class Stream:
    def __init__(self, label, tree, count):
        self.label, self.tree, self.count = label, tree, count

    def write(self, text):
        heading, _, body = text.partition("\\n")
        found = re.search(r"transforms: (\\[.*\\])", heading)
        where, *leaves = values_of_id_print(body, self.tree, self.count)
        host(self.label, False, (where, leaves), literal(found[1]) if found else ())
""",
    "call": """\
def call(label, where, tree, method):
    function = functools.partial(host, label, True)
    return hostcb.call(function, (where, tree), result_shape=wanted(tree), vmap_method=method)
""",
    "pure_callback": """\
def pure_callback(label, where, tree, method):
    function = functools.partial(host, label, True)
    return LIBRARY.pure_callback(function, wanted(tree), (where, tree), vmap_method=method)
""",
    "io_callback": """\
def io_callback(label, where, tree, method):
    return IO.io_callback(functools.partial(host, label, True), wanted(tree), (where, tree))
""",
    "io_callback_ordered": """\
def io_callback_ordered(label, where, tree, method):
    return IO.io_callback(functools.partial(host, label, True), wanted(tree), (where, tree), ordered=True)
""",
    "debug_callback": """\
def debug_callback(label, where, tree, method):
    LIBRARY.debug.callback(functools.partial(host, label, False), (where, tree))
    return first_of(tree)
""",
    "debug_callback_ordered": """\
def debug_callback_ordered(label, where, tree, method):
    LIBRARY.debug.callback(functools.partial(host, label, False), (where, tree), ordered=True)
    return first_of(tree)
""",
    "debug_print": """\
def debug_print(label, where, tree, method):
    leaves = jax.tree.leaves((where, tree))
    LIBRARY.debug.print("program %s: %s" % (label, "; ".join("{}" for _ in leaves)), *leaves, ordered=False)
    return first_of(tree)
""",
    "debug_print_ordered": """\
def debug_print_ordered(label, where, tree, method):
    leaves = jax.tree.leaves((where, tree))
    LIBRARY.debug.print("program %s: %s" % (label, "; ".join("{}" for _ in leaves)), *leaves, ordered=True)
    return first_of(tree)
""",
    "buffer_callback": """\
def buffer_callback(label, where, tree, method, effect=False):
    def fill(context, out, operand):
        out, = jax.tree.leaves(out)
        np.asarray(out)[...] = host(label, True, jax.tree.map(lambda one: np.asarray(one).copy(), operand))

    return BUFFERS.buffer_callback(fill, wanted(tree), has_side_effect=effect, vmap_method=method)((where, tree))


buffer_callback_side_effect = functools.partial(buffer_callback, effect=True)
""",
    "dlpack_callback": """\
def dlpack_callback(label, where, tree, method, effect=False):
    def answer(operand):
        return host(label, True, jax.tree.map(lambda one: np.from_dlpack(one).copy(), operand))

    return hostcb.dlpack_callback(answer, wanted(tree), has_side_effect=effect, vmap_method=method)((where, tree))


dlpack_callback_side_effect = functools.partial(dlpack_callback, effect=True)
""",
}

_PRINTS = """\
class Output:
    def write(self, text):
        found = re.fullmatch(r"program (\\d+): (.*?)\\s*", text, re.DOTALL)
        if not found:
            return sys.__stdout__.write(text)
        where, *leaves = printed_values(found[2])
        host(int(found[1]), False, (where, leaves))
        return len(text)

    def flush(self):
        sys.__stdout__.flush()


sys.stdout = Output()
"""

_COLLECTIVES = """\
def psum(x):
    return wrap(lax.psum(x, "devices"))


def all_gather(x):
    every = lax.all_gather(x, "devices")
    return wrap(sum(every[place] * float32(place + 1) for place in range({devices})))


def ppermute(x):
    return lax.ppermute(x, "devices", [(place, (place + 1) % {devices}) for place in range({devices})])
"""


def standalone_text(program: Program, expected: Sequence[Expected], implementation: str, title: str) -> str:
    """The text of a program that fails while the finding is there, and imports nothing of the suite."""
    ours = implementation != "jax"
    calls = calls_of(program)
    kinds = [kind for kind in KINDS if any(one.kind == kind for one in calls.values())]
    imports = (
        "import hostcb\n"
        if ours
        else "from jax.experimental import buffer_callback as buffers\nimport jax.experimental\n"
    )
    library, io, buffers = ("hostcb", "hostcb", "hostcb") if ours else ("jax", "jax.experimental", "buffers")
    barrier = "hostcb.barrier_wait" if ours else "jax.effects_barrier"
    names = {"LIBRARY": library, "IO": io, "BUFFERS": buffers, "BARRIER": barrier}
    # Those with an effect are beside those without.
    helpers = "\n\n".join(_KINDS[kind] for kind in dict.fromkeys(kind.removesuffix("_side_effect") for kind in kinds))
    readers: list[Any] = [
        literals.literal,
        printed.printed_array,
        printed.Reader,
        printed.values_of_id_print,
        printed.printed_values,
    ]
    if prints := [kind for kind in kinds if "print" in kind]:
        patterns = (
            f"ATTEMPTS = {literals.ATTEMPTS}\n"
            f'BRACKETS = {{tuple: "()", list: "[]", dict: "{{}}"}}\nNUMBER = re.compile({printed.NUMBER.pattern!r})\n'
        )
        texts = [patterns, *(inspect.getsource(one) for one in readers)]
        helpers = "\n\n".join([*texts, helpers])
        if set(prints) - {"id_print"}:
            helpers += "\n\n" + _PRINTS
    orders = [
        tuple(label for label, one in sorted(calls.items()) if one.kind in order)
        for order in (ONE_ORDER if ours else ORDERS_OF_JAX)
    ]
    apart = program.layout in ON_EACH_DEVICE
    constants = [
        f"APART = {apart}",
        f"ORDERS = {orders}",
        f"ONCE = {tuple(label for label, one in sorted(calls.items()) if one.kind in UNORDERED_KINDS)}",
        f"PURE = {tuple(label for label, one in sorted(calls.items()) if one.kind in PURE_KINDS)}",
        f"RESULTS = {_literal([one.results for one in expected])}",
        f"CALLS = {_calls_literal(expected)}",
    ]
    for name, value in names.items():
        helpers = helpers.replace(name, value)
    judging = JUDGING.replace("BARRIER", barrier)
    head, of_array = judging.split("for runs in", 1)
    return "\n".join(
        [
            _PREAMBLE.format(title=title, devices=max(program.devices, 2), imports=imports),
            helpers,
            "",
            VALUE_AND_JVP,
            "",
            function_of(program),
            "",
            _COLLECTIVES.format(devices=program.devices) if apart else "",
            _compiled(program),
            "",
            head,
            *constants,
            "",
            f"for runs in{of_array}",
        ]
    )


def _compiled(program: Program) -> str:
    donated = tuple(place for place, one in enumerate(program.inputs, 1) if one.donated)
    count = program.devices if program.layout in ON_EACH_DEVICE else 1
    each = [inputs_of(program, device) for device in range(count)]
    rows = []
    for place, first in enumerate(each[0]):
        value = [row[place].tolist() for row in each] if program.layout in ON_EACH_DEVICE else first.tolist()
        rows.append(f"jnp.asarray({value}, {first.dtype})")
    lines = ["def operands():", "    return [" + ", ".join(rows) + "]", "", ""]
    mesh = f'mesh = Mesh(np.asarray(jax.devices()[:{program.devices}]), ("devices",))'
    if program.layout == "eager":
        lines.append("compiled = program")
    elif program.layout == "jit":
        lines.append(f"compiled = jit(program, donate_argnums={donated})")
    elif program.layout == "pmap":
        devices = f"jax.devices()[:{program.devices}]"
        lines.append(f'compiled = jax.pmap(program, axis_name="devices", devices={devices}, donate_argnums={donated})')
    elif program.layout == "mesh":
        specs = ["P()", *('P("devices")' if one.name[0] == "v" else "P()" for one in program.inputs)]
        shardings = ", ".join(f"NamedSharding(mesh, {spec})" for spec in specs)
        lines += [mesh, f"compiled = jit(program, in_shardings=({shardings}), donate_argnums={donated})"]
    else:
        lines += [
            mesh,
            "",
            "",
            "def of_shard(*operands):",
            "    return jax.tree.map(lambda one: one[None], program(*(one[0] for one in operands)))",
            "",
            "",
            'by_device = P("devices")',
            "mapped = jax.shard_map(of_shard, mesh=mesh, in_specs=by_device, out_specs=by_device, check_vma=False)",
            f"compiled = jit(mapped, donate_argnums={donated})",
        ]
    return "\n".join(lines)


def _literal(rows: Sequence[Sequence[object]]) -> str:
    return "[" + ", ".join("[" + ", ".join(map(_array, row)) + "]" for row in rows) + "]"


def _array(value: object) -> str:
    return f'array("{value.dtype}", {value.tolist()})'  # type: ignore[attr-defined]


def _calls_literal(expected: Sequence[Expected]) -> str:
    """Of each callback by device the label, the leaves, the axes for lanes, whether it is optional, and the group."""
    lines = ["["]
    for one in expected:
        lines.append("    [")
        for call in one.calls:
            leaves = ", ".join(map(_array, call.leaves[1:]))
            lines.append(f"        ({call.label}, [{leaves}], {call.lanes}, {call.optional}, {call.group}),")
        lines.append("    ],")
    return "\n".join([*lines, "]"])
