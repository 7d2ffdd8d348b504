"""Intervals as SciPy has them, and verdicts that follow the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from statistics import stdev

import pytest
import scipy.stats
from helpers.claims import at_times, made_up

from hocket.errors import ConfigError
from hocket.reproduce import checks, outcome, statistics
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
        spread = stdev([x - y for x, y in zip(a, b, strict=True)])
        half = scipy.stats.t.ppf(0.975, m - 1) * spread / math.sqrt(m)
        assert (half < distance) == enough
    assert statistics.seeds_needed(a, b, 1e-9) is None
    assert statistics.seeds_needed(a, b, 10.0) == 4  # three were there and did not show it


def test_so_many_seeds_settle_it_for_arms_of_unequal_length() -> None:
    a, b, distance = [1.0, 1.2, 1.1, 1.1], [0.95, 1.25, 1.1], 0.05
    n = statistics.seeds_needed(a, b, distance)
    assert n is not None
    spread = math.hypot(stdev(a), stdev(b))
    for m, enough in ((n, True), (n - 1, False)):
        half = scipy.stats.t.ppf(0.975, 2 * m - 2) * spread / math.sqrt(m)
        assert (half < distance) == enough


def test_arms_with_the_same_seeds_are_compared_seed_by_seed() -> None:
    """What a seed does to both arms alike does not hide the difference between them."""
    a, b = [1.0, 2.0, 3.0, 4.0], [1.01, 2.02, 3.01, 4.02]
    theirs = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
    ours = statistics.difference(a, b)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-9)
    assert checks.below("", a, b).judgement == "holds"
    assert checks.below("", a, [*b, 5.0]).judgement == "inconclusive"  # not the same seeds


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
        (checks.reaches, [0.99, 0.99, 0.99], TIGHT, "holds"),
        (checks.reaches, FAR, TIGHT, "does not hold"),
        (checks.reaches, [1.0, 1.0, math.inf], TIGHT, "does not hold"),
        (checks.reaches, TIGHT, [1.0], "inconclusive"),
        # the margin is 1 % of the baseline, whatever the spread of its seeds
        (checks.reaches, [1.0099, 1.0099], [1.0, 1.0], "holds"),
        (checks.reaches, [1.0101, 1.0101], [1.0, 1.0], "does not hold"),
        (checks.reaches, [10.09, 10.09], [10.0, 10.0], "holds"),
        (checks.reaches, [1.02, 1.0201, 1.0199], [0.98, 1.0, 1.02], "inconclusive"),
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
        (checks.below, TIGHT, TIGHT, "does not hold"),  # run by run the same
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
    assert "3 seeds can show differences above 0.0072" in found
    assert "seeds an arm would settle this one" in found


def test_the_verdict_is_that_of_the_weakest_check() -> None:
    good, bad, unsure = (
        checks.Check("", j, "") for j in ("holds", "does not hold", "inconclusive")
    )
    assert checks.overall([good, good]) == "holds"
    assert checks.overall([good, unsure]) == "inconclusive"
    assert checks.overall([good, unsure, bad]) == "does not hold"


# ------------------------------------------------------------------ tuning and judging


def test_an_arm_is_judged_at_its_best_setting() -> None:
    arms = [
        Arm("one", "lr 1", (), (made_up(2.0),)),
        Arm("one", "lr 2", (made_up(3.0),), (made_up(1.0),)),
    ]
    assert Found(arms)["one"].setting == "lr 2"
    with pytest.raises(ConfigError, match="Did you mean 'one'"):
        Found(arms)["on"]


def test_the_tuning_seed_never_judges() -> None:
    """Lucky in tuning, worse with every other seed: counted in, it would turn the verdict."""
    alone = Arm("sequential", "", tuple(made_up(x) for x in (1.0, 1.001, 0.999)))
    unlucky = tuple(made_up(x) for x in (1.02, 1.021, 1.019))
    lucky = (made_up(0.5),)
    found = Found([alone, Arm("a", "lr 1", unlucky, lucky), Arm("a", "lr 2", (), (made_up(0.9),))])
    check = checks.reaches("", found["a"].losses, found["sequential"].losses)
    assert check.judgement == "does not hold"
    with_it = [*found["a"].losses, lucky[0].loss]
    assert checks.reaches("", with_it, alone.losses).judgement != "does not hold"


def test_what_judging_seeds_find_does_not_choose_the_setting() -> None:
    """lr 2 would be better for the judging seeds; the tuning seed did not say so."""
    arms = [
        Arm("a", "lr 1", (made_up(2.0),), (made_up(1.0),)),
        Arm("a", "lr 2", (made_up(0.1),), (made_up(1.1),)),
    ]
    assert Found(arms)["a"].setting == "lr 1"


# ------------------------------------------------------------------ time to the sequential loss


def test_time_to_a_loss_is_the_shortest_of_all_budgets() -> None:
    """Per seed; a longer run may be there when the short one never was, or even before it."""
    arm = Arm(
        "a",
        "",
        (at_times(3, 2), at_times(3, 2), at_times(2, 1)),
        longer=(
            (at_times(4, 3, 1), at_times(5, 4, 3, 1)),
            (at_times(4, 3, 2),),
            (at_times(1, 1, 1),),
        ),
    )
    assert arm.times_to([1.0] * 3) == [3.0, math.inf, 1.0]
    assert arm.frames_to([1.0] * 3) == [300.0, math.inf, 100.0]
    assert Arm("a", "", arm.outcomes).times_to([1.0] * 3) == [math.inf, math.inf, 2.0]


def test_the_speed_up_is_against_the_sequential_time_by_the_same_rule() -> None:
    """The target is the sequential loss of the same seed plus the margin, for sequential, too."""
    alone = Arm("sequential", "", (at_times(3, 1.009, 1.0), at_times(3, 2.018, 2.0)))
    fast = Arm("fast", "", (at_times(1.01), at_times(2.01)))
    late = Arm("late", "", (at_times(1.01), at_times(2.03)))
    found = Found([alone, fast, late, Arm("one", "", (at_times(1.6, 1.514),))])
    assert found.targets("fast") == pytest.approx([1.01, 2.02])
    assert found.targets("one") == pytest.approx([1.515]), "fewer seeds: the mean"
    assert found.times("sequential") == [2.0, 2.0]
    assert found.speedup("sequential") == 1.0
    assert found.speedup("fast") == 2.0
    assert math.isnan(found.speedup("late"))
    assert found.times("one") == [2.0]
    assert Found([alone, fast, late], margin=0.02).speedup("late") == 2.0


def test_nobody_is_timed_against_a_sequential_run_that_diverged() -> None:
    gone = outcome.of_divergence("", 1.0)
    found = Found([Arm("sequential", "", (gone,) * 2), Arm("a", "", (made_up(1.0),) * 2)])
    assert found.times("a") == [math.inf] * 2
    assert math.isnan(found.speedup("a"))


@pytest.mark.parametrize(
    ("times", "baseline", "factor", "expected"),
    [
        ([1.0, 1.0], [6.2, 6.2], 6.1, "holds"),
        ([1.0, 1.0], [6.0, 6.0], 6.1, "does not hold"),
        ([1.0, 1.1, 0.9], [6.3, 6.0, 6.2], 6.1, "inconclusive"),
        ([1.0, math.inf], [6.2, 6.2], 6.1, "does not hold"),  # a seed never gets there
        ([1.0, 1.0], [math.inf, 6.2], 6.1, "inconclusive"),  # nor does the baseline
        ([1.0], [9.0], 6.1, "inconclusive"),
        ([], [9.0, 9.0], 6.1, "inconclusive"),
    ],
)
def test_faster_asks_for_a_factor(
    times: list[float], baseline: list[float], factor: float, expected: str
) -> None:
    assert checks.faster("", times, baseline, factor).judgement == expected


def test_who_is_sooner_is_unknown_if_neither_arrives() -> None:
    never, there = [math.inf, 1.0], [1.0, 1.0]
    for check in (checks.sooner, partial(checks.no_later, margin=0.01)):
        assert check("", never, never).judgement == "inconclusive"
        assert check("", never, there).judgement == "does not hold"
        assert check("", there, never).judgement == "holds"
    assert checks.sooner("", there, there).judgement == "does not hold"
    assert checks.no_later("", [1.009, 1.009], there, 0.01).judgement == "holds"
    assert checks.no_later("", [1.011, 1.011], there, 0.01).judgement == "does not hold"
