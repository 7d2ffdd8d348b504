"""How large may the total batch become before a method stops reaching the sequential accuracy?"""

from __future__ import annotations

from typing import Any, ClassVar

from hocket.optim import SGD
from hocket.optim.schedules import Warmup
from hocket.report import charts
from hocket.report.charts import COLOURS, Spread
from hocket.reproduce import checks
from hocket.reproduce.checks import Check, Judgement
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import SEQUENTIAL, Found
from hocket.reproduce.setups.rings import METHODS
from hocket.strategies import Sequential

FACTOR = 3  # published: 12,288 against 4,096
MOMENTUM = 0.9
LIMIT = 10.0  # published: rates from 0.1 to 1.0, whatever the batch
PLAIN, PUBLISHED = "", ", as published"


class LargeBatches(Claim):
    """The total batch grows with the number of learners; rates are tuned alike."""

    name: ClassVar[str] = "large-batches"
    claim: ClassVar[str] = (
        "Decentralised asynchronous SGD still reaches the sequential accuracy at total batches "
        "three times as large as synchronous SGD can use"
    )
    paper: ClassVar[str] = "Zhang et al., ICASSP 2020; Cui et al., TASLP 2021"
    published: ClassVar[str] = (
        "synchronous SGD converges up to a total batch of 4,096, AD-PSGD up to 12,288 (16 and 48 "
        "times the batch of 256 of one GPU); momentum 0.9, warm-up over 10 of 16 epochs"
    )
    refuted_by: ClassVar[str] = (
        "the largest total batch at which the best ring, or delay-by-one, ends within 1 % of the "
        "sequential loss after the same frames is surely less than three times that of allreduce"
    )
    figures: ClassVar[tuple[str, ...]] = ("loss", "error", "consensus", "staleness")

    def sizes(self, bench: Bench, kind: str = PLAIN) -> tuple[int, ...]:
        """Total batches, as multiples of one learner's."""
        if kind == PUBLISHED:
            return bench.pick(smoke=(4,), quick=(), full=(4, 12, 36))
        return bench.pick(smoke=(4,), quick=(4, 12, 36), full=(4, 8, 12, 16, 24, 36, 48))

    def kinds(self, bench: Bench) -> tuple[str, ...]:
        """Plain SGD with a decaying rate, and momentum with the authors' schedule."""
        return tuple(kind for kind in (PLAIN, PUBLISHED) if self.sizes(bench, kind))

    def runs(self, bench: Bench) -> list[Run]:
        """Every method with every size at every rate, in both kinds of training."""
        factors = bench.pick(smoke=(1.0,), quick=(0.5, 1.0), full=(0.25, 0.5, 1.0, 2.0))
        found = bench.sequential()
        if PUBLISHED in self.kinds(bench):
            grid = bench.grid({"": Sequential()}, [(1 - MOMENTUM) * f for f in factors])
            found += bench.arm(SEQUENTIAL + PUBLISHED, 1, grid, **_published(bench, alone=True))
        for kind in self.kinds(bench):
            more = _published(bench) if kind else {}
            scale = 1 - MOMENTUM if kind else 1.0
            for p in self.sizes(bench, kind):
                for name, how in METHODS.items():
                    grid = bench.grid({"": how}, [scale * f for f in factors])
                    found += bench.arm(f"{name} {p} x{kind}", p, grid, **more)
        return found

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Compare the largest total batch of the best decentralised method with allreduce's."""
        return [self._compared(found, bench, kind) for kind in self.kinds(bench)]

    def _compared(self, found: Found, bench: Bench, kind: str) -> Check:
        """Judge one kind of training: what surely reaches against what may reach."""
        surely = {name: self.largest(name, found, bench, kind, "holds") for name in METHODS}
        maybe = {
            name: self.largest(name, found, bench, kind, "holds", "inconclusive")
            for name in METHODS
        }
        judgement: Judgement = "inconclusive"
        if _best_ring(surely) >= FACTOR * maybe["allreduce"]:
            judgement = "holds"
        elif _best_ring(maybe) < FACTOR * surely["allreduce"]:
            judgement = "does not hold"
        statement = f"a decentralised method reaches it at {FACTOR} times the total batch{kind}"
        sizes = ", ".join(
            f"{name} {surely[name]} x"
            + (f" (perhaps {maybe[name]} x)" if maybe[name] > surely[name] else "")
            for name in METHODS
        )
        return Check(statement, judgement, f"largest that reach it: {sizes}")

    def largest(
        self, name: str, found: Found, bench: Bench, kind: str, *accepted: Judgement
    ) -> int:
        """Return the largest multiple at which "reaches the sequential loss" is judged so; or 1."""
        alone = found[SEQUENTIAL + kind].losses
        good = [
            p
            for p in self.sizes(bench, kind)
            if checks.reaches("", found[f"{name} {p} x{kind}"].losses, alone).judgement in accepted
        ]
        return max(good, default=1)

    def plots(self, found: Found, bench: Bench) -> list[str]:
        """Dev loss over the total batch."""
        return [self._plot(found, bench, kind) for kind in self.kinds(bench)]

    def _plot(self, found: Found, bench: Bench, kind: str) -> str:
        alone = found[SEQUENTIAL + kind].mean(lambda o: o.loss)
        series = []
        for colour, name in zip(COLOURS, METHODS, strict=False):
            points = [(1.0, alone.value, alone.low, alone.high)]
            for p in self.sizes(bench, kind):
                loss = found[f"{name} {p} x{kind}"].mean(lambda o: o.loss)
                points.append((float(p), loss.value, loss.low, loss.high))
            series.append(Spread(name, points, colour))
        title = f"dev loss over the total batch; 1: sequential{kind}"
        return charts.dots(title, "times one learner's batch", series, doubling=True)

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """How far each method ends above the sequential loss."""
        lines = ["The local rate is the sequential one times P, reached in a ramp."]
        if PUBLISHED in self.kinds(bench):
            lines.append(
                f"As published: momentum {MOMENTUM}, the local rate grows to P times, at most "
                f"{LIMIT:g} times, the sequential one over 10/16 of the run and then falls to an "
                "eighth; sequential SGD keeps its rate so long. They are compared with it."
            )
        for kind in self.kinds(bench):
            alone = found[SEQUENTIAL + kind].losses
            for name in METHODS:
                each = [
                    f"{p} x {checks.reaches('', found[f'{name} {p} x{kind}'].losses, alone).detail}"
                    for p in self.sizes(bench, kind)
                ]
                lines.append(f"{name}{kind}: " + "; ".join(each) + ".")
        return lines


def _published(bench: Bench, alone: bool = False) -> dict[str, Any]:
    """IBM's recipe: momentum, warm-up for 10 of 16 epochs, then six steps of 1/sqrt(2)."""
    epochs = bench.epochs
    rising = 10 / 16 * epochs
    schedule = Warmup(
        epochs=epochs,
        warmup_epochs=0.0 if alone else rising,
        warmup_from=1.0 if alone else 1 / LIMIT,
        hold_epochs=rising if alone else 0.0,
        step_factor=0.5 ** (3 / (epochs - rising)),  # an eighth in the epochs that are left
        lr_limit=None if alone else LIMIT,
        lr_ramp_frames=None if alone else 0,  # the warm-up is a ramp
    )
    return {"optimizer": SGD(momentum=MOMENTUM), "schedule": schedule}


def _best_ring(sizes: dict[str, int]) -> int:
    """Return the largest multiple of any method other than allreduce."""
    return max(size for name, size in sizes.items() if name != "allreduce")
