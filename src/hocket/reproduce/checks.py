"""From outcomes to a verdict: holds, does not hold, or inconclusive, with the numbers behind it.

A claim is a list of checks. Each is a statement about two arms, in a figure of which less is better
(a loss, an error, a time). The claim holds if all of them hold, does not hold if one of them does
not, and is inconclusive otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Final, Literal, TypeAlias

from hocket.reproduce import statistics

Judgement: TypeAlias = Literal["holds", "does not hold", "inconclusive"]
SPREADS: Final = 2.0  # "reaches": how many standard deviations of the baseline's seeds are allowed


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


def reaches(statement: str, a: Sequence[float], baseline: Sequence[float]) -> Check:
    """Check that mean(a) is not above the baseline's by more than twice the baseline's spread."""
    if len(baseline) < 2 or not all(map(math.isfinite, baseline)):
        return Check(statement, "inconclusive", "the baseline needs two seeds that do not diverge")
    return at_most(statement, a, baseline, margin=SPREADS * stdev(baseline))


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
