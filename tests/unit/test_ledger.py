"""Exact accounts, whatever the speeds, orders and deaths."""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
import pytest
from helpers.tasks import Quadratic
from hypothesis import given, settings, strategies as st

from hocket.core.accounts import Ticket
from hocket.data.ledger import ReplicatedLedger
from hocket.data.pool import Pool
from hocket.data.shared_ledger import LocalCounters, SharedLedger, load_counters, save_counters
from hocket.errors import ContractError

Sharding = Literal["pool", "fixed"]


def pool(items: int = 11, epochs: int = 2, sharding: Sharding = "pool") -> Pool:
    return Pool(Quadratic(num_items=items, uneven=True), epochs=epochs, seed=4, sharding=sharding)


def everyone(p: Pool, size: int) -> list[ReplicatedLedger]:
    return [ReplicatedLedger(p, r, tuple(range(size))) for r in range(size)]


def test_draw_n_of_rank_r_is_item_n_p_plus_r() -> None:
    p = pool()
    ledgers = everyone(p, 3)
    for n in range(3):
        for r, ledger in enumerate(ledgers):
            assert ledger.draw().index == p.order(0)[n * 3 + r]


def test_fixed_shards_give_a_learner_the_same_items_in_every_epoch() -> None:
    p = pool(12, 3, "fixed")
    ledgers = everyone(p, 3)
    seen: list[list[set[int]]] = []
    for _ in range(3):
        epoch = [set[int]() for _ in ledgers]
        for r, ledger in enumerate(ledgers):
            for _ in range(4):
                epoch[r].add(ledger.draw().index)
            ledger.settle("commit")
        seen.append(epoch)
    assert seen[0] == seen[1] == seen[2]
    assert set().union(*seen[0]) == set(range(12))


def test_a_dry_learner_settles_the_same_rounds() -> None:
    p = pool(4, 1)
    a, b, c = everyone(p, 3)
    for ledger in (a, b, c):
        tickets = [ledger.draw() for _ in range(5)]
        ledger.settle("commit", tuple(tickets))
    assert a.closed()
    assert b.closed()
    assert c.closed()
    assert a.committed_frames == b.committed_frames == c.committed_frames == p.total_frames


@settings(deadline=None, max_examples=60)
@given(
    items=st.integers(1, 30),
    size=st.integers(1, 7),
    k=st.integers(1, 5),
    sharding=st.sampled_from(["pool", "fixed"]),
    outcomes=st.lists(st.sampled_from(["commit", "commit", "discard", "return"]), max_size=12),
)
def test_replicated_accounts_agree_and_close(
    items: int, size: int, k: int, sharding: Sharding, outcomes: list[str]
) -> None:
    p = pool(items, 2, sharding)
    ledgers = everyone(p, size)
    settled = 0
    for step in range(1000):
        if ledgers[0].closed():
            break
        outcome = outcomes[step] if step < len(outcomes) else "commit"
        for ledger in ledgers:
            got = [ledger.draw() for _ in range(k)]
            if outcome != "return":
                settled += sum(t.frames for t in got)
            ledger.settle(outcome)  # type: ignore[arg-type]
            assert ledger.pending_frames == 0
        assert len({(x.committed_frames, x.discarded_frames, x.epoch) for x in ledgers}) == 1
    assert all(x.closed() for x in ledgers)
    assert ledgers[0].committed_frames + ledgers[0].discarded_frames == p.total_frames == settled


@settings(deadline=None, max_examples=60)
@given(data=st.data(), items=st.integers(1, 25), size=st.integers(2, 5))
def test_what_the_dead_had_drawn_comes_back(data: st.DataObject, items: int, size: int) -> None:
    p = pool(items, 2)
    ledgers = dict(enumerate(everyone(p, size)))
    committed: list[tuple[int, int]] = []
    while not ledgers[min(ledgers)].closed():
        dying = data.draw(st.sampled_from([None, *ledgers])) if len(ledgers) > 1 else None
        drawn = {r: [x.draw() for _ in range(2)] for r, x in ledgers.items()}
        if dying is not None:
            del ledgers[dying]
        alive = tuple(ledgers)
        for r, ledger in ledgers.items():
            ledger.settle("commit", None, alive)
            committed += [(t.epoch, t.index) for t in drawn[r] if not t.dry]
        assert len({x.committed_frames for x in ledgers.values()}) == 1
    assert sorted(committed) == [(e, i) for e in range(2) for i in range(items)]
    assert ledgers[min(ledgers)].committed_frames == p.total_frames


