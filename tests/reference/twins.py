"""Sequential SGD, synchronous SGD and K-AVG on the quadratic, as loops over numpy arrays.

Each takes the order in which items are visited and returns the model after every update of the
common model. Nothing is shared with the code under test but the order and the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from helpers.tasks import DIM, Quadratic

Vector = np.ndarray[Any, np.dtype[np.float64]]


def mean_gradient(task: Quadratic, w: Vector, index: int) -> Vector:
    a2 = task.curvature() ** 2
    gradient: Vector = (a2 * (w - task.targets(index))).mean(0)
    return gradient


class Momentum:
    """Heavy-ball SGD: v <- mu v + g; w <- w - lr v."""

    def __init__(self, mu: float) -> None:
        self.mu = mu
        self.v = np.zeros(DIM)

    def step(self, w: Vector, g: Vector, lr: float) -> Vector:
        self.v = self.mu * self.v + g
        new: Vector = w - lr * self.v
        return new


def sequential(task: Quadratic, orders: Sequence[Sequence[int]], lr: float, mu: float) -> Vector:
    w, rule = np.zeros(DIM), Momentum(mu)
    for order in orders:
        for index in order:
            w = rule.step(w, mean_gradient(task, w, index), lr)
    return w


def allreduce(
    task: Quadratic, orders: Sequence[Sequence[int]], learners: int, lr: float, mu: float
) -> Vector:
    w, rule = np.zeros(DIM), Momentum(mu)
    for order in orders:
        for start in range(0, len(order), learners):
            round_ = order[start : start + learners]
            n = np.array([task.frames_of(i) for i in round_], dtype=np.float64)
            g = np.stack([mean_gradient(task, w, i) for i in round_])
            w = rule.step(w, (n[:, None] * g).sum(0) / n.sum(), lr)
    return w


def buffered(task: Quadratic, orders: Sequence[Sequence[int]], learners: int, lr: float) -> Vector:
    """Allreduce by halves of minibatches, each applied when the gradients of the next are there.

    Nothing waits at the end of an epoch: the last half is applied before the next one begins.
    """
    w = np.zeros(DIM)
    a2 = task.curvature() ** 2
    for order in orders:
        late = np.zeros(DIM)
        for start in range(0, len(order), learners):
            items = [task.targets(i) for i in order[start : start + learners]]
            for first in (True, False):
                half = [t[: len(t) // 2] if first else t[len(t) // 2 :] for t in items]
                frames = np.concatenate(half)
                g = (a2 * (w - frames)).mean(0) if len(frames) else np.zeros(DIM)
                w, late = w - lr * late, g
        w = w - lr * late
    return w


def kavg(
    task: Quadratic,
    orders: Sequence[Sequence[int]],
    learners: int,
    k: int,
    lr: float,
    mu: float,
) -> Vector:
    common = np.zeros(DIM)
    rules = [Momentum(mu) for _ in range(learners)]
    for order in orders:
        lanes = [list(order[r::learners]) for r in range(learners)]
        while any(lanes):
            models, weights = [], []
            for r in range(learners):
                w, frames = common.copy(), 0
                for index in lanes[r][:k]:
                    w = rules[r].step(w, mean_gradient(task, w, index), lr)
                    frames += task.frames_of(index)
                lanes[r] = lanes[r][k:]
                models.append(w)
                weights.append(float(frames))
            total = sum(weights)
            common = sum(
                (n / total * w for n, w in zip(weights, models, strict=True)), np.zeros(DIM)
            )
    return common
