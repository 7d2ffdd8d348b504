"""Kaldi's recipe on the quadratic, as one loop over numpy arrays, from the description of it.

Nothing is shared with the code under test but the order of the items and the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from helpers.tasks import DIM, Quadratic

from reference.twins import Vector


def loss(task: Quadratic, w: Vector, rows: Vector) -> float:
    return float(0.5 * ((task.curvature() * (w - rows)) ** 2).sum())


def job(
    task: Quadratic, w: Vector, items: Sequence[int], lr: float, parts: int
) -> tuple[Vector, float, int]:
    """Train on an archive; return the model, the loss summed over its frames, and their number.

    As Kaldi does: gradients are sums over frames, and `lr` divided by the frames of a minibatch is
    the rate of one frame.
    """
    total, frames = 0.0, 0
    for index in items:
        minibatch = task.targets(index)
        for rows in np.array_split(minibatch, parts):
            if len(rows):
                total += loss(task, w, rows)
                frames += len(rows)
                w = w - lr / len(minibatch) * (task.curvature() ** 2 * (w - rows)).sum(0)
    return w, total, frames


def kaldi(
    task: Quadratic,
    orders: Sequence[Sequence[int]],
    learners: int,
    archive: int,
    lr: float,
    margin: float,
    combine_items: int,
) -> Vector:
    w, models, done = np.zeros(DIM), [], 0
    everything = sum(task.frames_of(i) for order in orders for i in order)
    for order in orders:
        queue = list(order)
        while queue:
            jobs = round(math.sqrt(1 + (learners**2 - 1) * done / everything))
            block, queue = queue[: archive * jobs], queue[archive * jobs :]
            first = done == 0
            made = [job(task, w, block[j::jobs], jobs * lr, 2 if first else 1) for j in range(jobs)]
            made = [one for one in made if one[2]]
            done += sum(one[2] for one in made)
            best = min(one[1] / one[2] for one in made)
            allowed = 0.0 if first else margin
            good = [one for one in made if one[1] / one[2] - best <= allowed]
            frames = sum(one[2] for one in good)
            w = sum((one[2] / frames * one[0] for one in good), np.zeros(DIM))
            models.append(w)
    last = models[-20:][-max(1, len(models) // 2) :]
    means = [np.mean(last[-m:], axis=0) for m in range(1, len(last) + 1)]
    held = np.concatenate([task.targets(i) for i in range(combine_items)])
    found: Vector = min(means, key=lambda mean: loss(task, mean, held))
    return found
