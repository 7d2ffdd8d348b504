"""A worker: model + loss + data -> gradient at given parameters.

The model's parameters are views of whatever flat vector is handed in (`bind`), so no copy is made
per minibatch. What a learner owns besides parameters sits in its `WorkerState`; the simulator runs
all its learners through one worker and swaps that state; checkpoints save it.

Randomness inside a minibatch (dropout, augmentation) is keyed by (seed, epoch, item), not by rank:
the result does not depend on which learner computes an item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hocket.core import device
from hocket.core.accounts import Tally, Ticket
from hocket.core.device import Precision
from hocket.core.effects import WHOLE, Grad, Part
from hocket.core.flat import Flat, Layout
from hocket.core.numerics import stable_seed, weighted_sum
from hocket.core.optimizer import Preconditioning
from hocket.core.task import Item, Loss, Task
from hocket.data.pool import Pool
from hocket.errors import TaskError

CPU = torch.device("cpu")


@dataclass
class WorkerState:
    """All that a learner's worker keeps between two minibatches."""

    buffers: dict[str, torch.Tensor] = field(default_factory=dict)  # batch-norm statistics
    sides: dict[str, Any] = field(default_factory=dict)  # what the preconditioner has learnt


class Worker:
    """Computes gradients and scores for one learner, or for all learners of a simulation."""

    def __init__(
        self,
        task: Task,
        pool: Pool,
        seed: int,
        *,
        on: torch.device = CPU,
        precision: Precision = "float32",
        natural_gradient: Preconditioning | None = None,
    ) -> None:
        self.device = on
        self.task = task
        self.pool = pool
        self.seed = seed
        task.prepare()
        torch.manual_seed(stable_seed(seed, "model"))
        self.model = task.build_model().to(on)
        self._precision: Precision = precision
        self.layout = Layout.of(self.model)
        if not self.layout.entries:
            raise TaskError("the task's model has no parameters that are trained")
        self.initial = self.layout.flatten(self.model)
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.frozen = {
            name: p.detach().clone()
            for name, p in self.model.named_parameters()
            if not p.requires_grad
        }
        self._preconditioner = (
            None if natural_gradient is None else natural_gradient.tap(self.model)
        )
        self.notes = [self._preconditioner.note()] if self._preconditioner else []
        self._has_buffers = any(True for _ in self.model.buffers())
        self._lane = device.Lane(on)  # gradients run beside communication
        self._bound = 0
        self._state: WorkerState | None = None

    def new_state(self) -> WorkerState:
        """Return the state of a learner that has not begun."""
        return WorkerState({k: b.detach().clone() for k, b in self.model.named_buffers()})

    def bind(self, params: Flat, state: WorkerState) -> None:
        """Make the model's parameters views of `params`, its buffers those of `state`."""
        if params.data_ptr() != self._bound:
            for p, view in zip(self._parameters, self.layout.views(params), strict=True):
                p.data = view
            self._bound = params.data_ptr()
            self._held = params  # while it is held, no other vector can have its address
        if self._has_buffers and state is not self._state:
            for name, buffer in self.model.named_buffers():
                buffer.data = state.buffers[name].to(self.device)
        if self._preconditioner is not None and state is not self._state:
            self._preconditioner.state = state.sides
        self._state = state

    def gradient(
        self, params: Flat, ticket: Ticket, state: WorkerState, part: Part = WHOLE
    ) -> Grad:
        """Mean gradient over the frames of one drawn item, or of a part of it."""
        if ticket.dry or not len(_rows_of(part, ticket.frames)):
            return self.dry(ticket)
        with self._lane.work():
            return self._gradient(params, ticket, state, part)

    def _gradient(self, params: Flat, ticket: Ticket, state: WorkerState, part: Part) -> Grad:
        self.bind(params, state)
        self.model.train()
        key = (ticket.epoch, ticket.index, *(part if part != WHOLE else ()))
        device.seed(self.device, stable_seed(self.seed, *key))
        loss = self._loss("train", ticket.index, ticket.epoch, part)
        grads = torch.autograd.grad(
            loss.total / loss.frames, self._parameters, allow_unused=True, materialize_grads=False
        )
        if self._preconditioner is not None:
            state.sides = self._preconditioner.state
        return Grad(
            self.layout.parts(grads),
            loss.frames,
            float(loss.total.detach()),
            float(loss.correct),
            (ticket,),
        )

    def dry(self, ticket: Ticket | None = None) -> Grad:
        """Return the gradient of a learner that has nothing to draw: no frames, no direction."""
        tickets = () if ticket is None else (ticket,)
        return Grad(self.layout.zeros(self.device), 0, 0.0, 0.0, tickets)

    @torch.no_grad()
    def score(self, params: Flat, state: WorkerState, split: str, items: Sequence[int]) -> Tally:
        """Loss and correct frames of some items of a held-out split."""
        self.bind(params, state)
        self.model.eval()
        tally = Tally()
        for index in items:
            loss = self._loss(split, index, epoch=0)
            tally.add(float(loss.total), loss.frames, float(loss.correct))
        return tally

    def _loss(self, split: str, index: int, epoch: int, part: Part = WHOLE) -> Loss:
        item = self.pool.items(split)[index]
        batch = self.task.load(split, item, epoch)
        if part != WHOLE:
            rows = _rows_of(part, item.frames)
            batch, item = _cut(batch, rows, item), replace(item, frames=len(rows))
        batch = device.move(batch, self.device)
        with device.computing(self.device, self._precision):
            loss = self.task.loss(self.model, batch)
        if not isinstance(loss, Loss):
            raise TaskError(
                f"loss() returned {type(loss).__name__}: return hocket.Loss(total, frames, correct)"
            )
        if loss.frames != item.frames:
            raise TaskError(
                f"item {item.id!r} of split {split!r} was announced with {item.frames} frames but "
                f"its loss counts {loss.frames}: the ledger could not close. "
                "Make items() and loss() agree."
            )
        return loss


def _rows_of(part: Part, frames: int) -> range:
    which, of = part
    return range(which * frames // of, (which + 1) * frames // of)


def _cut(batch: Any, rows: range, item: Item) -> Any:
    """Return a part of a batch: those rows of every tensor that has one per frame."""
    if isinstance(batch, torch.Tensor) and batch.ndim and len(batch) == item.frames:
        return batch[rows.start : rows.stop]
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return type(batch)(_cut(child, rows, item) for child in batch)
    raise TaskError(
        f"item {item.id!r} cannot be divided into smaller minibatches: its batch holds "
        f"{type(batch).__name__} without one row for each of its {item.frames} frames. Switch "
        "smaller minibatches off (strategy kaldi: first_parts = 1)"
    )


def mean_buffers(states: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Buffers of an evaluated or saved model: floats averaged over learners, others from the first.

    Batch-norm statistics: while training, each learner keeps its own.
    """
    if not states:
        return {}
    equal = [1.0 / len(states)] * len(states)
    return {
        name: weighted_sum([s[name] for s in states], equal)
        if first.is_floating_point() and len(states) > 1
        else first.clone()
        for name, first in states[0].items()
    }
