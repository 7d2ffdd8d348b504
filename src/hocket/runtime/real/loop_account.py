"""What is kept for one rank under a loop of the user's: steps handed in, the rate, who is at work.

Nothing is drawn: data, schedule and checkpoints are the user's, so most of a ledger refuses.
"""

from __future__ import annotations

from typing import Any, Final

from hocket.core.accounts import Note, Outcome, Ticket
from hocket.core.effects import Block, Settle
from hocket.data.ledger import KnownByAll, refuse_partial_deal
from hocket.errors import ContractError
from hocket.runtime.shared.context import RankContext
from hocket.runtime.shared.context.account import Account
from hocket.runtime.shared.worker import WorkerState

NO_DATA: Final = "hocket.attach has no data of its own"


class LoopLedger(KnownByAll):
    """The account of the steps that were handed in; nothing is drawn or returned."""

    def __init__(self, rank: int) -> None:
        self.committed_frames = self.discarded_frames = 0
        self._rank = rank
        self._pending: dict[int, int] = {}
        self._handed_in = 0

    @property
    def epoch(self) -> int:
        """Always 0: only the user's loop knows its epoch."""
        return 0

    @property
    def pending_frames(self) -> int:
        """Frames handed in and not settled."""
        return sum(self._pending.values())

    def hand_in(self, frames: int) -> Ticket:
        """Give a step of the user's a number, as its ticket."""
        self._handed_in += 1
        self._pending[self._handed_in] = frames
        return Ticket(0, self._handed_in, frames, round=self._handed_in)

    def draw(self) -> Ticket:
        """Refuse: the data are the user's."""
        raise ContractError(NO_DATA)

    def settle(
        self, outcome: Outcome, tickets: tuple[Ticket, ...] | None, alive: tuple[int, ...]
    ) -> None:
        """Settle steps of this learner; those of others are counted by the others."""
        numbers = [t.index for t in tickets] if tickets is not None else list(self._pending)
        frames = sum(self._pending.pop(n, 0) for n in numbers)
        if outcome == "commit":
            self.committed_frames += frames
        else:
            self.discarded_frames += frames

    def deal_to(self, num_active: int, alive: tuple[int, ...]) -> None:
        """Refuse to leave a learner out: its loop goes on by itself."""
        refuse_partial_deal(self._rank, num_active, alive)

    def deal_block(
        self, num_frames: int | None, speeds: tuple[float, ...] | None, *, balanced: bool
    ) -> Block:
        """Refuse: the data are the user's."""
        raise ContractError(NO_DATA)

    def dry(self) -> bool:
        """Return False: only the user's loop knows when its data end."""
        return False

    exhausted = closed = dry

    def state_dict(self) -> dict[str, Any]:
        """Refuse: the user saves `dist.state_dict()`."""
        raise ContractError(NO_DATA)

    def load_state_dict(self, state: dict[str, Any], *, same_learners: bool) -> None:
        """Refuse: the user loads `dist.load_state_dict()`."""
        raise ContractError(NO_DATA)


class LoopAccount(Account):
    """An account without a pool or a schedule: the rate is the user's, with the compensation."""

    def rate(self, gain: float | None = None) -> float:
        """Return the rate that the user's optimizer has now, times the compensation."""
        return self.experiment.optimizer.rate() * self._target(gain)


class LoopContext(RankContext):
    """Knows who is alive and whether anybody is still at work; the user counts what is learnt."""

    def __init__(self, account: Account, worker_state: WorkerState) -> None:
        super().__init__(account, worker_state, lambda event: None)
        self.agenda.stop_wanted = True  # piggybacked on collectives; here it means: still at work
        self.anybody_at_work: bool | None = None  # not heard since the last boundary

    def settle(self, effect: Settle) -> None:
        """Record a settlement in the account alone: there is no tally to share."""
        self.account.settle(effect.outcome, effect.tickets, with_next=effect.with_next)

    def took_part(self, note: Note) -> None:
        """Record who took part, and whether any of them is still at work."""
        self.account.survived_by(note.members)
        if note.piggybacked:
            self.anybody_at_work = note.stop
