"""The account that asynchronous learners share is exact, whatever the orders and deaths."""

from __future__ import annotations

import random
from typing import Literal

import pytest
from helpers.tasks import Quadratic
from hypothesis import given, settings, strategies as st

from hocket.core.accounts import Ticket
from hocket.data.counters import LocalCounters, Volume, load_counters
from hocket.data.pool import Pool
from hocket.data.shared_ledger import SharedLedger
from hocket.errors import ContractError

Sharding = Literal["pool", "fixed"]


def pool(items: int = 11, epochs: int = 2, sharding: Sharding = "pool") -> Pool:
    return Pool(Quadratic(num_items=items, uneven=True), epochs=epochs, seed=4, sharding=sharding)


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
            saved = ledgers[0].common_state()["counters"]
            parts = [ledgers[r].state_dict() for r in everyone]
            counters = Mortal(rng)
            pending = [place for part in parts for place in part["pending"]]
            lanes = [part["lane"] for part in parts]
            load_counters(Volume(counters), saved, [], pending, lanes)
            ledgers = {r: SharedLedger(p, r, everyone, counters) for r in everyone}
            for r in everyone:
                ledgers[r].load_state_dict(parts[r], same_learners=True)
        rank = rng.choice(list(ledgers))
        counters.alive = not (len(ledgers) > 1 and turn > 5 and rng.random() < 0.03)
        try:
            ledgers[rank].draw()
            if rng.random() < 0.7:
                outcomes = ["commit", "commit", "discard", "return"]
                ledgers[rank].settle(rng.choice(outcomes))  # type: ignore[arg-type]
        except DiedError:
            del ledgers[rank]
            recover(ledgers, counters, rng)
        counters.alive = True
        for one in ledgers.values():
            one.refresh()
        if next(iter(ledgers.values())).closed():
            break
    left = next(iter(ledgers.values()))
    assert left.closed()
    assert left.committed_frames + left.discarded_frames == p.total_frames
    assert all(one.exhausted() for one in ledgers.values())


def recover(ledgers: dict[int, SharedLedger], counters: Mortal, rng: random.Random) -> None:
    """As at a quiet point; whoever does it for all may die in the middle, and the next one does."""
    while True:
        rank, first = next(iter(ledgers.items()))
        counters.alive = not (len(ledgers) > 1 and rng.random() < 0.3)
        try:
            volume = first.recover({r: one.state_dict() for r, one in ledgers.items()})
        except DiedError:
            del ledgers[rank]
            continue
        counters.alive = True
        for one in ledgers.values():
            one.survived_by(tuple(ledgers), volume)
        return


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

    def put(self, key: str, value: str) -> None:
        if not self.alive and self._rng.random() < 0.3:
            raise DiedError
        super().put(key, value)


def test_settling_an_item_twice_is_caught() -> None:
    p = pool(2, 1)
    ledger = SharedLedger(p, 0, (0,), LocalCounters())
    a, b = ledger.draw(), ledger.draw()
    ledger.settle("commit", (a, b))
    with pytest.raises(ContractError, match="settled twice"):
        ledger.settle("commit", (a,))


def test_whoever_was_declared_lost_and_wakes_up_changes_nothing() -> None:
    """Its items were given to others; it has them still, and goes on as if nothing had happened."""
    p, counters = pool(6, 1), LocalCounters()
    a, b = (SharedLedger(p, r, (0, 1), counters) for r in (0, 1))
    mine, theirs = a.draw(), b.draw()
    volume = a.recover({0: a.state_dict()})
    a.survived_by((0,), volume)
    b.settle("commit", (theirs,))
    b.settle("discard", (b.draw(),))
    b.settle("return", (b.draw(),))
    b.draw()
    rest = [a.draw() for _ in range(5)]
    assert sorted(t.index for t in (mine, *rest)) == list(range(6))
    a.settle("commit")
    assert a.closed()
    assert (a.committed_frames, a.discarded_frames) == (p.total_frames, 0)


def test_what_a_lost_one_settled_for_a_survivor_is_settled() -> None:
    """It cannot say so any more: the survivor took it for its own, and it was dealt again."""
    p, counters = pool(3, 1), LocalCounters()
    first, second = (SharedLedger(p, r, (0, 1), counters) for r in range(2))
    kept, settled = first.draw(), first.draw()
    second.settle("commit", (settled,))
    volume = first.recover({0: first.state_dict()})
    first.survived_by((0,), volume)
    assert first.state_dict()["pending"] == [[kept.epoch, kept.index]]
    assert first.committed_frames == settled.frames
    again = first.recover({0: first.state_dict()})  # and counts once, whoever is lost next
    first.survived_by((0,), again)
    assert first.committed_frames == settled.frames
    first.settle("commit")
    while not (ticket := first.draw()).dry:
        first.settle("commit", (ticket,))
    assert first.closed()
    assert first.committed_frames == p.total_frames


def test_a_death_while_an_item_is_given_back_loses_nothing() -> None:
    """Whatever was written of it, the others find the item, and none waits for one that is gone."""
    for entries in range(24):
        p, counters = pool(2, 1), Doomed()
        a, b = (SharedLedger(p, r, (0, 1), counters) for r in (0, 1))
        first, second = b.draw(), b.draw()
        counters.left = entries
        try:
            b.settle("return", (first, second))
            b.draw()
        except DiedError:
            pass
        counters.left = None
        mine = [t.index for _ in range(5) if not (t := a.draw()).dry]
        a.refresh()
        assert a.exhausted(), "else it would draw for ever, and never meet the others"
        a.survived_by((0,), a.recover({0: a.state_dict()}))
        mine += [t.index for _ in range(5) if not (t := a.draw()).dry]
        assert sorted(mine) == [0, 1]


class Doomed(LocalCounters):
    """Counters whose user dies after so many entries."""

    left: int | None = None

    def _enter(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise DiedError
            self.left -= 1

    def add(self, key: str, amount: int) -> int:
        self._enter()
        return super().add(key, amount)

    def put(self, key: str, value: str) -> None:
        self._enter()
        super().put(key, value)


def test_shared_account_survives_saving_with_orphans() -> None:
    p, counters = pool(5, 1), LocalCounters()
    a, b = (SharedLedger(p, r, (0, 1), counters) for r in (0, 1))
    first, second = a.draw(), b.draw()
    a.settle("commit", (first,))
    saved, pending = a.common_state()["counters"], b.state_dict()["pending"]
    assert pending == [[second.epoch, second.index]]
    fresh = LocalCounters()
    load_counters(Volume(fresh), saved, orphans=pending)
    c = SharedLedger(p, 0, (0,), fresh)
    rest = [c.draw().index for _ in range(4)]
    assert sorted([first.index, *rest]) == [0, 1, 2, 3, 4]
    c.settle("commit")
    assert c.closed()
    assert c.committed_frames == p.total_frames


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
