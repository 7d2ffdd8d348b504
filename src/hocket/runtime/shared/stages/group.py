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
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import nn

from hocket.core.accounts import Tally, Ticket
from hocket.core.effects import WHOLE, Grad, Part, Product
from hocket.core.flat import Flat, Layout, Parts
from hocket.core.optimizer import Preconditioning
from hocket.core.task import Task
from hocket.data.pool import Pool
from hocket.errors import ContractError
from hocket.models.stages import layers_of
from hocket.runtime.shared.stages.cutting import StageCut
from hocket.runtime.shared.stages.group_stage import GroupStage, Handed, Job, Sums, moved
from hocket.runtime.shared.stages.worker import sizes_of
from hocket.runtime.shared.worker import CPU, Worker, WorkerState

AHEAD: Final = 8  # held-out items under way in a group: so many of its ranks are at work at once


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
