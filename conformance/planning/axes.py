"""The axes of the covering array, and the combinations of values without meaning, with their reasons."""

from __future__ import annotations

from collections.abc import Sequence

from ..implementations import callbacks_drawn_for
from ..model.programs import Program
from ..model.transforms import TRANSFORMS
from ..spec.callbacks import DeviceChoice, Runs
from ..spec.configurations import CONFIGURATIONS, JIT_DISABLED, PLACEMENTS, X64
from ..spec.data import ELEMENT_TYPES, REPRESENTATIVES, SHAPES, STRUCTURES, DataKind
from ..spec.external_callbacks import callback_named
from ..spec.topology import CPU_CONFIGURATIONS
from .covering import Constraint, Space
from .eligibility import MAPS, ineligible, meaningless
from .jax_limits import limit_of_copies, limit_of_devices, limit_of_element, limit_of_program, limit_of_signs

NONE = "none"
"""No second transform."""

AXES = ("callback", "outer", "inner", "placement", "devices", "configuration", "element", "shape", "structure")

MESHES = ("pjit", "shard_map")

# NumPy's `from_dlpack` does not take these, and the suite's host functions use NumPy.
_NOT_IN_DLPACK = ("int4", "bfloat16", "float8_e4m3fn")


OWN_WORKERS_DEVICES = "2"
"""A worker of its own costs seconds, so a configuration that needs one is tried on two devices, if there are two."""


def space_of(implementation: str, platform: str, device_counts: Sequence[int], full: bool = False) -> Space:
    """All axes for the callbacks of an implementation, on workers of one platform with these numbers of devices.

    They do not depend on the installed release: what it lacks is left out of the plan afterwards.
    """
    callbacks = callbacks_drawn_for(implementation)
    configurations = [name for name in CONFIGURATIONS if name not in CPU_CONFIGURATIONS or platform == "cpu"]
    values: dict[str, Sequence[str]] = {
        "callback": [callback.name for callback in callbacks],
        # No transform is outside of the outer one, so `detached` has no derivative to stop there.
        "outer": ["jit", *(name for name in TRANSFORMS if name not in ("jit", "detached"))],
        "inner": [NONE, *(name for name in TRANSFORMS if name != "eager")],
        "placement": list(PLACEMENTS),
        "devices": [str(count) for count in device_counts],
        "configuration": configurations,
        "element": list(ELEMENT_TYPES if full else REPRESENTATIVES),
        "shape": list(SHAPES),
        "structure": list(STRUCTURES),
    }
    constraints = list(constraints_of(implementation))
    if not full and OWN_WORKERS_DEVICES in values["devices"]:
        constraints.append(Constraint(("devices", "configuration"), _with_own_workers))
    return Space({axis: values[axis] for axis in AXES}, constraints)


def variant_reason(
    callback: str, names: Sequence[str], placement: str, devices: int, configuration: str, data: DataKind
) -> str | None:
    """The reason if a cell's data, placement or configuration has no meaning with its other parts; otherwise None."""
    row = {"callback": callback, "placement": placement, "devices": str(devices), "configuration": configuration}
    row |= {"element": data.element, "shape": data.shape, "structure": data.structure}
    if len(names) <= 2:
        row |= {"outer": names[0], "inner": names[1] if len(names) == 2 else NONE}
    applicable = (constraint for constraint in CONSTRAINTS if row.keys() >= set(constraint.axes))
    reasons = (constraint.reason(*(row[axis] for axis in constraint.axes)) for constraint in applicable)
    return next((reason for reason in reasons if reason), None)


def program_of(outer: str, inner: str) -> Program:
    return Program((outer,) if inner == NONE else (outer, inner))


def _program(callback: str, outer: str, inner: str) -> str | None:
    return ineligible(callback_named(callback), program_of(outer, inner), 1)


def _composition(outer: str, inner: str) -> str | None:
    return meaningless(program_of(outer, inner).names)


def _placement(placement: str, devices: str) -> str | None:
    needed = PLACEMENTS[placement].minimum
    return f"{placement} needs {needed} devices" if int(devices) < needed else None


def _grid(placement: str, outer: str, inner: str) -> str | None:
    if PLACEMENTS[placement].grid and outer not in MESHES and inner not in MESHES:
        return "a mesh of two axes only matters where there is a mesh"
    return None


def _with_own_workers(devices: str, configuration: str) -> str | None:
    if configuration in CPU_CONFIGURATIONS and devices != OWN_WORKERS_DEVICES:
        return f"{configuration} needs workers of its own and is tried on {OWN_WORKERS_DEVICES} devices, or --full"
    return None


