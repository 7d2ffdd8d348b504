"""How a group of learners runs a collective, and agrees on the survivors when one dies.

The protocol alone: no sockets, no memory, no clock. `Agreement.run` is a generator that stops
wherever it must wait. So tests can run it through any order of events, with deaths between any two
of them.

A collective has a few *phases*. In each, every member sends a frame to every other member and waits
for theirs. Two rules make a death harmless:

1. The last phase carries no data. So a member that completes a collective knows that all members
   had received all data before: if one survivor has the result, all can have it.
2. When a learner is lost, each survivor reports the set of lost learners and the number of the last
   collective it has completed. It reports again whenever the set grows. Once all survivors report
   the same set, they have agreed on the *view*: a collective that any of them has completed counts
   for all of them as it was; if none has, it is rerun among the survivors.

A member that is not in a collective of the group answers a report at once: in another
group it may be waiting for the very member that has sent the report.

Frames carry the view they belong to, so what a lost learner may still send is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from hashlib import blake2b
from typing import Protocol, TypeVar

import numpy as np

from hocket.core.packing import Buffer
from hocket.errors import ContractError, FencedError
from hocket.runtime.net.links import PHASE, REPORT, Frame

T = TypeVar("T", covariant=True)
Ranks = tuple[int, ...]


class Peers(Protocol):
    """What an agreement needs of the world."""

    rank: int
    lost: set[int]

    def send(self, to: int, frame: Frame) -> None:
        """Send a frame; one to a lost learner is dropped."""
        ...

    def lose(self, rank: int) -> None:
        """Note that a learner is lost; whatever it sends is ignored from now on."""
        ...


class Operation(Protocol[T]):
    """What a collective does in its phases."""

    num_phases: int

    def begin(self, members: Ranks) -> None:
        """Start, or start again among other members."""
        ...

    def sends(self, phase: int, to: int) -> tuple[Buffer, int]:
        """Return the body and the descriptor for one member."""
        ...

    def receives(self, phase: int, frames: dict[int, Frame]) -> None:
        """Take in the frames of all others; never called for the last phase."""
        ...

    def answer(self) -> T:
        """Return the result; called once."""
        ...


def name_of(ranks: Ranks) -> int:
    """Return a number that stands for a set of ranks; 0 for the empty set."""
    if not ranks:
        return 0
    digest = blake2b(np.array(ranks, dtype=np.int64).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _ranks_in(report: Frame) -> Ranks:
    """Return the lost learners that a report lists."""
    if len(report.body) % np.dtype(np.int64).itemsize:
        raise ContractError(
            f"rank {report.source} sent a report of {len(report.body)} bytes that cannot be read: "
            "it may run another version of Hocket"
        )
    return tuple(int(r) for r in np.frombuffer(report.body, dtype=np.int64))


class Agreement:
    """The collectives of one group of learners, as one of its members sees them."""

    def __init__(
        self, peers: Peers, members: Ranks, agreed: Callable[[Ranks], None] = lambda lost: None
    ) -> None:
        self.members = members
        self.name = name_of(members)
        self.completed = 0  # collectives
        self.awaits: Ranks = ()  # for error messages
        self._peers = peers
        self._agreed = agreed
        self._view: Ranks = ()  # the lost learners, as agreed
        self._furthest = 0  # completed by any survivor, as reported when the view was agreed
        self._frames: dict[tuple[int, int, int], dict[int, Frame]] = {}
        self._reports: dict[int, tuple[Ranks, int]] = {}
        self._told: dict[int, tuple[Ranks, int]] = {}
        self._running = False

    @property
    def living(self) -> Ranks:
        """The members of the view."""
        return tuple(r for r in self.members if r not in self._view)

    @property
    def called(self) -> bool:
        """True if a member has begun the next collective, or one is lost that was not before."""
        begun = any(number == self.completed + 1 for number, _, _ in self._frames)
        return begun or self._known_lost() != self._view

    def take(self, frame: Frame) -> None:
        """Take in a frame of this group."""
        if frame.kind == REPORT:
            lost = _ranks_in(frame)
            if self._peers.rank in lost:
                raise FencedError(
                    f"rank {self._peers.rank} was declared lost (rank {frame.source} says so): the "
                    "others go on without it, so it ends here"
                )
            self._reports[frame.source] = lost, frame.number
            for rank in lost:
                self._peers.lose(rank)
            if not self._running:  # answer at once: it may wait for us, and we for it elsewhere
                news = self._known_lost(), self.completed
                if self._told.get(frame.source) != news:  # but do not answer an answer
                    self._report(news[0], [frame.source])
        elif frame.number > self.completed:
            place = (frame.number, frame.view, frame.phase)
            self._frames.setdefault(place, {})[frame.source] = frame
        else:
            frame.drop()

    def run(self, operation: Operation[T]) -> Generator[None, None, T]:
        """Run the next collective; stops wherever it must wait for something to come."""
        number = self.completed + 1
        self._running = True
        while True:
            if self._known_lost() != self._view:
                yield from self._agree()
                if self._furthest >= number:  # one member has the result, so all have its data
                    break
            if (yield from self._go_through(operation, number)):
                break
        self.completed = number
        self._running = False
        for place in [p for p in self._frames if p[0] <= number]:
            for frame in self._frames.pop(place).values():
                frame.drop()
        self.awaits = ()
        return operation.answer()

    def _known_lost(self) -> Ranks:
        return tuple(r for r in self.members if r in self._peers.lost)

    def _go_through(self, operation: Operation[T], number: int) -> Generator[None, None, bool]:
        """Go through all phases; False if the view has changed meanwhile."""
        view, me = name_of(self._view), self._peers.rank
        others = tuple(r for r in self.living if r != me)
        operation.begin(self.living)
        for phase in range(operation.num_phases):
            for to in others:
                body, fd = operation.sends(phase, to)
                self._peers.send(to, Frame(PHASE, self.name, number, view, phase, me, body, fd))
            come = self._frames.setdefault((number, view, phase), {})
            while len(come) < len(others):
                if self._known_lost() != self._view:
                    return False
                self.awaits = tuple(r for r in others if r not in come)
                yield
            if phase + 1 < operation.num_phases:
                operation.receives(phase, come)
        return True

    def _report(self, lost: Ranks, to: Iterable[int]) -> None:
        body = np.array(lost, dtype=np.int64).tobytes()
        for rank in to:
            self._told[rank] = lost, self.completed
            frame = Frame(REPORT, self.name, self.completed, 0, 0, self._peers.rank, body)
            self._peers.send(rank, frame)

    def _agree(self) -> Generator[None, None, None]:
        """Report, and wait until all survivors report the same set of lost learners."""
        while True:
            lost = self._known_lost()
            others = [r for r in self.members if r not in lost and r != self._peers.rank]
            self._report(lost, others)
            while self._known_lost() == lost:
                late = [r for r in others if self._reports.get(r, ((), 0))[0] != lost]
                if not late:
                    self._furthest = max([self.completed, *(self._reports[r][1] for r in others)])
                    self._view = lost
                    self._agreed(lost)
                    return
                self.awaits = tuple(late)
                yield
