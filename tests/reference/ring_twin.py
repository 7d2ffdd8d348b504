"""AD-PSGD on the quadratic as a list of events, in float64.

What happened when is taken from the trace of a run: who computed what from when to when, who sent
what to whom and when it arrived. What it did to the models is worked out here, from the paper.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import numpy as np
from helpers.tasks import DIM, Quadratic

from hocket.runtime.shared.trace import Span
from reference.twins import Vector, mean_gradient


def events(spans: list[Span]) -> list[tuple[float, str, int, Any]]:
    """Return what changes a model or reads it, in the order of time."""
    found: list[tuple[float, str, int, Any]] = []
    for s in spans:
        if s.kind == "compute":
            index = int(s.detail.split("/")[1])
            found += [(s.start_s, "read", s.rank, index), (s.end_s, "step", s.rank, index)]
        if s.kind == "send":
            to, tag = s.detail.split("/")
            if tag == "offer":
                found += [(s.start_s, "offer", s.rank, int(to)), (s.end_s, "mix", int(to), s.rank)]
            if tag == "half":
                found += [(s.end_s, "half", int(to), s.rank)]
    return sorted(found, key=lambda e: e[0])


def adpsgd(
    task: Quadratic, spans: list[Span], learners: int, lr: float, start: np.ndarray | None = None
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return every learner's model at the end."""
    models = np.zeros((learners, DIM)) if start is None else start.astype(np.float64)
    read: dict[int, Vector] = {}
    offered: dict[int, Vector] = {}
    halves: dict[int, deque[Vector]] = defaultdict(deque)
    for _, what, rank, detail in events(spans):
        if what == "read":
            read[rank] = models[rank].copy()
        elif what == "step":
            models[rank] -= lr * mean_gradient(task, read[rank], detail)
        elif what == "offer":
            offered[rank] = models[rank].copy()
        elif what == "mix":  # here `rank` is passive, `detail` the active one
            mean = (models[rank] + offered[detail]) / 2
            halves[detail].append(mean - offered[detail])
            models[rank] = mean
        else:
            models[rank] += halves[rank].popleft()
    return models
