"""A worker that holds one stage of a model.

Its model is the whole one in which the layers of other stages are gaps, so that every parameter
keeps its name. The first stage takes its input from the task's loss, the last one puts what it was
sent in the place of that input; the task knows nothing of stages.

Between forward and backward an item is *under way*: its graph is kept. Parameters are views of a
flat vector, so a backward that comes after a step reads the weights as they are then, unless
forward and backward were given the same copy of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from hocket.core import device
from hocket.core.accounts import Ticket
from hocket.core.effects import (
    WHOLE,
    Grad,
    Part,
)
from hocket.core.flat import Flat, Layout
from hocket.core.numerics import stable_seed
from hocket.core.stage_effects import (
    Backward,
    Forward,
    Passed,
    Returned,
)
from hocket.core.task import Loss, Task
from hocket.data.pool import Pool
from hocket.errors import ContractError, TaskError, require
from hocket.models.partial import partially
from hocket.models.stages import (
    SequenceLayer,
    Tap,
    handed_down,
    keep_only_,
    layers_of,
)
from hocket.runtime.shared.stages.cutting import GROUPS, StageCut
from hocket.runtime.shared.worker import Worker, WorkerState, new_model, trained_values

Key: TypeAlias = tuple[int, int, Part]


@dataclass
class KeptGraph:
    """What is kept of an item between its forward and its backward."""

    entered: torch.Tensor | None  # from the stage before
    left: torch.Tensor  # towards the next stage; of the last one: the mean loss


class StageWorker(Worker):
    """Computes one stage, forward and backward."""

    def __init__(
        self,
        task: Task,
        pool: Pool,
        seed: int,
        *,
        cutting: StageCut,
        stage: int,
        **more: Any,
    ) -> None:
        require(
            cutting.stages == 1 or more.get("precision", "float32") == "float32",
            f"strategy {cutting.by!r} computes in float32 only: in lower precision backward "
            "would read weights that were rounded at forward; leave runtime.precision out",
        )
        self._cutting = cutting
        self.stage = stage
        self.first, self.last = stage == 0, stage + 1 == cutting.stages
        self._under_way: dict[Key, KeptGraph] = {}
        super().__init__(task, pool, seed, **more)
        self._tap = None if self.first and self.last else Tap(self.model)
        self.notes = [*self.notes, *self._sizes]
        self.bind(self.initial, self.new_state())  # the memory in which it was built is given back

    def _new_model(self, init: str | None) -> nn.Module:
        self._start = 0
        self._sizes: list[str] = []
        if self._cutting.stages == 1:
            return super()._new_model(init)
        model = partially(lambda: new_model(self.task, self.seed), self._layers)
        held = self._stages(layers_of(model))[self.stage]
        trained = {} if init is None else trained_values(model, Path(init))
        offsets = {entry.name: entry.offset for entry in Layout.of(model).entries}
        keep_only_(model, held)
        if trained:
            model.load_state_dict({name: trained[name] for name in model.state_dict()})
        self._start = offsets[Layout.of(model).entries[0].name]
        return model

    @property
    def _layers(self) -> slice:
        """The layers of this stage, by the cut alone."""
        if self._cutting.cut is None:
            raise ContractError("the model was not cut before its stages were built")
        edges = [0, *self._cutting.cut, None]
        return slice(edges[self.stage], edges[self.stage + 1])

    def _stages(self, layers: list[SequenceLayer]) -> list[range]:
        """Return every stage's layers, and note what each holds."""
        ranges = self._cutting.edges(layers)
        self._sizes += sizes_of(self._cutting, layers, ranges)
        return ranges

    def first_params(self) -> Flat:
        """Return the parameters that the stage begins with: no second copy is kept."""
        first, self.initial = self.initial, self.initial.new_empty(0)
        return first

    @property
    def place(self) -> range:
        """Where the stage's parameters lie in the whole model."""
        return range(self._start, self._start + self.layout.size)

    # ------------------------------------------------------------------ forward

    def forward(self, effect: Forward, state: WorkerState) -> Passed:
        """Let an item go through the stage."""
        with self._lane.work():
            self.bind(effect.params, state)
            learns = self._learns(effect)
            if self.model.training != learns:
                self.model.train(learns)
            with torch.set_grad_enabled(learns):
                return self._forward(effect, learns)

    def _learns(self, effect: Forward) -> bool:
        """Return whether a gradient is wanted."""
        return effect.split == "train"

    def _forward(self, effect: Forward, learns: bool) -> Passed:
        ticket, part = effect.ticket, effect.part
        key = (ticket.epoch, ticket.index, *(part if part != WHOLE else ()))
        device.seed(self.device, stable_seed(self.seed, *key))
        entered = None if self.first else self._entering(effect.x, learns)
        if not self.last:
            x = self._input(effect) if entered is None else entered
            self._seed_stage(key)
            with device.computing(self.device, self._precision):
                out = self.model.forward(x)
            if learns:
                self._keep(ticket, part, KeptGraph(entered, out))
            return Passed(out.detach())
        loss = self._last_loss(effect, entered, key)
        if learns:
            self._keep(ticket, part, KeptGraph(entered, loss.total / ticket.frames))
        return Passed(None, loss.frames, float(loss.total.detach()), float(loss.correct))

    def _entering(self, x: torch.Tensor | None, learns: bool) -> torch.Tensor:
        if x is None or not x.is_floating_point():
            kind = "nothing" if x is None else str(x.dtype)
            raise TaskError(
                f"the model cannot be cut before stage {self.stage + 1}: {kind} comes in there, "
                "which has no gradient; move the cut with strategy.cut"
            )
        return x.detach().requires_grad_(learns)

    def _seed_stage(self, key: tuple[int, ...]) -> None:
        """What is dropped differs from stage to stage."""
        if not self.first:
            device.seed(self.device, stable_seed(self.seed, *key, "stage", self.stage))

    def _input(self, effect: Forward) -> torch.Tensor:
        assert self._tap is not None
        ticket = effect.ticket
        _, batch = self._batch(effect.split, ticket.index, ticket.epoch, effect.part)
        return self._tap.input_of(lambda: self.task.loss(self.model, batch))

    def _last_loss(
        self, effect: Forward, entered: torch.Tensor | None, key: tuple[int, ...]
    ) -> Loss:
        split, ticket = effect.split, effect.ticket
        item, batch = self._batch(split, ticket.index, ticket.epoch, effect.part)
        require(
            item.frames > 0,
            f"item {item.id!r} cannot be divided into {effect.part[1]} parts that all have frames: "
            "lower micro_batches",
        )
        self._seed_stage(key)
        if self._tap is None or entered is None:
            return self._loss_of(split, item, batch, None)
        # A layer that writes to its input may not write to what a gradient is asked for.
        fed = entered.clone() if entered.requires_grad else entered
        loss: Loss = self._tap.fed(lambda: self._loss_of(split, item, batch, None), fed)
        return loss

    # ------------------------------------------------------------------ backward

    def _keep(self, ticket: Ticket, part: Part, what: KeptGraph) -> None:
        key = (ticket.epoch, ticket.index, part)
        if key in self._under_way:
            raise ContractError(f"item {ticket.index} went forward twice before it came back")
        self._under_way[key] = what

    def backward(self, effect: Backward, state: WorkerState) -> Returned:
        """Let an item go back through the stage."""
        with self._lane.work():
            return self._backward(effect, state)

    def _backward(self, effect: Backward, state: WorkerState) -> Returned:
        ticket = effect.ticket
        kept = self._under_way.pop((ticket.epoch, ticket.index, effect.part), None)
        if kept is None:
            raise ContractError(f"item {ticket.index} came back before it went forward")
        self.bind(effect.params, state)
        entered = [] if kept.entered is None else [kept.entered]
        left = kept.left if effect.dy is None else handed_down(kept.left, effect.dy)
        grads = torch.autograd.grad(left, [*self._parameters, *entered], allow_unused=True)
        if self._preconditioner is not None:
            state.sides = self._preconditioner.state
        frames, loss_sum, correct = effect.sums
        whole = self.layout.parts(grads[: len(self._parameters)])
        dx = None
        if kept.entered is not None:
            dx = torch.zeros_like(kept.entered) if grads[-1] is None else grads[-1].contiguous()
        return Returned(Grad(whole, frames, loss_sum, correct, (ticket,)), dx)


def stage_of(worker: Worker) -> StageWorker:
    """Return a worker as that of a stage; a strategy of whole models has none."""
    if not isinstance(worker, StageWorker):
        raise ContractError("a strategy asked for a stage of the model, but it is no `InStages`")
    return worker


def sizes_of(cutting: StageCut, layers: list[SequenceLayer], ranges: list[range]) -> list[str]:
    """Say what each stage holds."""
    said = []
    for number, held in enumerate(ranges):
        size = sum(layers[n].num_trained for n in held)
        where = " of each learner" if cutting.by == GROUPS else f" (rank {number})"
        said.append(
            f"{cutting.by}: stage {number + 1}{where} holds layers {held.start} to "
            f"{held.stop - 1}, {size:,} parameters ({4e-6 * size:.3g} MB)"
        )
    return said
