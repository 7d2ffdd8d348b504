"""The ledger of asynchronous strategies: first come, first served, from counters all share.

The counters are a dictionary in the simulator and the rendezvous store in real processes. Nothing
here needs more than an atomic addition. See `hocket.data.ledger` for what an account is.

A learner may die between any two of its entries. Each settlement is therefore one mark on the item
itself, made first; the sums are kept only so that nobody has to count marks. After a loss `recover`
counts the marks again, and returns to the pool what was drawn and is neither marked nor held by a
survivor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from hocket.core.accounts import DRY, Outcome, Ticket
from hocket.data.ledger import Ledger, ReplicatedLedger, refuse_partial_deal
from hocket.data.pool import Pool
from hocket.errors import CheckpointError, ContractError

Place: TypeAlias = tuple[int, int]  # epoch, index of an item


class Counters(Protocol):
    """All that learners must share: atomic counters and named values."""

    def add(self, key: str, amount: int) -> int:
        """Add and return the new value; atomic."""
        ...

    def put(self, key: str, value: str) -> None:
        """Store a value."""
        ...

    def get(self, key: str) -> str:
        """Return a stored value."""
        ...


@dataclass
class LocalCounters:
    """Counters within one process, for the simulator."""

    numbers: dict[str, int] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    def add(self, key: str, amount: int) -> int:
        """Add and return the new value."""
        self.numbers[key] = self.numbers.get(key, 0) + amount
        return self.numbers[key]

    def put(self, key: str, value: str) -> None:
        """Store a value."""
        self.values[key] = value

    def get(self, key: str) -> str:
        """Return a stored value."""
        return self.values[key]


class SharedLedger:
    """One asynchronous learner's view of the common account.

    Draw t of all learners is item (t mod N) of epoch (t div N): learners run on into the next
    epoch while others finish this one. With fixed shards each learner counts its own draws.
    """

    def __init__(self, pool: Pool, rank: int, members: tuple[int, ...], counters: Counters) -> None:
        self._rank = rank
        self._pool = pool
        self._counters = counters
        self.members = members  # as of the last recovery
        self._everyone = members
        self._num_draws = pool.epochs * len(pool)
        self._shard = members.index(rank), len(members)
        self._lane = 0  # own draws, with fixed shards
        self._claimed = 0  # returned items up to this number have been claimed
        self._pending: dict[tuple[int, int], Ticket] = {}
        self._settled_for_others: set[tuple[int, int]] = set()
        self.committed_frames = 0
        self.discarded_frames = 0
        self.refresh()

    @property
    def epoch(self) -> int:
        """The oldest epoch that is not settled, counted by items."""
        return min(self._settled // len(self._pool), self._pool.epochs)

    @property
    def pending_frames(self) -> int:
        """Frames this learner has drawn and not settled itself."""
        return sum(t.frames for t in self._pending.values())

    def draw(self) -> Ticket:
        """Take the next item: first come, first served, then what others gave back."""
        place = self._next_fixed() if self._pool.sharding == "fixed" else self._next_of_pool()
        place = place or self._next_returned()
        if place is None:
            return Ticket(self.epoch, DRY, 0)
        ticket = Ticket(*place, int(self._pool.frames[place[1]]))
        self._pending[place] = ticket
        return ticket

    def _next_of_pool(self) -> tuple[int, int] | None:
        draw = self._counters.add("drawn", 1) - 1
        if draw >= self._num_draws:
            self._counters.add("drawn", -1)
            self._left = False
            return None
        epoch, place = divmod(draw, len(self._pool))
        return epoch, int(self._pool.order(epoch)[place])

    def _next_fixed(self) -> tuple[int, int] | None:
        column, size = self._shard
        length = len(range(column, len(self._pool), size))
        epoch, place = divmod(self._lane, max(length, 1))
        if length == 0 or epoch >= self._pool.epochs:
            self._left = False
            return None
        self._lane += 1
        order = self._pool.order(epoch)
        return epoch, int(order[order % size == column][place])

    def _next_returned(self) -> tuple[int, int] | None:
        """Claim the first returned item that is free; the learner that counts to 1 gets it."""
        for number in range(self._claimed + 1, self._counters.add("returned", 0) + 1):
            self._claimed = number
            if self._counters.add(f"claims/{number}", 1) == 1:
                self._counters.add("retaken", 1)
                epoch, index = json.loads(self._counters.get(f"returned/{number}"))
                return epoch, index
        return None

    def settle(
        self,
        outcome: Outcome,
        tickets: tuple[Ticket, ...] | None = None,
        alive: tuple[int, ...] | None = None,
    ) -> None:
        """Settle tickets: this learner's own, or another's that came with a message."""
        for ticket in tuple(self._pending.values()) if tickets is None else tickets:
            if ticket.dry:
                continue
            place = (ticket.epoch, ticket.index)
            if self._pending.pop(place, None) is None:
                self._settled_for_others.add(place)
            if outcome == "return":
                number = self._counters.add("returned", 1)
                self._counters.put(f"returned/{number}", json.dumps(place))
                continue
            if self._counters.add(_mark(place), _MARKS[outcome]) != _MARKS[outcome]:
                raise ContractError(
                    f"item {ticket.index} of epoch {ticket.epoch} was settled twice (strategies "
                    "settle a ticket once)"
                )
            self._counters.add(_FRAMES[outcome], ticket.frames)
            self._counters.add("settled", 1)
        self.refresh()

    def refresh(self) -> None:
        """Read the common counters: what all learners have settled by now."""
        self.committed_frames = self._counters.add(_FRAMES["commit"], 0)
        self.discarded_frames = self._counters.add(_FRAMES["discard"], 0)
        self._settled = self._counters.add("settled", 0)
        drawn = self._counters.add("drawn", 0)
        waiting = self._counters.add("returned", 0) - self._counters.add("retaken", 0)
        column, size = self._shard
        own = self._pool.epochs * len(range(column, len(self._pool), size))
        fresh = self._lane < own if self._pool.sharding == "fixed" else drawn < self._num_draws
        self._left = fresh or waiting > 0

    def exhausted(self) -> bool:
        """True if nothing is left to draw, as last seen."""
        return not self._left

    dry = exhausted

    def closed(self) -> bool:
        """True if every item is settled, as last seen."""
        return self._settled >= self._num_draws

    # At a quiet point the learners compare their views.

    def deal_to(self, num_active: int, alive: tuple[int, ...]) -> None:
        """Refuse to leave a learner out: here nothing is dealt, each takes what comes next."""
        refuse_partial_deal(self._rank, num_active, alive)

    def behind(self, alive: tuple[int, ...]) -> bool:
        """True if learners were lost since the last quiet point."""
        return alive != self.members

    def pending_places(self) -> list[list[int]]:
        """List what this learner has drawn and nobody has settled."""
        return [list(place) for place in self._pending]

    def recover(self, held: list[list[int]], alive: tuple[int, ...]) -> None:
        """Return the items of lost learners to the pool; survivors hold the items in `held`.

        One survivor calls it, while nobody draws or settles.
        """
        lost = [column for column, rank in enumerate(self._everyone) if rank not in alive]
        _recover(self._counters, self._pool, held, lost, self._shard[1])
        self.survived_by(alive)

    def survived_by(self, alive: tuple[int, ...]) -> None:
        """Remember that a learner has returned what was lost."""
        self.members = alive
        self.refresh()

    def settled_for_others(self) -> list[list[int]]:
        """List what this learner settled that another drew, since the last quiet point."""
        return [list(place) for place in sorted(self._settled_for_others)]

    def strike(self, places: list[list[int]]) -> None:
        """Remove from this learner's pending items what others have settled for it."""
        for epoch, index in places:
            self._pending.pop((epoch, index), None)

    def reconcile(self, places: list[list[int]]) -> None:
        """Remove what others have settled, and begin a new list of what this one settles."""
        self.strike(places)
        self._settled_for_others.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return this learner's part of the account; valid at a quiet point."""
        return {"lane": self._lane, "pending": self.pending_places()}

    def load_state_dict(self, state: dict[str, Any], *, same_learners: bool) -> None:
        """Go on from this learner's part; other learners begin with what the counters say."""
        if not same_learners:
            self._begin_with_others()
            return
        self._lane = state["lane"]
        self._pending = {
            (e, i): Ticket(e, i, int(self._pool.frames[i])) for e, i in state["pending"]
        }
        self.refresh()

    def _begin_with_others(self) -> None:
        if _fixed(self._pool):
            raise CheckpointError(
                "an asynchronous strategy with runtime.sharding = 'fixed' can only be resumed with "
                "the same number of learners: each has its own place in its own shard"
            )
        self.refresh()


