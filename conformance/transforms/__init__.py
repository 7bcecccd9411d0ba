"""The transforms that programs are composed of.

To add one: write a class with both faces in the module of its kind and list it here. Compositions
that JAX itself refuses are declared in `conformance.eligibility`.
"""

from __future__ import annotations

from conformance.transforms.base import JaxFunction, Probe, Setting, Transform
from conformance.transforms.batching import Vmap
from conformance.transforms.control_flow import Cond, ForiLoop, Scan, WhileBody, WhileCond
from conformance.transforms.derivatives import CustomJvp, CustomVjp, Detached, Grad, Jvp, Remat
from conformance.transforms.devices import JitOverMesh, Pmap, ShardMap
from conformance.transforms.staging import Eager, Jit

__all__ = ["TRANSFORMS", "JaxFunction", "Probe", "Setting", "Transform"]

TRANSFORMS: dict[str, Transform] = {
    transform.name: transform
    for transform in (
        Eager(),
        Jit(),
        Vmap(),
        Jvp(),
        Grad(),
        Detached(),
        Scan(),
        WhileBody(),
        WhileCond(),
        Cond(),
        ForiLoop(),
        Remat(),
        CustomJvp(),
        CustomVjp(),
        Pmap(),
        JitOverMesh(),
        ShardMap(),
    )
}
