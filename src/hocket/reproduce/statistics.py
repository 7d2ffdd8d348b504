"""What a few seeds can show: intervals of means and of differences.

All intervals are Student's, at 95 %. Two arms with the same seeds are compared seed by seed: the
same seed is the same initial model and the same data, so their losses go together. (On `stream`, in
the quick form, five seeds of sequential SGD had a correlation of 0.94 with allreduce and of 1.00
with BMUF, 8 learners each; other methods were not looked at.) Arms of unequal length are compared
by Welch's interval. Tested against SciPy, which is an optional dependency and not needed here.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean as exact_mean, stdev
from typing import Final

import numpy as np

LEVEL: Final = 0.95
MARGIN: Final = 0.01  # a loss this share above another one counts as equal to it
MAX_SEEDS: Final = 1000  # more than this would be no useful advice


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half its width: the seeds cannot show a difference smaller than this."""
        return (self.high - self.low) / 2

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


# Gauss and Legendre's nodes and weights on [-1, 1]. 200 of them integrate the density below to
# 1e-9 for every df >= 1 and p <= 0.999; with 100 of them, df near 1 is off by 1e-8.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)


@cache
def t_quantile(p: float, df: float) -> float:
    """Return x with P(T <= x) = p, p above a half, by bisection on the integrated density."""
    if not 0.5 < p < 1 or not 1 <= df < math.inf:
        raise ValueError(f"t_quantile needs 0.5 < p < 1 and 1 <= df < inf, not {p}, {df}")
    low, high = 0.0, 1.0
    while _central(high, df) < p - 0.5:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _central(middle, df) < p - 0.5 else (low, middle)
    return (low + high) / 2


def _central(x: float, df: float) -> float:
    """P(0 <= T <= x); with T = sqrt(df) tan(a) the integrand is the smooth cos(a)^(df-1)."""
    norm = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(math.pi)
    half = math.atan(x / math.sqrt(df)) / 2
    heights = np.cos(half * (_NODES + 1)) ** (df - 1)
    return math.exp(norm) * half * float(_WEIGHTS @ heights)


def mean(values: Sequence[float]) -> Interval:
    """Return the mean over seeds. One seed, or one that is not finite: the interval is infinite."""
    middle = _mean(values)
    if len(values) < 2 or not math.isfinite(middle):
        return Interval(middle, -math.inf, math.inf)
    error = stdev(values) / math.sqrt(len(values))
    half = t_quantile((1 + LEVEL) / 2, len(values) - 1) * error
    return Interval(middle, middle - half, middle + half)


def difference(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Return mean(a) - mean(b), seed by seed if there are as many of both, else by Welch.

    The interval is infinite as in `mean`.
    """
    middle = _mean(a) - _mean(b)
    if min(len(a), len(b)) < 2 or not math.isfinite(middle):
        return Interval(middle, -math.inf, math.inf)
    if len(a) == len(b):
        found = mean([x - y for x, y in zip(a, b, strict=True)])
        return Interval(middle, middle - found.half, middle + found.half)
    return _welch(a, b, middle)


def _welch(a: Sequence[float], b: Sequence[float], middle: float) -> Interval:
    error_a, error_b = (stdev(x) / math.sqrt(len(x)) for x in (a, b))
    error = math.hypot(error_a, error_b)  # squares of very large or small errors leave the range
    if error == 0:
        return Interval(middle, middle, middle)
    share_a, share_b = (error_a / error) ** 2, (error_b / error) ** 2  # of the variance
    df = 1 / (share_a**2 / (len(a) - 1) + share_b**2 / (len(b) - 1))
    half = t_quantile((1 + LEVEL) / 2, max(1.0, df)) * error  # rounding may leave 0.9999...
    return Interval(middle, middle - half, middle + half)


def _mean(values: Sequence[float]) -> float:
    """Return the mean, NaN of no values.

    Not by `fmean`: its rounding depends on the number of values, so that two and three seeds of
    the same value would differ by 1e-17, and one of the two arms would be "below" the other.
    """
    return float(exact_mean(values)) if values else math.nan


def seeds_needed(a: Sequence[float], b: Sequence[float], distance: float) -> int | None:
    """Return how many seeds each arm needs to show a difference of `distance`.

    That many make half the interval smaller than `distance`, if the spread stays as it is. It is
    more than there are now, because these did not show it. None: more than `MAX_SEEDS`, or no
    spread is known (one seed, values that are not finite).
    """
    known = all(math.isfinite(x) for x in (*a, *b, distance))
    if min(len(a), len(b)) < 2 or not known or distance <= 0:
        return None
    paired = len(a) == len(b)
    spread = (
        stdev([x - y for x, y in zip(a, b, strict=True)])
        if paired
        else math.hypot(stdev(a), stdev(b))
    )

    def too_wide(n: int) -> bool:
        df = n - 1 if paired else 2 * n - 2
        return t_quantile((1 + LEVEL) / 2, df) * spread / math.sqrt(n) >= distance

    if too_wide(MAX_SEEDS):
        return None
    more = max(len(a), len(b)) + 1
    return more + bisect_left(range(more, MAX_SEEDS), True, key=lambda n: not too_wide(n))
