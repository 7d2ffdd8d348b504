"""A real learner's clock and trace: seconds of the run, counted on when it is resumed."""

from __future__ import annotations

import time

from hocket.runtime.shared.trace import Trace


class Timeline:
    """The run's time as one rank sees it, and what the rank did when."""

    def __init__(self, rank: int, earlier_s: float, *, keep_trace: bool) -> None:
        self.trace = Trace(keep=keep_trace)
        self._rank = rank
        self._earlier_s = earlier_s  # of the run, before it was resumed
        self._began = time.monotonic()

    def restart(self) -> None:
        """Begin to count: what was before (meeting the others, making data) is not training."""
        self._began = time.monotonic()

    def now(self) -> float:
        """Return the seconds of the run so far."""
        return self._earlier_s + time.monotonic() - self._began

    def span(self, kind: str, began: float, detail: str = "") -> None:
        """Note a stretch of time that began at `began` (of `time.monotonic`) and ends now."""
        offset = self._earlier_s - self._began
        self.trace.note(self._rank, kind, began + offset, time.monotonic() + offset, detail)

    def instant(self, kind: str, detail: str) -> None:
        """Note something that happens now."""
        self.trace.note(self._rank, kind, self.now(), self.now(), detail)
