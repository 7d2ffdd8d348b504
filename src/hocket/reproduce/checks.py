"""From outcomes to a verdict: holds, does not hold, or inconclusive, with the numbers behind it.

A claim is a list of checks. Each is a statement about two arms, in a figure of which less is better
(a loss, an error, a time). The claim holds if all of them hold, does not hold if one of them does
not, and is inconclusive otherwise. Arms with as many seeds are compared seed by seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hocket.reproduce import statistics
from hocket.reproduce.statistics import MARGIN

Judgement: TypeAlias = Literal["holds", "does not hold", "inconclusive"]


@dataclass(frozen=True)
class Check:
    """One statement, whether it holds, and the numbers behind that."""

    statement: str
    judgement: Judgement
    detail: str


def overall(checks: Sequence[Check]) -> Judgement:
    """Return the verdict on the whole claim."""
    found = {check.judgement for check in checks}
    if "does not hold" in found:
        return "does not hold"
    return "holds" if found == {"holds"} else "inconclusive"


def at_most(
    statement: str, a: Sequence[float], b: Sequence[float], *, margin: float = 0.0
) -> Check:
    """Check that mean(a) <= mean(b) + margin.

    A value of `a` that is not finite is a run that failed. So is an infinite value of `b`; NaN or
    minus infinity in `b` proves nothing, because `b` may be a difference of two runs that failed.
    """
    return _missing(statement, a, b) or _compared(statement, a, b, margin)


def below(statement: str, a: Sequence[float], b: Sequence[float]) -> Check:
    """Check that mean(a) < mean(b): the whole interval of the difference is below zero.

    Equal arms without any spread are not below each other: the interval is zero itself.
    """
    return _missing(statement, a, b) or _compared(statement, a, b, 0.0, strictly=True)


def _missing(statement: str, a: Sequence[float], b: Sequence[float]) -> Check | None:
    """Judge arms without runs or with runs that failed; None if every value is finite."""
    failed_a = sum(not math.isfinite(x) for x in a)
    failed_b = sum(x == math.inf for x in b)
    unknown_b = sum(not math.isfinite(x) for x in b) - failed_b
    if not a or not b:
        return Check(statement, "inconclusive", "an arm has no runs")
    if failed_a:
        return Check(statement, "does not hold", f"{failed_a} of {len(a)} runs failed")
    if unknown_b:
        detail = f"{unknown_b} of {len(b)} values to compare with are unknown"
        return Check(statement, "inconclusive", detail)
    if failed_b:
        return Check(statement, "holds", f"{failed_b} of {len(b)} runs to compare with failed")
    return None


def _compared(
    statement: str, a: Sequence[float], b: Sequence[float], margin: float, strictly: bool = False
) -> Check:
    """Judge by where the interval of the difference lies; all values are finite."""
    found = statistics.difference(a, b)
    detail = f"difference {found:.4f}"
    if margin:
        detail += f", allowed {margin:.4f}"
    if found.high < margin or (found.high == margin and not strictly):
        return Check(statement, "holds", detail)
    if found.low > margin or (found.low == margin and strictly):
        return Check(statement, "does not hold", detail)
    return Check(statement, "inconclusive", detail + _settling(a, b, found, margin))


def reaches(
    statement: str, a: Sequence[float], baseline: Sequence[float], *, margin: float = MARGIN
) -> Check:
    """Check that mean(a) is not above the baseline's by more than a share of it.

    The share is fixed before the runs, and written into the claim. It does not depend on what the
    seeds do, so more seeds can only make the verdict surer, never another one by a wider margin.
    """
    if not baseline or not all(map(math.isfinite, baseline)):
        return Check(statement, "inconclusive", "the baseline has no loss to compare with")
    return at_most(statement, a, baseline, margin=margin * statistics.mean(baseline).value)


def faster(
    statement: str, times: Sequence[float], baseline: Sequence[float], factor: float = 1.0
) -> Check:
    """Check that the times to a loss are at most those of the baseline divided by `factor`.

    An infinite time is a run that never got there, at any budget.
    """
    missing = _never(statement, times, baseline)
    if missing is not None:
        return missing
    found = at_most(statement, times, [t / factor for t in baseline])
    ratio = statistics.mean(baseline).value / statistics.mean(times).value
    asked = f", asked for {factor:.1f}" if factor != 1.0 else ""
    return Check(statement, found.judgement, f"speed-up {ratio:.2f}{asked}; {found.detail}")


def sooner(statement: str, times: Sequence[float], rival: Sequence[float]) -> Check:
    """Check that an arm is at a loss before another one; if neither gets there, nobody knows."""
    return _one_never(statement, times, rival) or below(statement, times, rival)


def no_later(
    statement: str, times: Sequence[float], rival: Sequence[float], margin: float
) -> Check:
    """Check that an arm is at a loss no later than another one, give or take a share of it."""
    missing = _one_never(statement, times, rival)
    if missing is not None:
        return missing
    return at_most(statement, times, rival, margin=margin * statistics.mean(rival).value)


def _one_never(statement: str, times: Sequence[float], rival: Sequence[float]) -> Check | None:
    """Judge two arms of which one does not reach the loss with every seed; None if both do."""
    if not times or not rival:
        return Check(statement, "inconclusive", "an arm has no runs")
    late, other = (sum(not math.isfinite(t) for t in x) for x in (times, rival))
    if late and other:
        return Check(statement, "inconclusive", "neither of them gets there with every seed")
    if late:
        return Check(statement, "does not hold", f"{late} of {len(times)} seeds never get there")
    if other:
        return Check(statement, "holds", f"{other} of {len(rival)} of the other never get there")
    return None


def _never(statement: str, times: Sequence[float], baseline: Sequence[float]) -> Check | None:
    """Judge times of runs that never reached the loss; None if all did."""
    if not times or not baseline:
        return Check(statement, "inconclusive", "an arm has no runs")
    if not all(map(math.isfinite, baseline)):
        return Check(statement, "inconclusive", "the baseline does not get there with every seed")
    late = sum(not math.isfinite(t) for t in times)
    if late:
        return Check(statement, "does not hold", f"{late} of {len(times)} seeds never get there")
    return None


def fact(statement: str, true: bool, detail: str) -> Check:
    """Check something that does not depend on the seed, such as bytes sent."""
    return Check(statement, "holds" if true else "does not hold", detail)


def _settling(
    a: Sequence[float], b: Sequence[float], found: statistics.Interval, margin: float
) -> str:
    """Say how small a difference these seeds can show, and how many seeds would be enough."""
    if not math.isfinite(found.half):
        return "; one seed an arm cannot show a difference: two or more are needed"
    needed = statistics.seeds_needed(a, b, abs(found.value - margin))
    many = f"{needed} seeds an arm" if needed else f"more than {statistics.MAX_SEEDS} seeds an arm"
    return (
        f"; {min(len(a), len(b))} seeds can show differences above {found.half:.4f}, "
        f"{many} would settle this one"
    )
