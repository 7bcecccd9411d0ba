"""The connection to a Dask cluster, and what must be true of its workers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..spec.sources import versions
from .dask_order import described
from .tools import DaskClusterError

CONNECT_SECONDS = 20

MOST_LOST = 3
"""What this many Dask workers were lost with is not tried again."""

MOST_AGAIN = 10
"""What was handed over this often is left, whatever it is that ends the workers."""


def connected(address: str) -> Any:
    """A client of the cluster; raises `DaskClusterError` if no scheduler answers."""
    import distributed

    try:
        return distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise DaskClusterError(f"--scheduler: no Dask scheduler answers at {address}: {error}") from error


def check_versions(
    client: Any, here: Mapping[str, str], implementations: Sequence[str], what: str, ignored: Sequence[str] = ()
) -> None:
    """Refuse a cluster whose workers have other versions than those `here`; `what` is that for which workers wait."""
    found = client.run(versions, implementations, on_error="return")
    if not found:
        print(f"NOTE: the cluster has no worker yet; {what} wait for one", file=sys.stderr)
    for address, there in found.items():
        if isinstance(there, BaseException):
            raise DaskClusterError(f"the Dask worker {address} cannot run cells: {there!r}")
        compared = {name: version for name, version in there.items() if name not in ignored}
        if compared != here:
            raise DaskClusterError(described(address, here, compared))


def gone(address: str) -> str:
    """Why there is no result although no worker was lost."""
    return f"the Dask scheduler at {address} is gone"
