"""JAX's modules, shardings and lowering rules, and the functions of the lowering that hostcb wraps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .held_functions import refuse_inside
from .registry import Cost, Entry, called_with, private, with_parameters

_NO_LOWERING = "hostcb cannot lower a callback."
_NO_PLACE = "A callback could run on another device than the one that was asked for, or on several."

_for_lowering = functools.partial(private, without=_NO_LOWERING, promises=("H1", "X1"), cost=Cost.ALL)
_MODULE_CONTEXT = _for_lowering(
    "jax.interpreters.mlir:ModuleContext",
    "The module that a program is lowered to, and the handlers that it keeps.",
    attributes=("axis_context", "platforms", "host_callbacks", "keepalives"),
    methods={"add_keepalive": called_with(2)},
)
_ADD_HOST_CALLBACK = private(
    "jax.interpreters.mlir:ModuleContext.add_host_callback",
    "Hands a handler to the module, and lists which callbacks of JAX's own a program has.",
    _NO_LOWERING,
    ("H1", "H13", "X1"),
    Cost.ALL,
    called_with(2),
)
_MEMORY = private(
    "jax.interpreters.mlir:ModuleContext.cached_primitive_lowerings",
    "Remembers what is common to the callbacks of a module while it is lowered.",
    "Large programs are lowered more slowly, and a barrier_wait inside of a callback of JAX's own may wait for ever in "
    "place of raising an error.",
    ("H13", "D3"),
    Cost.COMFORT,
)
_MODULE = private(
    "jax.interpreters.mlir:ModuleContext.module",
    "Names the program of a callback in traces.",
    "Traces do not say to which program a callback belongs.",
    ("H22",),
    Cost.COMFORT,
)
_RULE_CONTEXT = _for_lowering(
    "jax.interpreters.mlir:LoweringRuleContext",
    "Types, tokens and place of the callback that is lowered.",
    attributes=("module_context", "primitive", "name_stack", "avals_in", "avals_out", "tokens_in", "tokens_out"),
    methods={
        "replace": called_with(1, "avals_in", "avals_out", "tokens_in", "tokens_out"),
        "set_tokens_out": called_with(2),
    },
)
_TRACEBACK = private(
    "jax.interpreters.mlir:LoweringRuleContext.traceback",
    "Tells the line of the program that calls back.",
    "The error of a callback whose function is another package's, such as NumPy's, names the file of that package.",
    ("H32",),
    Cost.COMFORT,
)
_TOKENS = private(
    "jax.interpreters.mlir:TokenSet",
    "The tokens by which ordered callbacks keep their order.",
    "Ordered callbacks have no token, so they have no order.",
    ("H5",),
    Cost.EFFECTS,
    called_with(1),
    methods={"get": called_with(2), "update_tokens": called_with(2)},
)
_SHARDING_CONTEXT = private(
    "jax.interpreters.mlir:ShardingContext",
    "The devices that the compiler spreads a program over.",
    _NO_PLACE,
    ("H10", "X5"),
    Cost.ALL,
    attributes=("num_devices", "device_assignment"),
)
_SPMD_CONTEXT = private(
    "jax.interpreters.mlir:SPMDAxisContext",
    "The mesh of a shard_map or pmap, and its manual axes.",
    _NO_PLACE,
    ("H9", "X4"),
    Cost.ALL,
    attributes=("mesh", "manual_axes"),
)
_for_placement = functools.partial(private, without=_NO_PLACE, promises=("H9", "H10"), cost=Cost.SOME)
_SET_SHARDING = _for_placement(
    "jax._src.interpreters.mlir:set_sharding", "Places a callback on a device.", signature=called_with(3)
)
_SDY_ARRAY = _for_placement(
    "jax._src.sharding_impls:SdyArray",
    "The placement for Shardy.",
    signature=called_with(0, "mesh_shape", "dim_shardings", "logical_device_ids"),
)
_SDY_ARRAYS = _for_placement(
    "jax._src.sharding_impls:SdyArrayList", "The placement of several results for Shardy.", signature=called_with(1)
)
_SDY_DIM = _for_placement(
    "jax._src.sharding_impls:SdyDim",
    "The placement of one dimension for Shardy.",
    signature=called_with(0, "axes", "is_open"),
)
_OP_SHARDING = _for_placement(
    "jax._src.lib:xla_client.OpSharding",
    "The placement for GSPMD.",
    attributes=("Type", "type", "tile_assignment_dimensions", "tile_assignment_devices"),
)
_NEEDS_DEVICES = private(
    "jax._src.dispatch:prim_requires_devices_during_lowering",
    "Tells the devices of a program to a callback with sharding=.",
    _NO_PLACE,
    ("X5",),
    Cost.SOME,
    methods={"add": called_with(1)},
)
_LOWER_FUNCTION = private(
    "jax._src.interpreters.mlir:lower_jaxpr_to_fun",
    "Counts the tokens of programs with memory kinds.",
    "JAX refuses to lower programs that have ordered callbacks and memory kinds.",
    ("H4",),
    Cost.SOME,
    with_parameters("ctx", "name", "jaxpr", "effects", "result_memory_kinds", "propagated_out_mem_kinds"),
)
_SHARD_MAP = private(
    "jax._src.shard_map:shard_map_p",
    "Avoids bugs of XLA in a shard_map with ordered callbacks.",
    "XLA could run an ordered callback in a shard_map too often, or end the process.",
    ("H9",),
    Cost.SOME,
)
_LOWER_SHARD_MAP = private(
    "jax._src.shard_map:_shard_map_lowering",
    "Does the same.",
    _SHARD_MAP.without,
    ("H9",),
    Cost.SOME,
    called_with(1, "jaxpr", "mesh", "in_specs", "out_specs", "check_vma", "newly_manual_axes"),
)
_BUILD_MODULE = private(
    "jax._src.interpreters.mlir:build_mlir_module_helper",
    "Refuses callbacks in the parts of a custom_partitioning, whose handlers JAX drops.",
    "A callback in a function with custom_partitioning could end the process.",
    ("X4",),
    Cost.SOME,
    called_with(1, "name", "platforms", "backend", "axis_context"),
)
_LOWER_MODULE = private(
    "jax._src.interpreters.mlir:lower_jaxpr_to_module",
    "Gives programs of unordered callbacks a token, which tells the end of an execution.",
    "JAX dispatches programs of unordered callbacks in Python, in five times the time.",
    ("D3",),
    Cost.COMFORT,
    with_parameters("module_name", "jaxpr", "ordered_effects", "platforms", "in_layouts", "out_layouts"),
)
_COMPILE = private(
    "jax._src.interpreters.pxla:UnloadedMeshExecutable.from_hlo",
    "Compiles programs with unordered callbacks without a part of XLA that contradicts itself.",
    "XLA's compiler for CPU may refuse a program that returns one array and calls back without an order.",
    ("H4", "X3", "X4"),
    Cost.COMFORT,
    with_parameters("name", "hlo", "unordered_effects", "keepalive", "backend", "compiler_options_kvs"),
)


def memory_of(module_context: Any) -> dict[Any, Any]:
    """A dictionary that lives as long as the lowering of a module, so that equal parts are lowered once."""
    return module_context.cached_primitive_lowerings if _MEMORY.holds else {}


def frames_of(context: Any) -> list[tuple[str, int]]:
    """Return the file and the line of each frame in which a lowered equation was traced, the innermost first."""
    if not _TRACEBACK.holds or context.traceback is None:
        return []
    return [(frame.file_name, frame.line_num) for frame in context.traceback.frames]


def module_name(module_context: Any) -> str:
    """Return the name of the module that JAX is lowering, such as `jit_step`; empty if it is not known."""
    if not _MODULE.holds:
        return ""
    attributes = module_context.module.operation.attributes
    return str(attributes["sym_name"].value) if "sym_name" in attributes else ""


def client_of(module_context: Any) -> Any:
    """The runtime's client that a module is lowered for; None if this JAX does not say, which then has one for CPU."""
    return getattr(module_context, "backend", None)


