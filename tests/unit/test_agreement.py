"""Who lives, and which result counts: the protocol under every order of events we can think of."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import pytest
from helpers.agreement import AddUp, World

from hocket.errors import FencedError
from hocket.runtime.net.agreement import Agreement, Ranks
from hocket.runtime.net.links import PHASE, REPORT, Frame


def agree(world: World, deaths: int) -> None:
    """The survivors have the same results, and every one of them is a sum over its members."""
    alive = [p for p in world.peers if p.rank not in world.dead]
    assert len(world.dead) == deaths, "a planned fault did not fire"
    for peer in alive:
        assert len(peer.results) == world.rounds
        assert peer.results == alive[0].results
    for number, (members, total) in enumerate(alive[0].results):
        assert total == sum((number + 1) * 10**r for r in members)
        assert {p.rank for p in alive} <= set(members)


def faults(size: int, seed: int, rounds: int) -> tuple[World, int]:
    """Some learners die in the middle of something, at a planned number of frames sent."""
    rng = np.random.default_rng(seed)
    world = World(size, rounds, seed)
    victims = rng.choice(size, size=1 + seed % (size - 1), replace=False)
    # A collective has two or three phases; in each, everybody sends to all others who live.
    others = size - 1 if len(victims) == 1 else 1
    for victim in victims:
        world.peers[victim].sends_left = int(rng.integers(0, 2 * rounds * others))
    return world, len(victims)


def test_without_faults_everybody_has_every_result() -> None:
    for seed in range(50):
        world = World(4, 6, seed)
        world.run()
        agree(world, 0)
        assert {members for members, _ in world.peers[0].results} == {(0, 1, 2, 3)}


@pytest.mark.parametrize("size", [2, 3, 5])
def test_survivors_agree_whoever_dies_and_whenever(size: int) -> None:
    for seed in range(400):
        world, deaths = faults(size, seed, rounds=8)
        world.run()
        agree(world, deaths)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_survivors_agree_under_many_more_faults() -> None:
    for seed in range(20_000):
        world, deaths = faults(2 + seed % 6, seed, rounds=12)
        world.run()
        agree(world, deaths)


def test_a_result_that_one_survivor_has_counts_for_all() -> None:
    """Some survivors complete a collective with the dead one, others hear of its death first."""
    handed_over = 0
    for seed in range(300):
        world, _ = faults(3, 2 * seed, rounds=3)
        world.run()
        alive = [p for p in world.peers if p.rank not in world.dead]
        for number, (members, _) in enumerate(alive[0].results, 1):
            died_before = {r for r in world.dead if world.peers[r].agreement.completed < number}
            handed_over += bool(died_before & set(members))
    assert handed_over > 20, "the case under test did not come up"


def test_deaths_fall_into_every_collective() -> None:
    completed = []
    for seed in range(200):
        world, _ = faults(4, 3 * seed, rounds=6)
        world.run()
        completed += [world.peers[r].agreement.completed for r in world.dead]
    assert set(completed) >= set(range(5))


def test_whoever_is_declared_lost_ends() -> None:
    world = World(3, 2, 0)
    lost = np.array([1], dtype=np.int64).tobytes()
    with pytest.raises(FencedError, match="rank 1 was declared lost"):
        world.peers[1].agreement.take(Frame(REPORT, 0, 0, 0, source=2, body=lost))


def test_frames_of_another_view_do_not_count() -> None:
    """What a lost learner still sends belongs to a view that is over."""
    world = World(3, 1, 0)
    world.kill(2)
    for peer in world.peers[:2]:
        peer.lose(2)
        stale = np.int64(999).tobytes()  # of the view in which nobody was lost
        for source in {0, 1, 2} - {peer.rank}:
            peer.agreement.take(Frame(PHASE, peer.agreement.name, 1, 0, 0, source, stale))
    world.run()
    assert world.peers[0].results == [((0, 1), 11)]


class Wire:
    """A peer of several agreements, whose frames are delivered by hand."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.lost: set[int] = set()
        self.out: list[tuple[int, Frame]] = []

    def send(self, to: int, frame: Frame) -> None:
        if to not in self.lost:
            self.out.append((to, frame))

    def lose(self, rank: int) -> None:
        self.lost.add(rank)


def test_a_learner_in_another_groups_collective_still_answers() -> None:
    """Rank 2 dies: 1 has completed the group's collective and waits in that of all, 0 has not.

    0 waits for 1's report in the group, 1 for 0's in the world: 1 must answer for a group that it
    is not in a collective of.
    """
    wires = [Wire(rank) for rank in range(3)]
    groups = {
        members: [Agreement(wire, members) for wire in wires] for members in ((0, 1, 2), (0, 1))
    }
    world, pair = groups[0, 1, 2], groups[0, 1]
    by_name = {agreements[0].name: agreements for agreements in (world, pair)}

    def learner(rank: int) -> Generator[None, None, list[tuple[Ranks, int]]]:
        first = yield from world[rank].run(AddUp(10**rank, 2))
        if rank == 2:
            return [first]
        return [first, (yield from pair[rank].run(AddUp(10**rank, 2)))]

    running = {rank: learner(rank) for rank in range(3)}
    results: dict[int, list[tuple[Ranks, int]]] = {}

    def turn(cut: bool) -> None:
        for rank in list(running):
            try:
                next(running[rank])
            except StopIteration as done:
                results[rank] = done.value
                del running[rank]
        for wire in wires:
            for to, frame in wire.out:
                if not (cut and (wire.rank, to, frame.phase) == (2, 0, 1)):
                    by_name[frame.group][to].take(frame)
            wire.out.clear()

    for _ in range(4):
        turn(cut=True)  # the last frame of rank 2 reaches 1, not 0
    assert (world[0].completed, world[1].completed) == (0, 1)
    for wire in wires[:2]:
        wire.lose(2)
    for _ in range(50):
        turn(cut=False)
    assert results[0] == results[1] == [((0, 1, 2), 111), ((0, 1), 11)]
    assert not any(wire.out for wire in wires), "answers are answered without end"
