"""Who lives, and which result counts: the protocol under every order of events we can think of."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.circles import World

from hocket.errors import FencedError
from hocket.runtime.links import REPORT, Frame


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
    for victim in victims:
        world.peers[victim].sends_left = int(rng.integers(0, 2 * size))
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
    both = 0
    for seed in range(300):
        world, _ = faults(3, 2 * seed, rounds=3)
        world.run()
        both += any(world.dead & set(members) for members, _ in world.peers[0].results)
    assert both > 20, "the case under test did not come up"


def test_whoever_is_declared_lost_ends() -> None:
    world = World(3, 2, 0)
    lost = np.array([1], dtype=np.int64).tobytes()
    with pytest.raises(FencedError, match="rank 1 was declared lost"):
        world.peers[1].circle.take(Frame(REPORT, 0, 0, 0, source=2, body=lost))


def test_frames_of_another_view_do_not_count() -> None:
    """What a lost learner still sends belongs to a view that is over."""
    world = World(3, 1, 0)
    world.kill(2)
    for peer in world.peers[:2]:
        peer.lose(2)
    world.run()
    assert world.peers[0].results == [((0, 1), 11)]
