"""A search over a line of releases gives the right release or the right range, and never guesses."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.bisecting.bisection import Answer, Kind, Search, between, every, whole
from conformance.bisecting.evidence import Rule, rule_of
from conformance.bisecting.samples import Sample, untestable
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

    def __call__(self, index: int, subjects: Sequence[str], runs: int) -> Iterator[tuple[str, Sample]]:
        self.probed.append(index)
        here = self.line[index]
        if here is None:
            raise ReleaseError(f"release {index} cannot be installed")
        for subject in subjects:
            for _ in range(runs):
                self.runs += 1
                failed = self.dice.random() < here if isinstance(here, float | int) else here != "pass"
                yield subject, Sample((here if isinstance(here, str) else "fail") if failed else "pass", not failed)

    def answer(self, search: Search[Answer], rule: Rule = Rule()) -> Answer:
        return answers([CELL], search, rule, self, {})[CELL]


def pairs(answer: Answer) -> list[tuple[int, int]]:
    return [(change.before, change.after) for change in answer.changes]


# Without chance -------------------------------------------------------------------------------------


@given(st.integers(2, 40), st.data())
def test_the_first_bad_release_or_the_range_that_holds_it(count: int, data: st.DataObject) -> None:
    first_bad = data.draw(st.integers(1, count - 1))
    missing = data.draw(st.sets(st.integers(1, count - 2)) if count > 2 else st.just(set()))
    line = [None if index in missing else "pass" if index < first_bad else "fail" for index in range(count)]
    (change,) = Releases(line).answer(between(0, count - 1)).changes
    assert change.before < first_bad <= change.after
    assert line[change.before] == "pass"
    assert line[change.after] == "fail"
    # No release inside the range could have told more, and all of them are named.
    assert [index for index, _ in change.skipped] == [*range(change.before + 1, change.after)]
    assert {index for index, _ in change.skipped} <= missing


@given(st.integers(2, 200), st.data())
def test_few_releases_are_probed(count: int, data: st.DataObject) -> None:
    first_bad = data.draw(st.integers(1, count - 1))
    releases = Releases(["pass"] * first_bad + ["fail"] * (count - first_bad))
    releases.answer(between(0, count - 1))
    # Both ends, the halvings, and twice more for the two beside the change.
    assert len(releases.probed) <= 2 + (count - 1).bit_length() + 2


@given(st.lists(st.sampled_from(["pass", "lost", "swapped", "hang", None]), min_size=1, max_size=20))
def test_what_is_found_in_the_whole_range_is_there(line: list[str | None]) -> None:
    answer = Releases(line).answer(whole(len(line)))
    testable = [index for index, outcome in enumerate(line) if outcome]
    if not testable:
        assert answer.kind is Kind.UNTESTABLE
        assert len(answer.untestable) == len(line)
        return
    assert (answer.old, answer.new) == (testable[0], testable[-1])
    for before, after in pairs(answer):
        assert line[before] != line[after]
        assert not any(line[before + 1 : after])
    # It is found that anything changes, even if both ends are alike.
    alike = len({line[index] for index in testable}) == 1
    assert answer.kind is (Kind.ALONE if len(testable) == 1 else Kind.SAME if alike else Kind.FOUND)
    assert bool(answer.changes) is not alike


@given(st.lists(st.sampled_from(["pass", "lost", None]), min_size=1, max_size=20))
def test_every_release_shows_every_change(line: list[str | None]) -> None:
    answer = Releases(line).answer(every(len(line)))
    testable = [index for index, outcome in enumerate(line) if outcome]
    changes = [(one, other) for one, other in itertools.pairwise(testable) if line[one] != line[other]]
    assert pairs(answer) == changes


def test_a_release_in_between_that_fails_in_another_way_is_the_first_that_differs() -> None:
    line = ["pass", "pass", "lost", "lost", "hang", "hang"]
    assert pairs(Releases(line).answer(between(0, 5))) == [(1, 2)]
    assert pairs(Releases(line).answer(whole(6))) == [(1, 2), (3, 4)]
    # "Fails in another way now" is a question of its own.
    assert pairs(Releases(line).answer(between(2, 5))) == [(3, 4)]


def test_good_bad_good_is_found_from_both_sides() -> None:
    releases = Releases(["pass"] * 9 + ["lost"] + ["pass"] * 6)
    assert pairs(releases.answer(whole(16))) == [(8, 9), (9, 10)]


def test_ends_that_do_not_differ() -> None:
    releases = Releases(["pass", "lost", "pass"])
    answer = releases.answer(between(0, 2))
    assert (answer.kind, answer.changes, releases.probed) == (Kind.SAME, (), [0, 2, 0, 2])


def test_an_end_that_cannot_be_tested_is_said() -> None:
    answer = Releases([None, "pass", "lost"]).answer(between(0, 2))
    assert answer.kind is Kind.UNTESTABLE
    assert answer.untestable == ((0, "release 0 cannot be installed"),)


@pytest.mark.parametrize(("line", "named"), [([None, "pass", "lost"], 0), (["pass", "lost", None], 2)])
def test_a_named_end_has_no_other_in_its_place(line: list[str | None], named: int) -> None:
    answer = Releases(line).answer(whole(3, (named,)))
    assert (answer.kind, answer.old, answer.new) == (Kind.UNTESTABLE, 0, 2)
    assert answer.untestable == ((named, f"release {named} cannot be installed"),)
    assert Releases(line).answer(whole(3, (2 - named,))).kind is Kind.FOUND


def test_a_named_end_that_cannot_be_tested_hides_no_change_of_others() -> None:
    found = Releases(["pass", "lost", None]).answer(every(3, (0, 2)))
    assert (found.kind, pairs(found)) == (Kind.FOUND, [(0, 1)])
    assert found.untestable == ((2, "release 2 cannot be installed"),)
    # The change may be at the end that was named: it is not said that the ends do not differ.
    assert Releases(["pass", "pass", None]).answer(every(3, (0, 2))).kind is Kind.UNTESTABLE
    assert Releases(["pass", None, None]).answer(every(3, (0, 2))).kind is Kind.UNTESTABLE
    assert Releases(["pass", "pass", None]).answer(every(3)).kind is Kind.SAME


@pytest.mark.parametrize("search", [whole(3), every(3)])
def test_one_release_alone_is_compared_with_nothing(search: Search[Answer]) -> None:
    releases = Releases([None, "pass", None])
    answer = releases.answer(search)
    assert (answer.kind, answer.old, answer.new, releases.runs) == (Kind.ALONE, 1, 1, 1)
    assert [index for index, _ in answer.untestable] == [0, 2]


def test_an_outcome_that_comes_and_goes_is_no_answer() -> None:
    """One look is not enough: the two beside the change run again."""
    line: list[float | str] = ["pass", "pass", 0.5, "lost"]
    releases = Releases(line, random.Random(7))
    answer = releases.answer(between(0, 3))
    assert answer.kind is Kind.CANNOT_TELL
    assert answer.changes[0].varying == (2,)


def test_equal_ends_that_vary_are_no_answer() -> None:
    assert Releases([0.5, 0.5], random.Random(2)).answer(between(0, 1)).kind is Kind.CANNOT_TELL


def test_one_run_is_one_run() -> None:
    releases = Releases(["pass", "pass", "lost", "lost"])
    assert pairs(releases.answer(between(0, 3), rule_of(1, None))) == [(1, 2)]
    assert releases.runs == len(releases.probed) == 4


# With chance ----------------------------------------------------------------------------------------


def test_the_numbers_of_runs() -> None:
    assert rule_of(None, None).batches == (1,)
    assert rule_of(50, None).batches == (50,)
    assert rule_of(None, 0.99).batches == (10, 20, 40, 80, 160, 320)
    assert rule_of(25, 0.9).batches == (10, 12, 25)
    assert rule_of(3, 0.9).batches == (3,)


@pytest.mark.parametrize("seed", range(20))
def test_a_race_is_found(seed: int) -> None:
    releases = Releases([0.0] * 7 + [0.3] * 6, random.Random(seed))
    answer = releases.answer(between(0, 12), rule_of(None, 0.999))
    (change,) = answer.changes
    assert change.before < 7 <= change.after
    if answer.kind is Kind.FOUND:
        assert (change.before, change.after) == (6, 7)


def test_more_runs_where_they_are_needed() -> None:
    sure, rare = Releases([0.0] * 4 + [1.0] * 4), Releases([0.0] * 4 + [0.05] * 4)
    assert pairs(sure.answer(between(0, 7), rule_of(None, 0.99))) == [(3, 4)]
    rare.answer(between(0, 7), rule_of(None, 0.99))
    assert sure.runs < rare.runs / 5


@pytest.mark.parametrize("rates", [(0.01, 0.02), (0.5, 0.5), (0.0, 0.01)])
def test_it_says_that_it_cannot_tell(rates: tuple[float, float]) -> None:
    releases = Releases([rates[0], *rates, rates[1]], random.Random(3))
    answer = releases.answer(between(0, 3), rule_of(100, None))
    assert answer.kind is Kind.CANNOT_TELL


def test_a_rate_between_both_ends_is_named_and_not_counted_to_one() -> None:
    releases = Releases([0.0, 0.1, 1.0], random.Random(5))
    answer = releases.answer(between(0, 2), rule_of(20, None))
    assert answer.kind is Kind.CANNOT_TELL
    (change,) = answer.changes
    assert (change.before, change.after, change.unclear) == (0, 2, (1,))
    assert "of 20 fail" in change.skipped[0][1]


def test_releases_that_always_do_the_same_are_the_same() -> None:
    answer = Releases([0.0, 0.0]).answer(between(0, 1), rule_of(30, None))
    assert answer.kind is Kind.SAME


@given(st.lists(st.sampled_from([0.0, 0.2, 1.0, None]), min_size=1, max_size=8), st.integers(0, 99))
def test_each_search_ends(line: list[float | None], seed: int) -> None:
    for search in (whole(len(line)), every(len(line)), between(0, len(line) - 1)):
        answer = Releases(line, random.Random(seed)).answer(search, rule_of(20, 0.9))
        for before, after in pairs(answer):
            assert line[before] is not None
            assert line[after] is not None


# Many cells -----------------------------------------------------------------------------------------


def test_cells_share_probes_of_a_release() -> None:
    calls: list[tuple[int, int]] = []

    def probe(index: int, subjects: Sequence[str], runs: int) -> Iterator[tuple[str, Sample]]:
        calls.append((index, len(subjects)))
        for subject in subjects:
            failed = index >= int(subject)
            yield subject, Sample("fail" if failed else "pass", not failed)

    found = answers(["3", "3", "5", "9"], between(0, 7), rule_of(1, None), probe, {})
    assert {subject: pairs(answer) for subject, answer in found.items()} == {"3": [(2, 3)], "5": [(4, 5)], "9": []}
    assert calls[:2] == [(0, 3), (7, 3)]
    assert len(calls) <= 7


@given(st.lists(st.sampled_from(["pass", "lost", None]), min_size=2, max_size=9))
@settings(max_examples=25)
def test_several_releases_at_once_give_the_same_answer(line: list[str | None]) -> None:
    count = len(line)
    for search in (between(0, count - 1), whole(count), every(count)):
        at_once = answers([CELL], search, Rule(), Releases(line), {}, several=True)[CELL]
        assert at_once == Releases(line).answer(search)


@pytest.mark.parametrize(
    ("search", "together"), [(between(0, 3), {0, 3}), (whole(4), {0, 3}), (every(4), {0, 1, 2, 3})]
)
def test_what_a_search_needs_first_runs_at_once(search: Search[Answer], together: set[int]) -> None:
    """Each probe waits for the others."""
    begun = threading.Barrier(len(together))
    waited: set[int] = set()

    def probe(index: int, subjects: Sequence[str], runs: int) -> Iterator[tuple[str, Sample]]:
        if index in together - waited:
            waited.add(index)
            begun.wait(timeout=60)
        yield subjects[0], Sample("pass" if index < 2 else "fail", index < 2)

    (change,) = answers([CELL], search, rule_of(1, None), probe, {}, several=True)[CELL].changes
    assert (change.before, change.after, waited) == (1, 2, together)


def test_an_error_of_one_of_several_probes_ends_the_search() -> None:
    def probe(index: int, subjects: Sequence[str], runs: int) -> Iterator[tuple[str, Sample]]:
        if index == 1:
            raise OSError("planted")
        yield subjects[0], Sample("pass", True)

    with pytest.raises(OSError, match="planted"):
        answers([CELL], every(3), Rule(), probe, {}, several=True)


def test_a_cell_without_an_outcome_does_not_stop_the_search() -> None:
    def probe(index: int, subjects: Sequence[str], runs: int) -> Iterator[tuple[str, Sample]]:
        if index != 1:
            yield subjects[0], Sample("pass" if index == 0 else "fail", index == 0)
        if index == 1:
            yield subjects[0], untestable("this release has no such cell\nmore")

    answer = answers(["cell"], between(0, 2), rule_of(1, None), probe, {})["cell"]
    (change,) = answer.changes
    assert change.skipped == ((1, "this release has no such cell"),)
