"""From 1 to 64 learners at the published ratio of computing to communicating."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from hocket.report import charts
from hocket.report.charts import COLOURS, Spread
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run, budgets
from hocket.reproduce.outcome import SEQUENTIAL, Arm, Found
from hocket.reproduce.setups.rings import (
    FRAMES_PER_S,
    METHODS,
    RATIO,
    published_cluster,
    throughput,
)

# Published hours against "about a week" (168 h) on one GPU: 14 h on 16, 2.28 h on 64. The latter
# would be 74 times on 64, so the week is a generous one; 0.9 of linear is asked for there.
PUBLISHED = {16: 168 / 14, 64: 0.9 * 64}
RINGS = ("fixed ring", "random ring")


class RingScaling(Claim):
    """Time to the sequential loss against the number of learners."""

    name: ClassVar[str] = "ring-scaling"
    claim: ClassVar[str] = (
        "At the published ratio of computing to communicating, rings reach the sequential loss 12 "
        "times as fast on 16 learners and almost 64 times on 64, and sooner than allreduce"
    )
    paper: ClassVar[str] = "Zhang et al., ICASSP 2019, 2020; Cui et al., TASLP 2021"
    published: ClassVar[str] = "about a week on 1 GPU, 14 h on 16, 2.28 h on 64, 1.98 h on 128"
    refuted_by: ClassVar[str] = (
        "with the budget of the published speed-up, the better ring is not within 1 % of the "
        "sequential loss 12 times as soon on 16 learners (57.6 times on 64), or not before "
        "allreduce"
    )
    figures: ClassVar[tuple[str, ...]] = ("loss", "error", "frames_per_s", "bytes_sent")

    def sizes(self, bench: Bench) -> tuple[int, ...]:
        """The numbers of learners that are tried."""
        return bench.pick(smoke=(4,), quick=(16,), full=(8, 16, 64))

    def networks(self, bench: Bench) -> tuple[float, ...]:
        """Bandwidths, as multiples of the published one; the others are shown, not judged."""
        return bench.pick(smoke=(1.0,), quick=(1.0,), full=(0.25, 1.0, 4.0))

    def runs(self, bench: Bench) -> list[Run]:
        """Every method on every cluster, and one learner alone; other networks with one seed."""
        factors = bench.pick(smoke=(1.0,), quick=(0.5, 1.0), full=(0.25, 0.5, 1.0, 2.0))
        found = bench.sequential()
        for p in self.sizes(bench):
            cluster = published_cluster(bench.task, p)
            for name, how in METHODS.items():
                grid = bench.grid({"": how}, factors)
                most = budgets(p, PUBLISHED.get(p, p), steps=2)
                found += bench.arm(_arm(name, p), cluster, grid, budgets=most)
        return found + [
            bench.run(
                _arm(name, p, net),
                how,
                published_cluster(bench.task, p, net),
                seed=bench.judges[0],
                lr=factors[0] * bench.lr,
            )
            for net in self.networks(bench)
            if net != 1.0
            for p in self.sizes(bench)
            for name, how in METHODS.items()
        ]

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Time to the sequential loss, at the published bandwidth."""
        made, alone = [], found.times(SEQUENTIAL)
        for p in self.sizes(bench):
            ring = self.better_ring(found, p)
            times = found.times(ring.name)
            if p in PUBLISHED:
                asked = PUBLISHED[p]
                made.append(checks.faster(f"{ring.name}: {asked:.1f} times", times, alone, asked))
            rival = found.times(_arm("allreduce", p))
            made.append(checks.sooner(f"{ring.name}: sooner than allreduce", times, rival))
        return made

    def better_ring(self, found: Found, p: int) -> Arm:
        """Return the ring with which the tuning seed did better."""
        return min((found[_arm(ring, p)] for ring in RINGS), key=lambda arm: arm.tuning_loss)

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """The ratio, and the throughput of all networks: of our cost model, so not judged."""
        lines = [
            f"A minibatch lasts {RATIO:.1f} times as long as sending the model once: 0.28 s "
            "against 13.8 ms. The 0.28 s are a week, divided by the minibatches of 16 epochs over "
            "2,000 h (recalled from the paper, not measured by us).",
            "Throughput, in frames/s relative to one learner, is a result of the simulator's cost "
            "model and of that ratio:",
        ]
        for net in self.networks(bench):
            for p in self.sizes(bench):
                ups = [f"{name} {self.relative(found, name, p, net):.1f}" for name in METHODS]
                lines.append(f"network x {net:g}, P={p}: " + ", ".join(ups) + ".")
        return lines

    def relative(self, found: Found, name: str, p: int, net: float) -> float:
        """Return the throughput of a method relative to one learner."""
        return throughput(found[_arm(name, p, net)]) / FRAMES_PER_S

    def plots(self, found: Found, bench: Bench) -> list[str]:
        """Speed-up to the sequential loss over the number of learners; then throughput."""
        ups, speeds = [], []
        for n, name in enumerate(METHODS):
            sizes = self.sizes(bench)
            reached = [found.speedup(_arm(name, p)) for p in sizes]
            ups.append(Spread(name, _points(sizes, reached), COLOURS[n]))
            fast = [self.relative(found, name, p, 1.0) for p in sizes]
            speeds.append(Spread(name, _points(sizes, fast), COLOURS[n]))
        return [
            charts.dots("speed-up to the sequential loss", "learners", ups, doubling=True),
            charts.dots("throughput, relative", "learners", speeds, doubling=True),
        ]


def _points(
    sizes: Sequence[int], values: Sequence[float]
) -> list[tuple[float, float, float, float]]:
    pairs = zip(sizes, values, strict=True)
    return [(float(p), v, v, v) for p, v in pairs if math.isfinite(v)]


def _arm(name: str, p: int, net: float = 1.0) -> str:
    return f"{name} P={p}" + ("" if net == 1.0 else f" net x {net:g}")
