"""Exact accounts, whatever the speeds, orders and deaths."""

from __future__ import annotations

from typing import Literal

import numpy as np
from helpers.tasks import Quadratic
from hypothesis import given, settings, strategies as st

from hocket.data.ledger import ReplicatedLedger
from hocket.data.pool import Pool

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


def test_orders_differ_between_epochs_and_seeds() -> None:
    p, q = pool(30), Pool(Quadratic(num_items=30), epochs=2, seed=5)
    assert not np.array_equal(p.order(0), p.order(1))
    assert not np.array_equal(p.order(0), q.order(0))
    assert sorted(p.order(0)) == list(range(30))


def test_survivors_keep_what_they_have_in_hand() -> None:
    """Rank 2 dies with three rounds in hand, of which one is settled; what it had is dealt anew."""
    p = pool(12, 1)
    ledgers = everyone(p, 3)
    held = [[ledger.draw() for _ in range(3)] for ledger in ledgers]
    for ledger, own in zip(ledgers[:2], held, strict=False):
        ledger.settle("commit", (own[0],), alive=(0, 1))
        assert ledger.pending_frames == own[1].frames + own[2].frames
        ledger.settle("commit", (own[0],), alive=(0, 1))  # again: it is void
        ledger.settle("commit", (own[2],), alive=(0, 1))
        assert ledger.committed_frames == sum(t.frames for one in held[:2] for t in one)
    rest = [[ledger.draw().index for _ in range(3)] for ledger in ledgers[:2]]
    theirs = [t.index for t in held[2]]
    assert sorted([*rest[0], *rest[1]]) == sorted([*theirs, *map(int, p.order(0)[9:])])


def test_rounds_in_hand_are_saved_as_they_are() -> None:
    """After a loss a round may have a gap; it must not be closed by an item nobody has computed."""
    p = pool(4, 1)
    ledgers = [ReplicatedLedger(p, r, (0, 1, 2)) for r in range(2)]
    for ledger in ledgers:
        held = [ledger.draw() for _ in range(2)]  # of the second round only rank 0 has an item
        ledger.settle("commit", (held[0],), alive=(0, 1))
    again = [ReplicatedLedger(p, r, (0, 1)) for r in range(2)]
    for one, before in zip(again, ledgers, strict=True):
        one.load_state_dict(before.state_dict(), same_learners=True)
        assert one.pending_frames == before.pending_frames
    assert [one.draw().index for one in again] == [one.draw().index for one in ledgers]


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
