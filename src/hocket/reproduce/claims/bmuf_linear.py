"""BMUF on sixteen learners: almost linear, without loss."""

from __future__ import annotations

from typing import ClassVar

from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run, budgets
from hocket.reproduce.outcome import SEQUENTIAL, Found
from hocket.strategies import BMUF

LEARNERS = 16
ALMOST = 0.85  # of linear; "almost linear" is all we know of the figure for 16
ARM = f"bmuf P={LEARNERS}"


class BMUFLinear(Claim):
    """Sixteen learners at the same number of frames."""

    name: ClassVar[str] = "bmuf-linear"
    claim: ClassVar[str] = (
        "BMUF with 16 learners is as accurate as sequential SGD on the same data, and reaches its "
        "loss almost 16 times as fast"
    )
    paper: ClassVar[str] = "Chen and Huo, ICASSP 2016"
    published: ClassVar[str] = (
        "almost linear up to 16 GPUs (LSTM) and 64 (DNN; about 28 times on 32, 56 on 64), without "
        "loss or with a gain"
    )
    refuted_by: ClassVar[str] = (
        "the dev loss after the same frames is more than 1 % above sequential SGD's, or the time "
        "to that loss is more than 1 / 13.6 of sequential SGD's (0.85 of linear)"
    )

    def runs(self, bench: Bench) -> list[Run]:
        """Block length and rate by the tuning seed."""
        factors = bench.pick(smoke=(1.0,), quick=(0.5, 1.0), full=(0.5, 1.0, 2.0))
        ks = bench.pick(smoke=(4,), quick=(4,), full=(2, 4, 8, 16))
        how = {f"K {k}": BMUF(sync_every=k) for k in ks}
        most = budgets(LEARNERS, ALMOST * LEARNERS, steps=2)
        return bench.sequential() + bench.arm(ARM, LEARNERS, bench.grid(how, factors), budgets=most)

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Loss at equal frames, and time to the sequential loss."""
        asked = ALMOST * LEARNERS
        return [
            checks.reaches("as accurate", found[ARM].losses, found[SEQUENTIAL].losses),
            checks.faster(
                f"{asked:.1f} times as fast", found.times(ARM), found.times(SEQUENTIAL), asked
            ),
        ]
