"""How far apart do the models of a ring drift, and does the spectral gap predict it?"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from hocket.core import topology
from hocket.core.strategy import Strategy
from hocket.report import charts
from hocket.report.charts import COLOURS, Spread
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import Found
from hocket.strategies import ADPSGD, DPSGD

STEPS = 8  # a learner's own rate, as a multiple of the sequential one: that of 8 learners
METHODS: dict[str, Strategy[Any]] = {
    "fixed ring": ADPSGD(ring="fixed"),
    "random ring": ADPSGD(ring="random"),
    "rounds, fixed": DPSGD(mixing="ring"),
    "rounds, random": DPSGD(mixing="random_ring"),
}


class RingConsensus(Claim):
    """Consensus distance of fixed and random rings from 8 to 128 learners."""

    name: ClassVar[str] = "ring-consensus"
    claim: ClassVar[str] = (
        "A ring drawn again in every round keeps the learners' models closer together than a fixed "
        "ring, and the more so the longer the ring"
    )
    paper: ClassVar[str] = "Zhang et al., ICASSP 2020; Cui et al., TASLP 2021"
    published: ClassVar[str] = "the random ring's spectral gap does not close with the length"
    refuted_by: ClassVar[str] = (
        "at some length the random ring's distance from consensus is not below the fixed ring's, "
        "or their ratio at the longest ring is not below that at the shortest (no margin)"
    )
    figures: ClassVar[tuple[str, ...]] = ("loss", "consensus", "staleness")

    def sizes(self, bench: Bench) -> tuple[int, ...]:
        """The numbers of learners that are tried."""
        return bench.pick(smoke=(4, 8), quick=(8, 32), full=(8, 16, 32, 64, 128))

    def runs(self, bench: Bench) -> list[Run]:
        """Both rings, asynchronous and in rounds; one learner's step is the same at any length."""
        return [
            bench.run(
                f"{name} P={p}",
                how,
                p,
                seed=seed,
                lr=bench.lr * STEPS / p,  # a learner's own rate is P times as much
                evaluate_every=999.0,
            )
            for p in self.sizes(bench)
            for name, how in METHODS.items()
            for seed in bench.judges
        ]

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """The random ring is closer at every length, most of all at the longest."""
        made, ratios = [], []
        for p in self.sizes(bench):
            random, fixed = (
                found[f"{ring} ring P={p}"].values(lambda o: o.consensus)
                for ring in ("random", "fixed")
            )
            made.append(checks.below(f"P={p}: random ring closer than fixed", random, fixed))
            known = sum(fixed) > 0 and math.isfinite(sum(fixed))
            ratios.append(sum(random) / sum(fixed) if known else math.inf)
        text = ", ".join(f"{r:.3f}" for r in ratios)
        made.append(checks.fact("the ratio falls with the length", ratios[-1] < ratios[0], text))
        return made

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """The spectral gap of a synchronous round, to compare with the distances."""
        lines = ["Every learner steps at the same rate of its own, so that only the ring differs."]
        for p in self.sizes(bench):
            fixed = topology.spectral_gap([topology.ring(p)])
            drawn = 1 - math.sqrt(topology.random_ring_contraction(p))
            lines.append(f"P={p}: spectral gap {fixed:.4f} fixed, {drawn:.4f} random.")
        return lines

    def plots(self, found: Found, bench: Bench) -> list[str]:
        """Consensus distance over the number of learners."""
        series = []
        for n, name in enumerate(METHODS):
            seen = [found[f"{name} P={p}"].mean(lambda o: o.consensus) for p in self.sizes(bench)]
            points = [
                (float(p), m.value, m.low, m.high)
                for p, m in zip(self.sizes(bench), seen, strict=True)
            ]
            series.append(Spread(name, points, COLOURS[n]))
        return [charts.dots("distance from consensus", "learners", series, doubling=True)]
