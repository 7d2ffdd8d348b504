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
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hocket.core import device
from hocket.core.accounts import Tally, Ticket
from hocket.core.device import Precision
from hocket.core.effects import WHOLE, Grad, Part, Product
from hocket.core.flat import Flat, Layout
from hocket.core.numerics import stable_seed, weighted_sum
from hocket.core.optimizer import Preconditioning
from hocket.core.task import Divisible, Item, Loss, Task
from hocket.data.pool import Pool
from hocket.errors import ConfigError, TaskError, UnreadableError, require
from hocket.models.gauss_newton import GaussNewton
from hocket.record.rundir import RunDirectory
from hocket.support.arrays import read_tensors

CPU = torch.device("cpu")
NO_LOSS = Loss(torch.zeros(()), 0)  # of a part without frames


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
        init: str | None = None,
    ) -> None:
        self.device = on
        self.task = task
        self.pool = pool
        self.seed = seed
        task.prepare()
        self.model = self._new_model(init)
        self.model.to(on)
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
        self._curves = GaussNewton(self.model)
        self._has_buffers = any(True for _ in self.model.buffers())
        self._lane = device.Lane(on)  # gradients run beside communication
        self._bound = 0
        self._state: WorkerState | None = None

    def _new_model(self, init: str | None) -> nn.Module:
        """Build the model that this worker computes with."""
        model = new_model(self.task, self.seed)
        if init is not None:
            model.load_state_dict(trained_values(model, Path(init)))
        return model

    @property
    def place(self) -> range:
        """Where its parameters lie in the whole model."""
        return range(self.layout.size)

    def first_params(self) -> Flat:
        """Return the parameters that a learner begins with; they are its own."""
        return self.initial.clone()

    def new_state(self) -> WorkerState:
        """Return the state of a learner that has not begun."""
        return WorkerState({k: b.detach().clone() for k, b in self.model.named_buffers()})

    def close(self) -> None:
        """Let go of whoever computes with it: nobody."""

    def frames_of(self, split: str, ticket: Ticket, part: Part) -> int:
        """Return how many frames a part of an item has."""
        item, _ = self._batch(split, ticket.index, ticket.epoch, part)
        return item.frames

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
        if ticket.dry:
            return self.dry(ticket)
        with self._lane.work():
            return self._gradient(params, ticket, state, part)

    def _gradient(self, params: Flat, ticket: Ticket, state: WorkerState, part: Part) -> Grad:
        self.bind(params, state)
        if not self.model.training:  # it walks over all modules: 5 % of a small minibatch
            self.model.train()
        key = (ticket.epoch, ticket.index, *(part if part != WHOLE else ()))
        device.seed(self.device, stable_seed(self.seed, *key))
        loss = self._loss("train", ticket.index, ticket.epoch, part)
        if loss.frames == 0:  # more parts than frames, or than chunks
            return self.dry(ticket)
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

    def curvature(
        self, params: Flat, direction: Flat, tickets: Sequence[Ticket], state: WorkerState
    ) -> Product:
        """Mean Gauss-Newton product over the frames of items drawn before; nothing is dropped."""
        drawn = [ticket for ticket in tickets if not ticket.dry]
        frames = sum(ticket.frames for ticket in drawn)
        mean = self.layout.zeros(self.device)
        with self._lane.work():
            self.bind(params, state)
            self.model.eval()
            along, sums = self.layout.views(direction), self.layout.views(mean)
            for ticket in drawn:
                device.seed(self.device, stable_seed(self.seed, ticket.epoch, ticket.index))
                loss = partial(self._exact_loss, ticket)
                products, _ = self._curves.product(loss, along, 1.0 / frames)
                for view, product in zip(sums, products, strict=True):
                    if product is not None:
                        view.add_(product)
        return Product(mean, frames, self._curves.cost)

    def _exact_loss(self, ticket: Ticket) -> Loss:
        """The loss of a drawn item in full precision: rounding would ruin conjugate directions."""
        return self._loss("train", ticket.index, ticket.epoch, precision="float32")

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

    def _loss(
        self,
        split: str,
        index: int,
        epoch: int,
        part: Part = WHOLE,
        precision: Precision | None = None,
    ) -> Loss:
        item, batch = self._batch(split, index, epoch, part)
        if item.frames == 0:
            return NO_LOSS
        return self._loss_of(split, item, batch, precision)

    def _batch(self, split: str, index: int, epoch: int, part: Part) -> tuple[Item, Any]:
        """Load an item, or a part of it."""
        item = self.pool.items(split)[index]
        batch = self._loaded(split, item, epoch)
        if part != WHOLE:
            batch, frames = _part_of(batch, part, item)
            item = replace(item, frames=frames)
        return item, device.move(batch, self.device)

    def _loaded(self, split: str, item: Item, epoch: int) -> Any:
        return self.task.load(split, item, epoch)

    def _loss_of(self, split: str, item: Item, batch: Any, precision: Precision | None) -> Loss:
        with device.computing(self.device, precision or self._precision):
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


def new_model(task: Task, seed: int) -> nn.Module:
    """Build a task's model as a run with this seed begins with it."""
    torch.manual_seed(stable_seed(seed, "model"))
    return task.build_model()


def trained_values(model: nn.Module, path: Path) -> dict[str, torch.Tensor]:
    """Read the values of a trained model of the same shape: a run's, or a file's."""
    file = RunDirectory(path).model_path if path.is_dir() else path
    try:
        trained = read_tensors(file)
    except UnreadableError as error:
        raise ConfigError(
            f"--init {path}: no trained model can be read ({error}): give the folder of a "
            "finished run, or a .safetensors file"
        ) from error
    own = model.state_dict()
    for name in sorted(own.keys() | trained.keys()):
        shapes = [tuple(m[name].shape) if name in m else None for m in (trained, own)]
        require(
            shapes[0] == shapes[1],
            f"--init {path}: {name!r} is {_shape(shapes[0])} there and {_shape(shapes[1])} here: "
            "that is another model; [model] and the task must be those it was trained with",
        )
    return trained


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else f"of shape {list(shape)}"


def _rows_of(part: Part, frames: int) -> range:
    which, of = part
    return range(which * frames // of, (which + 1) * frames // of)


def _part_of(batch: Any, part: Part, item: Item) -> tuple[Any, int]:
    """Return a part of a batch, and its frames."""
    if isinstance(batch, Divisible):
        return batch.cut(*part)
    rows = _rows_of(part, item.frames)
    return _cut(batch, rows, item), len(rows)


def _cut(batch: Any, rows: range, item: Item) -> Any:
    """Return a part of a batch: those rows of every tensor that has one per frame."""
    if isinstance(batch, torch.Tensor) and batch.ndim and len(batch) == item.frames:
        return batch[rows.start : rows.stop]
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return type(batch)(_cut(child, rows, item) for child in batch)
    raise TaskError(
        f"item {item.id!r} cannot be divided into smaller minibatches: its batch holds "
        f"{type(batch).__name__} without one row for each of its {item.frames} frames, and no "
        "method `cut(which, of)`. Switch smaller minibatches off (strategy kaldi: first_parts = 1)"
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
