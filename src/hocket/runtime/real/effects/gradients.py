"""How a real rank takes gradients, and curvature products, on what it draws from the pool."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from hocket.core.effects import Curvature, Deliver, Grad, Gradient, MeanGradient, Product
from hocket.runtime.real.effects.collectives import CollectiveEffects
from hocket.runtime.real.executors import Executors
from hocket.runtime.real.faults import Fate
from hocket.runtime.real.timeline import Timeline
from hocket.runtime.shared.context import RankContext
from hocket.runtime.shared.dispatch import Fiber, Handlers
from hocket.runtime.shared.worker import Worker

Reached: TypeAlias = Callable[[str, str], None]  # notes what a replay needs


class GradientEffects:
    """The handlers of one rank."""

    def __init__(
        self,
        context: RankContext,
        worker: Worker,
        collectives: CollectiveEffects,
        executors: Executors,
        timeline: Timeline,
        fate: Fate,
        reached: Reached,
    ) -> None:
        self._context = context
        self._worker = worker
        self._collectives = collectives
        self._executors = executors
        self._timeline = timeline
        self._fate = fate
        self._reached = reached

    @property
    def handlers(self) -> Handlers:
        """The part of the table that is about whole models."""
        return {
            Gradient: self._gradient,
            MeanGradient: self._mean_gradient,
            Curvature: self._curvature,
        }

    def _mean_gradient(self, fiber: Fiber, effect: MeanGradient, deliver: Deliver) -> None:
        reduce = self._collectives.then_reduce(effect, deliver)
        self._gradient(fiber, Gradient(effect.params), reduce)

    def _gradient(self, fiber: Fiber, effect: Gradient, deliver: Deliver) -> None:
        ticket = self._context.draw(effect)
        if ticket.dry:
            self._reached("dry", "")
            dry = self._worker.dry(ticket)
            self._context.computed(effect, ticket, dry)
            deliver(dry, None)
            return
        books = self._context.account.books
        if effect.ticket is None:
            books.draws += 1
            self._fate.drawn(books.draws)

        def compute() -> Grad:
            began = time.monotonic()
            state = self._context.worker_state
            grad = self._worker.gradient(effect.params, ticket, state, effect.part)
            books.compute_s += time.monotonic() - began
            self._timeline.span("compute", began, ticket.describe(effect.part))
            return grad

        def finish(grad: Grad) -> Grad:
            self._reached("took", f"{ticket.epoch}/{ticket.index}")
            self._context.computed(effect, ticket, grad)
            return grad

        self._executors.compute(compute, deliver, finish)

    def _curvature(self, fiber: Fiber, effect: Curvature, deliver: Deliver) -> None:
        books, state = self._context.account.books, self._context.worker_state

        def compute() -> Product:
            began = time.monotonic()
            product = self._worker.curvature(effect.params, effect.direction, effect.tickets, state)
            books.compute_s += time.monotonic() - began
            books.product_frames += product.frames
            self._timeline.span("curvature", began)
            return product

        self._executors.compute(compute, deliver)
