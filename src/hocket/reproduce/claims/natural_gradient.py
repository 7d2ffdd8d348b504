"""Natural gradient and averaging: Povey, Zhang and Khudanpur's claims.

Their network is p-norm. That averaging needs natural gradient is claimed of it; whether it is so
with ReLU, too, is a question of ours, and a claim of its own.
"""

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
from hocket.reproduce.outcome import Found
from hocket.reproduce.tasks import SYNTHETIC, Scale, Size
from hocket.runtime.sim.cost import Cluster
from hocket.strategies import ModelAveraging, Sequential

RULES = {
    # The same limits on a step for both, so that the preconditioner is the only difference.
    "sgd": NaturalSGD(form="none"),
    "ngsgd": NaturalSGD(),
}
COST = 1.17  # of a step with natural gradient to one without; benchmarks say 1.15 to 1.17
RELU, PNORM = NETWORKS = ("dnn", "pnorm")
PAPER = "Povey, Zhang and Khudanpur, 2014 (arXiv:1410.7455)"


def learners(bench: Bench) -> tuple[int, ...]:
    """How many learners it is tried with."""
    return bench.pick(smoke=(1, 2), quick=(1, 8), full=(1, 4, 8))


def task_with(network: str, bench: Bench) -> Task:
    """The task as it is, or with the p-norm network for which the method was made."""
    task: Any = bench.task
    model = getattr(task, "model", None)
    if network == RELU or not isinstance(model, DNN):
        return bench.task
    width = max(4, 2 * model.width // 4 * 4)  # the tasks of a [model] table are dataclasses
    same: Task = replace(task, model=PNorm(layers=model.layers, width=width, group=4))
    return same


def archive(bench: Bench) -> int:
    """Minibatches that a learner trains on between two averages."""
    return bench.pick(smoke=4, quick=16, full=32)


def cluster(rule: str, learners: int) -> Cluster:
    """Equal machines, slower for natural gradient by what it costs."""
    plain = Cluster.even(learners)
    (host,) = plain.hosts
    slower = replace(host, frames_per_s=host.frames_per_s / COST)
    return replace(plain, hosts=(slower,)) if rule == "ngsgd" else plain


def runs_of(network: str, bench: Bench) -> list[Run]:
    """Both rules with every number of learners, at a grid of rates, the same for all."""
    factors = bench.pick(smoke=(1.0,), quick=(4.0, 8.0, 16.0), full=(2.0, 4.0, 8.0, 16.0, 32.0))
    found = []
    for rule, optimizer in RULES.items():
        for p in learners(bench):
            how = ModelAveraging(sync_every=archive(bench)) if p > 1 else Sequential()
            found += bench.arm(
                f"{network} {rule} P={p}",
                cluster(rule, p),
                bench.grid({"": how}, factors),
                task=task_with(network, bench),
                optimizer=optimizer,
            )
    return found


class NaturalAveraging(Claim):
    """What averaging once per archive costs, with and without natural gradient."""

    name: ClassVar[str] = "natural-averaging"
    network: ClassVar[str] = PNORM
    claim: ClassVar[str] = (
        "With p-norm networks, averaging models once per archive costs plain SGD much more than "
        "natural-gradient SGD"
    )
    paper: ClassVar[str] = PAPER
    published: ClassVar[str] = (
        "averaging does not work well with plain SGD, but does with natural gradient: almost "
        "linear to 4 to 8 GPUs (p-norm networks)"
    )
    keeps_curves: ClassVar[bool] = True
    refuted_by: ClassVar[str] = (
        "the dev loss that averaging adds to the sequential run's, after the same frames, is with "
        "natural gradient more than half of what it is without (no margin)"
    )

    def size(self, scale: Scale) -> Size:
        """Return synthetic frames: natural gradient was made for larger minibatches."""
        return SYNTHETIC[scale]

    def runs(self, bench: Bench) -> list[Run]:
        """{SGD, NG-SGD} x {1, 4, 8 learners}."""
        return runs_of(self.network, bench)

    def penalty(self, found: Found, arm: str, p: int) -> list[float]:
        """Return the dev loss that averaging over P learners adds, for every seed."""
        pairs = zip(found[f"{arm} P={p}"].losses, found[f"{arm} P=1"].losses, strict=True)
        return [many - one for many, one in pairs]

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Much more: at least twice as much."""
        return [
            checks.below(
                f"P={p}: twice the penalty with natural gradient is below that without",
                [2 * x for x in self.penalty(found, f"{self.network} ngsgd", p)],
                self.penalty(found, f"{self.network} sgd", p),
            )
            for p in learners(bench)
            if p > 1
        ]

    def plots(self, found: Found, bench: Bench) -> list[str]:
        """Dev loss over the number of learners."""
        series = []
        for colour, rule in zip(COLOURS, RULES, strict=False):
            points = []
            for p in learners(bench):
                loss = found[f"{self.network} {rule} P={p}"].mean(lambda o: o.loss)
                points.append((float(p), loss.value, loss.low, loss.high))
            series.append(Spread(f"{self.network} {rule}", points, colour))
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


class NaturalAveragingReLU(NaturalAveraging):
    """The same with the task's own network."""

    name: ClassVar[str] = "natural-averaging-relu"
    network: ClassVar[str] = RELU
    claim: ClassVar[str] = (
        "With ReLU networks, too, averaging models once per archive costs plain SGD much more than "
        "natural-gradient SGD"
    )
    published: ClassVar[str] = "claimed of p-norm networks (natural-averaging); of ReLU by nobody"


class NaturalFrames(Claim):
    """How much less data natural gradient needs."""

    name: ClassVar[str] = "natural-frames"
    claim: ClassVar[str] = (
        "Natural-gradient SGD reaches the loss at which plain SGD ends after fewer frames"
    )
    paper: ClassVar[str] = PAPER
    published: ClassVar[str] = "faster convergence in frames; the table could not be re-read"
    refuted_by: ClassVar[str] = (
        "it needs as many frames to SGD's own final loss (no margin), or never gets there"
    )

    def size(self, scale: Scale) -> Size:
        """Return synthetic frames: natural gradient was made for larger minibatches."""
        return SYNTHETIC[scale]

    def runs(self, bench: Bench) -> list[Run]:
        """The same runs as for the claims on averaging, so they are computed once."""
        return [run for network in NETWORKS for run in runs_of(network, bench)]

    def needed(self, found: Found, network: str, p: int) -> tuple[list[float], list[float]]:
        """Return the frames of both rules, seed by seed, until SGD's final loss."""
        plain, natural = (found[f"{network} {rule} P={p}"].outcomes for rule in RULES)
        return (
            [n.frames_to(s.loss) for n, s in zip(natural, plain, strict=True)],
            [float(s.frames) if s.diverged is None else math.inf for s in plain],
        )

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Fewer frames, for each number of learners."""
        return [
            checks.below(
                f"{network}, P={p}: fewer frames to SGD's final dev loss",
                *self.needed(found, network, p),
            )
            for network in NETWORKS
            for p in learners(bench)
        ]

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """The shares of SGD's frames, and how fine they are."""
        lines = []
        for network in NETWORKS:
            for p in learners(bench):
                natural, plain = self.needed(found, network, p)
                shares = ", ".join(
                    f"{a / b:.2f}" if math.isfinite(b) else "SGD diverged"
                    for a, b in zip(natural, plain, strict=True)
                )
                lines.append(f"{network}, P={p}: share of SGD's frames that it needs: {shares}")
        return [
            *lines,
            f"The dev set is evaluated {bench.evaluations} times in a run: shares are no finer.",
        ]
