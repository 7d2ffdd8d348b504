"""What a learner has in its hand: items drawn and not settled, and who can vouch for them.

A synchronous learner settles for all: it counts the others' items as learnt, because they have
drawn as many as it has. But one of them may have died before it computed its item. What is known of
the others is this: whoever takes part in a collective of all has computed everything that comes
before that collective in the strategy. So an item may be settled once a collective has been
completed that was begun after the item was computed; whoever is missing from it gets no credit.
Without one, the items of the dead would count as learnt, and nobody would ever have seen them.

    draw, compute, collective of all, settle          right
    collective of all, draw, compute, settle          wrong: who died in between is counted
    draw, compute, settle                             wrong: who died at any time is counted
"""

from __future__ import annotations

from hocket.core.accounts import Ticket
from hocket.core.effects import Part
from hocket.errors import ContractError

REMEDY = (
    "await one first (`await me.allreduce(torch.zeros(1), weight=1.0)` will do), or let the next "
    "one decide (`await me.commit_with_next()`)"
)


class Hand:
    """One learner's drawn items, and the collectives of all since it computed them."""

    def __init__(self, rank: int, strategy: str, *, synchronous: bool) -> None:
        self._whose = f"rank {rank}: strategy {strategy!r}"
        self._synchronous = synchronous
        self._begun = 0  # collectives of all that this learner has begun
        self._completed = 0  # the number of the last one that is complete
        self._uncomputed: dict[Ticket, None] = {}
        self._computed: dict[Ticket, int] = {}  # and how many collectives had been begun then

    # ------------------------------------------------------------------ what happens

    def begin_collective(self) -> int:
        """Count a collective of all, and return its number."""
        self._begun += 1
        return self._begun

    def complete_collective(self, number: int) -> None:
        """Take note that a collective is complete: who took part is known."""
        self._completed = max(self._completed, number)

    def draw(self, ticket: Ticket) -> None:
        """Take an item into the hand; where nothing was left, there is nothing to compute."""
        if not ticket.dry:
            self._uncomputed[ticket] = None

    def compute(self, ticket: Ticket, part: Part) -> None:
        """Take note that an item has been computed: with its last part, it is whole."""
        which, of = part
        if which + 1 < of:
            return
        self._uncomputed.pop(ticket, None)
        if self._synchronous:
            self._computed[ticket] = self._begun

    # ------------------------------------------------------------------ settling

    def settle(self, tickets: tuple[Ticket, ...] | None, *, alone: bool) -> None:
        """Let go of what is settled; refuse what nobody can vouch for."""
        self._refuse_uncomputed(tickets)
        if not self._synchronous:
            return
        settled = [t for t in self._computed if self._covers(tickets, t)]
        for ticket in settled:
            if self._computed.pop(ticket) >= self._completed and not alone:
                raise ContractError(
                    f"{self._whose} settles {_name(ticket)}, but no collective of all learners has "
                    "been completed since it was computed: a learner that died meanwhile would be "
                    f"counted as if it had learnt its own items. Strategies must {REMEDY} "
                    "(contract rule 10)"
                )

    def _covers(self, tickets: tuple[Ticket, ...] | None, ticket: Ticket) -> bool:
        """True if a drawn item is settled with these: of a synchronous strategy, by rounds."""
        if tickets is None:
            return True
        return _upto(ticket, tickets) if self._synchronous else ticket in tickets

    def computed(self) -> tuple[Ticket, ...]:
        """Return what has been computed and not settled, of a synchronous strategy."""
        if not self._synchronous:
            raise ContractError(
                f"{self._whose} is not synchronous, so its items need not wait for a collective: "
                "use `await me.commit()`"
            )
        self._refuse_uncomputed(None)
        return tuple(self._computed)

    def _refuse_uncomputed(self, tickets: tuple[Ticket, ...] | None) -> None:
        settled = [t for t in self._uncomputed if self._covers(tickets, t)]
        if settled:
            raise ContractError(
                f"{self._whose} settles {_name(settled[0])}, whose gradient is "
                "not there yet: await it first, or name the tickets that are to be settled "
                "(contract rule 10)"
            )


def _upto(ticket: Ticket, tickets: tuple[Ticket, ...]) -> bool:
    """True if a ticket is in a round that is settled with these: rounds are settled in order."""
    return any(_place(ticket) <= _place(newest) for newest in tickets)


def _place(ticket: Ticket) -> tuple[int, int]:
    return ticket.epoch, ticket.round


def _name(ticket: Ticket) -> str:
    what = "a round in which it drew nothing" if ticket.dry else f"item {ticket.index}"
    return f"{what} of epoch {ticket.epoch}"
