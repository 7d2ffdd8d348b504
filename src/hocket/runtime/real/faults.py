"""Planned faults of real learners, as data: who, when, and how.

    Fault(rank=2, at_draw=5)                 kill -9 when it has drawn its fifth item
    Fault(rank=2, at_frame=9)                ... when it is about to send its ninth frame: inside a
                                             collective, after some of the others have heard of it
    Fault(rank=2, at_collective=5)           ... when it is about to begin its fifth collective:
                                             none of the others hears of it
    Fault(rank=2, at_send=5)                 ... when it is about to send its fifth message
    Fault(rank=2, at_draw=5, how="freeze")   SIGSTOP: it is alive, but does nothing any more
    Fault(rank=2, at_draw=5, how="nap")      SIGSTOP, and SIGCONT after a second

A strategy that forks a collective and then draws may die at that draw before or after the others
have its contribution; only `at_collective` ends it at a point that is the same in every run.

Used by tests and benchmarks, which assert that every fault has fired. The simulator's planned
deaths (`hocket.Death`) count draws in the same way, so both worlds can be given the same plan.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hocket.errors import require

NAP_S = 1.0


@dataclass(frozen=True)
class Fault:
    """What happens to one learner, and when."""

    rank: int
    at_draw: int | None = None
    at_frame: int | None = None
    at_collective: int | None = None
    at_send: int | None = None
    how: Literal["kill", "freeze", "nap"] = "kill"

    def __post_init__(self) -> None:
        given = [self.at_draw, self.at_frame, self.at_collective, self.at_send]
        require(
            sum(when is not None for when in given) == 1,
            f"the fault of rank {self.rank} needs one of at_draw, at_frame, at_collective, at_send",
        )

    def strike(self) -> None:
        """Kill or stop this process now."""
        if self.how == "nap":
            subprocess.Popen(["/bin/sh", "-c", f"sleep {NAP_S}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGKILL if self.how == "kill" else signal.SIGSTOP)


class Fate:
    """The faults that are planned for one learner, and the counts they wait for."""

    def __init__(self, faults: Sequence[Fault], rank: int) -> None:
        self._faults = [f for f in faults if f.rank == rank]
        self._frames = 0
        self._messages = 0

    def drawn(self, draws: int) -> None:
        """Strike if a fault is planned for this number of draws."""
        for fault in self._faults:
            if fault.at_draw == draws:
                fault.strike()

    def issuing(self, collectives: int) -> None:
        """Strike if a fault is planned for this number of collectives."""
        for fault in self._faults:
            if fault.at_collective == collectives:
                fault.strike()

    def mailing(self) -> None:
        """Count a message; strike if a fault is planned for this number of messages."""
        self._messages += 1
        for fault in self._faults:
            if fault.at_send == self._messages:
                fault.strike()

    def sending(self) -> None:
        """Count a frame; strike if a fault is planned for this number of frames."""
        self._frames += 1
        for fault in self._faults:
            if fault.at_frame == self._frames:
                fault.strike()
