"""Drives coroutines: hands each awaited effect to the world, and the answer back.

Common to both runtimes. Our own small loop and not asyncio: a switch costs under a microsecond,
and nothing else runs between two awaits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine
from typing import Any

from hocket.core.effects import Boundary, Deal, Deliver, Effect, Fork, Handle, Join, Settle, Start
from hocket.runtime.shared.account import Desk


class Task:
    """One coroutine of one rank."""

    __slots__ = ("awaiting", "coroutine", "name", "on_done", "rank")

    def __init__(
        self, rank: int, name: str, coroutine: Coroutine[Any, Any, Any], on_done: Deliver
    ) -> None:
        self.rank = rank
        self.name = name
        self.coroutine = coroutine
        self.on_done = on_done
        self.awaiting: Effect[Any] | None = None

    def describe(self) -> str:
        """Say what the task awaits."""
        return self.awaiting.describe() if self.awaiting is not None else "nothing"


class Trampoline(ABC):
    """The loop; a world says how an effect begins."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Task, Any, BaseException | None]] = deque()
        self.concurrent = False  # has any task forked or started a service?

    @abstractmethod
    def begin(self, task: Task, effect: Effect[Any], deliver: Deliver) -> None:
        """Begin an effect; `deliver` its answer now or later."""

    @abstractmethod
    def desk(self, rank: int) -> Desk:
        """Return a rank's desk."""

    @abstractmethod
    def boundary(self, rank: int, state: Any) -> Coroutine[Any, Any, Any]:
        """Return what happens at a boundary, as a coroutine."""

    def spawn(
        self, rank: int, name: str, coroutine: Coroutine[Any, Any, Any], on_done: Deliver
    ) -> Task:
        """Begin a task."""
        task = Task(rank, name, coroutine, on_done)
        self._ready.append((task, None, None))
        return task

    def drain(self) -> None:
        """Advance tasks until all of them wait for the world."""
        while self._ready:
            self._advance(*self._ready.popleft())

    def _advance(self, task: Task, value: Any, error: BaseException | None) -> None:
        task.awaiting = None
        try:
            if error is not None:
                effect = task.coroutine.throw(error)
            else:
                effect = task.coroutine.send(value)
        except StopIteration as stop:
            task.on_done(stop.value, None)
        except Exception as failure:
            task.on_done(None, failure)
        else:
            task.awaiting = effect
            try:
                self._dispatch(task, effect)
            except Exception as failure:  # the strategy's line that awaited it is in the traceback
                self._ready.append((task, None, failure))

    def _dispatch(self, task: Task, effect: Effect[Any]) -> None:
        def resume(value: Any, error: BaseException | None) -> None:
            self._ready.append((task, value, error))

        if isinstance(effect, Settle):
            self.desk(task.rank).settle(effect.outcome, effect.tickets)
            resume(None, None)
        elif isinstance(effect, Deal):
            self.desk(task.rank).deal(effect.num_learners)
            resume(None, None)
        elif isinstance(effect, Fork):
            self.concurrent = True
            resume(self._fork(task, effect), None)
        elif isinstance(effect, Join):
            self._join(effect.handle, resume)
        elif isinstance(effect, Start):
            self.concurrent = True
            self.started(self.spawn(task.rank, "service", effect.service, self.service_ended))
            resume(None, None)
        elif isinstance(effect, Boundary):
            self.spawn(task.rank, "boundary", self.boundary(task.rank, effect.state), resume)
        else:
            self.begin(task, effect, resume)

    def _fork(self, task: Task, effect: Fork) -> Handle[Any]:
        handle: Handle[Any] = Handle(effect.effect)
        desk, counted = self.desk(task.rank), int(task.name == "main")
        desk.forks += counted

        def deliver(value: Any, error: BaseException | None) -> None:
            desk.forks -= counted
            handle.done, handle.answer, handle.error = True, value, error
            if handle.waiter is not None:
                handle.waiter(value, error)

        self.begin(task, effect.effect, deliver)
        return handle

    @staticmethod
    def _join(handle: Handle[Any], resume: Deliver) -> None:
        if handle.done:
            resume(handle.answer, handle.error)
        else:
            handle.waiter = resume

    @abstractmethod
    def started(self, service: Task) -> None:
        """Take note of a service (for draining and for error messages)."""

    @abstractmethod
    def service_ended(self, value: Any, error: BaseException | None) -> None:
        """Take note of the end of a service: fine, unless it failed."""
