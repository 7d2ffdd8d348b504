"""Items dealt in blocks: as much work for each learner, whole items, exact accounts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from helpers.scripted import Scripted, play
from helpers.tasks import Quadratic

from hocket import Item
from hocket.core.accounts import DRY
from hocket.core.learner import Learner
from hocket.core.strategy import State
from hocket.data.ledger import ReplicatedLedger
from hocket.data.pool import Ints, Pool
from hocket.errors import ConfigError, ContractError


@dataclass(frozen=True)
class Lengths(Quadratic):
    """Items of given lengths."""

    lengths: tuple[int, ...] = ()

    def items(self, split: str) -> Any:
        return [Item(i, n) for i, n in enumerate(self.lengths)]


def pool_of(lengths: Any, sharding: Any = "pool", epochs: int = 1) -> Pool:
    task = Lengths(lengths=tuple(int(n) for n in lengths))
    return Pool(task, epochs=epochs, seed=0, sharding=sharding)


def loads(pool: Pool, dealt: Ints) -> list[int]:
    return [pool.frames_of(dealt[:, column]) for column in range(dealt.shape[1])]


@pytest.mark.parametrize("seed", range(20))
def test_no_learner_has_more_than_an_item_too_much(seed: int) -> None:
    rng = np.random.default_rng(seed)
    members = tuple(range(int(rng.integers(1, 9))))
    pool = pool_of(rng.integers(1, 300, size=int(rng.integers(1, 90))))
    queue = pool.order(0)
    dealt = pool.share_out(queue, members)
    assert sorted(dealt[dealt != DRY]) == list(range(len(pool)))
    found = loads(pool, dealt)
    least_possible = max(pool.epoch_frames / len(members), int(pool.frames.max()))
    assert max(found) <= 4 / 3 * least_possible + 1  # Graham's bound, of a bound below the best
    for column in range(len(members)):  # everybody keeps the order of the queue
        places = [list(queue).index(i) for i in dealt[:, column] if i != DRY]
        assert places == sorted(places)
        assert all(dealt[len(places) :, column] == DRY)


def test_equal_items_are_dealt_in_turn_as_ever() -> None:
    pool = pool_of([5] * 23)
    np.testing.assert_array_equal(
        pool.share_out(pool.order(0), (0, 1, 2, 3)), pool.deal(pool.order(0), (0, 1, 2, 3))
    )


def test_faster_learners_get_more() -> None:
    pool = pool_of([1] * 700)
    dealt = pool.share_out(pool.order(0), (0, 1, 2), (1.0, 2.0, 4.0))
    assert loads(pool, dealt) == [100, 200, 400]


def test_fixed_shards_stay_where_they_are() -> None:
    pool = pool_of(range(1, 20), sharding="fixed")
    dealt = pool.share_out(pool.order(0), (0, 1, 2))
    assert all(i % 3 == column for column in range(3) for i in dealt[:, column] if i != DRY)
    with pytest.raises(ConfigError, match="leaves every item with its owner"):
        pool.share_out(pool.order(0), (0, 1, 2), (1.0, 1.0, 2.0))


# ------------------------------------------------------------------ the ledger


def ledgers(pool: Pool, learners: int) -> list[ReplicatedLedger]:
    members = tuple(range(learners))
    return [ReplicatedLedger(pool, rank, members) for rank in members]


@pytest.mark.parametrize("sharding", ["pool", "fixed"])
@pytest.mark.parametrize("learners", [1, 2, 5])
def test_blocks_cover_every_epoch_once(learners: int, sharding: str) -> None:
    rng = np.random.default_rng(learners)
    pool = pool_of(rng.integers(1, 40, size=57), sharding, epochs=2)
    all_ledgers = ledgers(pool, learners)
    drawn: list[tuple[int, int]] = []
    while not all_ledgers[0].closed():
        wanted = int(rng.integers(1, 200))
        blocks = [one.deal_block(wanted, None, balanced=True) for one in all_ledgers]
        assert len(set(blocks)) == 1
        tickets = [one.draw() for one in all_ledgers for _ in range(blocks[0].draws)]
        drawn += [(t.epoch, t.index) for t in tickets if not t.dry]
        assert sum(t.frames for t in tickets) == blocks[0].frames
        for one in all_ledgers:
            one.settle("commit", None, tuple(range(learners)))
    assert sorted(drawn) == [(epoch, item) for epoch in range(2) for item in range(57)]
    assert {one.committed_frames for one in all_ledgers} == {2 * pool.epoch_frames}
    assert all_ledgers[0].deal_block(None, None, balanced=True).draws == 0


def test_the_items_of_a_block_do_not_depend_on_the_number_of_learners() -> None:
    pool = pool_of(np.random.default_rng(3).integers(1, 40, size=57))
    found = []
    for learners in (1, 2, 5):
        all_ledgers = ledgers(pool, learners)
        items = []
        for one in all_ledgers:
            block = one.deal_block(300, None, balanced=True)
            items += [one.draw().index for _ in range(block.draws)]
        found.append(sorted(i for i in items if i != DRY))
        assert 300 <= block.frames < 300 + 40
    assert found[0] == found[1] == found[2]


def test_what_a_lost_learner_had_drawn_is_the_next_block() -> None:
    pool = pool_of(np.random.default_rng(4).integers(1, 40, size=57))
    all_ledgers = ledgers(pool, 3)
    block, *_ = [one.deal_block(300, None, balanced=True) for one in all_ledgers]
    drawn = {one: [one.draw() for _ in range(block.draws)] for one in all_ledgers}
    lost = {t.index for t in drawn[all_ledgers[2]] if not t.dry}
    survivors = all_ledgers[:2]
    for one in survivors:
        one.settle("commit", None, (0, 1))
    missing = block.frames - survivors[0].committed_frames
    again = [one.deal_block(missing, None, balanced=True) for one in survivors]
    assert again[0].frames == missing
    redrawn = {one.draw().index for one in survivors for _ in range(again[0].draws)} - {DRY}
    assert redrawn == lost


def test_a_block_is_refused_while_items_are_open() -> None:
    (ledger,) = ledgers(pool_of([3] * 9), 1)
    ledger.draw()
    with pytest.raises(ContractError, match="a block of items is dealt while 1 drawn rounds"):
        ledger.deal_block(None, None, balanced=True)


def test_asynchronous_strategies_cannot_deal() -> None:
    async def body(me: Learner, state: State) -> None:
        await me.deal_block()

    assert not Scripted.synchronous
    with pytest.raises(ContractError, match="cannot deal blocks"):
        play(body)
