"""From 1 to 128 learners at the published ratio of computing to communicating."""

from __future__ import annotations

from typing import ClassVar

from hocket.core.flat import Layout
from hocket.optim import Exponential
from hocket.report import charts
from hocket.report.charts import COLOURS, Spread
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import Found
from hocket.reproduce.rings import METHODS, speed
from hocket.runtime.sim.cost import Cluster, Host

# The published system: 43 M parameters, 0.28 s for a minibatch on a V100, 100 Gbit/s. Sending the
# model once takes 172 MB * 8 / 100 Gbit/s = 13.8 ms: a minibatch lasts 20 times as long.
RATIO = 0.28 / (43e6 * 4 * 8 / 100e9)
FRAMES_PER_S = 10_000.0
EFFICIENT = 0.9  # of linear speed-up


class RingScaling(Claim):
    """Speed-up in frames per second, and accuracy, against the number of learners."""

    name: ClassVar[str] = "ring-scaling"
    claim: ClassVar[str] = (
        "At the published ratio of computing to communicating, rings speed training up almost "
        "linearly to 128 learners, and by more than allreduce"
    )
    paper: ClassVar[str] = "Zhang et al., ICASSP 2020; Cui et al., TASLP 2021"
    refuted_by: ClassVar[str] = (
        "a ring's speed-up in frames per second at the most learners is below 0.9 of linear, or "
        "below that of allreduce"
    )
    figures: ClassVar[tuple[str, ...]] = ("loss", "error", "time_s", "frames_per_s", "bytes_sent")

    def sizes(self, bench: Bench) -> tuple[int, ...]:
        """The numbers of learners that are tried."""
        return bench.pick(smoke=(4,), quick=(8, 64), full=(8, 32, 128))

    def networks(self, bench: Bench) -> tuple[float, ...]:
        """Bandwidths, as multiples of the published one."""
        return bench.pick(smoke=(1.0,), quick=(1.0,), full=(0.25, 1.0, 4.0))

    def runs(self, bench: Bench) -> list[Run]:
        """Every method on every cluster, and one learner alone; other networks with one seed."""
        gentle = Exponential(epochs=bench.epochs, final_factor=0.05, lr_compensation="sqrt")
        return bench.sequential(evaluate_every=9.0) + [
            bench.run(
                _arm(name, p, net),
                how,
                self.cluster(bench, p, net),
                seed=seed,
                schedule=gentle,
                evaluate_every=9.0,
            )
            for net in self.networks(bench)
            for p in self.sizes(bench)
            for name, how in METHODS.items()
            for seed in (bench.seeds if net == 1.0 else bench.seeds[:1])
        ]

    def cluster(self, bench: Bench, p: int, net: float) -> Cluster:
        """Return equal hosts whose link keeps the published ratio for this task's model."""
        model_bits = Layout.of(bench.task.build_model()).size * 32
        frames = bench.task.items("train")[0].frames
        gbit = net * RATIO * model_bits / (frames / FRAMES_PER_S) / 1e9
        host = Host(count=p, frames_per_s=FRAMES_PER_S, jitter=0.1, bandwidth_gbit=gbit)
        return Cluster((host,))

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Speed-ups at the most learners and the published bandwidth."""
        made, p = [], max(self.sizes(bench))
        other = speed(found[_arm("allreduce", p, 1.0)]) / FRAMES_PER_S
        for ring in ("fixed ring", "random ring"):
            up = speed(found[_arm(ring, p, 1.0)]) / FRAMES_PER_S
            detail = f"{up:.1f} of {p}"
            made.append(checks.fact(f"{ring}: {EFFICIENT} of linear", up >= EFFICIENT * p, detail))
            made.append(checks.fact(f"{ring}: more than allreduce", up > other, f"{other:.1f}"))
        return made

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """Ratio and rate, and which methods still reach the sequential accuracy."""
        alone = found["sequential"].losses
        lines = [
            f"A minibatch lasts {RATIO:.1f} times as long as sending the model once.",
            "The rate grows with the root of P: grown with P, 64 learners diverge.",
        ]
        for p in self.sizes(bench):
            for name in METHODS:
                arm = found[_arm(name, p, 1.0)]
                check = checks.reaches(f"{arm.name} reaches sequential SGD", arm.losses, alone)
                lines.append(f"{check.statement}: {check.judgement} ({check.detail}).")
        return lines

    def plots(self, found: Found, bench: Bench) -> list[str]:
        """Speed-up over the number of learners, for each network."""
        drawn = []
        for net in self.networks(bench):
            series = []
            for n, name in enumerate(METHODS):
                ups = [speed(found[_arm(name, p, net)]) / FRAMES_PER_S for p in self.sizes(bench)]
                points = [(float(p), u, u, u) for p, u in zip(self.sizes(bench), ups, strict=True)]
                series.append(Spread(name, points, COLOURS[n]))
            title = f"speed-up in frames/s, network x {net:g}"
            drawn.append(charts.dots(title, "learners", series, doubling=True))
        return drawn


def _arm(name: str, p: int, net: float) -> str:
    return f"{name} P={p}" + ("" if net == 1.0 else f" net x {net:g}")
