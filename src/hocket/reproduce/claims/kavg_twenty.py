"""Adaptive K-AVG on twenty learners: better than sequential SGD, at six times the speed."""

from __future__ import annotations

from typing import Any, ClassVar

from hocket.core.strategy import Strategy
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run, budgets
from hocket.reproduce.outcome import SEQUENTIAL, Found
from hocket.reproduce.tasks import STALL
from hocket.strategies import AdaptiveKStep, KStep

LEARNERS, SPEEDUP = 20, 6.1
ADAPTIVE, FIXED = f"adaptive P={LEARNERS}", f"fixed K P={LEARNERS}"
MOST = budgets(LEARNERS, SPEEDUP)  # 6.1 on 20 is an efficiency of 0.31: 3.3 times the frames
LONGEST = f"{ADAPTIVE}, {MOST[-1]:.2f} x frames"


class KAvgTwenty(Claim):
    """Twenty learners with the frames that the published speed-up allows."""

    name: ClassVar[str] = "kavg-twenty"
    claim: ClassVar[str] = (
        "Adaptive K-AVG with 20 learners is at least as accurate as sequential SGD and reaches its "
        "loss 6.1 times as fast"
    )
    paper: ClassVar[str] = "Cong et al., MLHPC 2017 (its adaptive measures are not known to us)"
    published: ClassVar[str] = "20 GPUs: 6.1 times as fast, better accuracy than sequential SGD"
    refuted_by: ClassVar[str] = (
        f"with {MOST[-1]:.2f} times the frames (20 / 6.1) the dev loss is more than 1 % above "
        "sequential SGD's, or the time to that loss is more than 1 / 6.1 of sequential SGD's"
    )

    def runs(self, bench: Bench) -> list[Run]:
        """Adaptive K, and a fixed one beside it, tuned alike for every budget."""
        factors = bench.pick(smoke=(0.25, 0.5), quick=(0.25, 0.5), full=(0.125, 0.25, 0.5))
        ks = bench.pick(smoke=(4,), quick=(4,), full=(4, 16))
        most = bench.pick(smoke=MOST[-1:], quick=MOST[-1:], full=MOST[1:])
        adaptive: dict[str, Strategy[Any]] = {
            f"K {k}": AdaptiveKStep(sync_every=k, stall=STALL) for k in ks
        }
        fixed: dict[str, Strategy[Any]] = {f"K {k}": KStep(sync_every=k) for k in ks}
        return bench.sequential() + [
            run
            for name, how in ((ADAPTIVE, adaptive), (FIXED, fixed))
            for run in bench.arm(name, LEARNERS, bench.grid(how, factors), budgets=(1.0, *most))
        ]

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """The loss at the end of the longest budget, and the time to the sequential loss."""
        alone = found[SEQUENTIAL]
        return [
            checks.reaches("as accurate in the end", found[LONGEST].losses, alone.losses),
            checks.faster(
                f"{SPEEDUP} times as fast",
                found.times(ADAPTIVE),
                found.times(SEQUENTIAL),
                SPEEDUP,
            ),
        ]

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """Whether it is better, not only as good."""
        check = checks.below("better", found[LONGEST].losses, found[SEQUENTIAL].losses)
        return [f"In the end it is better than sequential SGD: {check.judgement} ({check.detail})."]
