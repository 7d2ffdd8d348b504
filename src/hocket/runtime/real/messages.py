"""A real learner's messages: what it sends, what it waits for, and when all is quiet."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from hocket.core.device import move
from hocket.core.effects import Deliver, Message, Recv, Send
from hocket.core.packing import handed_on
from hocket.errors import require
from hocket.experiment import Experiment
from hocket.runtime.net.mailbox import Mailbox
from hocket.runtime.real.executors import Executors
from hocket.runtime.real.limits import gave_up
from hocket.runtime.shared.inbox import Inbox, Waiting

ATTEND_S = 0.05  # how often to answer others while nothing happens here


class Messages:
    """The messages of one learner."""

    def __init__(
        self,
        experiment: Experiment,
        rank: int,
        executors: Executors,
        device: torch.device,
        trace: Callable[[str, str], None],
    ) -> None:
        self._rank = rank
        self._size = experiment.num_ranks
        self._timeout_s = experiment.options.timeout_s
        self._executors = executors
        self._device = device  # where the learner computes
        self._trace = trace  # notes what reached this learner
        self._sent: Counter[int] = Counter()  # to whom
        self._arrived: Counter[int] = Counter()  # from whom
        self.inbox = Inbox(rank)
        self.mailbox: Mailbox | None = None

    def open(self, make: Callable[..., Mailbox], failed: Deliver) -> None:
        """Open the mailbox: from now on messages come in."""
        self.mailbox = make(
            arrived=lambda m: self._executors.post(self._arrive, m),
            lost=lambda r: self._executors.post(lambda v, e: self.inbox.lose(r)),
            failed=lambda e: self._executors.post(failed, None, e),
        )

    def send(self, effect: Send, deliver: Deliver) -> int:
        """Send a message and return its bytes; one to a lost learner is dropped."""
        require(
            0 <= effect.to < self._size,
            f"rank {self._rank} sends to rank {effect.to}, which does not exist",
        )
        num_bytes = 0
        self._sent[effect.to] += 1
        if effect.to == self._rank:
            message = Message(self._rank, effect.tag, handed_on(effect.payload))
            self._executors.post(self._arrive, message)
        else:
            num_bytes = self._open_mailbox.send(effect.to, effect.tag, effect.payload)
        deliver(None, None)
        return num_bytes

    @property
    def _open_mailbox(self) -> Mailbox:
        assert self.mailbox is not None  # a learner that is alone sends to itself only
        return self.mailbox

    def _arrive(self, message: Message, error: BaseException | None) -> None:
        self._arrived[message.source] += 1
        message.payload = move(message.payload, self._device)
        self._trace("arrived", f"{message.source}/{message.tag}")
        self.inbox.arrive(message)

    def receive(self, effect: Recv, deliver: Deliver, *, limited: bool) -> None:
        """Answer a receive, now or when its message comes."""
        limit = effect.timeout_s if effect.timeout_s is not None or not limited else self._timeout_s
        self.inbox.receive(Waiting(effect, deliver, limit, time.monotonic()))

    # ------------------------------------------------------------------ limits

    def wait(self, attend: Callable[[], None]) -> None:
        """Wait until something happens on the loop or a limit has passed; attend to others."""
        ends = [w.began_s + w.limit_s for w in self.inbox.waiting if w.limit_s is not None]
        until = min(ends, default=time.monotonic() + self._timeout_s)
        while not self._executors.take(min(ATTEND_S, until - time.monotonic())):
            attend()
            if time.monotonic() >= until:
                self._expire()
                return

    def _expire(self) -> None:
        """Give up every receive whose limit has passed."""
        now = time.monotonic()
        for w in list(self.inbox.waiting):
            if w.limit_s is not None and w.began_s + w.limit_s <= now:
                self.inbox.waiting.remove(w)
                self._trace("expired", f"{w.recv.source}/{w.recv.tag}")
                waited_s = now - w.began_s
                w.deliver(None, gave_up(self._rank, w.recv.describe(), waited_s, self._timeout_s))

    # ------------------------------------------------------------------ quiet points

    def traffic(self, *, idle: bool) -> dict[str, Any]:
        """Return what was sent and what has arrived, for all to compare."""
        sent, arrived = dict(self._sent), dict(self._arrived)
        return {"rank": self._rank, "sent": sent, "arrived": arrived, "idle": idle}

    @property
    def quiet_alone(self) -> bool:
        """True if nothing this learner sent to itself is still under way."""
        return self._sent[self._rank] == self._arrived[self._rank]

    def close(self) -> None:
        """Close the mailbox, if one was opened."""
        if self.mailbox is not None:
            self.mailbox.close()


def quiet(traffic: list[dict[str, Any]]) -> bool:
    """True if all that the survivors sent each other has arrived, and their services wait.

    What a lost learner sent, or was sent, is never waited for.
    """
    return all(one["idle"] for one in traffic) and all(
        a["sent"].get(b["rank"], 0) == b["arrived"].get(a["rank"], 0)
        for a in traffic
        for b in traffic
    )


def why_not_quiet(traffic: list[dict[str, Any]]) -> str:
    """Say what keeps a quiet point from being quiet."""
    busy = [one["rank"] for one in traffic if not one["idle"]]
    late = [
        f"{a['sent'].get(b['rank'], 0) - b['arrived'].get(a['rank'], 0)} message(s) from rank "
        f"{a['rank']} to rank {b['rank']} have not arrived"
        for a in traffic
        for b in traffic
        if a["sent"].get(b["rank"], 0) != b["arrived"].get(a["rank"], 0)
    ]
    doing = [f"services of ranks {busy} are busy"] if busy else []
    return "; ".join(doing + late) or "messages keep coming: a service sends without end"
