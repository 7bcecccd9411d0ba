"""The transforms that programs are composed of.

To add one: write a class with both faces in the module of its kind and list it here. Compositions
that JAX itself refuses are declared in `planning.eligibility`.
"""

from __future__ import annotations

from .base import JaxFunction, Probe, Setting, Transform
from .control_flow import Cond, ForiLoop, Scan, WhileBody, WhileCond
from .derivatives import CustomJvp, CustomVjp, Detached, Grad, Jvp, Remat
from .devices import JitOverMesh, Pmap, ShardMap
from .staging import Eager, Jit, Vmap

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
