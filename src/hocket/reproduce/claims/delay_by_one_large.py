"""Delay-by-one with large batches: the fastest, if all learners are equally fast."""

from __future__ import annotations

from typing import ClassVar

from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run, budgets
from hocket.reproduce.outcome import Found
from hocket.reproduce.setups.rings import METHODS, RATIO, published_cluster

ARM = "delay-by-one"


class DelayByOneLarge(Claim):
    """All methods on equal learners at the published ratio, to the sequential loss."""

    name: ClassVar[str] = "delay-by-one-large"
    claim: ClassVar[str] = (
        "With large batches and equal learners, delay-by-one reaches the sequential loss before "
        "allreduce and both rings"
    )
    paper: ClassVar[str] = "Cui et al., TASLP 2021"
    published: ClassVar[str] = (
        "fastest convergence of all variants at large batches when learners are equally fast; "
        "under 2 h on 128 GPUs"
    )
    refuted_by: ClassVar[str] = (
        "the time until the dev loss is within 1 % of sequential SGD's is not below that of "
        "allreduce, or of a ring (with up to twice the frames); nothing is known where none of "
        "them gets there"
    )
    figures: ClassVar[tuple[str, ...]] = ("loss", "error", "frames_per_s", "staleness")

    def learners(self, bench: Bench) -> tuple[int, ...]:
        """How many learners: so many times the batch."""
        return bench.pick(smoke=(4,), quick=(8,), full=(8, 16, 32))

    def runs(self, bench: Bench) -> list[Run]:
        """Every method, tuned alike for every budget."""
        factors = bench.pick(smoke=(1.0,), quick=(0.5, 1.0), full=(0.25, 0.5, 1.0, 2.0))
        found = bench.sequential()
        for p in self.learners(bench):
            cluster = published_cluster(bench.task, p)
            most = budgets(p, p / 2, steps=2)
            for name, how in METHODS.items():
                grid = bench.grid({"": how}, factors)
                found += bench.arm(f"{name} P={p}", cluster, grid, budgets=most)
        return found

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Delay-by-one against every other one."""
        return [
            checks.sooner(
                f"P={p}: {ARM} before {name}",
                found.times(f"{ARM} P={p}"),
                found.times(f"{name} P={p}"),
            )
            for p in self.learners(bench)
            for name in METHODS
            if name != ARM
        ]

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """Say how fast the links of the simulated cluster are."""
        return [f"A minibatch lasts {RATIO:.1f} times as long as sending the model once."]
