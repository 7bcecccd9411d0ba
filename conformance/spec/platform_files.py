"""Reads the description of a platform: a TOML file's table, or a mapping of the same form."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .capabilities import why_no_claim
from .entry_points import PAGE, VendorError

_TEXTS = ("devices", "version", "xla_flags", "modules", "targets", "claims")
"""Keys with a text or a list of texts."""
_KEYS = ("name", "registered", *_TEXTS, "environment", "workers", "expectations", "device_counts")
_WORKERS = ("default", "maximum")


def why_no_name(name: str) -> str | None:
    """The reason if this cannot be the name of a platform.

    Ids of cells have the name before a dash and the devices; JAX_PLATFORMS has several names with commas between them.
    """
    if re.fullmatch(r"[^\s/,@+*?\[\]]+", name):
        return None
    return f"{name!r} is no name of a platform: expected one, like cpu, cuda, rocm or tpu"


def read_table(path: Path) -> Mapping[str, Any]:
    """The table `[platform]` of a file."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise VendorError(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise VendorError(f"{path}, a platform's file, cannot be read: {error.strerror}") from error
    if unknown := sorted(found.keys() - {"platform"}):
        raise VendorError(f"{path}: unknown key {unknown[0]!r}: the one table of the file is [platform] ({PAGE})")
    if not isinstance(found.get("platform"), dict):
        raise VendorError(f"{path} has no table [platform] ({PAGE})")
    return found["platform"]


def fields_of(table: Mapping[str, Any], where: str, folder: Path | None) -> dict[str, Any]:
    """The fields of a `Platform`; `folder` is where relative paths begin."""
    if unknown := sorted(str(key) for key in table.keys() - {*_KEYS}):
        raise VendorError(f"{where}: unknown key {unknown[0]!r} in [platform]; there are {', '.join(_KEYS)}")
    found: dict[str, Any] = {key: _texts(table, key, where) for key in _TEXTS if key in table}
    for key in ("name", "registered"):
        if key == "name" or key in table:
            found[key] = _name(table, key, where)
    for flag in found.get("xla_flags", ()):
        if not flag.startswith("--") or len(flag.split()) != 1:
            raise VendorError(f"{where}: 'xla_flags' is a list of flags like '--xla_name=value', and has {flag!r}")
    if "environment" in table:
        found["environment"] = _environment(table["environment"], where)
    if "device_counts" in table:
        counts = table["device_counts"]
        if not isinstance(counts, list | tuple) or not counts or not all(_positive(count) for count in counts):
            raise VendorError(f"{where}: 'device_counts' is a list of numbers greater than 0, not {counts!r}")
        found["device_counts"] = tuple(sorted({*counts}))
    if "workers" in table:
        found |= _workers(table["workers"], where)
    if "expectations" in table:
        found["expectations"] = _expectations(table["expectations"], where, folder)
    for claim in found.get("claims", ()):
        if reason := why_no_claim(claim):
            raise VendorError(f"{where}: 'claims': {reason}")
    return found


def _name(table: Mapping[str, Any], key: str, where: str) -> str:
    if key not in table:
        raise VendorError(f"{where}: [platform] has no {key!r}, which is needed ({PAGE})")
    name = table[key]
    if not isinstance(name, str):
        raise VendorError(f"{where}: {key!r} in [platform] is a text in quotes, not {name!r}")
    if reason := why_no_name(name):
        raise VendorError(f"{where}: {key!r}: {reason}")
    return name


def _texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = table[key]
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) and text for text in texts):
        raise VendorError(f"{where}: {key!r} in [platform] is a text in quotes, or a list of them, not {value!r}")
    return tuple(texts)


def _environment(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise VendorError(f"{where}: 'environment' is a table of texts in quotes, not {value!r}")
    for name, text in value.items():
        if not name or "=" in name or "\0" in name + text:
            raise VendorError(f"{where}: 'environment': no process can have the variable {name!r} with {text!r}")
    for name in ("JAX_PLATFORMS", "XLA_FLAGS"):
        if name in value:
            instead = "'registered'" if name == "JAX_PLATFORMS" else "'xla_flags'"
            raise VendorError(f"{where}: the suite sets {name} itself: say {instead} in place of it")
    return dict(value)


def _workers(value: Any, where: str) -> dict[str, int]:
    if isinstance(value, Mapping) and (unknown := sorted(map(str, value.keys() - {*_WORKERS}))):
        raise VendorError(f"{where}: unknown key {unknown[0]!r} in 'workers'; there are {', '.join(_WORKERS)}")
    if not isinstance(value, Mapping) or not all(map(_positive, value.values())):
        raise VendorError(
            f"{where}: 'workers' is a table of 'default' and 'maximum', numbers greater than 0: {value!r}"
        )
    default, maximum = value.get("default", 1), value.get("maximum")
    if maximum is not None and default > maximum:
        raise VendorError(f"{where}: 'workers' has a default of {default}, and a maximum of {maximum}")
    return {"workers": default} | ({"most_workers": maximum} if maximum is not None else {})


def _expectations(value: Any, where: str, folder: Path | None) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise VendorError(f"{where}: 'expectations' is the path of a file, not {value!r}")
    path = Path(value) if folder is None else folder / value
    if not path.is_absolute():
        raise VendorError(f"{where}: 'expectations' is {str(path)!r}: expected an absolute path")
    if not path.is_file():
        raise VendorError(f"{where}: 'expectations': there is no file {path}")
    return path


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
