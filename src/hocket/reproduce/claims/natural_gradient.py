"""Natural gradient and averaging: Povey, Zhang and Khudanpur's two claims."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

from hocket.core.task import Task
from hocket.models import DNN, PNorm
from hocket.optim import NaturalSGD
from hocket.report import charts
from hocket.report.charts import COLOURS, Spread
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import Found, Outcome
from hocket.runtime.sim.cost import Cluster
from hocket.strategies import ModelAveraging, Sequential

RULES = {
    # The same limits on a step for both, so that the preconditioner is the only difference.
    "sgd": NaturalSGD(form="none"),
    "ngsgd": NaturalSGD(),
}
COST = 1.17  # of a step with natural gradient to one without; benchmarks say 1.15 to 1.17
PAPER = "Povey, Zhang and Khudanpur, 2014 (arXiv:1410.7455)"


def learners(bench: Bench) -> tuple[int, ...]:
    """How many learners it is tried with."""
    return bench.pick(smoke=(1, 2), quick=(1, 8), full=(1, 4, 8))


def networks(bench: Bench) -> dict[str, Task]:
    """The task as it is, and with the p-norm network for which the method was made."""
    task: Any = bench.task
    model = getattr(task, "model", None)
    found: dict[str, Task] = {getattr(model, "name", "network"): task}
    if isinstance(model, DNN):  # the tasks of a [model] table are dataclasses
        width = max(4, 2 * model.width // 4 * 4)
        found["pnorm"] = replace(task, model=PNorm(layers=model.layers, width=width, group=4))
    return found


def archive(bench: Bench) -> int:
    """Minibatches that a learner trains on between two averages."""
    return bench.pick(smoke=4, quick=16, full=32)


def cluster(rule: str, learners: int) -> Cluster:
    """Equal machines, slower for natural gradient by what it costs."""
    plain = Cluster.even(learners)
    (host,) = plain.hosts
    slower = replace(host, frames_per_s=host.frames_per_s / COST)
    return replace(plain, hosts=(slower,)) if rule == "ngsgd" else plain


def all_runs(bench: Bench) -> list[Run]:
    """Both rules with every number of learners, at a grid of rates, the same for all."""
    factors = bench.pick(smoke=(1.0,), quick=(2.0, 4.0, 8.0), full=(1.0, 2.0, 4.0, 8.0))
    return [
        bench.run(
            f"{network} {rule} P={p}",
            ModelAveraging(sync_every=archive(bench)) if p > 1 else Sequential(),
            cluster(rule, p),
            seed=seed,
            task=task,
            optimizer=optimizer,
            lr=bench.lr * factor,
            setting=f"lr {bench.lr * factor:g}",
            evaluate_every=0.25,
        )
        for network, task in networks(bench).items()
        for rule, optimizer in RULES.items()
        for p in learners(bench)
        for factor in factors
        for seed in bench.seeds
    ]


class NaturalAveraging(Claim):
    """What averaging once per archive costs, with and without natural gradient."""

    name: ClassVar[str] = "natural-averaging"
    claim: ClassVar[str] = (
        "Averaging models once per archive costs plain SGD much more than natural-gradient SGD"
    )
    paper: ClassVar[str] = PAPER
    keeps_curves: ClassVar[bool] = True
    refuted_by: ClassVar[str] = (
        "the dev loss that averaging adds to the sequential run's is, with natural gradient, more "
        "than half of what it is without"
    )

    def runs(self, bench: Bench) -> list[Run]:
        """{SGD, NG-SGD} x {1, 4, 8 learners}, for two kinds of network."""
        return all_runs(bench)

    def penalty(self, found: Found, arm: str, p: int) -> list[float]:
        """Return the dev loss that averaging over P learners adds, for every seed."""
        pairs = zip(found[f"{arm} P={p}"].losses, found[f"{arm} P=1"].losses, strict=True)
        return [many - one for many, one in pairs]

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Much more: at least twice as much."""
        return [
            checks.below(
                f"{network}, P={p}: twice the penalty with natural gradient is below that without",
                [2 * x for x in self.penalty(found, f"{network} ngsgd", p)],
                self.penalty(found, f"{network} sgd", p),
            )
            for network in networks(bench)
            for p in learners(bench)
            if p > 1
        ]

    def plots(self, found: Found, bench: Bench) -> list[str]:
        """Dev loss over the number of learners."""
        series = []
        arms = [f"{network} {rule}" for network in networks(bench) for rule in RULES]
        for colour, arm in zip(COLOURS, arms, strict=False):
            points = []
            for p in learners(bench):
                loss = found[f"{arm} P={p}"].mean(lambda o: o.loss)
                points.append((float(p), loss.value, loss.low, loss.high))
            series.append(Spread(arm, points, colour))
        title = "dev loss over learners, averaging once per archive"
        return [charts.dots(title, "learners", series, doubling=True)]

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """What is compared, and on which terms."""
        frames = max(item.frames for item in bench.task.items("train")[:100])
        return [
            "Every arm at the best rate of the same grid; local rates are P times the given one.",
            "Both rules limit a step alike (max-change); they differ in the preconditioner only.",
            f"An archive is {archive(bench)} minibatches of {frames} frames; Kaldi's has 400,000 "
            "frames, but then thousands of hours to train on.",
            f"In simulated time natural gradient costs {COST} of a plain step, as measured for a "
            "network of 440-5x1024-2000 (docs/benchmarks.md).",
        ]


def frames_to(outcome: Outcome, loss: float) -> float:
    """Return the frames until the dev loss was first this low; infinite if it never was."""
    return next((float(p.frames) for p in outcome.curve if p.loss <= loss), math.inf)


class NaturalFrames(Claim):
    """How much less data natural gradient needs."""

    name: ClassVar[str] = "natural-frames"
    claim: ClassVar[str] = (
        "Natural-gradient SGD reaches the loss at which plain SGD ends after fewer frames"
    )
    paper: ClassVar[str] = PAPER
    refuted_by: ClassVar[str] = "it needs as many frames, or never gets there"

    def runs(self, bench: Bench) -> list[Run]:
        """The same runs as for natural-averaging, so they are computed once."""
        return all_runs(bench)

    def needed(self, found: Found, network: str, p: int) -> tuple[list[float], list[float]]:
        """Return the frames of both rules, seed by seed, until SGD's final loss."""
        plain, natural = (found[f"{network} {rule} P={p}"].outcomes for rule in RULES)
        return (
            [frames_to(n, s.loss) for n, s in zip(natural, plain, strict=True)],
            [float(s.frames) if s.diverged is None else math.inf for s in plain],
        )

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Fewer frames, for each number of learners."""
        return [
            checks.below(
                f"{network}, P={p}: fewer frames to SGD's final dev loss",
                *self.needed(found, network, p),
            )
            for network in networks(bench)
            for p in learners(bench)
        ]

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """The shares of SGD's frames, and how fine they are."""
        lines = []
        for network in networks(bench):
            for p in learners(bench):
                natural, plain = self.needed(found, network, p)
                shares = ", ".join(
                    f"{a / b:.2f}" if math.isfinite(b) else "SGD diverged"
                    for a, b in zip(natural, plain, strict=True)
                )
                lines.append(f"{network}, P={p}: share of SGD's frames that it needs: {shares}")
        return [
            *lines,
            "The dev set is evaluated every quarter of an epoch: shares are no finer.",
        ]