@settings(deadline=None, max_examples=40)
@given(
    items=st.integers(1, 25),
    before=st.integers(1, 5),
    after=st.integers(1, 5),
    rounds=st.integers(0, 4),
    sharding=st.sampled_from(["pool", "fixed"]),
)
def test_resuming_with_any_number_of_learners_uses_every_item_once(
    items: int, before: int, after: int, rounds: int, sharding: Sharding
) -> None:
    p = pool(items, 1, sharding)
    seen = []
    ledgers = everyone(p, before)
    for _ in range(rounds):
        for ledger in ledgers:
            seen.append(ledger.draw())
            ledger.settle("commit")
    saved = ledgers[0].state_dict()
    ledgers = everyone(p, after)
    for ledger in ledgers:
        ledger.load_state_dict(saved, same_learners=before == after)
    while not ledgers[0].closed():
        for ledger in ledgers:
            seen.append(ledger.draw())
            ledger.settle("commit")
    assert sorted(t.index for t in seen if not t.dry) == list(range(items))
    assert ledgers[-1].committed_frames == p.total_frames


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32), size=st.integers(1, 5), sharding=st.sampled_from(["pool", "fixed"])
)
def test_shared_accounts_close_in_any_order(seed: int, size: int, sharding: Sharding) -> None:
    """Whoever draws, and whoever settles what another drew, every item is settled once."""
    rng = random.Random(seed)
    p, counters = pool(7, 2, sharding), LocalCounters()
    ledgers = [SharedLedger(p, r, tuple(range(size)), counters) for r in range(size)]
    held: list[Ticket] = []
    final: list[tuple[int, int]] = []
    for _ in range(2000):
        ledger = rng.choice(ledgers)
        ticket = ledger.draw()
        held += [] if ticket.dry else [ticket]
        if held and rng.random() < 0.7:
            mine = held.pop(rng.randrange(len(held)))
            outcome = rng.choice(["commit", "commit", "discard", "return"])
            ledger.settle(outcome, (mine,))  # type: ignore[arg-type]
            if outcome != "return":
                final.append((mine.epoch, mine.index))
        ledger.refresh()
        if ledger.closed():
            break
    assert sorted(final) == [(e, i) for e in range(2) for i in range(7)]
    assert ledger.committed_frames + ledger.discarded_frames == p.total_frames


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(2, 5),
    sharding=st.sampled_from(["pool", "fixed"]),
    resumed=st.booleans(),
)
def test_shared_accounts_close_whoever_dies(
    seed: int, size: int, sharding: Sharding, resumed: bool
) -> None:
    """A learner dies between any two entries into the store; every item is still settled once."""
    rng = random.Random(seed)
    p, counters = pool(7, 2, sharding), Mortal(rng)
    everyone = tuple(range(size))
    ledgers = {r: SharedLedger(p, r, everyone, counters) for r in everyone}
    for turn in range(4000):
        if resumed and turn == 5:
            saved, parts = save_counters(counters), [ledgers[r].state_dict() for r in everyone]
            counters = Mortal(rng)
            pending = [place for part in parts for place in part["pending"]]
            load_counters(counters, saved, [], pending, [part["lane"] for part in parts])
            ledgers = {r: SharedLedger(p, r, everyone, counters) for r in everyone}
            for r in everyone:
                ledgers[r].load_state_dict(parts[r], same_learners=True)
        rank = rng.choice(list(ledgers))
        counters.alive = not (len(ledgers) > 1 and turn > 5 and rng.random() < 0.03)
        try:
            ledgers[rank].draw()
            if rng.random() < 0.7:
                ledgers[rank].settle(rng.choice(["commit", "commit", "discard"]))
        except DiedError:
            del ledgers[rank]
            counters.alive = True
            held = [place for one in ledgers.values() for place in one.pending_places()]
            next(iter(ledgers.values())).recover(held, tuple(ledgers))
        counters.alive = True
        for one in ledgers.values():
            one.survived_by(tuple(ledgers))
        if next(iter(ledgers.values())).closed():
            break
    left = next(iter(ledgers.values()))
    assert left.closed()
    assert left.committed_frames + left.discarded_frames == p.total_frames
    assert all(one.exhausted() for one in ledgers.values())


