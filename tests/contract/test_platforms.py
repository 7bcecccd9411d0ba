"""Every kind of callback in every kind of program, lowered for platforms that are not here (H9, H10).

The conformance suite reads what they become: targets, channels, tokens, shardings. With a vendor's compiler installed,
`python -m conformance run --platform tpu --depth compile` compiles the suite's own programs as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hostcb as hcb
from conformance.oracle.lowered_checks import SITE_END, SITE_MARK, Wanted, judge_lowered
from conformance.spec.platform_targets import TARGETS
from conformance.worker.private_jax import lowering_for
from conformance.worker.stablehlo import read_module

pytestmark = pytest.mark.contract("H9", "H10")

DEVICES = jax.devices()[:4]
MESH = Mesh(np.array(DEVICES), ("x",))
SPREAD = ("mesh", "mesh.scan", "shard_map", "shard_map.cond", "pmap")


def like(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def shown(function: Callable[..., Any], **options: Any) -> Callable[[Any], Any]:
    def show(x: Any) -> Any:
        function(lambda value: None, x, **options)
        return x

    return show


def printed(x: Any) -> Any:
    hcb.debug.print("{x}", x=x)
    return x


# The kind, whether it keeps an order, and whether it has effects.
KINDS: dict[str, tuple[Callable[[Any], Any], bool, bool]] = {
    "id_tap": (lambda x: hcb.id_tap(lambda value, transforms: None, x), True, True),
    "id_print": (lambda x: hcb.id_print(x), True, True),
    "call": (lambda x: hcb.call(lambda value: value, x, result_shape=like(x), vmap_method="sequential"), True, True),
    "two results": (
        lambda x: hcb.call(
            lambda value: (value, value[..., :1]),
            x,
            result_shape=(like(x), like(x[..., :1])),
            vmap_method="sequential",
        )[0],
        True,
        True,
    ),
    "pure_callback": (
        lambda x: hcb.pure_callback(lambda value: value, like(x), x, vmap_method="sequential"),
        False,
        False,
    ),
    "io_callback": (lambda x: hcb.io_callback(lambda value: value, like(x), x), False, True),
    "debug.callback": (shown(hcb.debug.callback), False, True),
    "ordered debug.callback": (shown(hcb.debug.callback, ordered=True), True, True),
    "debug.print": (printed, False, True),
}


def loop(f: Any) -> Any:
    return lambda x: jax.lax.fori_loop(0, 3, lambda _, y: f(y) + 1, x)


def scan(f: Any) -> Any:
    return lambda x: jax.lax.scan(lambda carry, step: (f(carry) + step, None), x, jnp.arange(3.0))[0]


def branch(f: Any) -> Any:
    return lambda x: jax.lax.cond(jnp.sum(x) > 0, f, lambda y: y, x)


def while_(f: Any) -> Any:
    return lambda x: jax.lax.while_loop(lambda y: jnp.sum(y) < 9, lambda y: f(y) + 1, x)


def mapped(f: Any) -> Any:
    return jax.shard_map(f, mesh=MESH, in_specs=P("x"), out_specs=P("x"))


def detached(f: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(x * jax.lax.stop_gradient(f(jax.lax.stop_gradient(x)))))


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "jit": lambda f: f,
    "loop": loop,
    "scan": scan,
    "cond": branch,
    "while": while_,
    "vmap": jax.vmap,
    "grad": detached,
    "mesh": lambda f: f,
    "mesh.scan": scan,
    "shard_map": mapped,
    "shard_map.cond": lambda f: mapped(branch(f)),
    "pmap": lambda f: lambda x: jax.pmap(f, devices=DEVICES)(x.reshape(4, 2)).reshape(8),
}


@pytest.fixture(autouse=True)
def _partitioner(request: pytest.FixtureRequest) -> Iterator[None]:
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", "GSPMD" not in request.node.name)
    yield
    jax.config.update("jax_use_shardy_partitioner", before)


def lower(platform: str, f: Any, program: str) -> Any:
    spread = program in SPREAD
    over = NamedSharding(MESH, P("x")) if spread and program != "pmap" else None
    operand = jax.ShapeDtypeStruct((2, 8) if program == "vmap" else (8,), np.float32, sharding=over)

    def named(x: Any) -> Any:
        with jax.named_scope(f"{SITE_MARK}only{SITE_END}"):
            return f(x)

    with lowering_for(platform) as client:
        lowered = jax.jit(PROGRAMS[program](named)).trace(operand).lower(lowering_platforms=(platform,))
    return read_module(lowered.compiler_ir(), client.callbacks if platform == "tpu" else None)


# Without Shardy, GSPMD partitions; elsewhere nothing is partitioned. ROCm and oneAPI have what CUDA has.
CASES = [
    *(("cuda", program, "Shardy") for program in PROGRAMS),
    *(("tpu", program, "Shardy") for program in PROGRAMS),
    *((platform, program, "GSPMD") for platform in ("cuda", "tpu") for program in SPREAD),
    *((platform, "mesh.scan", "Shardy") for platform in ("rocm", "oneapi")),
]


@pytest.mark.parametrize(("platform", "program", "partitioner"), CASES)
def test_kinds_in_programs(platform: str, program: str, partitioner: str) -> None:
    del partitioner
    for kind, (f, ordered, effectful) in KINDS.items():
        if program == "vmap" and kind == "io_callback":
            continue
        module = lower(platform, f, program)
        devices = 4 if program in SPREAD else 1
        wanted = Wanted(TARGETS[platform], devices, frozenset({"only"}), ordered=ordered, effectful=effectful)
        assert judge_lowered(module, wanted) == [], f"{kind} in {program} on {platform}"


@pytest.mark.contract("X4")
def test_partitioned_callbacks() -> None:
    f = shown(hcb.debug.callback, partitioned=True)
    wanted = Wanted(TARGETS["cuda"], 4, frozenset({"only"}), partitioned=True)
    assert judge_lowered(lower("cuda", f, "mesh"), wanted) == []
    assert judge_lowered(lower("tpu", f, "shard_map"), Wanted(TARGETS["tpu"], 4, frozenset({"only"}))) == []
    with pytest.raises(NotImplementedError, match="not supported on tpu; use shard_map"):
        lower("tpu", f, "mesh")


@pytest.mark.contract("B5")
@pytest.mark.parametrize("program", ["jit", "shard_map", "pmap", "scan"])
def test_memory_of_the_device_is_refused_on_tpu(program: str) -> None:
    for function in (
        lambda x: hcb.buffer_callback(lambda context, out, value: None, like(x))(x),
        lambda x: hcb.dlpack_callback(lambda value: value, like(x))(x),
    ):
        wanted = Wanted(
            TARGETS["cuda"], 4 if program in SPREAD else 1, frozenset({"only"}), effectful=False, in_place=True
        )
        assert judge_lowered(lower("cuda", function, program), wanted) == []
        with pytest.raises(ValueError, match=r"not supported on tpu backend.*Use pure_callback or io_callback"):
            lower("tpu", function, program)
