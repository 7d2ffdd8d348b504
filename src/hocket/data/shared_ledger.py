"""The ledger of asynchronous strategies: first come, first served, from counters all share.

See `hocket.data.ledger` for what an account is, and `hocket.data.counters` for how it is kept so
that a learner may die at any time, and may wake up after it was declared lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hocket.core.accounts import DRY, Outcome, Ticket
from hocket.core.effects import Block
from hocket.data.counters import (
    FRAMES,
    Counters,
    Place,
    Volume,
    carry_over,
    in_order,
    save_counters,
    shard_of,
    writers_of,
)
from hocket.data.ledger import Ledger, ReplicatedLedger, refuse_partial_deal
from hocket.data.pool import Pool
from hocket.errors import CheckpointError, ContractError


class SharedLedger:
    """One asynchronous learner's view of the common account.

    Draw t of all learners is item (t mod N) of epoch (t div N): learners run on into the next
    epoch while others finish this one. With fixed shards each learner counts its own draws.
    """

    def __init__(
        self,
        pool: Pool,
        rank: int,
        members: tuple[int, ...],
        counters: Counters,
        *,
        attendants: int = 0,  # ranks that draw nothing; they may settle
    ) -> None:
        self._rank = rank
        self._pool = pool
        self._root = counters
        self._counters = Volume(counters)
        self.members = members  # as of the last recovery
        self._everyone = members
        self._writers = writers_of(len(members) + attendants)
        self._num_draws = pool.epochs * len(pool)
        column = members.index(rank) if rank in members else len(pool)  # it draws nothing
        self._shard = column, len(members)
        self._lane = 0  # own draws, with fixed shards
        self._pending: dict[Place, Ticket] = {}
        self._settled_for_others: set[Place] = set()
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
        place = place or self._counters.take_returned(self._writers)
        if place is None:
            return Ticket(self.epoch, DRY, 0)
        ticket = Ticket(*place, int(self._pool.frames[place[1]]))
        self._pending[place] = ticket
        return ticket

    def _next_of_pool(self) -> Place | None:
        draw = self._counters.add("drawn", 1) - 1
        if draw >= self._num_draws:
            self._counters.add("drawn", -1)
            self._left = False
            return None
        epoch, place = divmod(draw, len(self._pool))
        return epoch, int(self._pool.order(epoch)[place])

    def _next_fixed(self) -> Place | None:
        column, size = self._shard
        length = len(range(column, len(self._pool), size))
        epoch, place = divmod(self._lane, max(length, 1))
        if length == 0 or epoch >= self._pool.epochs:
            self._left = False
            return None
        self._lane += 1
        order = self._pool.order(epoch)
        return epoch, int(order[order % size == column][place])

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
                self._counters.give_back([place], str(self._rank))
            else:
                self._count(outcome, place, ticket.frames)
        self.refresh()

    def _count(self, outcome: Outcome, place: Place, frames: int) -> None:
        if not self._counters.mark(place, outcome):
            raise ContractError(
                f"item {place[1]} of epoch {place[0]} was settled twice (strategies settle a "
                "ticket once)"
            )
        self._counters.count(outcome, frames)

    def refresh(self) -> None:
        """Read the common counters: what all learners have settled by now."""
        self.committed_frames = self._counters.read(FRAMES["commit"])
        self.discarded_frames = self._counters.read(FRAMES["discard"])
        self._settled = self._counters.read("settled")
        drawn = self._counters.read("drawn")
        column, size = self._shard
        own = self._pool.epochs * len(range(column, len(self._pool), size))
        fresh = self._lane < own if self._pool.sharding == "fixed" else drawn < self._num_draws
        self._left = fresh or self._counters.num_waiting() > 0

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

    def deal_block(
        self, num_frames: int | None, speeds: tuple[float, ...] | None, *, balanced: bool
    ) -> Block:
        """Refuse: here nothing is dealt."""
        raise ContractError(
            f"rank {self._rank}: an asynchronous strategy cannot deal blocks of items: each "
            "learner takes what comes next"
        )

    def behind(self, alive: tuple[int, ...]) -> bool:
        """True if learners were lost since the last quiet point."""
        return alive != self.members

    def recover(self, parts: dict[int, dict[str, Any]]) -> int:
        """Carry the account over into a new volume, with what the survivors have in hand.

        One survivor calls it, while nobody draws or settles; return the number of the volume.
        """
        number = self._root.add("volumes", 1)
        new = Volume(self._root, number)
        carry_over(self._counters, new, self._pool, parts, self._everyone, self._writers)
        return number

    def survived_by(self, alive: tuple[int, ...], volume: int) -> None:
        """Go on in a volume that one of the survivors has written for all of them.

        What a lost one settled for this learner it cannot tell any more; the marks do.
        """
        self.strike([list(place) for place in self._pending if self._counters.marked(place)])
        self.members = alive
        self._counters = Volume(self._root, volume)
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
        pending = [list(place) for place in self._pending]
        return {"lane": self._lane, "shard": list(self._shard), "pending": pending}

    def common_state(self) -> dict[str, Any]:
        """Return the part of the account that all learners share; valid at a quiet point."""
        return {"counters": save_counters(self._counters, self._writers)}

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
        """Draw what is left; of fixed shards all of it was given back (`left_of_shards`)."""
        column, size = self._shard
        self._lane = self._pool.epochs * len(range(column, len(self._pool), size))
        self.refresh()


def whole_shards(pool: Pool, num_learners: int) -> list[int]:
    """Return how far learners have drawn who have nothing left of their fixed shards.

    Without it, a loss after a resumption with other learners would take all that was settled before
    for drawn and not settled, and deal it a second time.
    """
    if pool.sharding != "fixed":
        return []
    return [
        pool.epochs * len(range(column, len(pool), num_learners)) for column in range(num_learners)
    ]


def left_of_shards(pool: Pool, parts: Sequence[dict[str, Any]]) -> list[Place]:
    """Return what learners had not drawn of their fixed shards when their parts were saved.

    Others, or another number of them, cannot go on with these shards: they share what is left.
    """
    if pool.sharding != "fixed":
        return []
    if any("shard" not in part for part in parts):
        raise CheckpointError(
            "this checkpoint of an asynchronous strategy with runtime.sharding = 'fixed' was "
            "written by an earlier version: it can only be resumed with the same learners"
        )
    left = [shard_of(pool, *part["shard"])[part["lane"] :] for part in parts]
    return in_order(pool, [place for one in left for place in one])


def open_ledger(
    pool: Pool,
    rank: int,
    members: tuple[int, ...],
    counters: Counters,
    *,
    synchronous: bool,
    attendants: int = 0,
) -> Ledger:
    """Open the kind of ledger that a strategy needs."""
    if synchronous:
        return ReplicatedLedger(pool, rank, members)
    return SharedLedger(pool, rank, members, counters, attendants=attendants)