class DiedError(Exception):
    """A learner's end, in the middle of whatever it did."""


class Mortal(LocalCounters):
    """Counters whose user may die before any of its entries."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self.alive = True

    def add(self, key: str, amount: int) -> int:
        if not self.alive and self._rng.random() < 0.3:
            raise DiedError
        return super().add(key, amount)


def test_settling_an_item_twice_is_caught() -> None:
    p = pool(2, 1)
    ledger = SharedLedger(p, 0, (0,), LocalCounters())
    a, b = ledger.draw(), ledger.draw()
    ledger.settle("commit", (a, b))
    with pytest.raises(ContractError, match="settled twice"):
        ledger.settle("commit", (a,))


def test_shared_account_survives_saving_with_orphans() -> None:
    p, counters = pool(5, 1), LocalCounters()
    a, b = (SharedLedger(p, r, (0, 1), counters) for r in (0, 1))
    first, second = a.draw(), b.draw()
    a.settle("commit", (first,))
    saved, pending = save_counters(counters), b.state_dict()["pending"]
    assert pending == [[second.epoch, second.index]]
    fresh = LocalCounters()
    load_counters(fresh, saved, orphans=pending)
    c = SharedLedger(p, 0, (0,), fresh)
    rest = [c.draw().index for _ in range(4)]
    assert sorted([first.index, *rest]) == [0, 1, 2, 3, 4]
    c.settle("commit")
    assert c.closed()
    assert c.committed_frames == p.total_frames


def test_orders_differ_between_epochs_and_seeds() -> None:
    p, q = pool(30), Pool(Quadratic(num_items=30), epochs=2, seed=5)
    assert not np.array_equal(p.order(0), p.order(1))
    assert not np.array_equal(p.order(0), q.order(0))
    assert sorted(p.order(0)) == list(range(30))


def test_a_returned_item_goes_to_exactly_one_learner() -> None:
    """A finds nothing; B returns two and takes one; A must get the other, not the same."""
    p, counters = pool(2, 1), LocalCounters()
    a, b = (SharedLedger(p, r, (0, 1), counters) for r in (0, 1))
    first, second = b.draw(), b.draw()
    assert a.draw().dry
    b.settle("return", (first, second))
    taken = [b.draw(), a.draw(), a.draw()]
    assert sorted(t.index for t in taken if not t.dry) == sorted([first.index, second.index])
    assert taken[2].dry


def test_tickets_from_before_a_new_deal_are_void() -> None:
    p = pool(12, 1)
    ledger = ReplicatedLedger(p, 0, (0, 1, 2))
    held = [ledger.draw() for _ in range(3)]
    ledger.settle("commit", (held[0],), alive=(0, 1))  # rank 2 died; the rest is dealt anew
    before = ledger.committed_frames
    fresh = ledger.draw()
    ledger.settle("commit", (held[2],), alive=(0, 1))
    assert ledger.committed_frames == before
    ledger.settle("commit", (fresh,), alive=(0, 1))
    assert ledger.committed_frames > before


def test_a_ticket_held_over_a_resumption_settles_its_own_round() -> None:
    """As double buffering does: one round is always drawn ahead."""
    p = pool(9, 1)
    ledger = ReplicatedLedger(p, 0, (0,))
    held = [ledger.draw() for _ in range(4)]
    ledger.settle("commit", tuple(held[:3]))
    saved, done = ledger.state_dict(), ledger.committed_frames
    again = ReplicatedLedger(p, 0, (0,))
    again.load_state_dict(saved, same_learners=True)
    following = again.draw()
    assert following.index == p.order(0)[4]
    again.settle("commit", (held[3],))
    assert again.committed_frames == done + held[3].frames
    assert again.pending_frames == following.frames