def open_ledger(
    pool: Pool, rank: int, members: tuple[int, ...], counters: Counters, *, synchronous: bool
) -> Ledger:
    """Open the kind of ledger that a strategy needs."""
    if synchronous:
        return ReplicatedLedger(pool, rank, members)
    return SharedLedger(pool, rank, members, counters)


_FRAMES = {"commit": "committed_frames", "discard": "discarded_frames"}
_MARKS = {"commit": 1, "discard": 2}
_COUNTERS = ("drawn", "settled", *_FRAMES.values())


def _mark(place: Place) -> str:
    return f"item/{place[0]}/{place[1]}"


def save_counters(counters: Counters) -> dict[str, Any]:
    """Return the common part of the shared account; valid at a quiet point."""
    return {
        **{key: counters.add(key, 0) for key in _COUNTERS},
        "returned": [list(place) for place in _waiting(counters)],
    }


def load_counters(
    counters: Counters,
    state: dict[str, Any],
    orphans: list[list[int]],
    pending: list[list[int]] | None = None,
    lanes: list[int] | None = None,
) -> None:
    """Restore the common part; `orphans` were pending with learners that are gone.

    Marks are not saved: all that was drawn before is settled, except the items named here.
    `pending` is held by learners that go on; `lanes` says how far each had drawn.
    """
    for key in _COUNTERS:
        counters.add(key, state[key] - counters.add(key, 0))
    given_back = [*state["returned"], *orphans]
    before = {key: state[key] for key in _COUNTERS}
    before |= {"open": [*given_back, *(pending or [])], "lanes": lanes or []}
    counters.put("before", json.dumps(before))
    counters.add("resumed", 1)
    for epoch, index in given_back:
        _give_back(counters, (epoch, index))


