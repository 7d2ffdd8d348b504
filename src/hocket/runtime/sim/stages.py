"""Simulated ranks that hold one stage of a model each: of a strategy in stages, or of a learner.

Every rank has a worker of its own, whose parameters are its stage's. A minibatch's time is shared
out to the stages by the operations counted in their layers, a third of it forward and the rest
backward; what goes from stage to stage is a message like any other.

The ranks of a learner that is a group compute in one worker, which is all learners'; a minibatch
takes them what their schedule takes (`group_cost`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hocket.core.effects import (
    Deliver,
)
from hocket.core.stage_effects import (
    Backward,
    Draw,
    Forward,
)
from hocket.core.strategy import InStages
from hocket.errors import DivergedError
from hocket.experiment import Experiment
from hocket.runtime.shared.dispatch import Fiber
from hocket.runtime.shared.stages.cutting import costs, settled
from hocket.runtime.shared.stages.group import GroupWorker
from hocket.runtime.shared.stages.making import worker_of
from hocket.runtime.shared.stages.worker import stage_of
from hocket.runtime.shared.worker import Worker
from hocket.runtime.sim.cost import EVALUATION_SPEED, CostModel
from hocket.runtime.sim.group_cost import FORWARD, GroupCost
from hocket.runtime.sim.joins import Group, SimulatedJoins


class SimulatedStages(SimulatedJoins):
    """Answers the effects of stages."""

    _group: Group

    def __init__(self, experiment: Experiment, cost: CostModel) -> None:
        super().__init__(settled(experiment), cost)
        self._workers: list[Worker] = []
        self._shares = [1.0]
        self._group_cost: GroupCost | None = None

    def _open_workers(self, *, new: bool) -> None:
        """Build one worker for all ranks, or one for each stage of the model."""
        experiment, workers = self._experiment, 1
        if isinstance(experiment.strategy, InStages):
            self._shares = costs(experiment).shares
            workers = experiment.strategy.stages
        known = self._group.worker
        self._workers = (
            [known]
            if known is not None and workers == 1
            else [worker_of(experiment, 0, new=new, rank=rank) for rank in range(workers)]
        )
        first = self._workers[0]
        if isinstance(first, GroupWorker):
            micro_batches = experiment.options.micro_batches
            self._group_cost = GroupCost(costs(experiment), first.held_bytes, micro_batches)

    def worker(self, rank: int) -> Worker:
        """Return what computes for a rank."""
        return self._workers[min(rank, len(self._workers) - 1)]

    # ------------------------------------------------------------------ learners that are groups

    def _compute(self, rank: int, frames: int) -> tuple[float, float]:
        """Charge a gradient on so many frames; return when it begins and ends."""
        group = self._group_cost
        if group is None or not frames:
            return self._cost.compute(rank, self.now, frames)
        device_s = self._cost.device_s(rank, frames)
        takes_s = group.gradient_s(frames, device_s, partial(self._cost.handover_s, rank))
        return self._cost.compute(rank, self.now, frames, device_s / takes_s)

    def _compute_scores(self, rank: int, frames: int, items: int) -> tuple[float, float]:
        """Charge the scoring of held-out items; return when it begins and ends."""
        group = self._group_cost
        if group is None or not frames:
            return self._cost.compute(rank, self.now, frames, EVALUATION_SPEED)
        device_s = self._cost.device_s(rank, frames)
        handover = partial(self._cost.handover_s, rank)
        takes_s = group.forward_s(frames, items, device_s / EVALUATION_SPEED, handover)
        return self._cost.compute(rank, self.now, frames, device_s / takes_s)

    # ------------------------------------------------------------------ the effects

    def _draw(self, fiber: Fiber, effect: Draw, deliver: Deliver) -> None:
        context = self.context(fiber.rank)
        ticket = context.draw_item()
        if not ticket.dry:
            books = context.account.books
            books.draws += 1
            if self._deaths_at_draw.get(fiber.rank) == books.draws:
                self._die(fiber.rank)
                return
        deliver(ticket, None)

    def _forward(self, fiber: Fiber, effect: Forward, deliver: Deliver) -> None:
        rank, context = fiber.rank, self.context(fiber.rank)
        passed = stage_of(self.worker(rank)).forward(effect, context.worker_state)
        frames = len(range(*_rows(effect.ticket.frames, effect.part)))
        kind = "forward" if effect.split == "train" else "evaluate"
        end = self._spend_share(rank, frames, FORWARD, kind, effect)
        self._deliver_at(end, rank, deliver, passed)

    def _backward(self, fiber: Fiber, effect: Backward, deliver: Deliver) -> None:
        rank, context = fiber.rank, self.context(fiber.rank)
        back = stage_of(self.worker(rank)).backward(effect, context.worker_state)
        end = self._spend_share(rank, back.grad.frames, 1 - FORWARD, "backward", effect)

        def finished(value: Any, error: BaseException | None) -> None:
            try:
                context.came_back(effect, back.grad)
            except DivergedError as failure:
                value, error = None, failure
            deliver(value, error)

        self._deliver_at(end, rank, finished, back)

    def _spend_share(
        self, rank: int, frames: int, share: float, kind: str, effect: Forward | Backward
    ) -> float:
        """Charge a stage's share of computing on so many frames; return when it is done."""
        share *= self._shares[rank]
        start = end = self.now
        if share:
            start, end = self._cost.compute(rank, self.now, frames, 1 / share)
        self.trace.note(rank, kind, start, end, effect.ticket.describe(effect.part))
        if kind != "evaluate":
            self.context(rank).account.books.compute_s += end - start
        return end


def _rows(frames: int, part: tuple[int, int]) -> tuple[int, int]:
    which, of = part
    return which * frames // of, (which + 1) * frames // of
