"""Threads that fill memory of the C library and free it; it says by how many MiB resident memory has grown.

As an implementation for a soak, it says so in the process of the soak, and then has nothing that a soak needs.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from pathlib import Path

THREADS, PIECES, PIECE_BYTES = 6, 3, 4 << 20

LARGE_BYTES = 8 << 20
"""glibc maps such a piece for itself. When it is freed glibc raises the threshold for that, so the smaller pieces come
from arenas."""


def grown() -> float:
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = (ctypes.c_size_t,)
    library.free.argtypes = (ctypes.c_void_p,)
    library.free(library.malloc(LARGE_BYTES))
    together, have_freed = threading.Barrier(THREADS), threading.Barrier(THREADS + 1)
    looked = threading.Event()

    def fill_and_free() -> None:
        # What Python itself allocates to wait must not come after the pieces: they are to be at the arena's end.
        together.wait()
        pieces = [library.malloc(PIECE_BYTES) for _ in range(PIECES)]
        for piece in pieces:
            ctypes.memset(piece, 1, PIECE_BYTES)
        together.wait()
        for piece in pieces:
            library.free(piece)
        have_freed.wait()
        # A thread that ends may give its arena to another.
        looked.wait()

    before = _resident()
    threads = [threading.Thread(target=fill_and_free) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    have_freed.wait()
    after = _resident()
    looked.set()
    for thread in threads:
        thread.join()
    return after - before


def _resident() -> float:
    ctypes.CDLL(None).malloc_trim(0)
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return float(fields["VmRSS"].split()[0]) / 1024


print(json.dumps(grown()), file=sys.stdout if __name__ == "__main__" else sys.stderr, flush=True)
