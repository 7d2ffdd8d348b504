"""What a learner reports: training figures now and then, notes, and what a strategy measures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from hocket.core.accounts import Tally
from hocket.runtime.shared.context.account import Account
from hocket.runtime.shared.context.agenda import FrameInterval

Report: TypeAlias = Callable[[dict[str, Any]], None]


@dataclass
class Measure:
    """A figure that a strategy measures many times: how often, its sum, its maximum."""

    count: int = 0
    total: float = 0.0
    largest: float = -math.inf

    def add(self, value: float) -> None:
        """Count one more value."""
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)

    def join(self, other: Measure) -> None:
        """Count the values of another one, too."""
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)


class Reporter:
    """Sends one learner's events to the run's record."""

    def __init__(
        self, account: Account, report: Report, progressed: Callable[[], None] = lambda: None
    ) -> None:
        self._account = account
        self._report = report
        self._progressed = progressed  # called often; the runtime may show a bar
        self._every = FrameInterval(account.experiment.options.log_every, account.pool)
        self._since = Tally()  # the last train event
        self._latest = 0.0, 0.0  # loss and accuracy, shown while nothing new is learnt
        self._measures: dict[str, Measure] = {}
        self._counts: dict[str, Counter[int]] = {}
        self.doing = ""  # what the strategy tells of itself

    def event(self, kind: str, rank: int | None, **figures: Any) -> None:
        """Report something that happened now."""
        ledger = self._account.ledger
        where = {"frames": ledger.committed_frames, "epoch": ledger.epoch, "rank": rank}
        self._report({"event": kind, **where, **figures})

    def say(self, notes: Sequence[str]) -> None:
        """Write notes for the user into the run's record."""
        for text in notes:
            self.event("note", None, text=text)

    def learnt(self, tally: Tally) -> None:
        """Count what was learnt, and report it when the time has come."""
        self._since.add(tally.loss_sum, tally.frames, tally.correct)
        if not (self._every.due(self._account.frames) and self._since.frames):
            self._progressed()
            return
        self._every.done(self._account.frames)
        if self._account.speaks:
            self._report(self.training("train"))
        self._since = Tally()

    def training(self, event: str) -> dict[str, Any]:
        """Return the training figures since the last train event."""
        account, since = self._account, self._since
        if since.frames:
            self._latest = since.loss_sum / since.frames, since.correct / since.frames
        loss, accuracy = self._latest
        return {
            "event": event,
            "frames": account.ledger.committed_frames,
            "epoch": min(account.ledger.epoch, account.pool.epochs - 1),
            "rank": None if account.experiment.strategy.synchronous else account.rank,
            "loss": loss,
            "accuracy": accuracy,
            "lr": account.rate(),
        }

    def tell(self, text: str) -> None:
        """Show what the strategy is doing, until it does something else; it is not recorded."""
        self.doing = text
        self._progressed()

    def progress(self) -> dict[str, Any]:
        """Return an event for the display only: the training figures, and what is being done."""
        return self.training("progress") | ({"doing": self.doing} if self.doing else {})

    def measure(self, name: str, value: float) -> None:
        """Count a figure that the strategy measures; its mean and maximum are logged."""
        self._measures.setdefault(name, Measure()).add(value)

    def count(self, name: str, value: int) -> None:
        """Count how often a whole number was seen; its histogram is logged."""
        self._counts.setdefault(name, Counter())[value] += 1

    def take_counts(self) -> dict[str, dict[str, int]]:
        """Return the histograms since the last evaluation; values are keys, as JSON wants them."""
        taken, self._counts = self._counts, {}
        return {name: {str(v): n for v, n in seen.items()} for name, seen in taken.items()}

    def take_measures(self) -> dict[str, list[float]]:
        """Return what the strategy has measured since the last evaluation, as plain numbers."""
        taken, self._measures = self._measures, {}
        return {name: [m.count, m.total, m.largest] for name, m in sorted(taken.items())}

    def take_over(self, states: Sequence[dict[str, Any]]) -> None:
        """Go on with what these ranks had measured and counted: no event has told it yet."""
        self._measures, self._counts = {}, {}
        for state in states:
            for name, one in state.get("measures", {}).items():  # older checkpoints have none
                self._measures.setdefault(name, Measure()).join(Measure(**one))
            for name, seen in state.get("counts", {}).items():
                counted = self._counts.setdefault(name, Counter())
                counted.update({int(v): n for v, n in seen.items()})

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: what no event has told yet."""
        return {
            "log": asdict(self._since),
            "measures": {name: asdict(one) for name, one in self._measures.items()},
            "counts": {
                name: {str(v): n for v, n in seen.items()} for name, seen in self._counts.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._since = Tally(**state["log"])
        self.take_over([state])
        self._every.done(self._account.frames)
