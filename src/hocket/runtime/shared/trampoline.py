"""Advances coroutines: hands each awaited effect to its handler, and the answer back.

Both worlds build on it. It is a small loop of our own rather than asyncio: a switch costs under a
microsecond, and nothing else runs between two awaits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Coroutine
from typing import Any, Final

from hocket.core.effects import Boundary, Deal, Deliver, Effect, Fork, Handle, Join, Settle, Start
from hocket.runtime.shared.context import RankContext
from hocket.runtime.shared.dispatch import Fiber, Handlers, handler_of


class Trampoline(ABC):
    """The loop. It answers what is the same in both worlds; the rest is in the world's table."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Fiber, Any, BaseException | None]] = deque()
        self.concurrent = False  # has any fiber forked or started a service?
        self.forks: Counter[int] = Counter()  # in flight, of each rank's main fiber
        self._on_the_spot: Final[Handlers] = {
            Settle: self._settle,
            Deal: self._deal,
            Fork: self._fork,
            Join: self._join,
            Start: self._start,
            Boundary: self._boundary,
        }

    @property
    @abstractmethod
    def handlers(self) -> Handlers:
        """The table of this world: how it begins every other effect."""

    @abstractmethod
    def context(self, rank: int) -> RankContext:
        """Return all that the runtime keeps for a rank."""

    @abstractmethod
    def boundary(self, rank: int, state: Any) -> Coroutine[Any, Any, Any]:
        """Return what happens at a boundary, as a coroutine."""

    @abstractmethod
    def started(self, service: Fiber) -> None:
        """Take note of a service (for draining and for error messages)."""

    @abstractmethod
    def service_ended(self, value: Any, error: BaseException | None) -> None:
        """Take note of the end of a service: fine, unless it failed."""

    def spawn(
        self, rank: int, name: str, coroutine: Coroutine[Any, Any, Any], on_done: Deliver
    ) -> Fiber:
        """Make a coroutine a fiber of this rank, ready to run."""
        fiber = Fiber(rank, name, coroutine, on_done)
        self._ready.append((fiber, None, None))
        return fiber

    def drain(self) -> None:
        """Advance fibers until all of them wait for the world."""
        while self._ready:
            self._advance(*self._ready.popleft())

    def begin(self, fiber: Fiber, effect: Effect[Any], deliver: Deliver) -> None:
        """Begin an effect that this world answers, by the handler in its table."""
        handler_of(self.handlers, fiber, effect)(fiber, effect, deliver)

    def _advance(self, fiber: Fiber, value: Any, error: BaseException | None) -> None:
        fiber.awaiting = None
        try:
            if error is not None:
                effect = fiber.coroutine.throw(error)
            else:
                effect = fiber.coroutine.send(value)
        except StopIteration as stop:
            fiber.on_done(stop.value, None)
        except Exception as failure:
            fiber.on_done(None, failure)
        else:
            fiber.awaiting = effect
            try:
                self._dispatch(fiber, effect)
            except Exception as failure:  # the strategy's line that awaited it is in the traceback
                self._ready.append((fiber, None, failure))

    def _dispatch(self, fiber: Fiber, effect: Effect[Any]) -> None:
        def resume(value: Any, error: BaseException | None) -> None:
            self._ready.append((fiber, value, error))

        here = self._on_the_spot.get(type(effect))
        if here is not None:
            here(fiber, effect, resume)
        else:
            self.begin(fiber, effect, resume)

    # ------------------------------------------------------------------ answered on the spot

    def _settle(self, fiber: Fiber, effect: Settle, resume: Deliver) -> None:
        self.context(fiber.rank).settle(effect.outcome, effect.tickets)
        resume(None, None)

    def _deal(self, fiber: Fiber, effect: Deal, resume: Deliver) -> None:
        account = self.context(fiber.rank).account
        account.ledger.deal_to(effect.num_learners, account.alive)
        resume(None, None)

    def _start(self, fiber: Fiber, effect: Start, resume: Deliver) -> None:
        self.concurrent = True
        self.started(self.spawn(fiber.rank, "service", effect.service, self.service_ended))
        resume(None, None)

    def _boundary(self, fiber: Fiber, effect: Boundary, resume: Deliver) -> None:
        self.spawn(fiber.rank, "boundary", self.boundary(fiber.rank, effect.state), resume)

    def _fork(self, fiber: Fiber, effect: Fork, resume: Deliver) -> None:
        self.concurrent = True
        handle: Handle[Any] = Handle(effect.effect)
        counted = int(fiber.is_main)
        self.forks[fiber.rank] += counted

        def deliver(value: Any, error: BaseException | None) -> None:
            self.forks[fiber.rank] -= counted
            handle.done, handle.answer, handle.error = True, value, error
            if handle.waiter is not None:
                handle.waiter(value, error)

        self.begin(fiber, effect.effect, deliver)
        resume(handle, None)

    @staticmethod
    def _join(fiber: Fiber, effect: Join, resume: Deliver) -> None:
        handle = effect.handle
        if handle.done:
            resume(handle.answer, handle.error)
        else:
            handle.waiter = resume
