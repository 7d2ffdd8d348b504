"""A link of 100 Mbit/s between sites: what do codecs add to methods that exchange seldom?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from hocket.codecs import Codec, Float32, OneBit, TopK
from hocket.optim import AdamW
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import SEQUENTIAL, Found
from hocket.reproduce.tasks import SYNTHETIC, Scale, Size
from hocket.runtime.sim.cost import Cluster, Host
from hocket.strategies import BMUF, DiLoCo, KStep, Sequential

LEARNERS = 4
FRAMES_PER_S = 50_000.0  # a small GPU on a model of this kind
LATENCY_S = 0.001
CODECS: dict[str, Codec] = {
    "float": Float32(),
    "onebit": OneBit(float_below=16),
    "topk": TopK(float_below=16),
}
SHARE = 0.1  # of the bytes of float, at most
SHOWN = 3  # seeds of what is not judged, beside the one that tunes


class SlowLink(Claim):
    """kstep, bmuf and diloco, their steps in float, one bit, or the largest hundredth."""

    name: ClassVar[str] = "slow-link"
    claim: ClassVar[str] = (
        "On a link of 100 Mbit/s, averaging methods whose steps travel as one bit with error "
        "feedback send a tenth of the bytes and are at the sequential loss sooner"
    )
    paper: ClassVar[str] = "ours; after Seide et al. 2014 and Douillard et al. 2023 (DiLoCo)"
    published: ClassVar[str] = "nothing: codecs for averaging methods in speech are ours to show"
    refuted_by: ClassVar[str] = (
        "with kstep, bmuf or diloco and one bit, more than a tenth of the bytes of float is sent, "
        "or the sequential loss (plus 1 %) is not reached sooner than in float"
    )

    def size(self, scale: Scale) -> Size:
        """Synthetic frames: their network is large enough for the link to matter."""
        return SYNTHETIC[scale]

    def methods(self, bench: Bench) -> dict[str, dict[str, Any]]:
        """Return strategy and optimizer by name; K is that of frequent averages."""
        k = bench.pick(smoke=2, quick=8, full=8)
        outer = bench.pick(smoke=4, quick=16, full=16)
        return {
            "kstep": {"strategy": KStep(sync_every=k)},
            "bmuf": {"strategy": BMUF(sync_every=k)},
            "diloco": {"strategy": DiLoCo(sync_every=outer), "optimizer": AdamW(lr=0.003)},
        }

    def runs(self, bench: Bench) -> list[Run]:
        """Every method with every codec, at rates tuned alike."""
        factors = bench.pick(smoke=(0.5,), quick=(0.5,), full=(0.25, 0.5, 1.0))
        site = Host(count=LEARNERS, frames_per_s=FRAMES_PER_S, bandwidth_gbit=0.1)
        alone = Cluster((Host(frames_per_s=FRAMES_PER_S),))
        made = bench.arm(SEQUENTIAL, alone, bench.grid({"": Sequential()}, (1.0,)))
        for method, given in self.methods(bench).items():
            base = given["optimizer"].lr if "optimizer" in given else bench.lr
            grid = {f"lr {base * f:g}": {**given, "lr": base * f} for f in factors}
            for name, codec in CODECS.items():
                shown = name == "topk"  # and no check compares it
                seeds = bench.seeds[: 1 + SHOWN] if shown else bench.seeds
                made += replace(bench, seeds=seeds).arm(
                    _arm(method, name),
                    Cluster((site,), latency_s=LATENCY_S),
                    grid,
                    budgets=bench.pick(smoke=(1.0,), quick=(1.0, 2.0), full=(1.0, 2.0, 4.0)),
                    codec=codec,
                )
        return made

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Bytes, and the time to the sequential loss, of one bit against float."""
        made = []
        for method in self.methods(bench):
            plain, coded = (found[_arm(method, name)] for name in ("float", "onebit"))
            sent = [max(1.0, a.mean(lambda o: o.bytes_sent).value) for a in (plain, coded)]
            share = sent[1] / sent[0]
            made += [
                checks.fact(
                    f"{method}: one bit sends at most {SHARE} of the bytes",
                    share <= SHARE and not (plain.num_diverged or coded.num_diverged),
                    f"{share:.3f}",
                ),
                checks.sooner(
                    f"{method}: one bit is at the sequential loss sooner than float",
                    found.times(_arm(method, "onebit")),
                    found.times(_arm(method, "float")),
                ),
            ]
        return made

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """The cluster, and what is not judged."""
        return [
            f"{LEARNERS} sites with one learner each, {FRAMES_PER_S:,.0f} frames/s, joined by "
            "100 Mbit/s and 1 ms, in the simulator. top-k (1 %) is shown, not judged."
        ]


def _arm(method: str, codec: str) -> str:
    return f"{method}, {codec}"
