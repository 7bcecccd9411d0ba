"""A search over a line of releases gives the right release or the right range, and never guesses."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.bisecting.bisection import Answer, Kind, Search, between, whole
from conformance.bisecting.evidence import Evidence, Relation, Rule, rate, rule_of
from conformance.bisecting.findings import CANNOT_TELL, FOUND, Place, exit_code, report
from conformance.bisecting.samples import Sample
from conformance.bisecting.searching import answers
from conformance.releases.release import ReleaseError

pytestmark = pytest.mark.contract("C9")

CELL = "jax/io_callback/scan/cpu-1dev"


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

    def answer(self, search: Search[Answer], rule: Rule = Rule()) -> Answer:
        return answers([CELL], search, Evidence({}, rule), self, {})[CELL]


def pairs(answer: Answer) -> list[tuple[int, int]]:
    return [(change.before, change.after) for change in answer.changes]


# Without chance -------------------------------------------------------------------------------------


@given(st.integers(2, 40), st.data())
def test_the_first_bad_release_or_the_range_that_holds_it(count: int, data: st.DataObject) -> None:
    first_bad = data.draw(st.integers(1, count - 1))
    missing = data.draw(st.sets(st.integers(1, count - 2)) if count > 2 else st.just(set()))
    line = [None if index in missing else "pass" if index < first_bad else "fail" for index in range(count)]
    releases = Releases(line)
    (change,) = releases.answer(between(0, count - 1)).changes
    assert change.before < first_bad <= change.after
    assert (line[change.before], line[change.after]) == ("pass", "fail")
    # No release inside the range could have shown more, and all of them are named.
    assert [index for index, _ in change.skipped] == [*range(change.before + 1, change.after)]
    assert {index for index, _ in change.skipped} <= missing
    # Both ends, the halvings, and twice more for the two beside the change.
    assert missing or len(releases.probed) <= 2 + (count - 1).bit_length() + 2


@given(st.lists(st.sampled_from(["pass", "lost", "swapped", None]), min_size=1, max_size=20))
def test_what_is_found_in_the_whole_range_is_there(line: list[str | None]) -> None:
    answer = Releases(line).answer(whole(len(line)))
    testable = [index for index, outcome in enumerate(line) if outcome]
    if not testable:
        assert answer.kind is Kind.UNTESTABLE
        return
    assert (answer.old, answer.new) == (testable[0], testable[-1])
    for before, after in pairs(answer):
        assert line[before] != line[after]
        assert not any(line[before + 1 : after])
    # It is found that anything changes, even if both ends are alike.
    alike = len({line[index] for index in testable}) == 1
    assert answer.kind is (Kind.ALONE if len(testable) == 1 else Kind.SAME if alike else Kind.FOUND)


def test_a_failure_of_another_kind_is_a_change() -> None:
    line = ["pass", "pass", "lost", "lost", "hang", "hang"]
    assert pairs(Releases(line).answer(between(0, 5))) == [(1, 2)]
    assert pairs(Releases(line).answer(whole(6))) == [(1, 2), (3, 4)]


@pytest.mark.parametrize("search", [between(0, 2), whole(3, named=(0,))])
def test_an_end_that_was_named_has_no_other_in_its_place(search: Search[Answer]) -> None:
    answer = Releases([None, "pass", "lost"]).answer(search)
    assert (answer.kind, answer.untestable) == (Kind.UNTESTABLE, ((0, "release 0 cannot be installed"),))


def test_an_outcome_that_varies_is_no_answer() -> None:
    answer = Releases([0.0, 0.5, 1.0, 1.0], random.Random(2)).answer(between(0, 3))
    assert answer.kind is Kind.CANNOT_TELL


# With chance ----------------------------------------------------------------------------------------


def test_the_interval_of_a_rate() -> None:
    # The table of Clopper and Pearson (1934).
    ran = [*(Sample("fail") for _ in range(13)), *(Sample("pass", passed=True) for _ in range(87))]
    assert rate(ran, 0.95) == "13 of 100 fail (rate 0.071 to 0.212)"


@pytest.mark.parametrize("seed", range(8))
def test_a_race_is_found(seed: int) -> None:
    releases = Releases([0.0] * 7 + [0.3] * 6, random.Random(seed))
    answer = releases.answer(between(0, 12), rule_of(None, 0.999))
    (change,) = answer.changes
    assert change.before < 7 <= change.after
    if answer.kind is Kind.FOUND:
        assert (change.before, change.after) == (6, 7)


def test_more_runs_where_they_are_needed() -> None:
    assert rule_of(None, 0.99).batches == (10, 20, 40, 80, 160, 320)
    sure, rare = Releases([0.0, 0.0, 1.0, 1.0]), Releases([0.0, 0.0, 0.05, 0.05])
    assert pairs(sure.answer(between(0, 3), rule_of(None, 0.99))) == [(1, 2)]
    rare.answer(between(0, 3), rule_of(None, 0.99))
    assert sure.runs < rare.runs / 5


def test_a_rate_between_both_ends_is_named_and_not_counted_to_one() -> None:
    answer = Releases([0.0, 0.1, 1.0], random.Random(5)).answer(between(0, 2), rule_of(20, None))
    assert answer.kind is Kind.CANNOT_TELL
    (change,) = answer.changes
    assert (change.before, change.after, change.unclear) == (0, 2, (1,))
    assert "of 20 fail" in change.skipped[0][1]


def test_ends_that_do_not_run_again_are_compared_as_they_are() -> None:
    ends = {0: [Sample("pass", passed=True)] * 10, 1: [Sample("fail")] * 10}
    for words, relation in (("pass", Relation.OLD), ("fail", Relation.NEW), ("hang", Relation.OWN)):
        evidence = Evidence({**ends, 2: [Sample(words)] * 20}, Rule((20,)), given=frozenset({0, 1}))
        assert evidence.relation(2, 0, 1) is relation


# Many cells -----------------------------------------------------------------------------------------


def test_cells_share_a_release_and_what_is_found_alike_is_reported_once() -> None:
    calls: list[tuple[int, int]] = []

    def probe(index: int, runs: Mapping[str, int]) -> Iterator[tuple[str, Sample]]:
        calls.append((index, len(runs)))
        for subject in runs:
            failed = index >= int(subject[0])
            yield subject, Sample("fail" if failed else "pass", not failed)

    samples: dict[str, dict[int, list[Sample]]] = {}
    found = answers(["3a", "3b", "9"], between(0, 7), Evidence({}, rule_of(1, None)), probe, samples)
    assert {subject: pairs(answer) for subject, answer in found.items()} == {"3a": [(2, 3)], "3b": [(2, 3)], "9": []}
    assert calls[:2] == [(0, 3), (7, 3)]
    assert len(calls) <= 6
    text = report(found, samples, [Place(f"v{index}", f"v{index}") for index in range(8)], Rule())
    assert "3a\n3b\n  FOUND: v3 is the first that fails, after v2.\n" in text
    assert exit_code([*found.values()]) == FOUND
    assert exit_code([found["9"], Answer(Kind.CANNOT_TELL, 0, 7)]) == CANNOT_TELL


def test_a_subject_without_an_outcome_cannot_be_tested() -> None:
    found = answers([CELL], between(0, 1), Evidence({}, Rule()), lambda index, runs: iter(()), {})
    assert found[CELL].untestable == ((0, "the probe gave no outcome"), (1, "the probe gave no outcome"))
