"""BMUF, plain averaging and EASGD at equal data: who reaches the sequential accuracy?"""

from __future__ import annotations

from typing import Any, ClassVar

from hocket.core.strategy import Strategy
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run, budgets
from hocket.reproduce.outcome import SEQUENTIAL, Found
from hocket.strategies import ADMM, BMUF, EASGD, STRATEGIES, AsyncEASGD, ModelAveraging

SYNC_EVERY = 4  # for all: 16 learners then meet often enough for block momentum 1 - 1/16
JUDGED = ("bmuf", "averaging", "easgd")


class AveragingMethods(Claim):
    """Same data, same communication, rates tuned alike."""

    name: ClassVar[str] = "averaging-methods"
    claim: ClassVar[str] = (
        "BMUF reaches the accuracy of sequential SGD on the same data, with 4 and with 16 "
        "learners, and ends below plain averaging and EASGD"
    )
    paper: ClassVar[str] = "Chen and Huo, ICASSP 2016; Li, Zhang, Xie, Yu, Interspeech 2017"
    published: ClassVar[str] = (
        "BMUF at or below 1-GPU SGD's error with up to 16 and 64 GPUs (Chen and Huo); the most "
        "stable of ASGD, BMUF, BSP, EASGD, and often better than 1-GPU SGD (Li et al.)"
    )
    refuted_by: ClassVar[str] = (
        "after the same frames, BMUF ends with a dev loss more than 1 % above the sequential one, "
        "or not below that of averaging or EASGD"
    )

    def learners(self, bench: Bench) -> tuple[int, ...]:
        """How many learners it is tried with."""
        return bench.pick(smoke=(2,), quick=(4, 16), full=(4, 16))

    def methods(self, bench: Bench) -> dict[str, Strategy[Any]]:
        """The contenders; ADMM and asynchronous methods are shown, not judged."""
        found: dict[str, Strategy[Any]] = {
            "bmuf": BMUF(sync_every=SYNC_EVERY),
            "averaging": ModelAveraging(sync_every=SYNC_EVERY),
            "easgd": EASGD(sync_every=SYNC_EVERY),
        }
        more: dict[str, Strategy[Any]] = {
            "async-easgd": AsyncEASGD(sync_every=SYNC_EVERY),
            "admm": ADMM(sync_every=SYNC_EVERY),
            **{name: STRATEGIES[name]() for name in ("asgd",) if name in STRATEGIES},
        }
        return found | bench.pick(smoke=more, quick={}, full=more)

    def runs(self, bench: Bench) -> list[Run]:
        """Every method with every number of learners at every rate; longer to time those judged."""
        factors = bench.pick(smoke=(1.0,), quick=(0.5, 1.0), full=(0.25, 0.5, 1.0, 2.0))
        found = bench.sequential()
        for p in self.learners(bench):
            for name, how in self.methods(bench).items():
                timed = name in JUDGED and bench.scale != "quick"
                found += bench.arm(
                    f"{name} P={p}",
                    p,
                    bench.grid({"": how}, factors),
                    budgets=budgets(p, p / 2) if timed else (1.0,),
                )
        return found

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """BMUF against the sequential run and the others."""
        alone, made = found[SEQUENTIAL].losses, []
        for p in self.learners(bench):
            bmuf = found[f"bmuf P={p}"].losses
            made.append(checks.reaches(f"bmuf P={p} reaches sequential SGD", bmuf, alone))
            for other in ("averaging", "easgd"):
                rival = found[f"{other} P={p}"].losses
                made.append(checks.below(f"bmuf P={p} ends below {other}", bmuf, rival))
        return made

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """How the methods meet, and which others reach the sequential run."""
        alone = found[SEQUENTIAL].losses
        lines = [
            f"All meet every {SYNC_EVERY} minibatches. The local rate is the sequential one "
            "divided by the method's gain, reached in a ramp (BMUF has gain 1 and needs none). "
            "Block momentum 1 - 1/P delivers a step over about P blocks."
        ]
        for p in self.learners(bench):
            for name in self.methods(bench):
                arm = found[f"{name} P={p}"]
                check = checks.reaches(f"{arm.name} reaches sequential SGD", arm.losses, alone)
                if name != "bmuf":
                    lines.append(f"{check.statement}: {check.judgement} ({check.detail}).")
        return lines
