"""From outcomes to a verdict: holds, does not hold, or inconclusive, with the numbers behind it.

A claim is a list of checks, each a statement about two arms in a figure of which less is better (a
loss, an error, a time). It holds if all of them do, does not hold if one of them does not, and is
inconclusive otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Final, Literal, TypeAlias

from hocket.reproduce import statistics

Judgement: TypeAlias = Literal["holds", "does not hold", "inconclusive"]
SPREADS: Final = 2.0  # "reaches": not worse by more than so many spreads of the baseline's seeds


@dataclass(frozen=True)
class Check:
    """One statement and what became of it."""

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
    """Check that mean(a) <= mean(b) + margin; values that are not finite are failures."""
    lost_a, lost_b = (sum(not math.isfinite(x) for x in arm) for arm in (a, b))
    if lost_a:
        return Check(statement, "does not hold", f"{lost_a} of {len(a)} runs failed")
    if lost_b:
        return Check(statement, "holds", f"{lost_b} of {len(b)} runs compared with failed")
    found = statistics.difference(a, b)
    detail = f"difference {found:.4f}"
    if margin:
        detail += f", allowed {margin:.4f}"
    if found.high <= margin:
        return Check(statement, "holds", detail)
    if found.low > margin:
        return Check(statement, "does not hold", detail)
    return Check(statement, "inconclusive", detail + _settling(a, b, found, margin))


def below(statement: str, a: Sequence[float], b: Sequence[float]) -> Check:
    """Check that mean(a) < mean(b), clearly: the interval of the difference excludes zero."""
    return at_most(statement, a, b)


def reaches(statement: str, a: Sequence[float], baseline: Sequence[float]) -> Check:
    """Check that mean(a) is not worse than the baseline's by more than twice its spread."""
    if len(baseline) < 2 or not all(map(math.isfinite, baseline)):
        return Check(statement, "inconclusive", "the baseline needs two seeds that end")
    return at_most(statement, a, baseline, margin=SPREADS * stdev(baseline))


def fact(statement: str, true: bool, detail: str) -> Check:
    """Check something that does not depend on the seed, such as bytes sent."""
    return Check(statement, "holds" if true else "does not hold", detail)


def _settling(
    a: Sequence[float], b: Sequence[float], found: statistics.Interval, margin: float
) -> str:
    """Say what these seeds could have shown, and how many would settle it."""
    if not math.isfinite(found.half):
        return "; one seed shows no difference at all: two or more are needed"
    needed = statistics.seeds_needed(a, b, abs(found.value - margin))
    many = f"{needed} seeds an arm" if needed else f"more than {statistics.MAX_SEEDS} seeds an arm"
    return (
        f"; {min(len(a), len(b))} seeds can show differences from {found.half:.4f} on, "
        f"{many} would settle this one"
    )
