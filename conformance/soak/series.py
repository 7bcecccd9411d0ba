"""The series of a soak, and the slope of each that is not called growth."""

from __future__ import annotations

from collections.abc import Mapping

MEMORY = "resident memory, bytes"
HEAP = "memory in use of the C library, bytes"
BLOCKS = "allocated blocks of Python"
THREADS = "threads"
PYTHON_THREADS = "threads of Python"
DESCRIPTORS = "descriptors"
ARRAYS = "live arrays of JAX"
OBJECTS = "objects of the library"
FUNCTIONS = "functions of dropped programs"

ALLOWED: Mapping[str, float] = {
    MEMORY: 32.0,
    HEAP: 8.0,
    BLOCKS: 0.01,
    THREADS: 0.0,
    PYTHON_THREADS: 0.0,
    DESCRIPTORS: 0.0,
    ARRAYS: 0.0,
    OBJECTS: 0.0001,
    FUNCTIONS: 0.0,
}
"""In an event. JAX's own caches grow a little with each program that it compiles."""
