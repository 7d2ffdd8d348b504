"""AD-PSGD on the quadratic as a list of events, in float64.

What happened when is taken from the trace of a run: who computed what from when to when, who sent
what to whom and when it arrived. What it did to the models is worked out here, from the paper.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import numpy as np
from helpers.tasks import DIM, Quadratic

from hocket.core.topology import Matrix
from hocket.record.rundir import Span
from reference.twins import Vector, mean_gradient


def pair(size: int, i: int, j: int) -> Matrix:
    """T_k: two learners take the mean of their models; the others keep theirs."""
    mixing = np.eye(size)
    mixing[np.ix_([i, j], [i, j])] = 0.5
    return mixing


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
            if tag == "seen":
                found += [(s.start_s, "show", s.rank, int(to))]
            if tag in ("half", "seen", "correct"):
                found += [(s.end_s, tag, int(to), s.rank)]
    return sorted(found, key=lambda e: e[0])


def adpsgd(
    task: Quadratic,
    spans: list[Span],
    learners: int,
    lr: float,
    start: np.ndarray | None = None,
    partners: int = 2,
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return every learner's model at the end; `partners`: of an exchange with both."""
    models = np.zeros((learners, DIM)) if start is None else start.astype(np.float64)
    read: dict[int, Vector] = {}
    offered: dict[int, Vector] = {}
    halves: dict[int, deque[Vector]] = defaultdict(deque)
    shown: dict[tuple[int, int], Vector] = {}  # by passive and active
    seen: dict[int, list[int]] = defaultdict(list)
    corrections: dict[tuple[int, int], Vector] = {}
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
        elif what == "half":
            models[rank] += halves[rank].popleft()
        elif what == "show":
            shown[rank, detail] = models[rank].copy()
        elif what == "seen":  # here `rank` is active; at the second model it takes the mean
            seen[rank].append(detail)
            if len(seen[rank]) == partners:
                mean = (models[rank] + sum(shown[p, rank] for p in seen[rank])) / (1 + partners)
                for p in seen.pop(rank):
                    corrections[p, rank] = mean - shown[p, rank]
                models[rank] = mean
        else:
            models[rank] += corrections.pop((rank, detail))
    return models
