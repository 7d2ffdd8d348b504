"""Super-learners: allreduce inside a node, AD-PSGD between nodes."""

from __future__ import annotations

from typing import ClassVar

from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run, budgets
from hocket.reproduce.outcome import SEQUENTIAL, Found
from hocket.reproduce.setups.rings import RATIO, published_cluster
from hocket.strategies import ADPSGD, HADPSGD

NODE = 4
SUPER, FLAT = "super-learners", "flat ring"


class HADPSGDClaim(Claim):
    """Nodes of four learners, with and without super-learners."""

    name: ClassVar[str] = "hadpsgd"
    claim: ClassVar[str] = (
        "With nodes of 4 as super-learners, 16 learners reach the sequential loss on the same "
        "data, and no later than a flat ring does"
    )
    paper: ClassVar[str] = "Zhang et al., Interspeech 2019 (arXiv:1907.05701)"
    published: ClassVar[str] = "5.2 h on 64 GPUs, against 11.5 h on 32 before; no loss of accuracy"
    refuted_by: ClassVar[str] = (
        "the dev loss after the same frames is more than 1 % above sequential SGD's, or the time "
        "to that loss is more than 1 % above the flat ring's"
    )
    figures: ClassVar[tuple[str, ...]] = ("loss", "error", "frames_per_s", "consensus", "staleness")

    def runs(self, bench: Bench) -> list[Run]:
        """Both on the same hosts, tuned alike for every budget."""
        learners = bench.pick(smoke=8, quick=16, full=16)
        factors = bench.pick(smoke=(1.0,), quick=(0.5, 1.0), full=(0.125, 0.25, 0.5, 1.0))
        cluster = published_cluster(bench.task, learners, node=NODE)
        most = budgets(learners, learners / 2, steps=bench.pick(smoke=2, quick=2, full=3))
        found = bench.sequential()
        for name, how in ((SUPER, HADPSGD(node_size=NODE)), (FLAT, ADPSGD())):
            found += bench.arm(name, cluster, bench.grid({"": how}, factors), budgets=most)
        return found

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Loss at equal frames, and time against the flat ring's."""
        return [
            checks.reaches("as accurate", found[SUPER].losses, found[SEQUENTIAL].losses),
            checks.no_later(
                "no later than the flat ring", found.times(SUPER), found.times(FLAT), self.margin
            ),
        ]

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """Say how fast the links of the simulated cluster are."""
        return [
            f"Hosts of {NODE} learners; between them, a minibatch lasts {RATIO:.1f} times as long "
            "as sending the model once; within them a model is sent 4 times as fast."
        ]
