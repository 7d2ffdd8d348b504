"""What a learner reports: training figures now and then, notes, and what a strategy measures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from hocket.core.accounts import Tally
from hocket.runtime.shared.account import Account
from hocket.runtime.shared.agenda import FrameInterval

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
        self._measures: dict[str, Measure] = {}

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
        return {
            "event": event,
            "frames": account.ledger.committed_frames,
            "epoch": min(account.ledger.epoch, account.pool.epochs - 1),
            "rank": None if account.experiment.strategy.synchronous else account.rank,
            "loss": since.loss_sum / max(since.frames, 1),
            "accuracy": since.correct / max(since.frames, 1),
            "lr": account.rate(),
        }

    def measure(self, name: str, value: float) -> None:
        """Count a figure that the strategy measures; its mean and maximum are logged."""
        self._measures.setdefault(name, Measure()).add(value)

    def take_measures(self) -> dict[str, list[float]]:
        """Return what the strategy has measured since the last evaluation, as plain numbers."""
        taken, self._measures = self._measures, {}
        return {name: [m.count, m.total, m.largest] for name, m in sorted(taken.items())}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"log": asdict(self._since)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._since = Tally(**state["log"])
        self._every.done(self._account.frames)