def _give_back(counters: Counters, place: Place) -> None:
    """Return an item while no other learner does; a death in the middle does no harm."""
    number = counters.add("returned", 0) + 1
    counters.put(f"returned/{number}", json.dumps(place))
    counters.add("returned", 1)


def _waiting(counters: Counters) -> Iterator[Place]:
    """Yield the returned items that nobody has claimed."""
    for number in range(1, counters.add("returned", 0) + 1):
        if counters.add(f"claims/{number}", 0) == 0:
            epoch, index = json.loads(counters.get(f"returned/{number}"))
            yield epoch, index


def _recover(
    counters: Counters, pool: Pool, held: list[list[int]], lost: list[int], size: int
) -> None:
    """Count the marks, correct the sums, and return to the pool what nobody holds."""
    before: dict[str, Any] = dict.fromkeys(_COUNTERS, 0) | {"open": [], "lanes": []}
    if counters.add("resumed", 0):
        before |= json.loads(counters.get("before"))
    sums = {key: before[key] for key in _COUNTERS if key != "drawn"}
    in_hand = set(_waiting(counters)) | {(e, i) for e, i in held}
    ownerless = _ownerless(counters, pool, before, lost, size) if _fixed(pool) else None
    for place in list(_drawn_since(counters, pool, before)):
        mark = counters.add(_mark(place), 0)
        for outcome, code in _MARKS.items():
            if mark == code:
                sums[_FRAMES[outcome]] += int(pool.frames[place[1]])
                sums["settled"] += 1
        if not mark and place not in in_hand and (ownerless is None or place in ownerless):
            _give_back(counters, place)
    sums["retaken"] = counters.add("returned", 0) - len(list(_waiting(counters)))
    for key, value in sums.items():
        counters.add(key, value - counters.add(key, 0))


def _fixed(pool: Pool) -> bool:
    return pool.sharding == "fixed"


def _drawn_since(counters: Counters, pool: Pool, before: dict[str, Any]) -> Iterator[Place]:
    """Yield what may have been drawn and not settled before a resumption, each place once."""
    for epoch, index in before["open"]:
        yield epoch, index
    opened = {(e, i) for e, i in before["open"]}
    if _fixed(pool):  # each learner counts its own draws: anything may have been drawn
        first, last = 0, pool.epochs * len(pool)
    else:
        first, last = before["drawn"], min(counters.add("drawn", 0), pool.epochs * len(pool))
    for draw in range(first, last):
        epoch, place = divmod(draw, len(pool))
        one = epoch, int(pool.order(epoch)[place])
        if one not in opened:
            yield one


def _ownerless(
    counters: Counters, pool: Pool, before: dict[str, Any], lost: list[int], size: int
) -> set[Place]:
    """With fixed shards, return every place that a lost learner may have drawn."""
    places = {(e, i) for e, i in before["open"]}
    for number in range(1, counters.add("returned", 0) + 1):
        epoch, index = json.loads(counters.get(f"returned/{number}"))
        places.add((epoch, index))
    for column in lost:
        shard = [
            (epoch, int(index))
            for epoch in range(pool.epochs)
            for index in pool.order(epoch)
            if index % size == column
        ]
        places.update(shard[before["lanes"][column] if before["lanes"] else 0 :])
    return places
