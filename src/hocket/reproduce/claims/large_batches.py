"""How large may the total batch become before a method stops reaching the sequential accuracy?"""

from __future__ import annotations

from typing import ClassVar

from hocket.report import charts
from hocket.report.charts import COLOURS, Spread
from hocket.reproduce import checks
from hocket.reproduce.checks import Check, Judgement
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import Found
from hocket.reproduce.rings import METHODS


class LargeBatches(Claim):
    """The total batch grows with the number of learners; rates are tuned alike."""

    name: ClassVar[str] = "large-batches"
    claim: ClassVar[str] = (
        "Decentralised asynchronous SGD still reaches the sequential accuracy at total batches "
        "three times as large as synchronous SGD can use"
    )
    paper: ClassVar[str] = (
        "Zhang et al., ICASSP 2020 (4,096 against 12,288); Cui et al., TASLP 2021"
    )
    refuted_by: ClassVar[str] = (
        "the largest total batch at which the best ring, or delay-by-one, reaches the sequential "
        "loss is not larger than that of allreduce"
    )
    figures: ClassVar[tuple[str, ...]] = ("loss", "error", "consensus", "staleness")

    def sizes(self, bench: Bench) -> tuple[int, ...]:
        """Total batches, as multiples of one learner's."""
        return bench.pick(smoke=(4,), quick=(4, 16, 48), full=(2, 4, 16, 48))

    def rates(self, bench: Bench) -> tuple[float, ...]:
        """Sequential rates tried for every method and size."""
        factors = bench.pick(smoke=(1.0,), quick=(0.5, 1.0), full=(0.25, 0.5, 1.0, 2.0, 4.0))
        return tuple(factor * bench.lr for factor in factors)

    def runs(self, bench: Bench) -> list[Run]:
        """Every method with every size at every rate."""
        return bench.sequential(self.rates(bench), evaluate_every=9.0) + [
            bench.run(
                f"{name} {p} x", how, p, seed=seed, lr=lr, setting=f"lr {lr:g}", evaluate_every=9.0
            )
            for p in self.sizes(bench)
            for name, how in METHODS.items()
            for lr in self.rates(bench)
            for seed in bench.seeds
        ]

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Compare the largest total batch of the best decentralised method with allreduce's."""
        reached = {name: self.largest(name, found, bench, "holds") for name in METHODS}
        possible = {
            name: self.largest(name, found, bench, "holds", "inconclusive") for name in METHODS
        }
        judgement: Judgement = "inconclusive"
        if _best_ring(reached) > possible["allreduce"]:
            judgement = "holds"
        elif _best_ring(possible) <= reached["allreduce"]:
            judgement = "does not hold"
        statement = "a decentralised method reaches the sequential loss at a larger total batch"
        sizes = ", ".join(f"{name} {size} x" for name, size in reached.items())
        return [Check(statement, judgement, f"largest that reach it: {sizes}")]

    def largest(self, name: str, found: Found, bench: Bench, *accepted: Judgement) -> int:
        """Return the largest multiple at which "reaches the sequential loss" is judged so; or 1."""
        alone = found["sequential"].losses
        good = [
            p
            for p in self.sizes(bench)
            if checks.reaches("", found[f"{name} {p} x"].losses, alone).judgement in accepted
        ]
        return max(good, default=1)

    def plots(self, found: Found, bench: Bench) -> list[str]:
        """Dev loss over the total batch."""
        alone = found["sequential"].mean(lambda o: o.loss)
        series = []
        for colour, name in zip(COLOURS, METHODS, strict=False):
            points = [(1.0, alone.value, alone.low, alone.high)]
            for p in self.sizes(bench):
                loss = found[f"{name} {p} x"].mean(lambda o: o.loss)
                points.append((float(p), loss.value, loss.low, loss.high))
            series.append(Spread(name, points, colour))
        title = "dev loss over the total batch; 1: sequential"
        return [charts.dots(title, "times one learner's batch", series, doubling=True)]

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """How far each method ends above the sequential loss."""
        alone = found["sequential"].losses
        lines = ["The local rate is the sequential one times P, reached in a ramp over an epoch."]
        for name in METHODS:
            each = [
                f"{p} x {checks.reaches('', found[f'{name} {p} x'].losses, alone).detail}"
                for p in self.sizes(bench)
            ]
            lines.append(f"{name}: " + "; ".join(each) + ".")
        return lines


def _best_ring(sizes: dict[str, int]) -> int:
    """Return the largest multiple of any method other than allreduce."""
    return max(size for name, size in sizes.items() if name != "allreduce")
