"""Exact accounts of the pool: every item is drawn, then committed, discarded or returned.

    committed + discarded = the epochs' frames, exactly, whatever the speeds and deaths.

Two ledgers, one for each kind of strategy:

* `ReplicatedLedger`, for synchronous strategies. They draw by number and settle in step, so every
  learner can compute what all have done: each keeps the whole account by itself, and no message is
  needed. Speeds cannot matter.
* `SharedLedger` (`hocket.data.shared_ledger`), for asynchronous strategies. They draw first come,
  first served, from counters that all learners share.

Discarded items (stale, rejected) are counted and not drawn again; a returned item is.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from hocket.core.accounts import DRY, Outcome, Ticket
from hocket.core.effects import Block
from hocket.data.pool import Ints, Pool
from hocket.errors import ContractError


class Ledger(Protocol):
    """What every ledger can do, whichever way it is kept."""

    committed_frames: int
    discarded_frames: int

    @property
    def epoch(self) -> int:
        """The epoch being drawn from."""
        ...

    @property
    def pending_frames(self) -> int:
        """Frames this learner has drawn and not settled."""
        ...

    def draw(self) -> Ticket:
        """Take the next item; a dry ticket if there is none left."""
        ...

    def settle(
        self, outcome: Outcome, tickets: tuple[Ticket, ...] | None, alive: tuple[int, ...]
    ) -> None:
        """Say what became of drawn items; None: of all that this learner has drawn."""
        ...

    def deal_to(self, num_active: int, alive: tuple[int, ...]) -> None:
        """Let only the first so many learners draw from now on."""
        ...

    def deal_block(
        self, num_frames: int | None, speeds: tuple[float, ...] | None, *, balanced: bool
    ) -> Block:
        """Deal the next items of the epoch anew, as much work for each learner."""
        ...

    def refresh(self) -> None:
        """Look up what others have settled."""
        ...

    def dry(self) -> bool:
        """True if there is nothing to draw now."""
        ...

    def exhausted(self) -> bool:
        """True if nothing will be left to draw for this learner to the end of the run."""
        ...

    def closed(self) -> bool:
        """True if every item of every epoch is settled."""
        ...

    def behind(self, alive: tuple[int, ...]) -> bool:
        """True if items of lost learners must still be returned to the pool, at a quiet point."""
        ...

    def recover(self, parts: dict[int, dict[str, Any]]) -> int:
        """Return the items of lost learners to the pool, for all; `parts`: the survivors' own.

        The answer is the number of the volume in which all go on.
        """
        ...

    def survived_by(self, alive: tuple[int, ...], volume: int) -> None:
        """Go on where the items of lost learners have been returned."""
        ...

    def settled_for_others(self) -> list[list[int]]:
        """List what this learner settled that another drew, since the last quiet point."""
        ...

    def reconcile(self, places: list[list[int]]) -> None:
        """Remove from this learner's pending items what others have settled for it."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything that this learner needs to go on."""
        ...

    def common_state(self) -> dict[str, Any]:
        """Return what all learners share, if there is such a thing; it is saved once."""
        ...

    def load_state_dict(self, state: dict[str, Any], *, same_learners: bool) -> None:
        """Go on from a saved account, with the same learners or with others."""
        ...


class KnownByAll:
    """What a ledger need not do at a quiet point, if each learner knows the whole account."""

    def behind(self, alive: tuple[int, ...]) -> bool:
        """Return False: what the lost had drawn is dealt again with the next settlement."""
        return False

    def recover(self, parts: dict[int, dict[str, Any]]) -> int:
        """Do nothing: settlements return the items of the lost."""
        return 0

    def survived_by(self, alive: tuple[int, ...], volume: int) -> None:
        """Do nothing: settlements say who is alive."""

    def common_state(self) -> dict[str, Any]:
        """Return nothing: each learner saves the whole account."""
        return {}

    def settled_for_others(self) -> list[list[int]]:
        """Return nothing: learners settle only what they drew themselves."""
        return []

    def reconcile(self, places: list[list[int]]) -> None:
        """Do nothing: learners settle only what they drew themselves."""

    def refresh(self) -> None:
        """Do nothing: the account is always complete."""


def refuse_partial_deal(rank: int, num_active: int, alive: tuple[int, ...]) -> None:
    """Refuse to leave learners out, for a ledger that cannot: it does not deal items in rounds."""
    if num_active < len(alive):
        raise ContractError(
            f"rank {rank}: only a synchronous strategy whose data Hocket draws can deal items to "
            f"{num_active} of its {len(alive)} learners: let all learners take part from the start "
            "(strategy kaldi: initial_learners)"
        )


