"""A learner that is a group: several ranks that hold one stage of its model each.

The strategy runs on the first rank of a group and knows nothing of the others: it asks for a
gradient at its whole vector, as any learner does. The `GroupWorker` there hands each of the others
its part of the vector. The minibatch goes forward through the stages and back, and the pieces of
the gradient return. The others keep nothing from one minibatch to the next: what belongs to the
learner (batch-norm statistics, what a preconditioner has learnt) travels with the parameters, so it
is saved, averaged and resumed as if the learner were one rank. On a device a rank holds its stage
alone: parameters, gradient, activations. Whole vectors are in the memory of the host.

What a minibatch draws at random is drawn as on one device: the state of the generator goes from
stage to stage with the activations. So one micro-batch gives the gradient of one device bit for
bit, and several give it to rounding, as they are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import torch
from torch import nn

from hocket.core import device
from hocket.core.accounts import Tally, Ticket
from hocket.core.effects import WHOLE, Grad, Part, Product
from hocket.core.flat import Flat, Layout, Parts
from hocket.core.optimizer import Preconditioning
from hocket.core.stage_effects import Backward, Forward
from hocket.core.task import Item, Task
from hocket.data.pool import Pool
from hocket.errors import ContractError
from hocket.models.stages import layers_of
from hocket.optim.natural_gradient.preconditioning import (
    linear_layers,
    restored_sides,
    saved_sides,
)
from hocket.runtime.shared.stages.cutting import StageCut
from hocket.runtime.shared.stages.worker import StageWorker, sizes_of
from hocket.runtime.shared.worker import CPU, Worker, WorkerState

AHEAD: Final = 8  # held-out items under way in a group: enough for all of its ranks to be at work

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


class Members(Protocol):
    """The other ranks of a group, for its first one."""

    def begin(self, params: list[Flat], states: list[WorkerState], job: Job) -> None:
        """Hand them a job: parameters and state of each stage but the first."""
        ...

    def forward(self, number: int, handed: Handed) -> None:
        """Hand a piece to the second stage."""
        ...

    def sums(self, number: int) -> Sums:
        """Return what the last stage has made of a held-out item."""
        ...

    def backward(self, number: int) -> tuple[torch.Tensor | None, Sums]:
        """Return what comes back of a piece to the first stage, and the sums of the loss."""
        ...

    def end(self, states: list[WorkerState]) -> list[Parts]:
        """Return each one's gradient, and bring the states up to date."""
        ...

    def close(self) -> None:
        """Let them go."""
        ...


class LocalMembers:
    """The other stages in the same process, one after the other: those of the simulator."""

    def __init__(self, stages: list[GroupStage]) -> None:
        self._stages = stages
        self._sums: dict[int, Sums] = {}

    def begin(self, params: list[Flat], states: list[WorkerState], job: Job) -> None:
        """Hand each its part."""
        for stage, mine, state in zip(self._stages, params, states, strict=True):
            stage.begin(mine, state, job)

    def forward(self, number: int, handed: Handed) -> None:
        """Let a piece go through all."""
        for stage in self._stages:
            handed = stage.forward_piece(number, handed)
        self._sums[number] = handed.sums

    def sums(self, number: int) -> Sums:
        """Return what came out at the last one."""
        return self._sums.pop(number)

    def backward(self, number: int) -> tuple[torch.Tensor | None, Sums]:
        """Let a piece come back through all."""
        sums = self._sums.pop(number)
        dy = None
        for stage in reversed(self._stages):
            dy = stage.backward_piece(number, dy, sums)
        return dy, sums

    def end(self, states: list[WorkerState]) -> list[Parts]:
        """Return the gradients; states were changed where they are."""
        return [stage.end() for stage in self._stages]

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class Holding:
    """What a stage holds of the whole model."""

    place: range
    prefixes: tuple[str, ...]  # of the names in its layers

    def of(self, state: WorkerState) -> WorkerState:
        """Return its part of a learner's state."""
        buffers = {k: b for k, b in state.buffers.items() if k.startswith(self.prefixes)}
        return WorkerState(
            buffers, {k: s for k, s in state.sides.items() if k.startswith(self.prefixes)}
        )


def moved(state: WorkerState, to: torch.device) -> WorkerState:
    """Return a state on the device of a stage; on the CPU it is the state itself."""
    if to == CPU:
        return state
    sides = restored_sides(device.move(saved_sides(state.sides), to))
    return WorkerState(device.move(state.buffers, to), sides)


def holdings(model: nn.Module, layout: Layout, cutting: StageCut) -> list[Holding]:
    """Return what each stage holds."""
    layers = layers_of(model)
    names = [tuple(f"{layers[n].name}." for n in held) for held in cutting.edges(layers)]
    starts = [next(e.offset for e in layout.entries if e.name.startswith(own)) for own in names]
    ends = [*starts[1:], layout.size]
    return [Holding(range(*place), own) for *place, own in zip(starts, ends, names, strict=True)]


