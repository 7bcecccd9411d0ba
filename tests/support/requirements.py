"""Marks of tests that need a package which is not everywhere."""

from __future__ import annotations

import importlib.util

import pytest

DASK = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="Dask's package distributed is not installed"
)
