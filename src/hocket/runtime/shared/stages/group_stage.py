"""One stage of a learner that is a group, at work: it keeps nothing from one job to the next.

A *job* is a minibatch, in pieces if there are micro-batches, or items that are to be scored. It
comes with the parameters of the stage, and with what else belongs to the learner. What a minibatch
draws at random is drawn as on one device: the state of the generators goes from stage to stage.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn

from hocket.core import device
from hocket.core.accounts import Ticket
from hocket.core.effects import Grad, Part
from hocket.core.flat import Flat, Parts
from hocket.core.optimizer import Preconditioning
from hocket.core.stage_effects import Backward, Forward
from hocket.core.task import Item, Task
from hocket.data.pool import Pool
from hocket.optim.natural_gradient.preconditioning import (
    linear_layers,
    restored_sides,
    saved_sides,
)
from hocket.runtime.shared.stages.worker import StageWorker
from hocket.runtime.shared.worker import CPU, WorkerState

Sums: TypeAlias = tuple[int, float, float]  # frames, loss, correct frames


@dataclass(frozen=True)
class Job:
    """What a group computes next: pieces of one minibatch, or items that are scored."""

    split: str
    epoch: int
    frames: int  # over which the gradient is a mean; 0: none is wanted
    pieces: tuple[tuple[int, Part], ...]  # of which item, and which part of it

    @property
    def learns(self) -> bool:
        """True if a gradient is wanted; training items may be scored, too."""
        return self.frames > 0

    def ticket(self, number: int) -> Ticket:
        """Return what stands for the item of a piece."""
        return Ticket(self.epoch, self.pieces[number][0], self.frames)

    def plain(self) -> list[Any]:
        """Return it as it travels."""
        pieces = [[index, *part] for index, part in self.pieces]
        return [self.split, self.epoch, self.frames, pieces]

    @classmethod
    def of_plain(cls, told: list[Any]) -> Job:
        """Return what has travelled."""
        split, epoch, frames, pieces = told
        return cls(split, epoch, frames, tuple((i, (which, of)) for i, which, of in pieces))


@dataclass
class Handed:
    """What one stage hands to the next."""

    x: torch.Tensor | None  # None: that was the last one
    drawn: list[torch.Tensor] = field(default_factory=list)  # how far the generators have got
    sums: Sums = (0, 0.0, 0.0)  # of the last stage


@dataclass(frozen=True)
class WhereLinear:
    """Natural gradient for the stages that have layers for it."""

    rule: Preconditioning

    def tap(self, model: nn.Module) -> Any:
        """Precondition the gradients of a stage, if it has any linear layer."""
        return self.rule.tap(model) if next(linear_layers(model), None) else None


class GroupStage(StageWorker):
    """One stage of a group, at one job after the other."""

    _params: Flat
    _job: Job

    def __init__(
        self,
        task: Task,
        pool: Pool,
        seed: int,
        *,
        natural_gradient: Preconditioning | None = None,
        **more: Any,
    ) -> None:
        where = None if natural_gradient is None else WhereLinear(natural_gradient)
        super().__init__(task, pool, seed, natural_gradient=where, **more)
        self.state = WorkerState()
        self._arriving: list[torch.Tensor] = []
        self._whole: Flat | Parts | None = None
        self._item: Any = None  # that is computed in pieces, as it was loaded
        self.first_params()  # they come with every job
        self.let_go()
        if self.last:
            self.model.register_forward_pre_hook(self._enter)

    def begin(self, params: Flat, state: WorkerState, job: Job) -> None:
        """Begin a job, at these parameters of the stage."""
        self._params, self.state, self._job = params, state, job
        self._whole = self._item = None
        self._under_way.clear()  # of a job that failed

    def forward_piece(self, number: int, handed: Handed | None) -> Handed:
        """Let a piece go through; the first stage loads it."""
        job, (_, part) = self._job, self._job.pieces[number]
        self._arriving = handed.drawn if handed else []
        x = handed.x if handed else None
        effect = Forward(self._params, job.ticket(number), x, part, job.split)
        passed = self.forward(effect, self.state)
        if passed.out is None:
            return Handed(None, sums=passed.sums)
        drawn = device.random_state(self.device) if job.learns else []
        return Handed(passed.out.contiguous(), drawn)

    def backward_piece(self, number: int, dy: torch.Tensor | None, sums: Sums) -> Any:
        """Let a piece come back; return what goes to the stage before."""
        part = self._job.pieces[number][1]
        effect = Backward(self._params, self._job.ticket(number), dy, sums, part)
        back = self.backward(effect, self.state)
        self._add(back.grad)
        return back.dx

    def _learns(self, effect: Forward) -> bool:
        return self._job.learns

    def _loaded(self, split: str, item: Item, epoch: int) -> Any:
        """Load an item once for all its pieces."""
        if not self._job.learns or len(self._job.pieces) == 1:
            return super()._loaded(split, item, epoch)
        if self._item is None:
            self._item = super()._loaded(split, item, epoch)
        return self._item

    def _add(self, grad: Grad) -> None:
        if self._whole is None:
            several = len(self._job.pieces) > 1
            self._whole = grad.vector if several else grad.whole
            return
        assert isinstance(self._whole, torch.Tensor)
        assert isinstance(grad.whole, Parts)
        for offset, piece in grad.whole.pieces:
            self._whole[offset : offset + piece.numel()].add_(piece)

    def end(self) -> Parts:
        """Return the gradient of the stage's parameters, in one piece for each."""
        whole, self._whole, self._item = self._whole, None, None
        assert whole is not None
        if isinstance(whole, Parts):
            return whole
        views = zip(self.layout.entries, self.layout.views(whole), strict=True)
        return Parts(self.layout.size, [(e.offset, view.reshape(-1)) for e, view in views])

    def let_go(self) -> None:
        """Give the parameters back that a job came with: their memory is another rank's."""
        for p in self._parameters:
            p.data = p.data.new_empty(0)
        self._params = self._held = self.initial
        self._bound = 0

    # ------------------------------------------------------------------ random numbers

    def _seed_stage(self, key: tuple[int, ...]) -> None:
        """Go on drawing where the stage before has stopped."""
        if not self.last:
            self._go_on_drawing()

    def _enter(self, model: nn.Module, args: Any) -> None:
        """The last stage: what the task's loss has drawn before the model was drawn before."""
        self._go_on_drawing()

    def _go_on_drawing(self) -> None:
        if self._arriving:
            device.set_random_state(self.device, self._arriving)


def moved(state: WorkerState, to: torch.device) -> WorkerState:
    """Return a state on the device of a stage; on the CPU it is the state itself."""
    if to == CPU:
        return state
    sides = restored_sides(device.move(saved_sides(state.sides), to))
    return WorkerState(device.move(state.buffers, to), sides)