def wrap_host_callbacks(wrap: Callable[[Any, Any], Any]) -> Callable[[Any, Any], None]:
    """Replace each Python callback that JAX or a library adds to a module, during its lowering, by `wrap`'s result.

    `wrap` gets the module's context and the callback. The returned function adds a callback without `wrap`.
    """
    if _ADD_HOST_CALLBACK.lost:
        return _no_host_callbacks
    plain = _ADD_HOST_CALLBACK.value

    def add(self: Any, host_callback: Any, *others: Any, **named: Any) -> Any:
        return plain(self, wrap(self, host_callback), *others, **named)

    _ADD_HOST_CALLBACK.put(add)
    return plain


def _no_host_callbacks(module_context: Any, callback: Any) -> None:
    raise _ADD_HOST_CALLBACK.refusal("a host callback")


def annotate(module_context: Any, op: Any, sharding: Any) -> None:
    if _SET_SHARDING.lost:
        raise _SET_SHARDING.refusal("a host callback on several devices")
    _SET_SHARDING.value(module_context, op, sharding)


def one_device_sharding(index: int, results: int) -> Any:
    """All `results` of an op on device number `index` of the device assignment."""
    if uses_shardy():
        array = _made(_SDY_ARRAY, mesh_shape=(), dim_shardings=(), logical_device_ids=(index,))
        return _made(_SDY_ARRAYS, (array,) * max(1, results))
    sharding = _made(_OP_SHARDING)
    sharding.type = type(sharding).Type.MAXIMAL
    sharding.tile_assignment_dimensions = [1]
    sharding.tile_assignment_devices = [index]
    return sharding


