"""How long a minibatch takes a learner that is a group: the schedule of its stages, step by step.

The first rank hands the others their parameters. Then each piece of the minibatch goes forward
through the stages, and back when all have gone forward; the last stage sends each piece back at
once. What goes from rank to rank goes through the memory of their host. At the end the others hand
back their gradients. With one piece the ranks take turns; with M of equal length and S equal stages
they are at work M / (M + S - 1) of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from hocket.runtime.shared.stages.cutting import StageCosts
from hocket.runtime.sim.cost import EVALUATION_SPEED

FORWARD: Final = 1 / EVALUATION_SPEED  # of a minibatch's time; the rest is backward

Handover: TypeAlias = Callable[[float], float]  # seconds, for so many bytes


@dataclass(frozen=True)
class GroupCost:
    """What the stages of a group cost."""

    stages: StageCosts
    held_bytes: list[int]  # parameters of each stage
    micro_batches: int

    def gradient_s(self, frames: int, device_s: float, handover: Handover) -> float:
        """Return how long a minibatch takes that would take one device so long."""
        pieces = max(1, min(self.micro_batches, frames))
        free = self._handed_out(handover)
        travel = [handover(size * frames / pieces) for size in self.stages.bytes_out]
        forward = [FORWARD * share * device_s / pieces for share in self.stages.shares]
        backward = [(1 - FORWARD) * share * device_s / pieces for share in self.stages.shares]
        arriving = self._forward(free, forward[:-1], travel, pieces)
        back = []
        for piece in range(pieces):  # the last stage
            free[-1] = max(free[-1], arriving[piece]) + forward[-1] + backward[-1]
            back.append(free[-1])
        for stage in reversed(range(len(free) - 1)):
            for piece in range(pieces):
                began = max(free[stage], back[piece] + travel[stage])
                back[piece] = free[stage] = began + backward[stage]
        returned = [end + handover(size) for end, size in zip(free, self.held_bytes, strict=True)]
        return max(free[0], *returned[1:])

    def forward_s(self, frames: int, items: int, device_s: float, handover: Handover) -> float:
        """Return how long so many held-out items take, one behind the other."""
        free = self._handed_out(handover)
        travel = [handover(size * frames / items) for size in self.stages.bytes_out]
        each = [share * device_s / items for share in self.stages.shares]
        return max(self._forward(free, each, [*travel, 0.0], items))

    def _handed_out(self, handover: Handover) -> list[float]:
        """Return when each rank can begin: the first one hands the others their parameters."""
        ready, now = [0.0], 0.0
        for size in self.held_bytes[1:]:
            now += handover(size)
            ready.append(now)
        return [now, *ready[1:]]

    @staticmethod
    def _forward(
        free: list[float], forward: list[float], travel: list[float], pieces: int
    ) -> list[float]:
        """Let pieces go through stages, and return when each has arrived behind them."""
        arriving = [0.0] * pieces
        for stage, (takes, on_its_way) in enumerate(zip(forward, travel, strict=True)):
            for piece in range(pieces):
                free[stage] = max(free[stage], arriving[piece]) + takes
                arriving[piece] = free[stage] + on_its_way
        return arriving
