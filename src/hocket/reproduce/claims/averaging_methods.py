"""BMUF, plain averaging and EASGD at equal data: who reaches the sequential accuracy?"""

from __future__ import annotations

from typing import Any, ClassVar

from hocket.core.strategy import Strategy
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import Found
from hocket.strategies import ADMM, BMUF, EASGD, AsyncEASGD, ModelAveraging

SYNC_EVERY = 4  # for all: 16 learners then meet often enough for block momentum 1 - 1/16


class AveragingMethods(Claim):
    """Same data, same communication, rates tuned alike."""

    name: ClassVar[str] = "averaging-methods"
    claim: ClassVar[str] = (
        "BMUF reaches the accuracy of sequential SGD on the same data, with 4 and with 16 "
        "learners, and ends below plain averaging and EASGD"
    )
    paper: ClassVar[str] = "Chen and Huo, ICASSP 2016; Li, Zhang, Xie, Yu, Interspeech 2017"
    refuted_by: ClassVar[str] = (
        "BMUF ends with a dev loss above the sequential one by more than twice the spread of its "
        "seeds, or above that of averaging or EASGD"
    )

    def learners(self, bench: Bench) -> tuple[int, ...]:
        """How many learners it is tried with."""
        return bench.pick(smoke=(2,), quick=(4, 16), full=(4, 16))

    def methods(self, bench: Bench) -> dict[str, Strategy[Any]]:
        """The contenders; ADMM and asynchronous EASGD are shown, not judged."""
        found: dict[str, Strategy[Any]] = {
            "bmuf": BMUF(sync_every=SYNC_EVERY),
            "averaging": ModelAveraging(sync_every=SYNC_EVERY),
            "easgd": EASGD(sync_every=SYNC_EVERY),
        }
        more: dict[str, Strategy[Any]] = {
            "async-easgd": AsyncEASGD(sync_every=SYNC_EVERY),
            "admm": ADMM(sync_every=SYNC_EVERY),
        }
        return found | bench.pick(smoke=more, quick={}, full=more)

    def rates(self, bench: Bench) -> tuple[float, ...]:
        """Sequential rates tried for every method."""
        factors = bench.pick(smoke=(1.0,), quick=(0.5, 1.0), full=(0.5, 1.0, 2.0, 4.0))
        return tuple(factor * bench.lr for factor in factors)

    def runs(self, bench: Bench) -> list[Run]:
        """Every method with every number of learners at every rate."""
        return bench.sequential(self.rates(bench)) + [
            bench.run(f"{name} P={p}", how, p, seed=seed, lr=lr, setting=f"lr {lr:g}")
            for p in self.learners(bench)
            for name, how in self.methods(bench).items()
            for lr in self.rates(bench)
            for seed in bench.seeds
        ]

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """BMUF against the sequential run and the others."""
        alone, made = found["sequential"].losses, []
        for p in self.learners(bench):
            bmuf = found[f"bmuf P={p}"].losses
            made.append(checks.reaches(f"bmuf P={p} reaches sequential SGD", bmuf, alone))
            for other in ("averaging", "easgd"):
                rival = found[f"{other} P={p}"].losses
                made.append(checks.below(f"bmuf P={p} ends below {other}", bmuf, rival))
        return made

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """How the methods meet, and which others reach the sequential run."""
        alone = found["sequential"].losses
        lines = [
            f"All meet every {SYNC_EVERY} minibatches. The local rate is the sequential one "
            "divided by the method's gain, reached in a ramp over the first epoch (BMUF has gain 1 "
            "and needs none). Block momentum 1 - 1/P delivers a step over about P blocks."
        ]
        for p in self.learners(bench):
            for name in self.methods(bench):
                arm = found[f"{name} P={p}"]
                check = checks.reaches(f"{arm.name} reaches sequential SGD", arm.losses, alone)
                if name != "bmuf":
                    lines.append(f"{check.statement}: {check.judgement} ({check.detail}).")
        return lines
