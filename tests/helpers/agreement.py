"""The collectives' protocol in one process: every order of events, and deaths between any two."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from hocket.core.packing import Buffer
from hocket.runtime.net.agreement import Agreement, Ranks
from hocket.runtime.net.links import Frame


class DiedError(Exception):
    """A planned fault: the learner is no more."""


@dataclass
class AddUp:
    """Everybody's number; then everybody's sum, as a stand-in for stripes; then all have it."""

    value: int
    num_phases: int
    members: Ranks = ()
    values: dict[int, int] = field(default_factory=dict)

    def begin(self, members: Ranks) -> None:
        self.members, self.values = members, {}

    def sends(self, phase: int, to: int) -> tuple[Buffer, int]:
        if phase == self.num_phases - 1:
            return b"", -1  # the last phase carries no data
        sent = self.value if phase == 0 else sum(self.values.values())
        return np.int64(sent).tobytes(), -1

    def receives(self, phase: int, frames: dict[int, Frame]) -> None:
        heard = {r: int(np.frombuffer(f.body, dtype=np.int64)[0]) for r, f in frames.items()}
        if phase == 0:
            mine = next(r for r in self.members if r not in heard)
            self.values = heard | {mine: self.value}
        else:
            assert set(heard.values()) <= {sum(self.values.values())}

    def answer(self) -> tuple[Ranks, int]:
        assert set(self.values) == set(self.members), "a result without all of its data"
        return self.members, sum(self.values.values())


class Peer:
    """One learner's end of every wire."""

    def __init__(self, world: World, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.lost: set[int] = set()
        self.sends_left: int | None = None
        self.results: list[tuple[Ranks, int]] = []
        self.agreement = Agreement(self, tuple(range(world.size)))
        self.running: Generator[None, None, None] | None = self._run()

    def _run(self) -> Generator[None, None, None]:
        for number in range(self.world.rounds):
            phases = 2 + number % 2
            operation = AddUp((number + 1) * 10**self.rank, phases)
            self.results.append((yield from self.agreement.run(operation)))
        yield from self.agreement.run(AddUp(0, 2))  # as the runtime does: all wait for the end

    def send(self, to: int, frame: Frame) -> None:
        if self.sends_left == 0:
            self.world.kill(self.rank)
            raise DiedError
        if self.sends_left is not None:
            self.sends_left -= 1
        if to not in self.lost:
            self.world.wires[self.rank, to].append(frame)

    def lose(self, rank: int) -> None:
        self.lost.add(rank)
        self.world.wires[rank, self.rank].clear()


class World:
    """Learners and the wires between them; a scheduler that is fair to nobody."""

    def __init__(self, size: int, rounds: int, seed: int) -> None:
        self.size, self.rounds = size, rounds
        self.rng = random.Random(seed)
        self.wires: dict[tuple[int, int], deque[Frame | None]] = {
            (a, b): deque() for a in range(size) for b in range(size) if a != b
        }
        self.dead: set[int] = set()
        self.peers = [Peer(self, rank) for rank in range(size)]

    def kill(self, rank: int) -> None:
        """Let a learner die."""
        self.dead.add(rank)
        self.leave(rank)

    def leave(self, rank: int) -> None:
        """What it has sent is still on its way; then comes the end of the stream."""
        self.peers[rank].running = None
        for to in range(self.size):
            if to != rank:
                self.wires[rank, to].append(None)

    def run(self) -> None:
        """Let things happen in a random order until all who live are done."""
        for _ in range(200_000):
            waiting = [p for p in self.peers if p.running is not None]
            if not waiting:
                return
            wires = [w for w, frames in self.wires.items() if frames and w[1] not in self.dead]
            if wires and self.rng.random() < 0.7:
                self._deliver(*self.rng.choice(wires))
            else:
                self._advance(self.rng.choice(waiting))
        raise AssertionError(f"no end in sight: {[(p.rank, p.agreement.awaits) for p in waiting]}")

    def _deliver(self, source: int, to: int) -> None:
        frame = self.wires[source, to].popleft()
        if frame is None:
            self.peers[to].lose(source)
        else:
            with suppress(DiedError):  # an answer may be the last thing it does
                self.peers[to].agreement.take(frame)

    def _advance(self, peer: Peer) -> None:
        assert peer.running is not None
        try:
            next(peer.running)
        except StopIteration:
            self.leave(peer.rank)
        except DiedError:
            pass
