"""Hessian-free against SGD and natural-gradient SGD: by passes, by updates, by time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

from hocket.core.strategy import Strategy
from hocket.optim import Constant, NaturalSGD
from hocket.report import charts
from hocket.report.charts import COLOURS, Series
from hocket.report.runs import Point
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import SEQUENTIAL, Arm, Found
from hocket.reproduce.setups.newton import SIZES_OF_NEWTON, WORK
from hocket.reproduce.tasks import Scale, Size
from hocket.strategies import AllReduceSGD, HessianFree, ModelAveraging, Sequential

PUBLISHED = 11.0  # "up to", against SGD on one GPU
SHOWN = 3  # seeds of the arms between, beside the one that tunes
AVERAGE_EVERY = 4  # minibatches between two averages of NG-SGD


class HessianFreeUpdates(Claim):
    """Time to SGD's loss, with more and more learners."""

    name: ClassVar[str] = "hessian-free-updates"
    claim: ClassVar[str] = (
        "Hessian-free optimisation on many learners reaches the loss of SGD on one sooner than "
        "that, up to 11 times, and sooner than parallel SGD on as many"
    )
    paper: ClassVar[str] = "Chung et al., SC 2014; Kingsbury et al., Interspeech 2012"
    published: ClassVar[str] = (
        "up to 11 times against SGD on one GPU with better WER, on up to 4,096 processes of a Blue "
        "Gene/Q, cross-entropy and sequence training"
    )
    refuted_by: ClassVar[str] = (
        "with the most learners tried, the dev loss is not within 1 % of sequential SGD's 11 times "
        "as soon, or not before allreduce or averaged NG-SGD with as many; or its final loss is "
        "more than 1 % above"
    )
    figures: ClassVar[tuple[str, ...]] = ("loss", "error", "time_s", "bytes_sent", "products")
    keeps_curves: ClassVar[bool] = True

    def size(self, scale: Scale) -> Size:
        """Return synthetic frames that repeat: a pass over the data must mean something."""
        return SIZES_OF_NEWTON[scale]

    def learners(self, bench: Bench) -> tuple[int, ...]:
        """How many learners it is tried with."""
        return bench.pick(smoke=(1, 4), quick=(1, 16), full=(1, 16, 64, 256))

    def iterations(self, bench: Bench) -> int:
        """Gradients over the whole data of Hessian-free: its updates."""
        return bench.pick(smoke=2, quick=12, full=12)

    def ways(self, bench: Bench) -> dict[str, HessianFree]:
        """Settings of Hessian-free, of which the tuning seed chooses."""
        some = {"damping 0.1": HessianFree(curvature=0.125)}
        more = {"damping 1": HessianFree(curvature=0.125, damping=1.0)}
        sampled = {"sampled": HessianFree(curvature=0.125, sample=0.25, sample_growth=1.2)}
        return bench.pick(smoke=some, quick=some, full=some | more | sampled)

    def runs(self, bench: Bench) -> list[Run]:
        """All methods from the same start, with every number of learners.

        Hessian-free takes the same steps with any number of learners, up to rounding, so it is
        tuned with one; numbers between one and the most are shown, with fewer seeds.
        """
        factors = bench.pick(smoke=(1.0,), quick=(0.5, 1.0), full=(0.25, 0.5, 1.0, 2.0))
        natural = bench.pick(smoke=(4.0,), quick=(4.0, 8.0), full=(2.0, 4.0, 8.0, 16.0))
        found = bench.sequential()
        for p in self.learners(bench):
            one: Strategy[Any] = Sequential()
            if p > 1:
                grid = bench.grid({"": AllReduceSGD()}, factors)
                found += bench.arm(_arm("allreduce", p), p, grid)
            averaged = ModelAveraging(sync_every=AVERAGE_EVERY) if p > 1 else one
            grid = bench.grid({"": averaged}, natural)
            found += bench.arm(_arm("ngsgd", p), p, grid, optimizer=NaturalSGD())
            between = 1 < p < max(self.learners(bench))
            seeds = bench.seeds[: 1 + SHOWN] if between else bench.seeds
            found += replace(bench, seeds=seeds).arm(
                _arm("hessian-free", p),
                p,
                {name: {"strategy": how} for name, how in self.ways(bench).items()},
                schedule=Constant(epochs=self.iterations(bench)),
                evaluate_every=0.25,
                tuned_as=_arm("hessian-free", 1) if p > 1 else "",
                work=WORK,
            )
        return found

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """With the most learners: 11 times as soon, before the others, and as good at the end."""
        p, alone = max(self.learners(bench)), found.times(SEQUENTIAL)
        mine = found.times(_arm("hessian-free", p))
        made = [checks.faster(f"P={p}: {PUBLISHED:g} times as soon", mine, alone, PUBLISHED)]
        for rival in ("allreduce", "ngsgd"):
            times = found.times(_arm(rival, p))
            made.append(checks.sooner(f"P={p}: sooner than {rival}", mine, times))
        best, first = found[_arm("hessian-free", p)].losses, found[SEQUENTIAL].losses
        return [*made, checks.reaches(f"P={p}: reaches the sequential loss", best, first)]

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """What a pass is, and the passes and updates to the sequential loss."""
        lines = [
            "All arms start from the same model. Hessian-free has no rate; its frames are those of "
            "gradients, and products and scores come on top: they are in the time.",
            "A pass over the data is as much work as a gradient on all of it: a product counts as "
            "1.8 gradients on its frames, a score as a third.",
            "Hessian-free is tuned with one learner: others make the same steps, nearly.",
        ]
        for name in (SEQUENTIAL, _arm("ngsgd", 1), _arm("hessian-free", 1)):
            arm, targets = found[name], found.targets(name)
            told = []
            for outcome, loss in zip(arm.outcomes, targets, strict=True):
                at = next(((n, q) for n, q in enumerate(outcome.curve, 1) if q.loss <= loss), None)
                told.append("never" if at is None else _told(*at, bench))
            lines.append(f"{name}: to within 1 % of the sequential loss in {'; '.join(told)}.")
        return lines

    def plots(self, found: Found, bench: Bench) -> list[str]:
        """Dev loss against passes and against updates, one learner each."""
        names = (SEQUENTIAL, _arm("ngsgd", 1), _arm("hessian-free", 1))
        arms = [(found[name], COLOURS[n]) for n, name in enumerate(names)]
        over = "passes over the data (gradients' worth of work)"
        by_work = [Series(a.name, _curve(a, bench, by_updates=False), c) for a, c in arms]
        steps = [Series(a.name, _curve(a, bench, by_updates=True), c) for a, c in arms]
        return [
            charts.lines("dev loss against passes over the data", over, by_work, key=True),
            charts.lines("dev loss against updates", "log2 of updates", steps, key=True),
        ]


def passes(point: Point, bench: Bench) -> float:
    """Return the passes of a run at an evaluation."""
    whole = sum(item.frames for item in bench.task.items("train"))
    return float(point.frames / whole if point.passes is None else point.passes)


def updates(number: int, point: Point, bench: Bench) -> float:
    """Return the updates of one learner at an evaluation: Hessian-free is evaluated after each."""
    batch = bench.task.items("train")[0].frames
    return number if point.passes is not None else point.frames / batch


def _told(number: int, point: Point, bench: Bench) -> str:
    made = updates(number, point, bench)
    return f"{passes(point, bench):.1f} passes, {made:,.0f} updates"


def _curve(arm: Arm, bench: Bench, *, by_updates: bool) -> list[tuple[float, float]]:
    """Return the points of the first seed that did not diverge."""
    whole = [o.curve for o in arm.outcomes if o.diverged is None]
    if not whole:
        return []
    drawn = []
    for n, point in enumerate(whole[0], 1):
        made = math.log2(max(updates(n, point, bench), 1.0))
        x = made if by_updates else passes(point, bench)
        drawn.append((x, point.loss))
    return drawn


def _arm(name: str, p: int) -> str:
    return f"{name} P={p}"
