"""Conjugate gradients on a damped quadratic model, and what preconditions them; nothing awaits.

    q(d) = g'd + 1/2 d'(G + lambda I)d,      r = -g - (G + lambda I)d,   y = M^-1 r         (1)
    alpha = r'y / p'(G + lambda I)p,         d <- d + alpha p                               (2)
    beta = r+'y+ / r'y,  or, if M is not one matrix, y+'(r+ - r) / r'y;   p <- y+ + beta p  (3)
    q(d) = 1/2 (g'd - r'd)                                                                  (4)

Vectors are float32, scalars float64. All learners compute the same from the same products, bit for
bit, so nobody has to tell anybody.

The second form of beta (Polak and Ribiere's; "flexible", Notay 2000) is for L-BFGS: its matrix is
made of rounded pairs of other products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import torch

from hocket.core.flat import Flat

Precondition: TypeAlias = Callable[[Flat], Flat]

KEEP_BASE: Final = 1.3  # Martens: iterates are kept at the powers of it
FEWEST: Final = 10  # Martens: q is compared with q so many steps before, or a tenth of all steps
TOLERANCE: Final = 5e-4  # Martens: relative improvement of q per step at which to stop
MARTENS_POWER: Final = 0.75  # of the diagonal
RAISE: Final = 1.5  # of lambda (Martens)
POOR, GOOD = 0.25, 0.75  # of the reduction ratio (Martens)
LEAST_DAMPING, MOST_DAMPING = 1e-12, 1e12  # beyond them lambda makes no difference in float32


def dot(a: Flat, b: Flat) -> float:
    """Return the inner product, summed in float64."""
    return float(torch.dot(a.double(), b.double()))


@dataclass
class Iterate:
    """A solution on the way: after how many steps, and its value q."""

    step: int
    direction: Flat
    value: float


@dataclass
class Pairs:
    """Steps s of a run and G s, evenly spaced over it: at most so many, the oldest first.

    When there are too many, every second one is dropped (Morales and Nocedal 2000).
    """

    most: int
    steps: list[Flat] = field(default_factory=list)
    bends: list[Flat] = field(default_factory=list)
    _every: int = 1
    _seen: int = 0

    def see(self, step: Flat, bend: Flat) -> None:
        """Keep a pair if it is its turn."""
        self._seen += 1
        if self._seen % self._every:
            return
        self.steps.append(step)
        self.bends.append(bend)
        if len(self.steps) > self.most:
            self.steps, self.bends = self.steps[1::2], self.bends[1::2]
            self._every *= 2


class ConjugateGradients:
    """One run, step by step: ask for `wanted`, hand in G times it."""

    def __init__(
        self,
        gradient: Flat,
        damping: float,
        precondition: Precondition,
        *,
        flexible: bool = False,
        most_pairs: int = 0,
    ) -> None:
        self.gradient = gradient
        self.damping = damping
        self.pairs = Pairs(most_pairs)
        self.kept: list[Iterate] = []
        self.ended = False
        self._precondition = precondition
        self._flexible = flexible
        self._d = torch.zeros_like(gradient)
        self._values: list[float] = []
        self._next_kept = 1.0
        self._begin(gradient.neg())

    def _begin(self, residual: Flat) -> None:
        self._r = residual
        self._y = self._precondition(residual)
        self._p = self._y.clone()
        self._ry = dot(self._r, self._y)
        self.ended = not self._ry > 0.0  # the model is at its minimum, or not a number

    def start_from(self, start: Flat, bend: Flat) -> None:
        """Begin at a direction instead of zero; `bend` is G times it."""
        self._d = start.clone()
        damped = bend.add(start, alpha=self.damping)
        self._begin(self.gradient.neg().sub_(damped))  # r of eq. 1

    @property
    def wanted(self) -> Flat:
        """The direction whose product with G the next step needs."""
        return self._p

    @property
    def steps(self) -> int:
        """Steps made so far."""
        return len(self._values)

    def step_(self, bend: Flat) -> None:
        """Make a step, given G p."""
        damped = bend.add(self._p, alpha=self.damping)
        curvature = dot(self._p, damped)
        if not curvature > 0.0 or not math.isfinite(curvature):
            self.ended = True  # q has no minimum along p
            return
        alpha = self._ry / curvature
        self._d.add_(self._p, alpha=alpha)  # eq. 2
        if self.pairs.most:
            self.pairs.see(self._p * alpha, bend * alpha)
        before = self._r.clone() if self._flexible else None
        self._r.sub_(damped, alpha=alpha)
        self._turn(before)
        self._values.append(0.5 * (dot(self.gradient, self._d) - dot(self._r, self._d)))  # eq. 4
        self._keep()
        self.ended = self.ended or self._stalls()

    def _turn(self, before: Flat | None) -> None:
        """Find the next conjugate direction, eq. 3."""
        self._y = self._precondition(self._r)
        along = dot(self._r, self._y)
        beta = (along - (dot(before, self._y) if before is not None else 0.0)) / self._ry
        self._p.mul_(beta).add_(self._y)
        self._ry = along
        self.ended = not along > 0.0  # solved exactly

    def _keep(self) -> None:
        """Keep the iterate if its number has passed the next power of 1.3."""
        if self.steps >= self._next_kept:
            self.kept.append(Iterate(self.steps, self._d.clone(), self._values[-1]))
            while self._next_kept <= self.steps:
                self._next_kept *= KEEP_BASE

    def _stalls(self) -> bool:
        """Martens' rule: q improves by less than 5e-4 of itself a step, over the last k steps."""
        i = self.steps
        k = max(FEWEST, i // 10)
        if i <= k or self._values[-1] >= 0.0:
            return False
        now, then = self._values[-1], self._values[-1 - k]
        return (now - then) / now < k * TOLERANCE

    def iterates(self) -> list[Iterate]:
        """Return what was kept, with the last iterate at the end."""
        if not self.steps:
            return []
        if not self.kept or self.kept[-1].step != self.steps:
            self.kept.append(Iterate(self.steps, self._d.clone(), self._values[-1]))
        return self.kept


# ---------------------------------------------------------------------------- damping


def raised(damping: float) -> float:
    """Return the next larger lambda."""
    return _limited(RAISE * damping)


def adjusted(damping: float, ratio: float) -> float:
    """Return lambda after a step: by what the loss fell, relative to what q had promised."""
    if ratio < POOR:
        return raised(damping)
    return _limited(damping / RAISE) if ratio > GOOD else damping


def _limited(damping: float) -> float:
    """Keep lambda within what float32 can hold; 0 stays 0."""
    return damping and min(max(damping, LEAST_DAMPING), MOST_DAMPING)


# ---------------------------------------------------------------------------- preconditioners


def identity(residual: Flat) -> Flat:
    """M = I."""
    return residual.clone()


def diagonal(squares: Flat, damping: float) -> Precondition:
    """M = (diag(mean of squared gradients) + lambda)^0.75 (Martens 2010)."""
    scale = (squares + damping).pow_(MARTENS_POWER)
    scale[scale == 0.0] = 1.0  # no gradient there, no damping: the direction stays as it is
    return lambda residual: residual / scale


def lbfgs(steps: Sequence[Flat], bends: Sequence[Flat], damping: float) -> Precondition:
    """M^-1 = the L-BFGS matrix of an earlier run's pairs, for the damping of now.

    y = G s + lambda s: what is kept is G s, so a pair stays exact when lambda changes.
    """
    triples = []
    for s, bend in zip(steps, bends, strict=True):
        y = bend.add(s, alpha=damping)
        if (sy := dot(s, y)) > 0.0:
            triples.append((s, y, sy))
    if not triples:
        return identity
    _, newest, sy = triples[-1]
    scale = sy / dot(newest, newest)

    def apply(residual: Flat) -> Flat:
        """The two loops of Nocedal 1980."""
        found, weights = residual.clone(), []
        for s, y, sy in reversed(triples):
            weights.append(dot(s, found) / sy)
            found.sub_(y, alpha=weights[-1])
        found.mul_(scale)
        for (s, y, sy), weight in zip(triples, reversed(weights), strict=True):
            found.add_(s, alpha=weight - dot(y, found) / sy)
        return found

    return apply
