"""Asynchronous SGD on the quadratic, in float64, from the order in which pushes arrived.

Given who pushed which item in which order, everything else follows: which model a gradient was
taken at, how late it came, what became of it, and what was sent back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from helpers.tasks import DIM, Quadratic

from hocket.record.rundir import Span
from reference.twins import Vector, mean_gradient


def order_of(spans: list[Span], server: int) -> list[tuple[int, int]]:
    """Return (learner, item) of every push, in the order in which they reached the server."""
    items: dict[int, list[int]] = {}
    for span in spans:
        if span.kind == "compute":
            items.setdefault(span.rank, []).append(int(span.detail.split("/")[1]))
    arrived = [(s.end_s, s.rank) for s in spans if s.detail == f"{server}/push"]
    seen: dict[int, int] = {}
    found = []
    for _, rank in sorted(arrived, key=lambda one: one[0]):
        found.append((rank, items[rank][seen.get(rank, 0)]))
        seen[rank] = seen.get(rank, 0) + 1
    return found


def asgd(
    task: Quadratic,
    order: list[tuple[int, int]],
    lr: float,
    *,
    overlap: int,
    most: float = np.inf,
    damp: Callable[[int], float] = lambda late: 1.0,
    lam: float = 0.0,
    adaptive: bool = False,
    softsync: int = 1,
    adagrad: bool = False,
) -> tuple[Vector, list[int], int]:
    """Return the final model, how late each push was, and how many were dropped.

    `adagrad`: the server divides the rate of each value by the root of its summed squares.
    """
    w: Vector = np.zeros(DIM)
    clock, lates, dropped = 0, [], 0
    square, seen, waiting = np.zeros(DIM), np.zeros(DIM), []
    copies: dict[int, tuple[Vector, int]] = {}  # where the gradient is taken, and its stamp
    under_way: dict[int, tuple[Vector, int]] = {}
    for rank, item in order:
        start = (np.zeros(DIM), 0)
        at, stamp = copies.get(rank, start)
        g = mean_gradient(task, at, item)
        late = clock - stamp
        lates.append(late)
        if late <= most:
            if lam:
                square = 0.95 * square + 0.05 * g * g
                weight: Any = lam / np.sqrt(square + 1e-7) if adaptive else lam
                g = g + weight * g * g * (w - at)
            waiting.append(damp(late) * g)
            if len(waiting) == softsync:
                step = np.mean(waiting, axis=0)
                waiting = []
                seen = seen + step * step
                w = w - lr * step / (np.sqrt(seen) + 1e-10 if adagrad else 1.0)
                clock += 1
        else:
            dropped += 1
        reply = (w.copy(), clock)
        copies[rank] = under_way.get(rank, start) if overlap else reply
        under_way[rank] = reply
    return w, lates, dropped
