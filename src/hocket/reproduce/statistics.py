"""What a few seeds can show: intervals of means and of differences, without a library.

All intervals are Student's, at 95 %; a difference of two arms is Welch's, so the arms need not
scatter alike. Tested against SciPy.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from typing import Final

import numpy as np

LEVEL: Final = 0.95
MAX_SEEDS: Final = 1000  # beyond this "more seeds" is no advice


@dataclass(frozen=True)
class Interval:
    """A value and where the truth lies with 95 % confidence."""

    value: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half its width: a smaller difference than this could not have been seen."""
        return (self.high - self.low) / 2

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


_SIMPSON: Final = np.array([1.0] + [4.0, 2.0] * 199 + [4.0, 1.0]) / 3.0


@cache
def t_quantile(p: float, df: float) -> float:
    """Return x with P(T <= x) = p, p above a half, by bisection on the integrated density."""
    if not 0.5 < p < 1 or df <= 0:
        raise ValueError(f"t_quantile needs 0.5 < p < 1 and df > 0, not {p}, {df}")
    low, high = 0.0, 1.0
    while _central(high, df) < p - 0.5:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _central(middle, df) < p - 0.5 else (low, middle)
    return (low + high) / 2


def _central(x: float, df: float) -> float:
    """P(0 <= T <= x); with T = sqrt(df) tan(a) the integrand is cos(a)^(df-1), which is tame."""
    norm = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(math.pi)
    width = math.atan(x / math.sqrt(df)) / (len(_SIMPSON) - 1)
    heights = np.cos(width * np.arange(len(_SIMPSON))) ** (df - 1)
    return math.exp(norm) * width * float(_SIMPSON @ heights)


def mean(values: Sequence[float]) -> Interval:
    """Return the mean of some seeds; one seed says nothing of its neighbours."""
    middle = fmean(values)
    if len(values) < 2 or not math.isfinite(middle):
        return Interval(middle, -math.inf, math.inf)
    half = t_quantile((1 + LEVEL) / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(middle, middle - half, middle + half)


def difference(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Return mean(a) - mean(b), by Welch."""
    middle = fmean(a) - fmean(b)
    if min(len(a), len(b)) < 2 or not math.isfinite(middle):
        return Interval(middle, -math.inf, math.inf)
    va, vb = stdev(a) ** 2 / len(a), stdev(b) ** 2 / len(b)
    if va + vb == 0:
        return Interval(middle, middle, middle)
    df = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    half = t_quantile((1 + LEVEL) / 2, df) * math.sqrt(va + vb)
    return Interval(middle, middle - half, middle + half)


def seeds_needed(a: Sequence[float], b: Sequence[float], distance: float) -> int | None:
    """Return how many seeds an arm needs until a difference of `distance` would show.

    With the scatter seen so far, and seeing it where it is: half the interval is `distance`. More
    than there are, as these did not show it. None: more than `MAX_SEEDS`, or it cannot be told
    from so few.
    """
    if min(len(a), len(b)) < 2 or distance <= 0:
        return None
    variance = stdev(a) ** 2 + stdev(b) ** 2

    def too_wide(n: int) -> bool:
        return t_quantile((1 + LEVEL) / 2, 2 * n - 2) * math.sqrt(variance / n) >= distance

    if too_wide(MAX_SEEDS):
        return None
    more = max(len(a), len(b)) + 1
    return more + bisect_left(range(more, MAX_SEEDS), True, key=lambda n: not too_wide(n))
