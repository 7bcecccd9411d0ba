"""Run small programs on many JAXs, each of which has one thing of its private side in another way.

One process imports JAX and nothing of hostcb; a fork of it for each case makes the change, imports hostcb, undoes the
change, as if JAX had the thing under another name now, and runs the programs. Prints a line of JSON for each case.
Arguments: the names of the entries.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import inspect
import io
import json
import os
import sys
import traceback
import warnings
from typing import Any

# All of JAX that hostcb and the programs import: it must find its own names, whatever the case.
BEFORE = (
    "jax.ad_checkpoint",
    "jax.custom_derivatives",
    "jax.experimental",
    "jax.experimental.custom_partitioning",
    "jax.experimental.pallas",
    "jax.extend.backend",
    "jax.extend.core",
    "jax.extend.mlir.dialects.stablehlo",
    "jax.extend.source_info_util",
    "jax.interpreters.pxla",
    "jax.numpy",
    "absl.flags",
)
# Of a case. In seconds.
DEADLINE = 120.0


class Changed:
    """Stands for something of JAX's, without one of its attributes, or with another signature."""

    def __init__(self, thing: Any, lacking: str = "", signature: Any = None, others: Any = None):
        self.__dict__.update(_thing=thing, _lacking=lacking, **(others or {}))
        if signature is not None:
            self.__dict__["__signature__"] = signature

    def __getattr__(self, name: str) -> Any:
        if name == self._lacking or name == "__mro__":
            raise AttributeError(name)
        found = getattr(self._thing, name)
        return {key: found[key] for key in found if key != self._lacking} if name == "__dataclass_fields__" else found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._thing(*args, **kwargs)


def with_one_more(function: Any, signature: Any) -> Any:
    found = inspect.signature(function)
    new = inspect.Parameter("new_argument", inspect.Parameter.KEYWORD_ONLY)
    kept = [*found.parameters.values()]
    place = len(kept) - (bool(kept) and kept[-1].kind is inspect.Parameter.VAR_KEYWORD)
    return Changed(function, signature=found.replace(parameters=[*kept[:place], new, *kept[place:]]))


def with_one_less(function: Any, signature: Any) -> Any:
    """None where nothing could be taken from it that hostcb passes."""
    found = inspect.signature(function)
    kinds = [each.kind for each in found.parameters.values()]
    if signature.keywords and inspect.Parameter.VAR_KEYWORD in kinds:
        return None
    gone = next(iter([*signature.keywords, *signature.among[::-1], *list(found.parameters)[::-1]]), "")
    if gone not in found.parameters or found.parameters[gone].kind is inspect.Parameter.VAR_POSITIONAL:
        return None
    kept = [each for name, each in found.parameters.items() if name != gone]
    return Changed(function, signature=found.replace(parameters=kept))


CHANGES = {"one more argument": with_one_more, "one less argument": with_one_less}


def changes() -> list[tuple[int, str]]:
    """The number of each entry, with each change of it. Imports hostcb."""
    from hostcb._compat.registry import entries

    found = []
    for number, entry in enumerate(entries):
        if not entry.probed:
            entry.probe()
        found.append((number, "missing"))
        found += [(number, f"without {name}") for name in (*entry.attributes, *entry.methods)]
        functions = [("", entry.signature, entry.value)] if entry.signature is not None else []
        functions += [(name, signature, getattr(entry.value, name)) for name, signature in entry.methods.items()]
        for name, signature, function in functions:
            with contextlib.suppress(TypeError, ValueError):
                # Those of jaxlib do not tell their parameters.
                for change, make in CHANGES.items():
                    if make(function, signature) is not None:
                        found.append((number, f"{change} of {name}" if name else change))
    return found


def name_of(key: Any) -> str:
    """The name of a primitive, of a class or of something else for which a table has an entry."""
    return str(getattr(key, "name", None) or getattr(key, "__name__", key))


class Place:
    """Where JAX has a thing."""

    def __init__(self, entry: dict[str, Any]):
        module, _, path = entry["found_at"].partition(":")
        self.owner = importlib.import_module(module)
        *between, self.name = path.split(".")
        for name in between:
            self.owner = getattr(self.owner, name)
        self.key = None
        if entry["key"] is not None:
            self.owner = getattr(self.owner, self.name)
            self.key = next(key for key in self.owner if name_of(key) == entry["key"])

    def get(self) -> Any:
        if self.key is not None:
            return self.owner[self.key]
        return vars(self.owner).get(self.name) or getattr(self.owner, self.name)

    def put(self, thing: Any) -> None:
        if self.key is not None:
            self.owner[self.key] = thing
        else:
            setattr(self.owner, self.name, thing)

    def remove(self) -> None:
        if self.key is not None:
            del self.owner[self.key]
        else:
            delattr(self.owner, self.name)


