"""The axes of the covering array, and the combinations of values without meaning, with their reasons."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

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
    constraints = [*CONSTRAINTS, *(_OF_JAX if implementation == "jax" else ())]
    if not full and OWN_WORKERS_DEVICES in values["devices"]:
        constraints.append(_if(_with_own_workers))
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


def _placement(placement: str, devices: str) -> str | None:
    needed = PLACEMENTS[placement].minimum
    return f"{placement} needs {needed} devices" if int(devices) < needed else None


def _with_own_workers(devices: str, configuration: str) -> str | None:
    if configuration in CPU_CONFIGURATIONS and devices != OWN_WORKERS_DEVICES:
        return f"{configuration} needs workers of its own and is tried on {OWN_WORKERS_DEVICES} devices, or --full"
    return None


def _prints(callback: str) -> bool:
    one = callback_named(callback)
    return any(part.prints for part in (one, *one.parts))


def _placed(callback: str) -> bool:
    one = callback_named(callback)
    return one.partitioned or one.device_choice is DeviceChoice.LAST


def _if(reason: Callable[..., str | None]) -> Constraint:
    """A constraint on the axes that the parameters name."""
    return Constraint(tuple(inspect.signature(reason).parameters), reason)


def _never(reason: str, holds: Callable[..., bool]) -> Constraint:
    """The same, with one reason for all values with which this holds."""
    return Constraint(tuple(inspect.signature(holds).parameters), lambda *values: reason if holds(*values) else None)


CONSTRAINTS = (
    _never(
        "without jit no computation spans several devices",
        lambda configuration, outer, inner: (
            configuration == JIT_DISABLED and bool({outer, inner} & {"pmap", "pjit", "shard_map"})
        ),
    ),
    _if(lambda outer, inner: meaningless(program_of(outer, inner).names)),
    _if(lambda callback, outer, inner: ineligible(callback_named(callback), program_of(outer, inner), 1)),
    _never(
        "inside of a map over devices every device calls back by itself",
        lambda callback, outer, inner: _placed(callback) and bool({outer, inner} & {*MAPS}),
    ),
    _if(_placement),
    _never(
        "a mesh of two axes only matters where there is a mesh",
        lambda placement, outer, inner: PLACEMENTS[placement].grid and not {outer, inner} & {*MESHES},
    ),
    _never(
        "elements of 64 bits need x64",
        lambda element, configuration: ELEMENT_TYPES[element].wide and configuration != X64,
    ),
    _never(
        "what is printed is read back as one array",
        lambda callback, structure: _prints(callback) and structure != "one",
    ),
    _never(
        "nothing says what is printed of a typed key",
        lambda callback, element: _prints(callback) and element == "typed_key",
    ),
    _never(
        "NumPy has no such elements from DLPack",
        lambda callback, element: callback_named(callback).function == "dlpack_callback" and element in _NOT_IN_DLPACK,
    ),
    _never(
        "less than a byte is packed in device memory, where no host array can describe it",
        lambda callback, element: callback_named(callback).function == "buffer_callback" and element == "int4",
    ),
    _never(
        "how what is empty is split over a mesh is the partitioner's affair",
        lambda callback, shape: callback_named(callback).partitioned and shape == "empty",
    ),
    _never(
        "what has no result but an empty one need not run",
        lambda callback, element, shape, structure: (
            callback_named(callback).runs is Runs.IF_NEEDED and not DataKind(element, shape, structure).tells_apart
        ),
    ),
)


def _jax_devices(callback: str, outer: str, inner: str, placement: str, devices: str) -> str | None:
    names = program_of(outer, inner).names
    return limit_of_devices(callback_named(callback), names, PLACEMENTS[placement].count(int(devices)))


def _jax_copies(outer: str, inner: str, placement: str, devices: str, element: str, shape: str) -> str | None:
    count = PLACEMENTS[placement].count(int(devices))
    return limit_of_copies(program_of(outer, inner).names, count, element, shape)


def _jax_signs(
    callback: str, outer: str, inner: str, placement: str, devices: str, element: str, shape: str
) -> str | None:
    count = PLACEMENTS[placement].count(int(devices))
    return limit_of_signs(callback_named(callback), program_of(outer, inner).names, count, DataKind(element, shape))


_OF_JAX = (
    _if(_jax_copies),
    # The limit of a mixture does not depend on the program.
    _if(lambda callback: limit_of_program(callback_named(callback), ()) if callback_named(callback).parts else None),
    _if(lambda callback, outer, inner: limit_of_program(callback_named(callback), program_of(outer, inner).names)),
    _if(_jax_devices),
    _if(lambda callback, element: limit_of_element(callback_named(callback), element)),
    _if(_jax_signs),
)
"""Constraints for JAX's own callbacks alone."""
