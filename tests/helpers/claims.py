"""A small bench, runs and made-up outcomes for the tests of `hocket reproduce`."""

from __future__ import annotations

from hocket import KStep
from hocket.report.runs import Point
from hocket.reproduce.claim import Bench, Run
from hocket.reproduce.outcome import Outcome
from hocket.reproduce.tasks import SIZES

BENCH = Bench("smoke", SIZES["smoke"].task, 1, (0, 1), 0.2)


def kstep_run(**more: object) -> Run:
    """K-AVG on two learners with seed 0, as arm "k"."""
    return BENCH.run("k", KStep(sync_every=4), 2, seed=0, **more)  # type: ignore[arg-type]


def made_up(loss: float) -> Outcome:
    """The outcome of a run that ended with this loss."""
    points = tuple(Point(n, 10 * n, loss + 1 / n, 0.5) for n in (1, 2, 3))
    return Outcome(loss, 0.5, 100, 0, 3.0, 1000, 0.5, points, 1.0)