def change(entry: dict[str, Any], how: str) -> tuple[Place, Any, Any]:
    place = Place(entry)
    before = place.get()
    if how == "missing":
        place.remove()
        return place, before, None
    thing = getattr(place.owner, place.name) if place.key is None else before
    if how.startswith("without "):
        changed = Changed(thing, lacking=how.removeprefix("without "))
    else:
        kind, _, method = how.partition(" of ")
        if method:
            signature = entry["methods"][method]
            changed = Changed(thing, others={method: CHANGES[kind](getattr(thing, method), signature)})
        else:
            changed = CHANGES[kind](thing, entry["signature"])
    place.put(changed)
    return place, before, changed


def restore(place: Place, before: Any, changed: Any) -> bool:
    """JAX has the thing again, under this or another name; whether hostcb has left its place alone."""
    now: Any = None
    with contextlib.suppress(KeyError, AttributeError):
        now = place.owner[place.key] if place.key is not None else vars(place.owner).get(place.name)
    place.put(before)
    return now is changed


def outcome(entry: dict[str, Any], how: str) -> dict[str, Any]:
    place, before, changed = change(entry, how)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import hostcb
        from hostcb._primitive.held_functions import declare_effects

        # As the first callback does.
        declare_effects()
    alone = restore(place, before, changed)
    import unknown_jax_programs as programs

    from hostcb._compat.registry import entries

    with warnings.catch_warnings(record=True) as later:
        warnings.simplefilter("always")
        results = programs.run(entry["place"]) if how == "missing" else {}
    report = hostcb.doctor()
    lost = next(each for each in entries if each.name == entry["name"])
    given = [str(each.message) for each in (*caught, *later) if issubclass(each.category, hostcb.UnknownJaxWarning)]
    return {
        "lost": lost.lost,
        "alone": alone,
        "warnings": given,
        "others": [str(each.message) for each in caught if not issubclass(each.category, hostcb.UnknownJaxWarning)],
        "programs": results,
        "reported": entry["name"] in report.lost,
        "report": str(report),
    }


def in_child(function: Any, *args: Any) -> Any:
    """What a function returns in a fork of this process, as JSON would have it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        faulthandler.dump_traceback_later(DEADLINE, exit=True)
        result: Any
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                result = function(*args)
        except BaseException:
            result = {"error": traceback.format_exc()}
        with os.fdopen(writing, "w") as pipe:
            json.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"error": f"ended with status {status}"}


def described() -> list[dict[str, Any]]:
    """What this process has to know of the entries, which it cannot import."""
    found = changes()
    from hostcb._compat.registry import entries

    def plain(signature: Any) -> Any:
        return None if signature is None else {"keywords": signature.keywords, "among": signature.among}

    return [
        {
            "how": how,
            "name": entries[number].name,
            "place": entries[number].place,
            "found_at": entries[number]._found_at,
            "key": None if entries[number].key is None else name_of(entries[number].key),
            "signature": plain(entries[number].signature),
            "methods": {name: plain(each) for name, each in entries[number].methods.items()},
            "promises": entries[number].promises,
            "passes_on": bool(entries[number].signature and entries[number].signature.among),
        }
        for number, how in found
    ]


class Names:
    """A signature's lists of names."""

    def __init__(self, names: dict[str, Any]):
        self.keywords, self.among = tuple(names["keywords"]), tuple(names["among"])


def main(names: list[str]) -> None:
    cases = in_child(described)
    if isinstance(cases, dict):
        sys.exit(cases["error"])
    for case in cases:
        if case["name"] not in names:
            continue
        entry = {
            **case,
            "signature": case["signature"] and Names(case["signature"]),
            "methods": {name: Names(each) for name, each in case["methods"].items()},
        }
        print(json.dumps({**case, **in_child(outcome, entry, case["how"])}), flush=True)


if __name__ == "__main__":
    for module in BEFORE:
        importlib.import_module(module)
    assert "hostcb" not in sys.modules
    main(sys.argv[1:])
