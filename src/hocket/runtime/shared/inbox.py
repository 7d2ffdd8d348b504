"""Messages that have arrived at a rank, and receives that nothing has answered yet.

Both worlds use it; how a message travels is up to each world.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hocket.core.effects import ANYONE, Deliver, Message, Recv
from hocket.core.strategy import Strategy
from hocket.errors import ContractError, PeerLostError


@dataclass(eq=False)
class Waiting:
    """A receive that nothing has answered yet."""

    recv: Recv
    deliver: Deliver
    limit_s: float | None = None
    began_s: float = 0.0


class Inbox:
    """One rank's messages, in the order in which they arrived."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._unread: list[Message] = []
        self.lost: set[int] = set()
        self.waiting: list[Waiting] = []

    def arrive(self, message: Message) -> None:
        """Hand a message to the receive that waits for it, or keep it."""
        for waiting in self.waiting:
            if _matches(waiting.recv, message):
                self.waiting.remove(waiting)
                waiting.deliver(message, None)
                return
        self._unread.append(message)

    def receive(self, waiting: Waiting) -> None:
        """Answer a receive at once if a message is here, else let it wait."""
        for i, message in enumerate(self._unread):
            if _matches(waiting.recv, message):
                del self._unread[i]
                waiting.deliver(message, None)
                return
        if waiting.recv.source in self.lost:
            waiting.deliver(None, self._lost_error(waiting.recv))
        else:
            self.waiting.append(waiting)

    def lose(self, source: int) -> None:
        """Fail every receive from a learner that has died, now and later."""
        self.lost.add(source)
        for waiting in list(self.waiting):
            if waiting.recv.source == source:
                self.waiting.remove(waiting)
                waiting.deliver(None, self._lost_error(waiting.recv))

    def _lost_error(self, recv: Recv) -> PeerLostError:
        return PeerLostError(
            f"rank {self._rank} awaits {recv.describe()}, but rank {recv.source} is lost"
        )

    def queued(self, tag: str) -> int:
        """Return how many messages with a tag wait to be received."""
        return sum(message.tag == tag for message in self._unread)

    def unread(self) -> list[tuple[int, str, Any]]:
        """Return what waits to be received, for a checkpoint."""
        return [(m.source, m.tag, m.payload) for m in self._unread]


def refuse_undeclared(strategy: Strategy[Any]) -> None:
    """Refuse messages of a synchronous strategy that does not declare them: no mailbox is open.

    A receive would wait for its time limit, and the error would blame another learner.
    """
    if strategy.synchronous and not strategy.uses_messages:
        raise ContractError(
            f"strategy {strategy.name!r} is synchronous and uses messages: declare "
            "`uses_messages = True` on it"
        )


def _matches(recv: Recv, message: Message) -> bool:
    return recv.tag == message.tag and recv.source in (ANYONE, message.source)
