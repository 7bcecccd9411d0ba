"""External callbacks on platforms without their hardware: what each kind becomes, with and without a token."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
from jax._src.interpreters import mlir
from test_lowering import SendAndReceive

import hostcb as hcb

VECTOR = jax.ShapeDtypeStruct((16,), np.float32)


def _copy(ctx: Any, out: Any, x: Any) -> None:
    np.copyto(np.asarray(out), np.asarray(x))


def _shown(callback: Callable[..., Any], **options: Any) -> Callable[[Any], Any]:
    def program(x: Any) -> Any:
        callback(x, **options)
        return x

    return program


# The program, whether the operation has a token, and whether the compiler must keep it.
KINDS: dict[str, tuple[Callable[[Any], Any], bool, bool]] = {
    "pure": (lambda x: hcb.pure_callback(np.sin, VECTOR, x), False, False),
    "io": (lambda x: hcb.io_callback(np.sin, VECTOR, x), False, True),
    "io_ordered": (lambda x: hcb.io_callback(np.sin, VECTOR, x, ordered=True), True, True),
    "debug": (_shown(lambda x: hcb.debug.callback(print, x)), False, True),
    "debug_ordered": (_shown(lambda x: hcb.debug.print("{}", x, ordered=True)), True, True),
}
BUFFERS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "pure": (hcb.buffer_callback(_copy, VECTOR), False),
    "effect": (hcb.buffer_callback(_copy, VECTOR, has_side_effect=True), True),
    "dlpack": (hcb.dlpack_callback(np.from_dlpack, VECTOR), False),
}


def lowered(program: Callable[[Any], Any], platform: str) -> str:
    return str(jax.jit(program).trace(VECTOR).lower(lowering_platforms=(platform,)).as_text())


def call_of(text: str, target: str) -> str:
    """The one line that calls `target`."""
    lines = [line for line in text.splitlines() if f"@{target}(" in line]
    assert len(lines) == 1, f"one call of {target} in:\n{text}"
    return lines[0]


@pytest.mark.contract("X1")
@pytest.mark.parametrize("platform", ["cpu", "cuda", "rocm"])
@pytest.mark.parametrize("kind", KINDS)
def test_targets_tokens_and_side_effects(kind: str, platform: str) -> None:
    program, token, effect = KINDS[kind]
    target = "xla_buffer_python_cpu_callback" if platform == "cpu" else "xla_ffi_python_gpu_callback"
    line = call_of(lowered(program, platform), target)
    assert ("stablehlo.token" in line) == token, line
    assert ("has_side_effect = true" in line) == effect, line


@pytest.mark.contract("X1")
@pytest.mark.parametrize("kind", KINDS)
def test_tpu_sends_and_receives(kind: str) -> None:
    program, token, _ = KINDS[kind]
    client = SendAndReceive()
    with mock.patch.object(mlir.ModuleContext, "get_backend", lambda self, optional=False: client):
        text = lowered(program, "tpu")
    assert text.count("stablehlo.send") == 1, text
    # An ordered callback without a result sends an empty answer, so that the next one waits for it.
    assert text.count("stablehlo.recv") == (0 if kind == "debug" else 1), text
    assert len(client.handlers) == 1
    (main,) = re.findall(r"func.func public @main\((.*?)\) ->", text)
    assert ("token" in main) == token, main


@pytest.mark.contract("B5")
@pytest.mark.parametrize("recorded", [False, True], ids=["called", "recorded"])
@pytest.mark.parametrize("platform", ["cuda", "rocm"])
@pytest.mark.parametrize("kind", BUFFERS)
def test_gpu_targets_of_buffers(kind: str, platform: str, recorded: bool) -> None:
    if recorded:
        program, effect = hcb.buffer_callback(_copy, VECTOR, command_buffer_compatible=True), False
    else:
        program, effect = BUFFERS[kind]
    line = call_of(lowered(program, platform), f"xla_buffer_python_gpu_callback{'_cmd_buffer' if recorded else ''}")
    assert ("has_side_effect = true" in line) == effect, line
    assert "output_operand_alias<" not in line, line


@pytest.mark.contract("B3")
def test_the_compiler_receives_the_aliases() -> None:
    function = hcb.buffer_callback(_copy, (VECTOR, VECTOR), input_output_aliases={1: 0})
    line = call_of(lowered(lambda x: function(x, x * 2), "cuda"), "xla_buffer_python_gpu_callback")
    (alias,) = re.findall(r"output_operand_alias<output_tuple_indices = \[(\d*)\], operand_index = (\d+)", line)
    assert alias == ("0", "1"), line


@pytest.mark.contract("B5")
@pytest.mark.parametrize("platform", ["tpu", "nonesuch"])
@pytest.mark.parametrize("kind", BUFFERS)
def test_a_platform_without_a_target_is_refused(kind: str, platform: str) -> None:
    with pytest.raises(ValueError, match=rf"not supported on {platform} backend.*pure_callback or io_callback"):
        lowered(BUFFERS[kind][0], platform)
