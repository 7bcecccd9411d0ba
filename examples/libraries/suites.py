"""The tests of libraries that `own_tests.py` runs: those files of them that use callbacks, and run in a few minutes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Suite:
    """Tests that one library ships."""

    library: str
    """Its name in the index."""
    tests: tuple[str, ...]
    """Their files, from the folder of the installed packages, or from the top of the sdist."""
    what: str
    """The use of callbacks that they exercise."""
    sdist: str = ""
    """The folder of the sdist that has the tests; the installed package has them if this is empty."""
    arguments: tuple[str, ...] = ()
    """Further arguments of pytest."""
    jax: str = ""
    """The release of JAX with which they run, if the library does not work with the newest."""
    differ: tuple[str, ...] = ()
    """Tests that fail under hostcb alone, and should."""


JAX_TAP = ("ashell", "carry_alerts", "collectors", "jaxtap", "m1c_alerts", "m1d_api_polish", "ytaps")

SUITES = (
    Suite(
        "blackjax",
        ("tests/test_progress_bar.py",),
        "`progress_bar` in scans, nested, under vmap and in several threads",
        sdist="tests",
    ),
    Suite(
        "jax-tap",
        tuple(f"tests/test_{name}.py" for name in JAX_TAP),
        "`verbose`, `record` and alerts: each step of `scan`, `while_loop` and `fori_loop`, under vmap and grad",
        sdist="tests",
        # It looks for the name of JAX's primitive in the text of a jaxpr.
        differ=("tests/test_carry_alerts.py::test_carry_alert_degenerate_select_dead_code",),
    ),
    Suite(
        "optax",
        ("optax/_src/linesearch_test.py",),
        "`verbose=True` of the line searches, and where they fail",
        arguments=("-k", "zoom or verbose or failure or error"),
    ),
    Suite(
        "pennylane",
        ("tests/workflow/interfaces/execute/test_jax_jit.py",),
        "circuits inside of jit, with shots, and their derivatives: `pure_callback` for each execution",
        jax="0.10.2",
    ),
    Suite(
        "scico",
        ("scico/test/test_solver.py", "scico/test/test_denoiser.py"),
        "`minimize`, which calls SciPy, and the denoisers BM3D and BM4D, also inside of jit",
        arguments=("-k", "minimize or BM3D or BM4D"),
    ),
    Suite(
        "tinygp",
        ("tests/test_solvers/test_kalman.py",),
        "the check that the coordinates of a quasiseparable solver are sorted",
        sdist="tests",
    ),
)
