"""X6, H20: the recipes, run as programs: they print what docs/recipes.md shows, and the page shows their lines."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from support import recipes
from support.recipes import PAGE, RECIPES, Shown
from support.subprocesses import run_program

ON_A_GPU = {"cupy_kernel.py", "triton_kernel.py"}
"""No output is shown of these, since nothing has run them."""

VARYING = {"gymnasium_steps.py"}
"""Their numbers depend on the machine, as a rounding may change a decision."""


def name(shown: Shown) -> str:
    return str(shown)


@pytest.mark.thorough
@pytest.mark.parametrize("shown", recipes.shown(), ids=name)
def test_a_recipe_prints_what_the_page_shows(shown: Shown, tmp_path: Path) -> None:
    """Numbers with a point may differ in their last digits, and bars of several devices in their order."""
    # The bars are of tqdm if no argument says otherwise.
    bars = " ".join((shown.recipe, *(shown.arguments or ("tqdm",))))
    recipes.require(bars if shown.recipe == "progress_bars.py" else shown.recipe)
    arguments = [str(tmp_path / argument) if "/" in argument else argument for argument in shown.arguments]
    ended = run_program(recipes.PRINTING, str(RECIPES / shown.recipe), *arguments, devices=shown.devices, prelude="")
    printed, page = recipes.screen(ended.json()), shown.output
    if shown.recipe == "progress_bars.py":
        printed, page = ("".join(sorted(text.splitlines(keepends=True))) for text in (printed, page))
    if shown.recipe in VARYING:
        printed, page = (recipes.NUMBER.sub("1", text) for text in (printed, page))
    assert recipes.difference(printed, page) is None, recipes.difference(printed, page)


def test_the_page_shows_the_output_of_each_recipe() -> None:
    programs = {path.name for path in RECIPES.glob("*.py")}
    assert {shown.recipe for shown in recipes.shown()} == programs - ON_A_GPU


def test_the_page_links_each_recipe() -> None:
    linked = [path for section in recipes.sections() for path in recipes.linked(section)]
    assert sorted(linked) == sorted([*RECIPES.glob("*.py"), *RECIPES.glob("*.ipynb")])


@pytest.mark.parametrize("section", recipes.sections(), ids=lambda section: section.partition("\n")[0])
def test_the_lines_on_the_page_are_lines_of_the_recipe(section: str) -> None:
    texts = [_code(path) for path in recipes.linked(section)]
    missing = [piece for piece in recipes.pieces(section) if not any(recipes.has_lines(text, piece) for text in texts)]
    assert not missing, f"no recipe of this section has these lines:\n{missing[0]}"


def _code(path: Path) -> str:
    text = path.read_text()
    if path.suffix == ".py":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")


NOTEBOOK = """
import json, sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3").execute()
print(json.dumps([output for cell in notebook.cells for output in cell.get("outputs", [])]))
"""


@pytest.mark.contract("H11")
def test_the_notebook_draws_the_loss_while_the_training_runs(tmp_path: Path) -> None:
    """The first picture is drawn before the last loss comes: the cells are run with a program that says so."""
    recipes.require("live_loss.ipynb")
    notebook = json.loads((RECIPES / "live_loss.ipynb").read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    code[1]["source"] += "\n" + WATCHING
    code[-1]["source"] += "\nprint(json.dumps(drawn))"
    changed = tmp_path / "live_loss.ipynb"
    changed.write_text(json.dumps(notebook))
    picture, *printed = run_program(NOTEBOOK, str(changed), devices=1, prelude="").json()
    assert picture["output_type"] == "display_data", f"the first output: {picture}"
    assert base64.b64decode(picture["data"]["image/png"]).startswith(b"\x89PNG")
    loss, drawn = "".join(output["text"] for output in printed).splitlines()
    assert float(loss.removeprefix("loss ")) < 1e-6, loss
    drawn = json.loads(drawn)
    assert drawn[-1] == 1000, f"points of each picture: {drawn}"
    assert len(drawn) > 1 and 0 < drawn[0] < 1000, f"points of each picture: {drawn}"


WATCHING = """
import json

drawn = []


class LiveCurve(LiveCurve):
    def _redraw(self, shown, figure, curve, steps, values):
        drawn.append(len(steps))
        return super()._redraw(shown, figure, curve, steps, values)
"""


def test_the_picture_on_the_page_is_that_of_the_notebook() -> None:
    cells = json.loads((RECIPES / "live_loss.ipynb").read_text())["cells"]
    pictures = [output["data"]["image/png"] for cell in cells for output in cell.get("outputs", []) if "data" in output]
    (picture,) = pictures
    assert base64.b64decode(picture) == (PAGE.parent / "pictures" / "live_loss.png").read_bytes()
