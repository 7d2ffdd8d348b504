"""Intervals as SciPy has them, and verdicts that follow the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import stdev

import pytest
import scipy.stats
from helpers.claims import made_up

from hocket.errors import ConfigError
from hocket.reproduce import checks, statistics
from hocket.reproduce.outcome import Arm, Found


# Nothing below one degree of freedom: Welch's formula gives at least that of the smaller arm.
@pytest.mark.parametrize("df", [1, 1.01, 1.2, 1.7, 2, 3, 5, 10, 30, 100, 1998])
@pytest.mark.parametrize("p", [0.51, 0.6, 0.75, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999])
def test_student_as_scipy_has_it(p: float, df: float) -> None:
    """To 1e-9: that is what the quadrature gives at p = 0.999 and df = 1.01, its hardest case."""
    assert statistics.t_quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-9)


@pytest.mark.parametrize("bad", [(0.5, 3), (1.0, 3), (0.9, 0), (0.9, math.inf), (0.9, math.nan)])
def test_quantiles_outside_the_tested_range_are_refused(bad: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="t_quantile needs"):
        statistics.t_quantile(*bad)


# The scales are those at which squares of the spreads overflow or vanish.
@pytest.mark.parametrize("scale", [1.0, 1e-100, 1e-170, 1e100, 1e200])
@pytest.mark.parametrize("b", [[0.9, 0.7, 0.5], [0.9, 0.7], [0.9, 0.900001, 0.9]])
def test_the_interval_of_a_difference_is_welchs(b: list[float], scale: float) -> None:
    a = [1.0, 1.2, 1.1, 1.4]
    theirs = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    ours = statistics.difference([scale * x for x in a], [scale * x for x in b])
    expected = scale * theirs.low, scale * theirs.high
    assert (ours.low, ours.high) == pytest.approx(expected, rel=1e-9, abs=0)


@pytest.mark.parametrize(
    "values", [[], [1.0], [1.0, math.inf], [math.inf, -math.inf], [1.0, math.nan]]
)
def test_the_interval_is_infinite_where_no_spread_is_known(values: list[float]) -> None:
    for found in (statistics.mean(values), statistics.difference(values, [1.0, 2.0])):
        assert (found.low, found.high) == (-math.inf, math.inf)


def test_the_interval_of_equal_seeds_is_a_point() -> None:
    found = statistics.mean([0.1] * 3)
    assert (found.low, found.value, found.high) == (0.1, 0.1, 0.1)
    found = statistics.difference([0.5] * 2, [0.25] * 3)
    assert (found.low, found.value, found.high) == (0.25, 0.25, 0.25)


def test_so_many_seeds_do_settle_it() -> None:
    """With n seeds half the interval is below the distance, with n - 1 it is not."""
    a, b, distance = [1.0, 1.2, 1.1], [0.95, 1.25, 1.1], 0.05
    n = statistics.seeds_needed(a, b, distance)
    assert n is not None
    for m, enough in ((n, True), (n - 1, False)):
        widened = [stdev(x) for x in (a, b)]
        half = scipy.stats.t.ppf(0.975, 2 * m - 2) * math.sqrt(sum(s * s for s in widened) / m)
        assert (half < distance) == enough
    assert statistics.seeds_needed(a, b, 1e-9) is None
    assert statistics.seeds_needed(a, b, 10.0) == 4  # three were there and did not show it


@pytest.mark.parametrize("distance", [0.0, math.inf, math.nan])
def test_no_number_of_seeds_is_named_for_no_distance(distance: float) -> None:
    assert statistics.seeds_needed([1.0, 1.2], [1.1, 1.3], distance) is None


def test_no_number_of_seeds_is_named_if_runs_failed() -> None:
    assert statistics.seeds_needed([1.0, math.inf], [1.1, 1.3], 0.1) is None


# ------------------------------------------------------------------ verdicts

TIGHT, CLOSE, FAR = [1.0, 1.01, 1.02], [1.005, 1.015, 1.02], [2.0, 2.01, 2.02]


@pytest.mark.parametrize(
    ("check", "a", "b", "expected"),
    [
        (checks.reaches, CLOSE, TIGHT, "inconclusive"),
        (checks.reaches, [1.0, 1.0, 1.0], TIGHT, "holds"),
        (checks.reaches, FAR, TIGHT, "does not hold"),
        (checks.reaches, [1.0, 1.0, math.inf], TIGHT, "does not hold"),
        (checks.reaches, TIGHT, [1.0], "inconclusive"),
        (checks.below, TIGHT, FAR, "holds"),
        (checks.below, FAR, TIGHT, "does not hold"),
        (checks.below, CLOSE, TIGHT, "inconclusive"),
        (checks.below, TIGHT, [math.inf, 1.0], "holds"),
        # no spread at all
        (checks.below, [1.0, 1.0], [1.0, 1.0], "does not hold"),
        (checks.below, [0.9, 0.9], [1.0, 1.0], "holds"),
        (checks.below, [1.1, 1.1], [1.0, 1.0], "does not hold"),
        (checks.at_most, [1.0, 1.0], [1.0, 1.0], "holds"),
        (checks.reaches, [1.0, 1.0], [1.0, 1.0], "holds"),
        (checks.reaches, [1.1, 1.1], [1.0, 1.0], "does not hold"),
        (checks.below, [0.1] * 2, [0.1] * 3, "does not hold"),
        (checks.at_most, [0.1] * 3, [0.1] * 2, "holds"),
        # the same spread, and no difference
        (checks.below, TIGHT, TIGHT, "inconclusive"),
        (checks.below, TIGHT, list(reversed(TIGHT)), "inconclusive"),
        # one seed, no seed, arms of unequal length
        (checks.below, [1.0], [2.0], "inconclusive"),
        (checks.below, [1.0], FAR, "inconclusive"),
        (checks.below, [], FAR, "inconclusive"),
        (checks.below, TIGHT, [], "inconclusive"),
        (checks.below, TIGHT, FAR[:2], "holds"),
        # runs that failed, and values that say nothing
        (checks.below, [math.inf, math.inf], [math.inf, math.inf], "does not hold"),
        (checks.below, [1.0, math.nan], FAR, "does not hold"),
        (checks.below, TIGHT, [math.nan, 2.0], "inconclusive"),
        (checks.below, TIGHT, [-math.inf, 2.0], "inconclusive"),
        (checks.reaches, TIGHT, [math.nan, 1.0], "inconclusive"),
    ],
)
def test_a_check_follows_the_numbers(
    check: Callable[[str, list[float], list[float]], checks.Check],
    a: list[float],
    b: list[float],
    expected: str,
) -> None:
    assert check("", a, b).judgement == expected


def test_a_fact_holds_if_it_is_true() -> None:
    assert checks.fact("", True, "").judgement == "holds"
    assert checks.fact("", False, "").judgement == "does not hold"


def test_an_inconclusive_check_says_what_would_settle_it() -> None:
    found = checks.below("", CLOSE, TIGHT).detail
    assert "3 seeds can show differences above 0.02" in found
    assert "seeds an arm would settle this one" in found


def test_the_verdict_is_that_of_the_weakest_check() -> None:
    good, bad, unsure = (
        checks.Check("", j, "") for j in ("holds", "does not hold", "inconclusive")
    )
    assert checks.overall([good, good]) == "holds"
    assert checks.overall([good, unsure]) == "inconclusive"
    assert checks.overall([good, unsure, bad]) == "does not hold"


def test_an_arm_is_judged_at_its_best_setting() -> None:
    arms = [Arm("one", "lr 1", (made_up(2.0),)), Arm("one", "lr 2", (made_up(1.0),))]
    assert Found(arms)["one"].setting == "lr 2"
    with pytest.raises(ConfigError, match="Did you mean 'one'"):
        Found(arms)["on"]
