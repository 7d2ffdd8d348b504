"""How real learners find out that all is quiet: no message is in flight, all services are idle."""

from __future__ import annotations

import time
from typing import Any, Final

from hocket.core.accounts import Note
from hocket.core.effects import Deliver
from hocket.errors import WaitTimeoutError
from hocket.runtime.net.exchange import Exchange
from hocket.runtime.real.effects.collectives import CollectiveEffects
from hocket.runtime.real.executors import Executors
from hocket.runtime.real.messages import Messages, quiet, why_not_quiet
from hocket.runtime.shared.boundary_effects import Quiet
from hocket.runtime.shared.dispatch import Fiber

POLL_S: Final = 0.002  # between two looks at whether messages are still under way


class QuietPoints:
    """Waits, together with the others, until all is quiet."""

    def __init__(
        self,
        rank: int,
        timeout_s: float,
        services: list[Fiber],
        messages: Messages,
        collectives: CollectiveEffects,
        exchange: Exchange | None,
        executors: Executors,
    ) -> None:
        self._rank = rank
        self._timeout_s = timeout_s
        self._services = services
        self._messages = messages
        self._collectives = collectives
        self._exchange = exchange
        self._executors = executors

    def begin(self, fiber: Fiber, effect: Quiet, deliver: Deliver) -> None:
        """Begin to wait for a quiet point."""
        exchange = self._exchange
        if exchange is None:
            self._alone(deliver)
        elif self._messages.mailbox is None:
            deliver(None, None)  # the gathering that follows brings all learners together
        else:
            until = time.monotonic() + self._timeout_s
            self._collectives.communicate(
                "a quiet point",
                exchange.wait,
                lambda value, error: self._look(exchange, deliver, error, None, until),
            )

    def _alone(self, deliver: Deliver) -> None:
        if self._messages.quiet_alone and self._idle():
            deliver(None, None)
        else:  # after what is already waiting in the queue
            self._executors.post(lambda v, e: self._alone(deliver))

    def _idle(self) -> bool:
        return all(service.is_idle for service in self._services)

    def _look(
        self,
        exchange: Exchange,
        deliver: Deliver,
        error: BaseException | None,
        before: Any,
        until: float,
    ) -> None:
        """Quiet when all that was sent has arrived and services wait; this must be seen twice."""
        if error is None and time.monotonic() > until:
            error = WaitTimeoutError(
                f"rank {self._rank} waited {self._timeout_s:g} s for a quiet point and gave up: "
                f"{why_not_quiet(before or [])}"
            )
        if error is not None:
            deliver(None, error)
            return
        mine = self._messages.traffic(idle=self._idle())

        def job() -> tuple[list[Any], Note]:
            time.sleep(POLL_S)
            return exchange.gather(mine)

        def decide(traffic: list[Any] | None, error: BaseException | None) -> None:
            if error is None and traffic and quiet(traffic) and traffic == before:
                deliver(None, None)
            else:
                self._look(exchange, deliver, error, traffic, until)

        self._collectives.communicate("a quiet point", job, decide)
