"""Rings, allreduce and delay-by-one on an LSTM: time to the sequential loss, and a slow learner."""

from __future__ import annotations

from typing import Any, ClassVar

from hocket.core.task import Task
from hocket.models import DNN, LSTM
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run, budgets
from hocket.reproduce.outcome import SEQUENTIAL, Found
from hocket.reproduce.setups.rings import FRAMES_PER_S, METHODS, published_cluster
from hocket.reproduce.setups.sequences import in_chunks, sized
from hocket.reproduce.tasks import Scale, Size
from hocket.runtime.sim.cost import Cluster, Slow

SLOW = 10.0  # times
SPEEDUP = 0.5  # of linear, asked of the better ring: minibatches do not grow with P here
RINGS = ("fixed ring", "random ring")


class LstmRings(Claim):
    """The published comparison on recurrent networks, at the published ratio of costs."""

    name: ClassVar[str] = "lstm-rings"
    claim: ClassVar[str] = (
        "On an LSTM, rings reach the sequential loss at least half as much sooner as they have "
        "learners; with one learner 10 times slower they keep ahead of allreduce"
    )
    paper: ClassVar[str] = "Zhang et al., ICASSP 2019, 2020; Cui et al., TASLP 2021"
    published: ClassVar[str] = (
        "a deep BLSTM on 2,000 h: a week on 1 GPU, 14 h on 16, under 2 h on 128; one slow learner "
        "changes little for rings"
    )
    refuted_by: ClassVar[str] = (
        "the better ring is not within 1 % of the sequential loss P/2 times as soon, or, with a "
        "slow learner, not before allreduce"
    )
    figures: ClassVar[tuple[str, ...]] = ("loss", "error", "frames_per_s", "staleness")

    def size(self, scale: Scale) -> Size:
        """Synthetic frames in chunks, and a small LSTM."""
        size = sized(scale, DNN())
        cells = 8 if scale == "smoke" else 48
        made = in_chunks(size.task, LSTM(layers=1, cells=cells), batch_frames=168)
        return Size(made, size.epochs, size.judges)

    def task(self, bench: Bench) -> Task:
        """The bench's own task, with an LSTM if its model reads windows."""
        model: Any = getattr(bench.task, "model", None)
        return bench.task if getattr(model, "sequential", False) else in_chunks(bench.task, LSTM())

    def sizes(self, bench: Bench) -> tuple[int, ...]:
        """The numbers of learners that are tried."""
        return bench.pick(smoke=(4,), quick=(8,), full=(8, 16))

    def runs(self, bench: Bench) -> list[Run]:
        """Every method on equal learners, and with a slow one."""
        factors = bench.pick(smoke=(1.0,), quick=(1.0, 4.0), full=(1.0, 2.0, 4.0))
        task, made = self.task(bench), bench.sequential()
        made = [] if task is not bench.task else made
        if not made:
            made = bench.sequential(task=task)
        for p in self.sizes(bench):
            even = published_cluster(task, p)
            slow = Cluster(
                even.hosts,
                latency_s=even.latency_s,
                local_latency_s=even.local_latency_s,
                slow=(Slow(rank=p - 1, factor=SLOW),),
            )
            for name, how in METHODS.items():
                grid = bench.grid({"": how}, factors)
                for place, cluster in (("", even), (", one slow", slow)):
                    most = budgets(p, p * SPEEDUP, steps=2)
                    made += bench.arm(
                        f"{name} P={p}{place}", cluster, grid, budgets=most, task=task
                    )
        return made

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Times to the sequential loss."""
        made, alone = [], found.times(SEQUENTIAL)
        for p in self.sizes(bench):
            ring = min((found[f"{r} P={p}"] for r in RINGS), key=lambda arm: arm.tuning_loss).name
            asked = p * SPEEDUP
            made.append(checks.faster(f"{ring}: {asked:g} times", found.times(ring), alone, asked))
            late, rival = f"{ring}, one slow", f"allreduce P={p}, one slow"
            statement = f"{late}: sooner than allreduce"
            made.append(checks.sooner(statement, found.times(late), found.times(rival)))
        return made

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """What the cluster is."""
        return [
            f"Each learner does {FRAMES_PER_S:,.0f} frames/s; links keep the published ratio of a "
            f"minibatch to sending the model. The slow learner is {SLOW:g} times slower."
        ]
