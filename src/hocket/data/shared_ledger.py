"""The account of asynchronous strategies: first come, first served, from counters all share.

The counters are a dictionary in the simulator and the rendezvous store in real processes. Nothing
here needs more than an atomic addition. See `hocket.data.ledger` for what an account is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Protocol

from hocket.data.pool import DRY, Pool, Ticket
from hocket.effects import Outcome
from hocket.errors import ContractError


class Counters(Protocol):
    """The little that learners must share: atomic counters and named values."""

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
    """Counters within one process: the simulator's."""

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
        self._pool = pool
        self._counters = counters
        self._num_draws = pool.epochs * len(pool)
        self._shard = members.index(rank), len(members)
        self._lane = 0  # own draws, with fixed shards
        self._claimed = 0  # returned items up to this number belong to somebody
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
        """Claim the first returned item that nobody else has; whoever counts to 1 has it."""
        for number in range(self._claimed + 1, self._counters.add("returned", 0) + 1):
            self._claimed = number
            if self._counters.add(f"claims/{number}", 1) == 1:
                self._counters.add("retaken", 1)
                epoch, index = json.loads(self._counters.get(f"returned/{number}"))
                return epoch, index
        return None

    def settle(self, outcome: Outcome, tickets: tuple[Ticket, ...] | None = None) -> None:
        """Settle tickets, one's own or another learner's that came with a message."""
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
            self._counters.add(_FRAMES[outcome], ticket.frames)
            if self._counters.add("settled", 1) > self._num_draws:
                raise ContractError(
                    f"more than the {self._num_draws} items that exist were settled, the last of "
                    f"them item {ticket.index} of epoch {ticket.epoch}: one was settled twice"
                )
        self.refresh()

    def refresh(self) -> None:
        """Read the common counters."""
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

    # At a quiet point the learners' views are laid side by side.

    def settled_for_others(self) -> list[list[int]]:
        """Name what this learner settled that another drew, since the last quiet point."""
        return [list(place) for place in sorted(self._settled_for_others)]

    def strike(self, places: list[list[int]]) -> None:
        """Strike out what others have settled on this learner's behalf."""
        for epoch, index in places:
            self._pending.pop((epoch, index), None)

    def reconcile(self, places: list[list[int]]) -> None:
        """Strike out what others have settled, and begin a new list of what I settle for them."""
        self.strike(places)
        self._settled_for_others.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return this learner's part of the account; valid at a quiet point."""
        return {"lane": self._lane, "pending": [list(place) for place in self._pending]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from this learner's part."""
        self._lane = state["lane"]
        self._pending = {
            (e, i): Ticket(e, i, int(self._pool.frames[i])) for e, i in state["pending"]
        }
        self.refresh()


_FRAMES = {"commit": "committed_frames", "discard": "discarded_frames"}
_COUNTERS = ("drawn", "settled", *_FRAMES.values())


def save_counters(counters: Counters) -> dict[str, Any]:
    """Return the common part of the shared account; valid at a quiet point."""
    numbers = range(1, counters.add("returned", 0) + 1)
    waiting = [n for n in numbers if counters.add(f"claims/{n}", 0) == 0]
    return {
        **{key: counters.add(key, 0) for key in _COUNTERS},
        "returned": [json.loads(counters.get(f"returned/{n}")) for n in waiting],
    }


def load_counters(counters: Counters, state: dict[str, Any], orphans: list[list[int]]) -> None:
    """Restore the common part; `orphans` were pending with learners that are no more."""
    for key in _COUNTERS:
        counters.add(key, state[key] - counters.add(key, 0))
    for place in [*state["returned"], *orphans]:
        number = counters.add("returned", 1)
        counters.put(f"returned/{number}", json.dumps(place))
