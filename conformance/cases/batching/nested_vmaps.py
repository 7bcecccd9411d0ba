"""What a tap under several vmaps receives: an entry for each, the innermost first."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...oracle.verdicts import Stage
from ..harness.case import Case, case


def _entries(*dims: tuple[int | None, ...]) -> list[Any]:
    return [("batch", {"batch_dims": each}) for each in dims]


@case("jit", "id_tap", "H7", isolated=True)
def nested_batch(case: Case) -> None:
    """The axes differ, and an operand is without some; a tap that receives its device receives the same."""
    cube, two, three = np.zeros((2, 3, 4), np.float32), np.zeros(2, np.float32), np.zeros(3, np.float32)
    for with_device in (False, True):
        host = case.host()

        def tap(x: Any, host: Any = host, with_device: bool = with_device) -> Any:
            return case.library.id_tap(host, x, tap_with_device=with_device)

        def both(x: Any, y: Any, tap: Any = tap) -> Any:
            return tap((x, y))

        # The outer vmap maps axis 0. The inner vmap maps axis 2, which is axis 1 inside the outer vmap.
        twice = jax.vmap(jax.vmap(tap, in_axes=1, out_axes=1))
        apart = jax.vmap(jax.vmap(both, (0, None), (0, None)), (None, 0), (None, 0))
        thrice = jax.vmap(jax.vmap(jax.vmap(tap, 1, 1), 1, 1))
        for program, operands, entries in (
            (twice, (cube,), _entries((1,), (0,))),
            (apart, (two, three), _entries((0, None), (None, 0))),
            (thrice, (np.zeros((2, 3, 4, 5), np.float32),), _entries((1,), (1,), (0,))),
        ):
            run: Any
            for run in (jax.jit(program), program):
                case.forget()
                jax.block_until_ready(run(*operands))
                case.saw_each(host, [operands])
                actual = [[(name, dict(entry)) for name, entry in each] for each in host.transforms]
                case.same("wrong transforms", Stage.CALLBACK, actual, [entries])
                case.same("wrong device", Stage.CALLBACK, [each is not None for each in host.devices], [with_device])