def whole_sharding(ranks: Sequence[int], manual: bool) -> Any:
    """A sharding with the whole of each result on every device: replicated, or `manual`, where the devices differ.

    An operation without results has the sharding of one: with none, it has no sharding when it reaches the partitioner.
    """
    if uses_shardy():
        closed = _made(_SDY_DIM, axes=(), is_open=False)
        arrays = [
            _made(_SDY_ARRAY, mesh_shape=(), dim_shardings=(closed,) * rank, logical_device_ids=())
            for rank in ranks or (0,)
        ]
        return _made(_SDY_ARRAYS, tuple(arrays))
    sharding = _made(_OP_SHARDING)
    types = type(sharding).Type
    sharding.type = types.MANUAL if manual else types.REPLICATED
    return sharding


def _made(entry: Entry, *args: Any, **kwargs: Any) -> Any:
    if entry.lost:
        raise entry.refusal("a host callback on several devices")
    return entry.value(*args, **kwargs)


def uses_shardy() -> bool:
    """Whether Shardy partitions programs over devices; otherwise GSPMD does."""
    return bool(jax.config.jax_use_shardy_partitioner)


# The compiler aborts on a token in a computation that is manual over some axes only. JAX 0.10.2 and 0.11.0 have this
# bug, 0.11.2 does not.
ABORTS_ON_TOKEN_IN_PART = jax.__version_info__ < (0, 11, 2)
# The runtime does not report the layouts of a program with a token, and takes all its results for those of the default
# layout: the elements arrive in a wrong order. JAX 0.10.2 has this bug, 0.11.0 does not.
IGNORES_LAYOUTS_BESIDE_TOKEN = jax.__version_info__ < (0, 11)


def require_devices(primitive: Any) -> None:
    """Let lowering rules of `primitive` see the devices that the program will run on."""
    if _NEEDS_DEVICES.holds:
        _NEEDS_DEVICES.value.add(primitive)


def check_devices_are_told(subject: Any) -> None:
    """Refuse `subject`, a callback with `sharding=`, if lowering rules cannot see the devices."""
    if _NEEDS_DEVICES.lost:
        raise _NEEDS_DEVICES.refusal(subject)


def lower_function() -> Callable[..., Any] | None:
    """JAX's function that lowers a jaxpr to an MLIR function, for `_workarounds`; None if hostcb does not know it."""
    return _LOWER_FUNCTION.value


def replace_lower_function(function: Callable[..., Any]) -> None:
    """Let JAX lower with `function`."""
    _LOWER_FUNCTION.put(function)


