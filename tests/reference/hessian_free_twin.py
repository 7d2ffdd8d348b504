"""Hessian-free optimisation, slowly: dense matrices, float64, written from the papers.

Martens 2010 (conjugate gradients, their stopping rule, kept iterates, damping, preconditioner) and
Kingsbury, Sainath and Soltau 2012 (backtracking on held-out loss, restart direction); Sainath et
al. 2013 (L-BFGS of the last run, flexible conjugate gradients).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Floats = NDArray[np.float64]


@dataclass
class Problem:
    """A model in float64, and its batches: frames and their classes."""

    model: nn.Module
    batches: Sequence[tuple[torch.Tensor, torch.Tensor]]

    def _scores(self, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        parts, at = {}, 0
        for name, p in self.model.named_parameters():
            parts[name] = w[at : at + p.numel()].view_as(p)
            at += p.numel()
        scores: torch.Tensor = torch.func.functional_call(self.model, parts, (x,))
        return scores

    def summed(self, w: torch.Tensor, index: int) -> torch.Tensor:
        x, labels = self.batches[index]
        return -self._scores(w, x).log_softmax(-1)[range(len(labels)), labels].sum()

    def frames(self, items: Sequence[int]) -> int:
        return sum(len(self.batches[i][1]) for i in items)

    def loss(self, w: Floats, items: Sequence[int]) -> float:
        total = sum(float(self.summed(torch.from_numpy(w), i)) for i in items)
        return total / self.frames(items)

    def gradients(self, w: Floats, items: Sequence[int]) -> Floats:
        """Summed over the frames of each item: (items, parameters)."""
        jacobian: Any = torch.autograd.functional.jacobian
        at = torch.from_numpy(w)
        return np.stack([jacobian(lambda v, i=i: self.summed(v, i), at).numpy() for i in items])

    def gauss_newton(self, w: Floats, items: Sequence[int]) -> Floats:
        """J' (diag(p) - pp') J, the mean over frames, as a matrix."""
        jacobian: Any = torch.autograd.functional.jacobian
        at, total = torch.from_numpy(w), np.zeros((len(w), len(w)))
        for i in items:
            x, _ = self.batches[i]
            j = jacobian(lambda v, x=x: self._scores(v, x), at).numpy()
            p = self._scores(at, x).softmax(-1).numpy()
            for frame in range(len(x)):
                bend = np.diag(p[frame]) - np.outer(p[frame], p[frame])
                total += j[frame].T @ bend @ j[frame]
        return total / self.frames(items)


def bfgs(pairs: Sequence[tuple[Floats, Floats]], size: int) -> Floats:
    """The inverse of the matrix that pairs (s, y) show, oldest first; Nocedal's first scale."""
    if not pairs:
        return np.eye(size)
    s, y = pairs[-1]
    h = (s @ y) / (y @ y) * np.eye(size)
    for s, y in pairs:
        left = np.eye(size) - np.outer(s, y) / (s @ y)
        h = left @ h @ left.T + np.outer(s, s) / (s @ y)
    return h


def conjugate_gradients(
    a: Floats, g: Floats, start: Floats, inverse: Floats, most: int, *, flexible: bool = False
) -> list[tuple[int, Floats, float]]:
    """Every iterate with its number and its q, up to the one after which Martens stops.

    `inverse`: M^-1. Flexible: Polak and Ribiere's beta, for an M that is not quite one matrix.
    """
    x, found = start.copy(), []
    r = a @ x + g  # gradient of q: the opposite sign of the fast one's residual
    y = inverse @ r
    p = -y
    for i in range(1, most + 1):
        alpha = (r @ y) / (p @ a @ p)
        x = x + alpha * p
        r_next = r + alpha * (a @ p)
        y_next = inverse @ r_next
        turned = r_next - r if flexible else r_next
        p = -y_next + (turned @ y_next) / (r @ y) * p
        r, y = r_next, y_next
        if not r @ y > 0:  # solved exactly
            found.append((i, x, float(g @ x + 0.5 * x @ a @ x)))
            break
        found.append((i, x, float(g @ x + 0.5 * x @ a @ x)))
        k = max(10, i // 10)
        if i > k and found[-1][2] < 0:
            q, q_before = found[-1][2], found[-1 - k][2]
            if (q - q_before) / q < k * 5e-4:
                break
    return found


def kept(iterates: list[tuple[int, Floats, float]]) -> list[tuple[int, Floats, float]]:
    """Those numbered ceil(1.3^k), and the last."""
    numbers = {int(np.ceil(1.3**k)) for k in range(60)} | {iterates[-1][0]}
    return [one for one in iterates if one[0] in numbers]


def iteration(
    problem: Problem,
    w: Floats,
    lam: float,
    d0: Floats,
    order: Sequence[int],
    *,
    curvature_frames: int,
    held: Sequence[int],
    decay: float,
    most: int,
    martens: bool = False,
    steps: list[Floats] | None = None,
) -> tuple[Floats, float, Floats]:
    """One iteration over the items in this order: the next model, lambda and start of the next.

    `steps`: those of the last run and, afterwards, of this one, bent by G: makes L-BFGS of them.
    """
    sums = problem.gradients(w, order)
    g = sums.sum(0) / problem.frames(order)
    size = 1
    while problem.frames(order[:size]) < curvature_frames:
        size += 1
    matrix = problem.gauss_newton(w, order[:size])
    squares = (sums**2).sum(0) / problem.frames(order)
    before = problem.loss(w, held)
    for _ in range(3):
        a = matrix + lam * np.eye(len(w))
        inverse = np.diag((squares + lam) ** -0.75) if martens else np.eye(len(w))
        if steps is not None:
            pairs = [(s, bend + lam * s) for s, bend in zip(steps[::2], steps[1::2], strict=True)]
            inverse = bfgs(pairs, len(w))
        every = conjugate_gradients(a, g, d0, inverse, most, flexible=steps is not None)
        if steps is not None:
            passed = [d0, *(x for _, x, _ in every)]
            moves = [later - sooner for sooner, later in pairwise(passed)]
            steps[:] = [x for s in moves if s.any() for x in (s, matrix @ s)]  # not rounded away
        found = kept(every)
        losses = [problem.loss(w + d, held) for _, d, _ in found]
        best = len(found) - 1
        for i in range(len(found) - 2, -1, -1):
            if before >= losses[best] and losses[i] >= losses[best]:
                break
            best = i
        if losses[best] >= before:
            lam, d0 = 1.5 * lam, np.zeros_like(w)
            continue
        ratio = (losses[-1] - before) / found[-1][2]
        lam = lam * 1.5 if ratio < 0.25 else lam / 1.5 if ratio > 0.75 else lam
        step, d = 1.0, found[best][1]
        while problem.loss(w + step * d, held) > before + 0.01 * step * min(g @ d, 0):
            step *= 0.8
        return w + step * d, lam, decay * found[-1][1]
    return w, lam, d0
