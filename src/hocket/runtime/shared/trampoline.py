"""Advances coroutines: hands each awaited effect to its handler, and the answer back.

Both worlds build on it. It is a small loop of our own rather than asyncio: a switch costs under a
microsecond, and nothing else runs between two awaits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, TypeAlias

from hocket.core.effects import (
    Boundary,
    Deal,
    DealBlock,
    Deliver,
    Effect,
    Fork,
    Handle,
    Join,
    Settle,
    Start,
)
from hocket.runtime.shared.context import RankContext
from hocket.runtime.shared.dispatch import Fiber, Handlers, handler_of

# A fiber that can go on, and the answer or the error with which it does.
Ready: TypeAlias = tuple[Fiber, Any, BaseException | None]


class Trampoline(ABC):
    """The loop. It answers what is the same in both worlds; the rest is in the world's table."""

    def __init__(self) -> None:
        self._ready: deque[Ready] = deque()
        self.concurrent = False  # has any fiber forked or started a service?
        self.forks: Counter[int] = Counter()  # in flight, of each rank's main fiber
        self._on_the_spot: Final[Handlers] = {
            Settle: self._settle,
            Deal: self._deal,
            DealBlock: self._deal_block,
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
    def boundary(self, rank: int, effect: Boundary) -> Coroutine[Any, Any, Any]:
        """Return what happens at a boundary, as a coroutine."""

    @abstractmethod
    def started(self, service: Fiber) -> None:
        """Take note of a service (for draining and for error messages)."""

    @abstractmethod
    def service_ended(self, rank: int, value: Any, error: BaseException | None) -> None:
        """Take note of the end of a service: fine, unless it failed."""

    def spawn(
        self, rank: int, name: str, coroutine: Coroutine[Any, Any, Any], on_done: Deliver
    ) -> Fiber:
        """Make a coroutine a fiber of this rank, ready to run."""
        fiber = Fiber(rank, name, coroutine, on_done)
        self._go_on_with(fiber, None, None)
        return fiber

    def _go_on_with(self, fiber: Fiber, value: Any, error: BaseException | None) -> None:
        fiber.ready = True  # a message it has not looked at yet is work to be done
        self._ready.append((fiber, value, error))

    def drain(self) -> None:
        """Advance fibers until all of them wait for the world."""
        while self._ready:
            self._advance(*self._ready.popleft())

    def begin(self, fiber: Fiber, effect: Effect[Any], deliver: Deliver) -> None:
        """Begin an effect that this world answers, by the handler in its table."""
        handler_of(self.handlers, fiber, effect)(fiber, effect, deliver)

    def _advance(self, fiber: Fiber, value: Any, error: BaseException | None) -> None:
        fiber.awaiting, fiber.ready = None, False
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
                self._go_on_with(fiber, None, failure)

    def _dispatch(self, fiber: Fiber, effect: Effect[Any]) -> None:
        def resume(value: Any, error: BaseException | None) -> None:
            self._go_on_with(fiber, value, error)

        here = self._on_the_spot.get(type(effect))
        if here is not None:
            here(fiber, effect, resume)
        else:
            self.begin(fiber, effect, resume)

    # ------------------------------------------------------------------ answered on the spot

    def _settle(self, fiber: Fiber, effect: Settle, resume: Deliver) -> None:
        self.context(fiber.rank).settle(effect)
        resume(None, None)

    def _deal(self, fiber: Fiber, effect: Deal, resume: Deliver) -> None:
        account = self.context(fiber.rank).account
        account.ledger.deal_to(effect.num_learners, account.learners)
        resume(None, None)

    def _deal_block(self, fiber: Fiber, effect: DealBlock, resume: Deliver) -> None:
        ledger = self.context(fiber.rank).account.ledger
        resume(ledger.deal_block(effect.num_frames, effect.speeds, balanced=effect.balanced), None)

    def _start(self, fiber: Fiber, effect: Start, resume: Deliver) -> None:
        self.concurrent = True
        ended = partial(self.service_ended, fiber.rank)
        self.started(self.spawn(fiber.rank, "service", effect.service, ended))
        resume(None, None)

    def _boundary(self, fiber: Fiber, effect: Boundary, resume: Deliver) -> None:
        self.spawn(fiber.rank, "boundary", self.boundary(fiber.rank, effect), resume)

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
