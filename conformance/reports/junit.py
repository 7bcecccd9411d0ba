"""JUnit XML, for the test views of CI systems: one test case for each cell."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

from ..oracle.verdicts import Standing
from .capabilities import heading
from .causes import by_cause, in_words
from .results import KEPT_PROGRAMS, CellRecord, RunRecord

# Characters that XML 1.0 forbids, even escaped: a witness may quote a terminal's control sequences.
_UNSAYABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(runs: Sequence[RunRecord]) -> str:
    root = ElementTree.Element("testsuites", name="conformance")
    for run in runs:
        root.append(_suite(run))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(run: RunRecord) -> ElementTree.Element:
    suite = _element("testsuite", name=f"conformance-{run.name}", time=f"{run.seconds:.1f}")
    properties = ElementTree.SubElement(suite, "properties")
    for topology, info in run.environment.items():
        for name, value in info.items():
            properties.append(_element("property", name=f"{topology}.{name}", value=str(value)))
    if run.compiled:
        properties.append(_element("property", name="ran with", value=KEPT_PROGRAMS))
    for row in run.capabilities:
        name = f"capability.{heading(row.implementation, row.depth)}.{row.name}"
        properties.append(_element("property", name=name, value=row.counted))
    for number, (cause, refused) in enumerate(by_cause(run.unexpected).items(), 1):
        properties.append(
            _element("property", name=f"cause {number}", value=in_words(cause, len(refused), refused[0].id))
        )
    for cell in run.cells:
        suite.append(_case(cell))
    # Problems fail the run, so they must fail here, too. They belong to no cell, and a suite without cases would pass.
    problems = run.problems or (() if run.cells else ("no cell was run, so nothing is known",))
    for claim in run.claims:
        case = _element("testcase", classname="claim", name=claim.name, time="0")
        if claim.failed:
            case.append(_element("failure", "\n".join(claim.failed), type="claim", message=claim.sentence))
        elif not claim.cells:
            case.append(_element("skipped", message=claim.sentence))
        suite.append(case)
    for number, problem in enumerate(problems, 1):
        case = _element("testcase", classname="run", name=f"problem {number}", time="0")
        case.append(_element("failure", problem, type="problem", message=problem))
        suite.append(case)
    suite.set("tests", str(len(suite) - 1))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", "0")
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    return suite


def _case(cell: CellRecord) -> ElementTree.Element:
    # Test views make a tree of the dots in the class name.
    case = _element(
        "testcase",
        classname=f"{cell.implementation}.{cell.callback}",
        name=cell.id.split("/", 2)[2],
        time=f"{cell.seconds:.4f}",
    )
    if cell.standing is Standing.KNOWN_FAILURE:
        reason = f"{' '.join(cell.known.reason.split())} {cell.known.link}" if cell.known else "a known failure"
        case.append(_element("skipped", f"{cell.headline}: {cell.witness}", message=f"known failure: {reason}"))
    elif not cell.standing.acceptable:
        why = cell.cause or cell.witness.partition("\n")[0]
        message = f"{cell.headline}: {why}" if why else cell.headline
        text = f"{cell.witness}\n\n{cell.reproduce}\n"
        case.append(_element("failure", text, type=cell.standing.value, message=message))
    return case


def _element(tag: str, text: str | None = None, **attributes: str) -> ElementTree.Element:
    element = ElementTree.Element(tag, {name: _sayable(value) for name, value in attributes.items()})
    element.text = None if text is None else _sayable(text)
    return element


def _sayable(text: str) -> str:
    return _UNSAYABLE.sub("\N{REPLACEMENT CHARACTER}", text)