def _wide(element: str, configuration: str) -> str | None:
    if ELEMENT_TYPES[element].wide and configuration != X64:
        return "elements of 64 bits need x64"
    return None


def _tells(callback: str, element: str, shape: str, structure: str) -> str | None:
    data = DataKind(element, shape, structure)
    if not data.tells_apart and callback_named(callback).runs is Runs.IF_NEEDED:
        return "what has no result but an empty one need not run"
    return None


def _printed(callback: str, structure: str) -> str | None:
    if _prints(callback) and structure != "one":
        return "what is printed is read back as one array"
    return None


def _printed_key(callback: str, element: str) -> str | None:
    if _prints(callback) and element == "typed_key":
        return "nothing says what is printed of a typed key"
    return None


def _buffers(callback: str, element: str) -> str | None:
    if callback_named(callback).function == "dlpack_callback" and element in _NOT_IN_DLPACK:
        return "NumPy has no such elements from DLPack"
    if callback_named(callback).function == "buffer_callback" and element == "int4":
        return "less than a byte is packed in device memory, where no host array can describe it"
    return None


def _empty_shards(callback: str, shape: str) -> str | None:
    if callback_named(callback).partitioned and shape == "empty":
        return "how what is empty is split over a mesh is the partitioner's affair"
    return None


def _prints(callback: str) -> bool:
    one = callback_named(callback)
    return any(part.prints for part in (one, *one.parts))


def _without_jit(configuration: str, outer: str, inner: str) -> str | None:
    if configuration == JIT_DISABLED and {outer, inner} & {"pmap", "pjit", "shard_map"}:
        return "without jit no computation spans several devices"
    return None


def _inside_of_maps(callback: str, outer: str, inner: str) -> str | None:
    one = callback_named(callback)
    if (one.partitioned or one.device_choice is DeviceChoice.LAST) and {outer, inner} & set(MAPS):
        return "inside of a map over devices every device calls back by itself"
    return None


CONSTRAINTS = (
    Constraint(("configuration", "outer", "inner"), _without_jit),
    Constraint(("outer", "inner"), _composition),
    Constraint(("callback", "outer", "inner"), _program),
    Constraint(("callback", "outer", "inner"), _inside_of_maps),
    Constraint(("placement", "devices"), _placement),
    Constraint(("placement", "outer", "inner"), _grid),
    Constraint(("element", "configuration"), _wide),
    Constraint(("callback", "structure"), _printed),
    Constraint(("callback", "element"), _printed_key),
    Constraint(("callback", "element"), _buffers),
    Constraint(("callback", "shape"), _empty_shards),
    Constraint(("callback", "element", "shape", "structure"), _tells),
)


def _jax_callback(callback: str) -> str | None:
    # The limit of a mixture does not depend on the program.
    return limit_of_program(callback_named(callback), ()) if callback_named(callback).parts else None


def _jax_program(callback: str, outer: str, inner: str) -> str | None:
    return limit_of_program(callback_named(callback), program_of(outer, inner).names)


def _jax_devices(callback: str, outer: str, inner: str, placement: str, devices: str) -> str | None:
    names = program_of(outer, inner).names
    return limit_of_devices(callback_named(callback), names, PLACEMENTS[placement].count(int(devices)))


def _jax_element(callback: str, element: str) -> str | None:
    return limit_of_element(callback_named(callback), element)


def _jax_copies(outer: str, inner: str, placement: str, devices: str, element: str, shape: str) -> str | None:
    count = PLACEMENTS[placement].count(int(devices))
    return limit_of_copies(program_of(outer, inner).names, count, element, shape)


def _jax_signs(
    callback: str, outer: str, inner: str, placement: str, devices: str, element: str, shape: str
) -> str | None:
    count = PLACEMENTS[placement].count(int(devices))
    return limit_of_signs(callback_named(callback), program_of(outer, inner).names, count, DataKind(element, shape))


_OF_JAX = (
    Constraint(("outer", "inner", "placement", "devices", "element", "shape"), _jax_copies),
    Constraint(("callback",), _jax_callback),
    Constraint(("callback", "outer", "inner"), _jax_program),
    Constraint(("callback", "outer", "inner", "placement", "devices"), _jax_devices),
    Constraint(("callback", "element"), _jax_element),
    Constraint(("callback", "outer", "inner", "placement", "devices", "element", "shape"), _jax_signs),
)
"""Constraints for JAX's own callbacks alone."""


def constraints_of(implementation: str) -> tuple[Constraint, ...]:
    return (*CONSTRAINTS, *_OF_JAX) if implementation == "jax" else CONSTRAINTS
