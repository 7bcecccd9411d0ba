"""How often something fails: SciPy's interval for one rate, and SciPy's test of whether two rates differ.

JAX depends on SciPy. The functions import it themselves: that takes a second, and most commands compare no rates.
"""

from __future__ import annotations

from collections.abc import Mapping

CONFIDENCE = 0.95


def interval(failures: int, runs: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact interval of Clopper and Pearson for the rate of failure, two-sided.

    It is rather too wide than too narrow, also for few runs and for rates near 0 and 1: no failure in 100 runs allows a
    rate of up to 3.6 %.
    """
    from scipy.stats import binomtest

    found = binomtest(failures, runs).proportion_ci(confidence)
    return float(found.low), float(found.high)


def percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"


def chance_of_difference(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """The probability that equal rates show counts of outcomes that differ by this much or more.

    Each kind of outcome is tested against all others together, by Fisher's exact test. The smallest probability counts,
    times the number of tests.
    """
    from scipy.stats import fisher_exact

    kinds = sorted({*one, *other})
    if len(kinds) < 2:
        return 1.0
    runs, other_runs = sum(one.values()), sum(other.values())
    tables = ([[c.get(kind, 0), n - c.get(kind, 0)] for c, n in ((one, runs), (other, other_runs))] for kind in kinds)
    smallest = min(fisher_exact(table).pvalue for table in tables)
    # Of two kinds, one count decides the other: that is one test.
    return float(min(1.0, smallest * (len(kinds) if len(kinds) > 2 else 1)))
