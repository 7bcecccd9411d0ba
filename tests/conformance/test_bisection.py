"""A search over a line of releases gives the right release or the right range, and never guesses."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.bisecting.findings import exit_code, report
from conformance.bisecting.search import Answer, Kind, Samples, answers
from conformance.bisecting.subjects import Sample
from conformance.releases.environments import ReleaseError

pytestmark = pytest.mark.contract("C9")


@dataclass
class Releases:
    """A line of releases, each with its rate of failure, an outcome, or None where it cannot be tested."""

    line: Sequence[float | str | None]
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    probed: list[int] = field(default_factory=list)
    runs: int = 0

    def __call__(self, index: int, runs: Mapping[str, int]) -> Iterator[tuple[str, Sample]]:
        self.probed.append(index)
        here = self.line[index]
        if here is None:
            raise ReleaseError(f"release {index} cannot be installed")
        for subject, number in runs.items():
            for _ in range(number):
                self.runs += 1
                failed = self.dice.random() < here if isinstance(here, float | int) else here != "pass"
                yield subject, Sample((here if isinstance(here, str) else "fail") if failed else "pass", not failed)

    def answer(self, *named: int, runs: int = 1) -> Answer:
        return answers(len(self.line), named, runs, self, {"cell": {}})["cell"]


def pairs(answer: Answer) -> list[tuple[int, int]]:
    return [(change.before, change.after) for change in answer.changes]


@given(st.integers(2, 40), st.data())
def test_the_first_bad_release_or_the_range_that_holds_it(count: int, data: st.DataObject) -> None:
    first_bad = data.draw(st.integers(1, count - 1))
    missing = data.draw(st.sets(st.integers(1, count - 2)) if count > 2 else st.just(set()))
    line = [None if index in missing else "pass" if index < first_bad else "fail" for index in range(count)]
    releases = Releases(line)
    ((before, after),) = pairs(releases.answer(0, count - 1))
    assert before < first_bad <= after
    assert (line[before], line[after]) == ("pass", "fail")
    # No release inside the range could have shown more.
    assert {*range(before + 1, after)} <= missing
    # Both ends, the halvings, and twice more for the two beside the change.
    assert missing or len(releases.probed) <= 2 + (count - 1).bit_length() + 2


@given(st.lists(st.sampled_from(["pass", "lost", "swapped", None]), min_size=1, max_size=20))
def test_what_is_found_in_the_whole_range_is_there(line: list[str | None]) -> None:
    answer = Releases(line).answer()
    testable = [index for index, outcome in enumerate(line) if outcome]
    if len(testable) < 2:
        assert answer.kind is Kind.UNTESTABLE
        return
    assert answer.ends == (testable[0], testable[-1])
    for before, after in pairs(answer):
        assert line[before] != line[after]
        assert not any(line[before + 1 : after])
    # It is found that anything changes, even if both ends are alike.
    assert answer.kind is (Kind.FOUND if len({line[index] for index in testable}) > 1 else Kind.SAME)


def test_other_failures_and_ends_that_were_named() -> None:
    line = ["pass", "pass", "lost", "lost", "hang", "hang"]
    assert pairs(Releases(line).answer(0, 5)) == [(1, 2)]
    assert pairs(Releases(line).answer()) == [(1, 2), (3, 4)]
    # An end that was named has no other in its place.
    assert Releases([None, *line]).answer(0) == Releases([None, *line]).answer(0, 6) == Answer(Kind.UNTESTABLE, (0,))


@pytest.mark.parametrize("seed", range(4))
def test_a_race_is_found_or_a_range_that_holds_it(seed: int) -> None:
    answer = Releases([0.0] * 7 + [0.3] * 6, random.Random(seed)).answer(0, 12, runs=320)
    ((before, after),) = pairs(answer)
    assert before < 7 <= after
    assert answer.kind is Kind.CANNOT_TELL or (before, after) == (6, 7)


def test_chance() -> None:
    assert Releases([0.0, 0.5, 1.0, 1.0], random.Random(2)).answer(0, 3).kind is Kind.CANNOT_TELL
    # More runs where they are needed.
    sure, rare = Releases([0.0, 0.0, 1.0, 1.0]), Releases([0.0, 0.0, 0.05, 0.05])
    assert pairs(sure.answer(0, 3, runs=320)) == [(1, 2)]
    rare.answer(0, 3, runs=320)
    assert sure.runs < rare.runs / 5
    # A rate between both ends is like neither.
    answer = Releases([0.0, 0.1, 1.0], random.Random(5)).answer(0, 2, runs=20)
    assert (answer.kind, answer.changes[0].unclear) == (Kind.CANNOT_TELL, (1,))


def test_cells_share_a_release_and_what_is_found_alike_is_reported_once() -> None:
    calls: list[tuple[int, int]] = []

    def probe(index: int, runs: Mapping[str, int]) -> Iterator[tuple[str, Sample]]:
        calls.append((index, len(runs)))
        for subject, number in runs.items():
            failed = index >= int(subject[0])
            yield from [(subject, Sample("fail" if failed else "pass", not failed))] * number

    samples: Samples = {"3a": {}, "3b": {}, "9": {}}
    found = answers(8, (0, 7), 1, probe, samples)
    assert {subject: pairs(answer) for subject, answer in found.items()} == {"3a": [(2, 3)], "3b": [(2, 3)], "9": []}
    assert calls[:2] == [(0, 3), (7, 3)]
    assert len(calls) == 9
    text = report(found, samples, [f"v{index}" for index in range(8)])
    assert "3a\n3b\n  FOUND: v3 is the first that fails, after v2.\n" in text
    assert exit_code([*found.values()]) == 0
    assert exit_code([found["9"], Answer(Kind.CANNOT_TELL, (0, 7))]) == 3
