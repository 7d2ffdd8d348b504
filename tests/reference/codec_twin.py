"""Codecs and their two exchanges as the papers have them: plain Python, float64, no libraries.

A model is a list of columns, a column a list of numbers. Nothing is shared with the code under test
but the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

Column: TypeAlias = list[float]
Quantiser: TypeAlias = Callable[[Column], Column]


def one_bit(column: Column) -> Column:
    """Seide et al. 2014: the mean of what is at least zero, the mean of what is below."""
    above = [v for v in column if v >= 0]
    below = [v for v in column if v < 0]
    high = sum(above) / len(above) if above else 0.0
    low = sum(below) / len(below) if below else 0.0
    return [high if v >= 0 else low for v in column]


def largest(share: float) -> Quantiser:
    """The k largest in magnitude, of equal ones the first; the others are zero."""

    def quantise(column: Column) -> Column:
        k = max(1, math.floor(len(column) * share + 0.5))
        order = sorted(range(len(column)), key=lambda i: (-abs(column[i]), i))
        chosen = set(order[:k])
        return [v if i in chosen else 0.0 for i, v in enumerate(column)]

    return quantise


def rounded(bits: int) -> Quantiser:
    """Round to so many bits of mantissa, to nearest, ties to even."""

    def one(v: float) -> float:
        if v == 0:
            return 0.0
        exponent = math.frexp(v)[1] - bits
        return math.ldexp(round(math.ldexp(v, -exponent)), exponent)

    return lambda column: [one(v) for v in column]


class TwoExchanges:
    """P learners, each with a residual; owners of stripes have a second one, here in one place."""

    def __init__(self, quantiser: Quantiser, num_learners: int, widths: Sequence[int]) -> None:
        self.quantise = quantiser
        self.first = [[[0.0] * n for n in widths] for _ in range(num_learners)]
        self.second = [[0.0] * n for n in widths]
        self.frames = [0.0] * (num_learners + 1)  # that residuals stand for; the last: the second

    def share(self, which: int, n: float) -> float:
        """A residual of many frames goes along with few only in part."""
        before = self.frames[which]
        self.frames[which] = max(n, before - n)
        return 1.0 if n >= before else n / before

    def mean(self, vectors: Sequence[list[Column]], weights: Sequence[float]) -> list[Column]:
        """Code every learner's columns, add up, code the sum, divide by all frames."""
        totals = [[0.0] * len(column) for column in self.second]
        for who, (x, residual, n) in enumerate(zip(vectors, self.first, weights, strict=True)):
            if n == 0:
                continue
            c = self.share(who, n)
            for total, column, rest in zip(totals, x, residual, strict=True):
                v = [n * a + c * r for a, r in zip(column, rest, strict=True)]
                q = self.quantise(v)
                for i in range(len(v)):
                    rest[i] = v[i] - q[i] + (1 - c) * rest[i]
                    total[i] += q[i]
        means = []
        c = self.share(-1, sum(weights))
        for total, rest in zip(totals, self.second, strict=True):
            v = [a + c * r for a, r in zip(total, rest, strict=True)]
            q = self.quantise(v)
            for i in range(len(v)):
                rest[i] = v[i] - q[i] + (1 - c) * rest[i]
            means.append([a / sum(weights) for a in q])
        return means
