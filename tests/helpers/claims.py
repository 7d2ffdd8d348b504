"""A small bench, runs and made-up outcomes for the tests of `hocket reproduce`."""

from __future__ import annotations

from hocket import KStep
from hocket.report.runs import Point
from hocket.reproduce.claim import Bench, Run
from hocket.reproduce.outcome import Outcome
from hocket.reproduce.tasks import SIZES

BENCH = Bench("smoke", SIZES["smoke"].task, 1, (0, 1, 2), 0.2)


def kstep_run(**more: object) -> Run:
    """K-AVG on two learners with a judging seed, as arm "k"."""
    return BENCH.run("k", KStep(sync_every=4), 2, seed=1, **more)  # type: ignore[arg-type]


def made_up(loss: float) -> Outcome:
    """The outcome of a run that ended with this loss, after 4 s."""
    points = tuple(Point(n, 10 * n, loss + 1 / n, 0.5) for n in (1, 2, 3))
    return Outcome(loss, 0.5, 100, 0, 4.0, 1000, 0.5, (*points, Point(4, 40, loss, 0.5)), 1.0)


def at_times(*losses: float) -> Outcome:
    """The outcome of a run with these dev losses after 1, 2, ... seconds of 100 frames each."""
    points = tuple(Point(n, 100 * n, loss, 0.5) for n, loss in enumerate(losses, 1))
    return Outcome(losses[-1], 0.5, 100 * len(losses), 0, len(losses), 1000, 0.5, points, 1.0)
