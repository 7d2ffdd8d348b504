"""A learner dies inside either exchange of a coded mean: what is kept, and that all stay alike.

The collective's own protocol, in one process, with a death before any of its frames. Nothing is
shared between learners but bytes.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest
import torch
from helpers.agreement import AddUp, Peer, World
from helpers.coding import SMALL, coder_of, layout, vector, whole

from hocket import OneBit, TopK
from hocket.codecs.coded import Contribution, alone_
from hocket.core.codec import Lossy, Memory
from hocket.core.effects import CodedMean
from hocket.runtime.net.agreement import Agreement, Ranks
from hocket.runtime.net.coded_reduction import ReduceCoded
from hocket.runtime.net.operations import GroupMemory

ROUNDS, SIZE = 4, 4
pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable")
LAYOUT = layout()


def gradient(rank: int, number: int) -> torch.Tensor:
    return vector(LAYOUT, rank + 1, number + 1)


def weight(rank: int, number: int) -> float:
    return float((rank + number) % 4)  # now and then a learner is dry


class CodedPeer(Peer):
    """A learner that takes part in a few coded means."""

    def __init__(self, world: CodedWorld, rank: int) -> None:
        super().__init__(world, rank)
        self.coder = coder_of(world.codec, LAYOUT)
        self.memory = self.coder.memory()
        self.means: list[tuple[Ranks, torch.Tensor]] = []
        self.before: list[torch.Tensor] = []  # what it kept before each round
        self.operation: ReduceCoded | None = None
        self.agreement = Agreement(self, tuple(range(world.size)))
        self.running = self._exchange()

    def _exchange(self) -> Generator[None, None, None]:
        memory = GroupMemory(self.rank, frozenset({self.rank}))  # the others are far away
        assert self.memory is not None
        for number in range(ROUNDS):
            self.before.append(whole(self.memory))
            n = weight(self.rank, number)
            effect = CodedMean(gradient(self.rank, number), self.coder, self.memory)
            part = Contribution(self.rank, effect, n)
            self.operation = ReduceCoded(memory, part, [n, 0.0, 0.0, 0.0, 0.0], all_near=False)
            mean, _ = yield from self.agreement.run(self.operation)
            self.means.append((self.operation.members, mean.value.clone()))
        yield from self.agreement.run(AddUp(0, 2))  # as the runtime does: all wait for the end
        memory.close()

    def lost_with_it(self, counted: Ranks) -> torch.Tensor:
        """What was lost with this learner, given who counted in the round it died in."""
        number = len(self.means)
        if self.rank not in counted:
            return self.before[number]
        assert self.operation is not None
        assert self.memory is not None
        kept = self.operation._kept.owned
        kept = self.memory.owned if kept is None else kept
        return whole(Memory(self.memory.unsent, kept, self.memory.first))


class CodedWorld(World):
    def __init__(self, codec: Lossy, seed: int) -> None:
        self.codec = codec
        super().__init__(SIZE, ROUNDS, seed)
        self.peers = [CodedPeer(self, rank) for rank in range(SIZE)]


def run(codec: Lossy, seed: int, deaths: dict[int, int]) -> tuple[CodedWorld, list[CodedPeer]]:
    world = CodedWorld(codec, seed)
    for rank, sends in deaths.items():
        world.peers[rank].sends_left = sends
    world.run()
    peers = [peer for peer in world.peers if isinstance(peer, CodedPeer)]
    return world, peers


# Each learner sends three frames to three others in a round: the first exchange, the second, and
# the confirmation. So these are deaths before, inside and after each of them, in two rounds.
@pytest.mark.parametrize("codec", [OneBit(float_below=SMALL), TopK(float_below=SMALL, share=0.2)])
@pytest.mark.parametrize("sends", range(0, 18))
def test_what_was_applied_is_what_counted_less_what_is_kept_or_lost(
    codec: Lossy, sends: int
) -> None:
    for seed in range(4):
        world, peers = run(codec, seed, {1: sends})
        assert world.dead == {1}
        living = [peer for peer in peers if peer.rank not in world.dead]
        for other in living[1:]:
            for (a, x), (b, y) in zip(living[0].means, other.means, strict=True):
                assert a == b
                assert torch.equal(x, y)
        check_identity(living, [peers[1]])


def check_identity(living: list[CodedPeer], dead: list[CodedPeer]) -> None:
    balance = torch.zeros(LAYOUT.size, dtype=torch.float64)
    for number, (members, mean) in enumerate(living[0].means):
        weights = {rank: weight(rank, number) for rank in members}
        balance -= sum(weights.values()) * mean.double()
        for rank, n in weights.items():
            balance += n * gradient(rank, number).double()
    for peer in living:
        assert peer.memory is not None
        balance -= whole(peer.memory)
    for peer in dead:
        number = min(len(peer.means), ROUNDS - 1)
        balance -= peer.lost_with_it(living[0].means[number][0])
    assert float(balance.abs().max()) < 1e-3


def test_two_deaths_and_a_last_survivor() -> None:
    for seed in range(30):
        world, peers = run(
            OneBit(float_below=SMALL), seed, {0: 5 + seed % 7, 2: 11 + seed % 9, 3: 20}
        )
        living = [peer for peer in peers if peer.rank not in world.dead]
        assert living
        assert all(bool(torch.isfinite(mean).all()) for _, mean in living[0].means)
        for other in living[1:]:
            assert all(
                torch.equal(x, y)
                for (_, x), (_, y) in zip(living[0].means, other.means, strict=True)
            )


def test_a_learner_left_alone_keeps_nothing() -> None:
    """Nothing travels any more, so nothing is rounded; it says all it has, frame by frame."""
    world, peers = run(OneBit(float_below=SMALL), 0, {0: 9, 1: 9, 3: 9})
    assert world.dead == {0, 1, 3}
    last = peers[2]
    memory = last.memory
    assert memory is not None
    assert last.means[-1][0] == (2,)
    rest, said = whole(memory), torch.zeros(LAYOUT.size, dtype=torch.float64)
    for number in range(20):
        x = gradient(2, number)
        mean = alone_(CodedMean(x.clone(), last.coder, memory), 3.0)
        said += 3.0 * (mean.value - x).double()
    assert torch.allclose(said, rest, atol=1e-4)
    assert not memory.keeps


def test_the_only_learner_of_a_run_applies_what_it_took_over() -> None:
    """Resumed alone: the mean is its gradient and all that was kept, in frames, over its own."""
    coder = coder_of(OneBit(float_below=SMALL), LAYOUT)
    memory = coder.memory()
    assert memory is not None
    memory.own_(coder.whole)
    memory.unsent.copy_(gradient(0, 0))
    memory.owned.copy_(gradient(1, 0))
    expected = gradient(2, 0) + (memory.unsent + memory.owned) / 5.0
    effect = CodedMean(gradient(2, 0), coder, memory)
    alone_(effect, 0.0)
    assert torch.equal(effect.x, gradient(2, 0)), "a dry learner keeps it"
    mean = alone_(effect, 5.0)
    torch.testing.assert_close(mean.value, expected, rtol=0, atol=1e-6)
    assert not memory.keeps
