"""K-AVG on four learners: comparable to sequential SGD."""

from __future__ import annotations

from typing import ClassVar

from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run, budgets
from hocket.reproduce.outcome import SEQUENTIAL, Found
from hocket.strategies import KStep

LEARNERS = 4
ARM = f"K-AVG P={LEARNERS}"


class KAvgFour(Claim):
    """Four learners at the same number of frames."""

    name: ClassVar[str] = "kavg-four"
    claim: ClassVar[str] = "K-AVG with 4 learners is as accurate as sequential SGD on the same data"
    paper: ClassVar[str] = "Cong et al., MLHPC 2017"
    published: ClassVar[str] = '"comparable" accuracy on 4 GPUs, where ASGD was poor'
    refuted_by: ClassVar[str] = (
        "at the best K > 1, the dev loss after the same frames is more than 1 % above sequential "
        "SGD's"
    )

    def runs(self, bench: Bench) -> list[Run]:
        """K and rate by the tuning seed; a little longer, to time it if it is not there yet."""
        factors = bench.pick(smoke=(0.5, 1.0), quick=(0.5, 1.0), full=(0.25, 0.5, 1.0, 2.0))
        ks = bench.pick(smoke=(4,), quick=(4, 16), full=(2, 4, 8, 16, 32))
        how = {f"K {k}": KStep(sync_every=k) for k in ks}
        most = bench.pick(smoke=(1.0,), quick=(1.0,), full=budgets(LEARNERS, LEARNERS / 2))
        return bench.sequential() + bench.arm(ARM, LEARNERS, bench.grid(how, factors), budgets=most)

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """The loss at equal frames."""
        return [checks.reaches(f"{ARM}: as accurate", found[ARM].losses, found[SEQUENTIAL].losses)]
