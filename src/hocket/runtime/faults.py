"""Planned faults of real learners, as data: who, when, and how.

    Fault(rank=2, at_draw=5)                 kill -9 when it has drawn its fifth item
    Fault(rank=2, at_frame=9)                ... when it is about to send its ninth frame: inside a
                                             collective, after some of the others have heard of it
    Fault(rank=2, at_draw=5, how="freeze")   SIGSTOP: it lives, but does nothing any more

Used by tests and benchmarks, which assert that every fault has fired. The simulator's planned
deaths (`hocket.Death`) count draws in the same way, so both worlds can be given the same plan.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hocket.errors import require


@dataclass(frozen=True)
class Fault:
    """One learner's end."""

    rank: int
    at_draw: int | None = None
    at_frame: int | None = None
    how: Literal["kill", "freeze"] = "kill"

    def __post_init__(self) -> None:
        require(
            (self.at_draw is None) != (self.at_frame is None),
            f"the fault of rank {self.rank} needs either at_draw or at_frame",
        )

    def strike(self) -> None:
        """Let it happen, here and now."""
        os.kill(os.getpid(), signal.SIGKILL if self.how == "kill" else signal.SIGSTOP)


class Fate:
    """What is planned for one learner."""

    def __init__(self, faults: Sequence[Fault], rank: int) -> None:
        self._faults = [f for f in faults if f.rank == rank]
        self._frames = 0

    def drawn(self, draws: int) -> None:
        """Strike if so many items were to be drawn."""
        for fault in self._faults:
            if fault.at_draw == draws:
                fault.strike()

    def sending(self) -> None:
        """Strike if so many frames were to be sent."""
        self._frames += 1
        for fault in self._faults:
            if fault.at_frame == self._frames:
                fault.strike()