class GroupWorker(Worker):
    """What computes for a learner that is a group: on its first rank, with the others."""

    def __init__(
        self,
        task: Task,
        pool: Pool,
        seed: int,
        *,
        cutting: StageCut,
        members: Members,
        micro_batches: int = 1,
        natural_gradient: Preconditioning | None = None,
        on: torch.device = CPU,
        **more: Any,
    ) -> None:
        # Whole vectors are in the host's memory; whether any layer can be preconditioned is seen.
        super().__init__(task, pool, seed, natural_gradient=natural_gradient, **more)
        more |= {"natural_gradient": natural_gradient, "on": on}
        layers = layers_of(self.model)
        sizes = sizes_of(cutting, layers, cutting.edges(layers))
        self._holdings = holdings(self.model, self.layout, cutting)
        self._members = members
        self._micro_batches = micro_batches
        for p in self._parameters:  # no rank keeps the layers of others; the whole vector is flat
            p.data = p.data.new_empty(0)
        self.own = GroupStage(task, pool, seed, cutting=cutting, stage=0, **more)
        vectors = f"{4e-6 * self.layout.size:.3g} MB each"
        self.notes += [
            *sizes,
            f"groups: the memory of the host holds each learner's whole vectors, {vectors}: the "
            "model, its gradient, what optimizer and strategy remember",
        ]

    @property
    def held_bytes(self) -> list[int]:
        """Bytes of the parameters of each stage."""
        return [4 * len(holding.place) for holding in self._holdings]

    def close(self) -> None:
        """Let the other ranks of the group go."""
        self._members.close()

    # ------------------------------------------------------------------ gradients

    def _gradient(self, params: Flat, ticket: Ticket, state: WorkerState, part: Part) -> Grad:
        item = self.pool.items("train")[ticket.index]
        frames = item.frames
        if part != WHOLE:
            frames = self.frames_of("train", ticket, part)
        if frames == 0:  # more parts than frames, or than chunks
            return self.dry(ticket)
        states, job = self._states(state), self._job(ticket, part, frames)
        self._begin(params, states, job)
        numbers = range(len(job.pieces))
        for number in numbers:
            self._members.forward(number, self.own.forward_piece(number, None))
        sums = [self._come_back(number) for number in numbers]
        wholes = [self.own.end(), *self._members.end(states[1:])]
        self._merge(state, states)
        pieces = [
            (holding.place.start + offset, piece.to(self.device))
            for holding, whole in zip(self._holdings, wholes, strict=True)
            for offset, piece in whole.pieces
        ]
        seen, loss, correct = (sum(column) for column in zip(*sums, strict=True))
        return Grad(Parts(self.layout.size, pieces), int(seen), loss, correct, (ticket,))

    def _job(self, ticket: Ticket, part: Part, frames: int) -> Job:
        """Return what is to be computed: a minibatch is divided unless the strategy has done so."""
        count = 1 if part != WHOLE else min(self._micro_batches, frames)
        parts = [part] if count == 1 else [(number, count) for number in range(count)]
        return Job("train", ticket.epoch, frames, tuple((ticket.index, one) for one in parts))

    def _begin(self, params: Flat, states: list[WorkerState], job: Job) -> None:
        slices = [params[one.place.start : one.place.stop] for one in self._holdings]
        self._members.begin(slices[1:], states[1:], job)
        states[0] = moved(states[0], self.own.device)
        self.own.begin(slices[0].to(self.own.device), states[0], job)

    def _come_back(self, number: int) -> Sums:
        dy, sums = self._members.backward(number)
        self.own.backward_piece(number, dy, sums)
        return sums

    # ------------------------------------------------------------------ what the learner keeps

    def _states(self, state: WorkerState) -> list[WorkerState]:
        return [holding.of(state) for holding in self._holdings]

    def _merge(self, state: WorkerState, states: Sequence[WorkerState]) -> None:
        """Take over what the stages have changed."""
        for one in states:
            for name, buffer in one.buffers.items():
                if buffer is not state.buffers[name]:  # it has travelled
                    state.buffers[name].copy_(buffer)
        state.sides = {key: side for one in states for key, side in one.sides.items()}

    # ------------------------------------------------------------------ the rest

    def score(self, params: Flat, state: WorkerState, split: str, items: Sequence[int]) -> Tally:
        """Loss and correct frames of held-out items: several are under way at once."""
        tally = Tally()
        there = [index for index in items if self.pool.items(split)[index].frames]
        if not there:
            return tally
        self._begin(
            params, self._states(state), Job(split, 0, 0, tuple((index, WHOLE) for index in there))
        )
        for number in range(len(there) + AHEAD):
            if number < len(there):
                self._members.forward(number, self.own.forward_piece(number, None))
            if number >= AHEAD:
                frames, loss, correct = self._members.sums(number - AHEAD)
                tally.add(loss, frames, correct)
        return tally

    def curvature(self, *_: Any, **__: Any) -> Product:
        """Refuse: an experiment whose strategy asks for it is refused before it begins."""
        raise ContractError("a learner that is a group takes no curvature products")
