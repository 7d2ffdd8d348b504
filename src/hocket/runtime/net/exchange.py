"""A real learner's end of every collective: blocking calls, one group at a time.

Every collective begins with a few numbers from each learner: which collective it is and how large
(to name a learner that is out of step), its weight, and what is piggybacked. So the shares are
known exactly before anything is added up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch

from hocket.codecs.coded import Contribution
from hocket.core.accounts import NOTHING, Note, Piggyback, Tally
from hocket.core.effects import AllReduce, AllToAll, Broadcast, CodedMean, Grad, Mean, Scores
from hocket.core.flat import Flat, Parts
from hocket.core.numerics import shares
from hocket.core.packing import from_bytes, to_bytes
from hocket.errors import ContractError, PeerLostError, WaitTimeoutError, require
from hocket.runtime.net import operations
from hocket.runtime.net.agreement import Agreement, Operation, Ranks
from hocket.runtime.net.coded_reduction import ReduceCoded
from hocket.runtime.net.libraries.carrier import VectorCarrier
from hocket.runtime.net.links import Frame
from hocket.runtime.net.mesh import Mesh
from hocket.runtime.net.operations import Collective, GroupMemory
from hocket.runtime.shared import reductions

T = TypeVar("T")
LOOK_S: Final = 1.0  # between two looks at whether the wait for a call is over


@dataclass
class _Group:
    """The agreement of a group, and the memory that it exchanges vectors through."""

    agreement: Agreement
    memory: GroupMemory
    all_near: bool


class Exchange:
    """Blocking collectives. Members of a group must call in the same order."""

    def __init__(
        self,
        mesh: Mesh,
        size: int,
        *,
        timeout_s: float,
        agreed: Callable[[Ranks], None] = lambda lost: None,
        vectors: VectorCarrier | None = None,
    ) -> None:
        self._mesh = mesh
        self._rank = mesh.rank
        self._timeout_s = timeout_s
        self._agreed = agreed
        self._vectors = vectors  # None: vectors go through shared memory and our own sockets
        self._groups: dict[Ranks, _Group] = {}
        self._lent: Grad | None = None  # the last mean gradient, still in shared memory
        self._early: dict[int, list[Frame]] = {}  # of groups not opened yet
        self._everyone = tuple(range(size))
        self._world = self._group(None)

    def _group(self, members: Ranks | None) -> _Group:
        """Return a group, opened when it is first used."""
        ranks = self._everyone if members is None else members
        if ranks not in self._groups:
            require(self._rank in ranks, f"rank {self._rank} issued a collective of group {ranks}")
            near = self._mesh.near & frozenset(ranks)
            agreed = self._agreed if ranks == self._everyone else lambda lost: None
            agreement = Agreement(self._mesh, ranks, agreed)
            group = _Group(agreement, GroupMemory(self._rank, near), len(near) == len(ranks))
            self._groups[ranks] = group
            for frame in self._early.pop(agreement.name, []):
                agreement.take(frame)
        return self._groups[ranks]

    def _take(self, frame: Frame) -> None:
        for group in list(self._groups.values()):  # the loop may open another group meanwhile
            if group.agreement.name == frame.group:
                group.agreement.take(frame)
                return
        self._early.setdefault(frame.group, []).append(frame)

    def _run(self, group: _Group, operation: Operation[T]) -> T:
        """Run a collective: look at what comes whenever the agreement must wait."""
        began = time.monotonic()
        running = group.agreement.run(operation)
        while True:
            try:
                next(running)
            except StopIteration as done:
                answer: T = done.value
                return answer
            if not self._mesh.look(began + self._timeout_s, self._take):
                raise self._timed_out(group.agreement.awaits)

    def await_call(self) -> None:
        """Wait until another rank has begun the next collective of all, or one is lost.

        It has no limit of its own: a rank that dies is seen by its links, one that freezes is ended
        by its launcher, and as long as the others work there is nothing to come to.
        """
        while not self._world.agreement.called:
            self._mesh.look(time.monotonic() + LOOK_S, self._take)

    def attend(self) -> None:
        """Look at what has come, without waiting: other learners may need an answer."""
        self._mesh.look(time.monotonic(), self._take)

    def _timed_out(self, awaited: Ranks) -> WaitTimeoutError:
        who = ("rank " if len(awaited) == 1 else "ranks ") + ", ".join(map(str, awaited))
        return WaitTimeoutError(f"{who} did not take part")

    # ------------------------------------------------------------------ collectives

    def all_reduce(
        self, effect: AllReduce, weight: float, piggyback: Piggyback = NOTHING
    ) -> tuple[Mean, Note]:
        """Return the weighted mean, and what was piggybacked."""
        value, rows, members = self._reduce(
            effect.group, "AllReduce", effect.x, [weight, *piggyback.row()]
        )
        weights = [row[0] for row in rows]
        contributors = sum(w > 0 for w in weights) or len(weights)
        mean = value.write_(effect.x) if effect.in_place else value.join().to(effect.x.device)
        return Mean(mean, contributors, float(sum(weights))), _note(members, rows)

    def coded_mean(
        self, effect: CodedMean, weight: float, piggyback: Piggyback = NOTHING
    ) -> tuple[Mean, Note]:
        """Return the weighted mean of coded vectors, in place, and what was piggybacked."""
        group = self._world
        part = Contribution(self._rank, effect, weight)
        row = [weight, *piggyback.row()]
        operation = ReduceCoded(group.memory, part, row, all_near=group.all_near)
        mean, rows = self._run(group, operation)
        return mean, _note(operation.members, rows)

    def mean_gradient(
        self, grad: Grad, piggyback: Piggyback = NOTHING, *, lend: bool = False
    ) -> tuple[Grad, Note]:
        """Return the frame-weighted mean gradient, and what was piggybacked.

        With `lend` it stays in shared memory until `take_back`. That must come before the next
        collective, so only a learner that does one thing at a time may borrow it.
        """
        row = [float(grad.frames), *piggyback.row()]
        own = grad.whole if isinstance(grad.whole, Parts) else grad.vector
        value, rows, members = self._reduce(None, "MeanGradient", own, row)
        note = _note(members, rows)
        frames = int(sum(row[0] for row in rows))
        on = own.pieces[0][1].device if isinstance(own, Parts) else own.device
        whole = value if lend and on.type == "cpu" else value.join().to(on)
        mean = Grad(whole, frames, note.tally.loss_sum, note.tally.correct, grad.tickets)
        self._lent = mean
        return mean, note

    def _reduce(
        self, members: Ranks | None, kind: str, x: Flat | Parts, row: list[float]
    ) -> tuple[Parts, list[list[float]], Ranks]:
        group = self._group(members)
        if self._vectors is not None and members is None:
            return self._reduce_by_library(self._vectors, kind, x, row)
        operation = operations.ReduceVectors(group.memory, kind, x, row, all_near=group.all_near)
        value, rows = self._run(group, operation)
        return value, rows, operation.members

    def _reduce_by_library(
        self, vectors: VectorCarrier, kind: str, x: Flat | Parts, row: list[float]
    ) -> tuple[Parts, list[list[float]], Ranks]:
        """Agree on the shares, then let a library add up."""
        whole = x.join() if isinstance(x, Parts) else x
        operation = Collective(self._world.memory, kind, whole.numel(), row)
        rows: list[list[float]] = self._run(self._world, operation)
        self._require_all(operation.members)
        total = vectors.weighted_sum(whole, shares([row[0] for row in rows]))
        return Parts(total.numel(), [(0, total)]), rows, operation.members

    def _require_all(self, members: Ranks) -> None:
        """A library knows all learners, and would wait for one that is lost."""
        lost = [r for r in self._everyone if r not in members]
        if lost:
            raise PeerLostError(f"rank {self._rank} cannot go on without ranks {lost}")

    def take_back(self) -> None:
        """End the loan of the last mean gradient, before others overwrite its memory."""
        if self._lent is not None:
            self._lent.give_back()
            self._lent = None

    def broadcast(self, effect: Broadcast) -> tuple[torch.Tensor, Note]:
        """Return the root's vector."""
        group = self._group(effect.group)
        require(
            effect.root in group.agreement.members,
            f"broadcast from rank {effect.root}, not in {group.agreement.members}",
        )
        if self._vectors is not None and effect.group is None:
            note = self._rows("Broadcast", [])[1]
            self._require_all(note.members)
            return self._vectors.broadcast(effect.x, effect.root), note
        operation = operations.BroadcastVector(group.memory, effect.x, effect.root)
        value = self._run(group, operation)
        if value is None:
            raise PeerLostError(
                f"rank {self._rank} awaits a broadcast from rank {effect.root}, which is lost"
            )
        return value.to(effect.x.device), _present(operation)

    def first_model(self, mine: Flat) -> Flat:
        """Return the model that all begin with: that of the first survivor."""
        root = 0
        while True:
            try:
                return self.broadcast(Broadcast(mine, root))[0]
            except PeerLostError:  # all learners see this alike, and go on to the next
                root += 1

    def all_to_all(self, effect: AllToAll) -> tuple[list[torch.Tensor], Note]:
        """Return the stripes that the members have for this learner, in rank order."""
        group = self._group(effect.group)
        operation = operations.ExchangeStripes(
            group.memory, group.agreement.members, effect.stripes
        )
        value = [part.to(effect.stripes[0].device) for part in self._run(group, operation)]
        return value, _present(operation)

    def scores(self, tally: Tally) -> tuple[Scores, Note]:
        """Add up the slices of an evaluation."""
        sums = [tally.loss_sum, float(tally.frames), tally.correct]
        rows, note = self._rows("Evaluate", sums)
        return reductions.scores([Tally(r[0], int(r[1]), r[2]) for r in rows]), note

    def gather(self, value: Any) -> tuple[list[Any], Note]:
        """Return the values of all learners, in rank order."""
        operation = operations.GatherBytes(self._world.memory, to_bytes(value))
        gathered = self._run(self._world, operation)
        pairs = zip(operation.members, gathered, strict=True)
        return [_unpacked(rank, data) for rank, data in pairs], _present(operation)

    def wait(self) -> tuple[None, Note]:
        """Wait until all learners have come here."""
        return None, self._rows("Wait", [])[1]

    def _rows(self, kind: str, values: list[float]) -> tuple[list[list[float]], Note]:
        operation = Collective(self._world.memory, kind, 0, values)
        return self._run(self._world, operation), _present(operation)

    # ------------------------------------------------------------------ what it costs, and the end

    def reduced_bytes(self, num_bytes: int, members: Ranks | None = None) -> int:
        """Return what a learner sends: every stripe but its own, then its own to all others."""
        size = len(self._group(members).agreement.living)
        return 2 * num_bytes * (size - 1) // size

    def close(self) -> None:
        """Close the connections and give the memory back."""
        self._mesh.drain(time.monotonic() + 1.0, self._take)
        self._mesh.close()
        for group in self._groups.values():
            group.memory.close()


def _note(members: Ranks, rows: list[list[float]]) -> Note:
    total = reductions.total([Tally(r[1], int(r[2]), r[3]) for r in rows])
    wishes = [int(r[4]) for r in rows]
    return Note(members, total, any(w & 1 for w in wishes), any(w & 2 for w in wishes))


def _unpacked(rank: int, data: bytes) -> Any:
    try:
        return from_bytes(data)
    except Exception as error:  # whatever the bytes were
        raise ContractError(
            f"what rank {rank} sent to all cannot be read ({error}): it may run another version "
            "of Hocket"
        ) from error


def _present(operation: Collective) -> Note:
    return Note(operation.members, Tally(), False, piggybacked=False)
