"""Whether error messages give advice that no row of `test_advice.py` or `test_advice_on_devices.py` tries."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from test_advice import CALLS
from test_advice_on_devices import ON_DEVICES

import hostcb as hcb

ADVISING = re.compile(
    r"\b([Uu]se|[Pp]ass|[Ss]et|[Dd]rop|[Mm]ake|[Cc]onvert|[Ww]rite|[Rr]eturn(?! value)|[Nn]ame|[Ll]et|[Cc]opy|[Ll]ower|"
    r"[Pp]ut|[Cc]all back|[Pp]re-apply|[Tt]ap|[Ff]ill|[Ii]nstead|[Ii]n place of|[Ii]mport|[Rr]ename|[Bb]atch it|"
    r"[Dd]efine|[Ww]ait for|[Aa]sk for|[Gg]ive|Correct|[Gg]o into|[Ww]hen vmap_method is|Begin it)\b"
)

# A trace writes events as text. Words like "name" are keys of JSON there, and no advice.
JSON = re.compile(r'"\w+":')

# Which no test here can follow, and why.
UNTRIED = {
    "use a library for that, such as torch.from_dlpack or cupy.asarray": "needs a GPU",
    "Return torch or CuPy arrays, or write into the results with in_place=True": "needs a GPU",
    "partitioned=True is not supported on {}; use shard_map": "needs a TPU",
    "or set %s=%d in the environment": "tests/contract/test_jax_inside.py runs such programs",
    "Use pure_callback or io_callback": "needs a TPU",
    "output_stream must have a write method": "no advice",
    "has no effect, and JAX's own callbacks stay in use": "no advice",
    "expected a jax.Device or its name such as 'cpu:0'": "no advice",
    "a copy is needed to make {} of {}.": "no advice",
    "Tap tangents with custom_jvp and cotangents with custom_vjp instead": "tests/contract/test_derivatives.py does",
    "a shard_map inside of another one": "tests/contract/test_nested_shard_map.py does, where the compiler needs it",
    "was used in a function that JAX lowers without the token": "for what JAX will have; none is known",
    "Run it before, for instance in a function that atexit calls": "tests/contract/test_exit.py has the error",
    "it would wait for this callback to end": "says what would happen; the advice is behind it",
    "the library in C is not in use": "no advice",
    "returned {} in place of {}": "no advice",
    "returned something in place of writing into `out`": "no advice",
    "stop_outfeed_receiver was called from inside a callback": "no advice",
    "Let that process compile its own program": "tests/contract/test_serialization.py has the error",
    "Restart Python to import another hostcb": "tests/contract/test_importing.py imports it twice",
    "set PYTHON_GIL=1 in the environment": "tests/contract/test_importing.py has the error",
    "Correct the callback, or {} if it is right as it is": "no single remedy",
}


# The registry's texts are about a JAX to come, and `test_unknown_jax.py` makes it; the doctor gives no advice.
LEFT_OUT = {*(Path(hcb.__file__).parent / "_compat").glob("*.py"), Path(hcb.__file__).parent / "_api" / "doctor.py"}


def literals(path: Path) -> list[str]:
    """The texts in a module that are no docstrings, with `{}` for what is filled in."""
    tree = ast.parse(path.read_text())
    skipped: set[int] = set()
    texts: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            # A docstring.
            skipped.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(value) for value in node.values}
            parts = (value.value if isinstance(value, ast.Constant) else "{}" for value in node.values)
            texts.append("".join(map(str, parts)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            texts.append(node.value)
    return texts


def test_every_advice_in_the_sources_is_tried() -> None:
    sources = {*Path(hcb.__file__).parent.rglob("*.py")} - LEFT_OUT
    # Flags say what they do; they are no errors.
    texts = [text for path in sources if path.name != "flags.py" for text in literals(path) if len(text) > 25]
    known = [advice.text for advice in (*CALLS, *ON_DEVICES)] + [*UNTRIED]
    for each in known:
        if UNTRIED.get(each) != "no advice":
            assert any(each in text for text in texts), f"no message says {each!r} any more"
    advising = [text for text in texts if ADVISING.search(text) and not JSON.search(text)]
    untried = [text for text in advising if not any(each in text for each in known)]
    assert not untried, "\n".join(untried)
