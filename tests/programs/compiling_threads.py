"""Eight threads that compile a program each and stay; it says by how many MB memory has grown, and what counts.

Each of them also takes a MB of its own, which must count.
"""

from __future__ import annotations

import ctypes
import json
import threading

import jax

from conformance.soak.compiling import CompilingThreads
from conformance.soak.growth import HEAP
from conformance.soak.resources import sample

THREADS, OWN_BYTES = 8, 1_000_000


def main() -> None:
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    compiling = CompilingThreads()
    together, compiled, looked = threading.Barrier(THREADS), threading.Barrier(THREADS + 1), threading.Event()

    def compile_one(number: int) -> None:
        together.wait()
        jax.jit(lambda x: x * number)(1.0).block_until_ready()
        library.malloc(OWN_BYTES)
        compiled.wait()
        looked.wait()

    def look() -> tuple[float, float]:
        jax.clear_caches()
        everything, counted = (sample("hostcb", 0, kept)[HEAP] / 1e6 for kept in (0.0, compiling.kept))
        return everything, counted

    before, count = look(), compiling.count
    threads = [threading.Thread(target=compile_one, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    compiled.wait()
    after = look()
    grown, counted = (later - earlier for earlier, later in zip(before, after, strict=True))
    told = {"grown": grown, "counted": counted, "each": compiling.each / 1e6, "threads": compiling.count - count}
    print(json.dumps(told))
    looked.set()


if __name__ == "__main__":
    main()
