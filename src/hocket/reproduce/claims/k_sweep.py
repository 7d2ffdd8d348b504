"""K-AVG: how many local steps between two averages?"""

from __future__ import annotations

from typing import ClassVar

from hocket.report import charts
from hocket.report.charts import COLOURS, Bar, Spread
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import Found
from hocket.strategies import KStep


class KSweep(Claim):
    """Communication against accuracy over K."""

    name: ClassVar[str] = "k-sweep"
    claim: ClassVar[str] = (
        "Averaging after K > 1 local steps reaches the accuracy of averaging after every step, "
        "with 1/K of the communication"
    )
    paper: ClassVar[str] = "Zhou and Cong, IJCAI 2018; Cong et al., MLHPC 2017"
    refuted_by: ClassVar[str] = (
        "the best K > 1 ends with a clearly higher dev loss than K = 1, or sends as much"
    )

    def learners(self, bench: Bench) -> tuple[int, ...]:
        """How many learners it is tried with."""
        return bench.pick(smoke=(2,), quick=(4, 16), full=(4, 16))

    def ks(self, bench: Bench) -> tuple[int, ...]:
        """The sweep."""
        return bench.pick(smoke=(1, 4), quick=(1, 4, 16), full=(1, 2, 4, 8, 16, 32, 64))

    def runs(self, bench: Bench) -> list[Run]:
        """Every K with every number of learners, at equal gain; and the sequential run."""
        return bench.sequential() + [
            bench.run(f"P={p} K={k}", KStep(sync_every=k), p, seed=seed)
            for p in self.learners(bench)
            for k in self.ks(bench)
            for seed in bench.seeds
        ]

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """The best K > 1 against K = 1, for each number of learners."""
        made = []
        for p in self.learners(bench):
            one = found[f"P={p} K=1"]
            more = [found[f"P={p} K={k}"] for k in self.ks(bench) if k > 1]
            best = min(more, key=lambda arm: sum(arm.losses))
            sent = [arm.mean(lambda o: o.bytes_sent).value for arm in (best, one)]
            made.append(
                checks.reaches(f"{best.name} reaches the dev loss of K=1", best.losses, one.losses)
            )
            made.append(
                checks.fact(
                    f"{best.name} sends less", sent[0] < sent[1], f"{sent[0] / sent[1]:.3f} of it"
                )
            )
        return made

    def plots(self, found: Found, bench: Bench) -> list[str]:
        """Dev loss and bytes over K."""
        alone = found["sequential"].mean(lambda o: o.loss)
        level = Bar("sequential", alone.value, alone.low, alone.high, COLOURS[-1])
        series = []
        for n, p in enumerate(self.learners(bench)):
            points = []
            for k in self.ks(bench):
                loss = found[f"P={p} K={k}"].mean(lambda o: o.loss)
                points.append((float(k), loss.value, loss.low, loss.high))
            series.append(Spread(f"P={p}", points, COLOURS[n]))
        return [charts.dots("dev loss over K", "K", series, doubling=True, level=level)]
