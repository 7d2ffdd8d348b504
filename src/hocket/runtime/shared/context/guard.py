"""The guard: stops a run whose training loss is not finite, or has grown too much since the start.

The loss is looked at in windows of many minibatches, because one noisy minibatch must not stop a
run. The first window's loss is the reference.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from hocket.core.accounts import Tally
from hocket.data.pool import Pool

WINDOW_EPOCHS: Final = 0.02  # but at least this many items:
WINDOW_ITEMS: Final = 20


@dataclass
class Guard:
    """Watches the training loss, window by window."""

    factor: float  # a loss above this multiple of the reference is too high
    window_frames: int
    window: Tally = field(default_factory=Tally)
    reference: float | None = None

    @classmethod
    def of(cls, pool: Pool, factor: float) -> Guard:
        """Return a guard whose windows suit a pool."""
        items = max(WINDOW_ITEMS, WINDOW_EPOCHS * len(pool))
        return cls(factor, int(items * pool.epoch_frames / len(pool)))

    def watch(self, tally: Tally) -> float | None:
        """Count what was learnt; return the loss per frame if it is too high, else None."""
        window = self.window
        window.add(tally.loss_sum, tally.frames, tally.correct)
        if math.isfinite(window.loss_sum) and window.frames < self.window_frames:
            return None
        loss = window.loss_sum / max(window.frames, 1)
        self.window = Tally()
        if self.reference is None and math.isfinite(loss):
            self.reference = loss
        return None if math.isfinite(loss) and loss <= self._limit else loss

    @property
    def _limit(self) -> float:
        """The highest loss that is still fine; a reference of 0 or below says nothing."""
        if self.reference is None or self.reference <= 0:
            return math.inf
        return self.factor * self.reference

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"reference": self.reference, "window": asdict(self.window)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.reference, self.window = state["reference"], Tally(**state["window"])