class ReplicatedLedger(KnownByAll):
    """The account of all learners that a synchronous learner keeps by counting its own rounds.

    The unsettled items of the epoch are dealt out in rounds, one column per member. All members
    draw and settle in the same order, so when I have settled n rounds, so has everyone.
    """

    def __init__(self, pool: Pool, rank: int, members: tuple[int, ...]) -> None:
        self._pool = pool
        self._rank = rank
        self.members = members
        self._column = members.index(rank)
        self.committed_frames = 0
        self.discarded_frames = 0
        self._epoch = 0
        self._active = len(members)  # how many of them draw
        self._rounds = pool.rounds(0, members)
        self._drawn = self._settled = 0
        self._own_pending = 0
        self._base = 0  # number of the first row of _rounds, for tickets drawn before it was that

    @property
    def epoch(self) -> int:
        """The epoch being drawn from."""
        return self._epoch

    @property
    def pending_frames(self) -> int:
        """Frames this learner has drawn and not settled."""
        return self._own_pending

    def draw(self) -> Ticket:
        """Take the next round's item in this learner's column."""
        if self.closed() or self._drawn == len(self._rounds):
            return Ticket(self._epoch, DRY, 0, self._base + self._drawn - 1)
        index = int(self._rounds[self._drawn, self._column])
        self._drawn += 1
        frames = 0 if index == DRY else int(self._pool.frames[index])
        self._own_pending += frames
        return Ticket(self._epoch, index, frames, self._base + self._drawn - 1)

    def settle(
        self,
        outcome: Outcome,
        tickets: tuple[Ticket, ...] | None = None,
        alive: tuple[int, ...] | None = None,
    ) -> None:
        """Settle whole rounds: up to the newest ticket given, or all that have been drawn.

        `alive` is who took part in the collective that completed this settlement. What the lost
        had drawn returns to the pool, which is dealt again among the survivors. Rounds that are
        drawn and not settled yet stay in the survivors' hands.
        """
        upto = self._drawn if tickets is None else self._rows_upto(tickets)
        block = self._rounds[self._settled : upto]
        gone = [] if alive in (None, self.members) else self._columns_without(alive)
        returned = block if outcome == "return" else block[:, gone]
        kept = block[:, :0] if outcome == "return" else np.delete(block, gone, axis=1)
        self._count(outcome, kept)
        self._settled = max(self._settled, upto)
        self._own_pending = self._own_frames(self._settled, self._drawn)
        if gone or outcome == "return":
            self._deal_again(returned, alive or self.members)
        if self._settled == len(self._rounds):
            self._open(self._epoch + 1)

    def _count(self, outcome: Outcome, items: Ints) -> None:
        if outcome == "commit":
            self.committed_frames += self._pool.frames_of(items)
        elif outcome == "discard":
            self.discarded_frames += self._pool.frames_of(items)

    def _rows_upto(self, tickets: tuple[Ticket, ...]) -> int:
        """Rows up to the newest ticket; tickets of rounds that are settled are void."""
        rows = [1 + t.round - self._base for t in tickets if t.epoch == self._epoch]
        return max(self._settled, min(self._drawn, max(rows, default=0)))

    def _columns_without(self, alive: tuple[int, ...] | None) -> list[int]:
        living = set(alive or ())
        return [column for column, member in enumerate(self.members) if member not in living]

    def _own_frames(self, first: int, last: int) -> int:
        return self._pool.frames_of(self._rounds[first:last, self._column])

    def _deal_again(self, returned: Ints, members: tuple[int, ...]) -> None:
        in_hand, rest = self._rounds[self._settled : self._drawn], self._rounds[self._drawn :]
        gone = self._columns_without(members)
        queue = np.concatenate([returned.ravel(), in_hand[:, gone].ravel(), rest.ravel()])
        self.members = members
        self._column = members.index(self._rank)
        self._active = min(self._active, len(members))
        in_hand = np.delete(in_hand, gone, axis=1)
        self._rounds = np.concatenate([in_hand, self._dealt(queue[queue != DRY])])
        self._base += self._settled
        self._drawn, self._settled = len(in_hand), 0
        self._own_pending = self._own_frames(0, self._drawn)

    def deal_to(self, num_active: int, alive: tuple[int, ...] | None = None) -> None:
        """Deal what is left, and all that follows, to the first so many members."""
        num_active = max(1, min(num_active, len(self.members)))
        if num_active == self._active:
            return
        self._nothing_open(f"items are dealt to {num_active} learners")
        self._active = num_active
        if not self.closed():
            self._deal_again(self._rounds[:0], self.members)

    def _nothing_open(self, what: str) -> None:
        if self._drawn != self._settled:
            raise ContractError(
                f"rank {self._rank}: {what} while {self._drawn - self._settled} drawn rounds are "
                "not settled: commit first"
            )

    def deal_block(
        self, num_frames: int | None, speeds: tuple[float, ...] | None, *, balanced: bool
    ) -> Block:
        """Deal the next items to the active members, balanced; what follows stays in its order.

        The items are the next of the epoch's order, however many members there are.
        """
        self._nothing_open("a block of items is dealt")
        if self.closed():
            return Block(0, 0)
        queue = self._rounds[self._settled :].ravel()
        queue = queue[queue != DRY]
        size = len(queue)
        if num_frames is not None:
            ends = np.cumsum(self._pool.frames[queue])
            size = min(size, int(np.searchsorted(ends, num_frames)) + 1)  # the first to reach it
        members = self.members[: self._active]
        if balanced:
            some = None if speeds is None else tuple(speeds[m] for m in members)
            block = self._pool.share_out(queue[:size], members, some)
        else:
            block = self._pool.deal(queue[:size], members)
        rest = self._dealt(queue[size:])
        self._rounds = np.concatenate([self._with_idle(block), rest])
        self._base += self._settled
        self._drawn = self._settled = self._own_pending = 0
        return Block(len(block), self._pool.frames_of(block))

    def _dealt(self, queue: Ints) -> Ints:
        """Deal a queue out among the active members; the others' columns are dry."""
        return self._with_idle(self._pool.deal(queue, self.members[: self._active]))

    def _with_idle(self, rounds: Ints) -> Ints:
        idle = np.full((len(rounds), len(self.members) - self._active), DRY, dtype=np.int64)
        return np.concatenate([rounds, idle], axis=1)

    def _open(self, epoch: int) -> None:
        self._epoch = epoch
        self._drawn = self._settled = self._own_pending = self._base = 0
        if epoch < self._pool.epochs:
            everyone = self._active == len(self.members)
            self._rounds = (
                self._pool.rounds(epoch, self.members)
                if everyone
                else self._dealt(self._pool.order(epoch))
            )

    def dry(self) -> bool:
        """True if every round of this epoch has been drawn."""
        return self.closed() or self._drawn == len(self._rounds)

    def exhausted(self) -> bool:
        """True once the last epoch is closed; within an epoch a dry learner just waits."""
        return self._epoch >= self._pool.epochs

    closed = exhausted

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on, with the same learners or with others."""
        rest = None if self.closed() else self._rounds[self._settled :].ravel()
        return {
            "epoch": self._epoch,
            "unsettled": None if rest is None else [int(i) for i in rest if i != DRY],
            "in_hand": self._rounds[self._settled : self._drawn].tolist(),
            "rounds_settled": self._base + self._settled,
            "active": self._active,
            "committed_frames": self.committed_frames,
            "discarded_frames": self.discarded_frames,
        }

    def load_state_dict(self, state: dict[str, Any], *, same_learners: bool) -> None:
        """Go on from a saved account; for other learners, what is unsettled is dealt again."""
        self.committed_frames = state["committed_frames"]
        self.discarded_frames = state["discarded_frames"]
        members = len(self.members)
        self._active = min(state.get("active", members), members) if same_learners else members
        self._open(state["epoch"])
        if state["unsettled"] is not None:
            queue = np.array(state["unsettled"], dtype=np.int64)
            self._rounds = self._dealt(queue)
            if same_learners:
                ahead = state.get("rounds_ahead", 0)  # earlier checkpoints have only their number
                self._take_in_hand(queue, state.get("in_hand", self._rounds[:ahead]))
                self._base = state["rounds_settled"]

    def _take_in_hand(self, queue: Ints, rounds: list[list[int]] | Ints) -> None:
        """Go on with rounds that were drawn when the account was saved; the rest is dealt."""
        in_hand = np.array(rounds, dtype=np.int64).reshape(-1, len(self.members))
        rest = queue[(in_hand != DRY).sum() :]  # saved in the order of the rounds
        self._rounds = np.concatenate([in_hand, self._dealt(rest)])
        self._drawn = len(in_hand)
        self._own_pending = self._own_frames(0, self._drawn)
