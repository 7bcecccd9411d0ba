"""What hostcb uses of `jax.extend`, from the modules in which JAX defines it.

`import jax.extend` imports Pallas as well, which takes a third of the time of `import hostcb`. On a JAX that has one of
these objects elsewhere, all are those of `jax.extend`.
"""

from __future__ import annotations

try:
    from jax._src.core import (  # noqa: TID251
        AbstractToken,
        Effect,
        Literal,
        Primitive,
        Var,
        jaxpr_as_fun,
    )
    from jax._src.source_info_util import register_exclusion  # noqa: TID251
    from jax._src.xla_bridge import backends, get_backend  # noqa: TID251
    from jaxlib.mlir.dialects import stablehlo as hlo  # noqa: TID251
except ImportError:
    from jax.extend.backend import backends, get_backend
    from jax.extend.core import AbstractToken, Effect, Literal, Primitive, Var, jaxpr_as_fun
    from jax.extend.mlir.dialects import stablehlo as hlo  # type: ignore[no-redef]
    from jax.extend.source_info_util import register_exclusion

__all__ = (
    "AbstractToken",
    "Effect",
    "Literal",
    "Primitive",
    "Var",
    "backends",
    "get_backend",
    "hlo",
    "jaxpr_as_fun",
    "register_exclusion",
)
