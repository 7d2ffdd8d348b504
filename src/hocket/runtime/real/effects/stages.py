"""How a real rank answers for its stage of a model: drawing, forward and backward."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from hocket.core.effects import Deliver
from hocket.core.stage_effects import Backward, Draw, Forward, Passed, Returned
from hocket.runtime.real.executors import Executors
from hocket.runtime.real.faults import Fate
from hocket.runtime.shared.context import RankContext
from hocket.runtime.shared.dispatch import Fiber, Handlers
from hocket.runtime.shared.stages.worker import stage_of
from hocket.runtime.shared.worker import Worker

Span: TypeAlias = Callable[[str, float, str], None]


class StageEffects:
    """The handlers of one rank."""

    def __init__(
        self,
        context: RankContext,
        worker: Worker,
        executors: Executors,
        span: Span,
        fate: Fate,
    ) -> None:
        self._context = context
        self._worker = worker
        self._executors = executors
        self._span = span
        self._fate = fate

    @property
    def handlers(self) -> Handlers:
        """The part of the table that is about stages."""
        return {Draw: self._draw, Forward: self._forward, Backward: self._backward}

    def _draw(self, fiber: Fiber, effect: Draw, deliver: Deliver) -> None:
        ticket = self._context.draw_item()
        if not ticket.dry:
            books = self._context.account.books
            books.draws += 1
            self._fate.drawn(books.draws)
        deliver(ticket, None)

    def _forward(self, fiber: Fiber, effect: Forward, deliver: Deliver) -> None:
        stage, state = stage_of(self._worker), self._context.worker_state
        kind = "forward" if effect.split == "train" else "evaluate"
        work = self._timed(kind, effect, lambda: stage.forward(effect, state))
        self._executors.compute(work, deliver)

    def _backward(self, fiber: Fiber, effect: Backward, deliver: Deliver) -> None:
        stage, state = stage_of(self._worker), self._context.worker_state

        def count(back: Returned) -> Returned:
            self._context.came_back(effect, back.grad)
            return back

        work = self._timed("backward", effect, lambda: stage.backward(effect, state))
        self._executors.compute(work, deliver, count)

    def _timed(
        self,
        kind: str,
        effect: Forward | Backward,
        work: Callable[[], Passed | Returned],
    ) -> Callable[[], Passed | Returned]:
        """Put the time of computing into the books and the trace."""

        def do() -> Passed | Returned:
            began = time.monotonic()
            done = work()
            if kind != "evaluate":
                self._context.account.books.compute_s += time.monotonic() - began
            self._span(kind, began, effect.ticket.describe(effect.part))
            return done

        return do