shard_map_p = _SHARD_MAP.value
# JAX's own rule, for `_workarounds`; None if hostcb does not know this JAX's rule.
lower_shard_map = _LOWER_SHARD_MAP.value


def check_shard_map(subject: Any) -> None:
    """Refuse `subject`, an ordered callback in a `shard_map`, if hostcb cannot avoid XLA's bugs there."""
    for entry in (_SHARD_MAP, _LOWER_SHARD_MAP):
        if entry.lost:
            raise entry.refusal(subject)


def before_modules_apart(check: Callable[[Any], None]) -> None:
    """Call `check` with each closed jaxpr that JAX lowers to a separate module, whose handlers it drops."""
    if _BUILD_MODULE.lost:
        refuse_inside("custom_partitioning", _BUILD_MODULE)
        return
    plain = _BUILD_MODULE.value

    def build(closed_jaxpr: Any, *args: Any, **kwargs: Any) -> Any:
        check(closed_jaxpr)
        return plain(closed_jaxpr, *args, **kwargs)

    _BUILD_MODULE.put(build)


def give_programs_a_token(effect: Any, harmless: Sequence[type], ordered: Any) -> None:
    """Lower programs for CPUs whose effects are all of the classes `harmless` as if they had `effect`, an ordered one.

    JAX then gives them a token operand and a token result. No equation has the effect, so the callbacks have no order.
    A program with layouts of its own gets none, and is refused if it has the effect `ordered`, where JAX ignores them.
    """
    if _LOWER_MODULE.lost:
        return
    plain = _LOWER_MODULE.value

    def lower(module_name: Any, jaxpr: Any, *args: Any, **named: Any) -> Any:
        effects, ordered_effects = jaxpr.effects, named.get("ordered_effects")
        layouts = (*(named.get("in_layouts") or ()), *(named.get("out_layouts") or ()))
        if IGNORES_LAYOUTS_BESIDE_TOKEN and not all(map(_is_default_layout, layouts)):
            if ordered in effects:
                raise NotImplementedError(
                    f"{module_name} has callbacks that keep an order, and operands or results with a layout of their "
                    f"own: JAX {jax.__version__} mistakes the layouts of such a program. Use default layouts, a newer "
                    "JAX, or callbacks that keep no order."
                )
            return plain(module_name, jaxpr, *args, **named)
        on_cpus = tuple(named.get("platforms", ())) == ("cpu",) and jax.process_count() == 1
        if on_cpus and ordered_effects == [] and effects and all(isinstance(each, tuple(harmless)) for each in effects):
            # JAX hands the same list to the executable. If a JAX does not, the runtime refuses to run the program.
            ordered_effects.append(effect)
        return plain(module_name, jaxpr, *args, **named)

    _LOWER_MODULE.put(lower)


def _is_default_layout(layout: Any) -> bool:
    """Return whether an operand or a result has the layout that it has anyway; JAX names that of a mutable array."""
    if layout is None:
        return True
    axes = getattr(layout, "major_to_minor", None)
    return axes is not None and list(axes) == sorted(axes) and not getattr(layout, "tiling", None)


def compile_with(options_for: Callable[[Any, Sequence[Any]], dict[str, str]]) -> None:
    """Compile programs with unordered effects on CPU with more options: those that `options_for` returns.

    It gets a program's module and what JAX keeps alive for it. The user's own compiler options come before.
    """
    if _COMPILE.lost:
        return
    plain = _COMPILE.value

    def compiled(name: str, hlo: Any, **params: Any) -> Any:
        added = {}
        if params["unordered_effects"] and getattr(params["backend"], "platform", None) == "cpu":
            added = options_for(hlo, params["keepalive"])
        options = params["compiler_options_kvs"]
        more = tuple((option, value) for option, value in added.items() if option not in dict(options))
        if not more:
            return plain(name, hlo, **params)
        try:
            return plain(name, hlo, **{**params, "compiler_options_kvs": (*options, *more)})
        except jax.errors.JaxRuntimeError as error:
            if not any(option in str(error) for option, _ in more):
                raise
        # This jaxlib does not have the option, or not with that value.
        return plain(name, hlo, **params)

    _COMPILE.put(compiled)
