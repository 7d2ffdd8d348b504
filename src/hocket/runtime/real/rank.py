"""One rank in a real process: the base of a run of Hocket's own and of a loop of the user's.

It connects to the others, owns the threads, and answers messages and collectives. Where gradients
come from and what a boundary does is up to the two runtimes built on it.
"""

from __future__ import annotations

from typing import Any

import torch

from hocket.core.effects import Deliver, Recv, Send, Spend
from hocket.errors import PeerLostError
from hocket.experiment import Experiment
from hocket.runtime.net.exchange import Exchange
from hocket.runtime.net.mesh import Mesh
from hocket.runtime.net.store import Store
from hocket.runtime.real.connect import connect, messages_come
from hocket.runtime.real.effects.collectives import CollectiveEffects, Span
from hocket.runtime.real.executors import Executors
from hocket.runtime.real.faults import Fate
from hocket.runtime.real.messages import Messages
from hocket.runtime.shared.context import RankContext
from hocket.runtime.shared.dispatch import Fiber, Handlers
from hocket.runtime.shared.inbox import refuse_undeclared
from hocket.runtime.shared.trampoline import Trampoline
from hocket.runtime.shared.worker import Worker


class RankRuntime(Trampoline):
    """The base of `ProcessRuntime` and `LoopRuntime`."""

    _context: RankContext
    _worker: Worker
    _collectives: CollectiveEffects
    _exchange: Exchange | None

    def __init__(
        self, experiment: Experiment, rank: int, *, on: torch.device, fate: Fate | None = None
    ) -> None:
        super().__init__()
        self.rank = rank
        self.size = experiment.num_ranks
        self.main: Fiber | None = None
        self._experiment = experiment
        self._fate = fate or Fate((), rank)
        self._services: list[Fiber] = []
        self._failure: BaseException | None = None
        self._handlers: Handlers = {}
        self._executors = Executors(experiment.options.threads, lambda: self.concurrent)
        self._messages = Messages(experiment, rank, self._executors, on, self._reached)

    def _connect(self, store: Store, address: str) -> Mesh:
        """Connect to the others; from now on messages may come in."""
        self.concurrent = messages_come(self._experiment)
        return connect(
            self._experiment, self.rank, store, address, self._messages, self._fate, self._fail
        )

    def _serve(
        self, context: RankContext, worker: Worker, exchange: Exchange | None, span: Span
    ) -> None:
        """Put the parts together; from now on effects can be answered."""
        self._context, self._worker, self._exchange = context, worker, exchange
        self._collectives = CollectiveEffects(
            context, worker, exchange, self._executors, span, self._fate.issuing
        )
        self._handlers = {
            **self._collectives.handlers,
            Send: self._send,
            Spend: self._spend,
            Recv: self._recv,
            **self._own_handlers(),
        }

    def _own_handlers(self) -> Handlers:
        """Return the handlers that differ between the two runtimes."""
        raise NotImplementedError

    def _reached(self, what: str, detail: str) -> None:
        """Note something that reached this learner, for a replay."""

    # ------------------------------------------------------------------ the trampoline's questions

    @property
    def handlers(self) -> Handlers:
        """The table of this world, by class of effect."""
        return self._handlers

    def context(self, rank: int) -> RankContext:
        """Return this rank's context; a process has no other."""
        return self._context

    def started(self, service: Fiber) -> None:
        """Remember a service, to know when it is idle and to end it."""
        self._services.append(service)

    def service_ended(self, rank: int, value: Any, error: BaseException | None) -> None:
        """Remember a service's failure; the loss of a peer is not a failure."""
        if not isinstance(error, PeerLostError):
            self._fail(value, error)

    def _fail(self, value: Any, error: BaseException | None) -> None:
        self._failure = self._failure or error

    def _send(self, fiber: Fiber, effect: Send, deliver: Deliver) -> None:
        refuse_undeclared(self._experiment.strategy)
        self._fate.mailing()
        self._context.account.books.bytes_sent += self._messages.send(effect, deliver)

    def _spend(self, fiber: Fiber, effect: Spend, deliver: Deliver) -> None:
        deliver(None, None)  # it has been done, and took its time

    def _recv(self, fiber: Fiber, effect: Recv, deliver: Deliver) -> None:
        refuse_undeclared(self._experiment.strategy)
        self._messages.receive(effect, deliver, limited=not fiber.is_service)

    # ------------------------------------------------------------------ waiting and ending

    def _wait(self) -> None:
        """Wait until something happens: a result, a message, or a limit."""
        self._messages.wait(self._collectives.attend)

    def _close_fibers(self) -> None:
        for fiber in ([self.main] if self.main else []) + self._services:
            fiber.coroutine.close()

    def _disconnect(self, *, everybody_left: bool) -> None:
        """Let go of threads and connections; peers still at work must see ours break."""
        self._executors.close()
        self._messages.close()
        if self._exchange is not None and everybody_left:
            self._exchange.close()
