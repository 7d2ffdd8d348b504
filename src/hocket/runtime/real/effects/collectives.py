"""How a real learner answers the effects that all learners share: collectives and evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hocket.core.accounts import Note, Tally
from hocket.core.effects import (
    AllReduce,
    AllToAll,
    Broadcast,
    CodedMean,
    Deliver,
    Evaluate,
    Grad,
    MeanGradient,
)
from hocket.errors import HocketError, WaitTimeoutError
from hocket.runtime.net.exchange import Exchange
from hocket.runtime.real.executors import Executors
from hocket.runtime.real.limits import gave_up
from hocket.runtime.shared import reductions
from hocket.runtime.shared.boundary_effects import Gather
from hocket.runtime.shared.context import RankContext
from hocket.runtime.shared.dispatch import Fiber, Handlers
from hocket.runtime.shared.worker import Worker

Span = Callable[[str, float], None]


class CollectiveEffects:
    """Collectives of one learner, in the order in which they are issued."""

    def __init__(
        self,
        context: RankContext,
        worker: Worker,
        exchange: Exchange | None,
        executors: Executors,
        span: Span,
        issuing: Callable[[int], None],
    ) -> None:
        self._context = context
        self._account = context.account
        self._worker = worker
        self._exchange = exchange  # None: this learner is alone
        self._executors = executors
        self._span = span
        self._issuing = issuing  # planned faults strike here
        self._timeout_s = context.experiment.options.timeout_s
        self._issued = 0
        self._ended = 0

    @property
    def handlers(self) -> Handlers:
        """How collectives and evaluation are begun."""
        return {
            AllReduce: self._all_reduce,
            CodedMean: self._coded_mean,
            Broadcast: self._broadcast,
            AllToAll: self._all_to_all,
            Gather: self._gather,
            Evaluate: self._evaluate,
        }

    @property
    def _others(self) -> Exchange:
        assert self._exchange is not None
        return self._exchange

    # ------------------------------------------------------------------ one by one

    def _all_reduce(self, fiber: Fiber, effect: AllReduce, deliver: Deliver) -> None:
        weight = self._context.weight_of(effect)
        if self._exchange is None:
            deliver(reductions.answer_alone(fiber.rank, effect, weight), None)
            return
        piggyback = self._context.piggyback(effect.group)
        size = effect.x.numel() * 4
        self._account.books.bytes_sent += self._others.reduced_bytes(size, effect.group)
        self.communicate(
            "allreduce",
            lambda: self._others.all_reduce(effect, weight, piggyback),
            deliver,
            everyone=effect.group is None,
        )

    def _coded_mean(self, fiber: Fiber, effect: CodedMean, deliver: Deliver) -> None:
        weight = self._context.weight_of(effect)
        if self._exchange is None:
            deliver(reductions.answer_alone(fiber.rank, effect, weight), None)
            return
        piggyback = self._context.piggyback(None)
        size = effect.coder.size.total
        self._account.books.bytes_sent += self._others.reduced_bytes(size)
        job = lambda: self._others.coded_mean(effect, weight, piggyback)  # noqa: E731
        self.communicate("coded_mean", job, deliver)

    def then_reduce(self, effect: MeanGradient, deliver: Deliver) -> Deliver:
        """Return what to do with a gradient once it is there: the mean over all learners."""

        def reduce(grad: Grad, error: BaseException | None) -> None:
            if error is not None or self._exchange is None:
                deliver(grad, error)
                return
            piggyback = self._context.piggyback(None)
            size = self._worker.layout.size * 4
            self._account.books.bytes_sent += self._others.reduced_bytes(size)
            lend = not self._executors.concurrent
            self.communicate(
                "mean_gradient",
                lambda: self._others.mean_gradient(grad, piggyback, lend=lend),
                deliver,
            )

        return reduce

    def _broadcast(self, fiber: Fiber, effect: Broadcast, deliver: Deliver) -> None:
        if self._exchange is None:
            deliver(reductions.answer_alone(fiber.rank, effect), None)
            return
        members = effect.group or self._account.alive
        if effect.root == fiber.rank:
            self._account.books.bytes_sent += effect.x.numel() * 4 * (len(members) - 1)
        job = lambda: self._others.broadcast(effect)  # noqa: E731
        self.communicate("broadcast", job, deliver, everyone=effect.group is None)

    def _all_to_all(self, fiber: Fiber, effect: AllToAll, deliver: Deliver) -> None:
        if self._exchange is None:
            deliver(reductions.answer_alone(fiber.rank, effect), None)
            return
        own = effect.stripes[0].numel() * effect.stripes[0].element_size()
        whole = sum(s.numel() * s.element_size() for s in effect.stripes)
        self._account.books.bytes_sent += whole - own
        job = lambda: self._others.all_to_all(effect)  # noqa: E731
        self.communicate("all_to_all", job, deliver, everyone=effect.group is None)

    def _gather(self, fiber: Fiber, effect: Gather, deliver: Deliver) -> None:
        if self._exchange is None:
            deliver(reductions.answer_alone(fiber.rank, effect), None)
        else:
            self.communicate("gather", lambda: self._others.gather(effect.value), deliver)

    def _evaluate(self, fiber: Fiber, effect: Evaluate, deliver: Deliver) -> None:
        def exchange(tally: Tally | None, error: BaseException | None) -> None:
            if tally is None:
                deliver(None, error)
            elif self._exchange is None:
                deliver(reductions.scores([tally]), None)
            else:
                self.communicate("evaluate", lambda: self._others.scores(tally), deliver)

        self._executors.compute(lambda: self._score(effect), exchange)

    def _score(self, effect: Evaluate) -> Tally:
        account, context = self._account, self._context
        items = reductions.slice_for(account.rank, account.learners, effect, account.pool)
        state = context.scoring_state or context.worker_state
        began = time.monotonic()
        tally = self._worker.score(effect.params, state, effect.which, items)
        self._span("evaluate", began)
        return tally

    def attend(self) -> None:
        """Answer learners that agree on a loss, while this one waits for something else.

        A waits for a message from B. B is in a collective that A has completed. B learns of a death
        there, and must hear from A who is alive.
        """
        if self._exchange is not None and self._issued == self._ended:
            self._exchange.attend()

    def await_call(self, deliver: Deliver) -> None:
        """Wait, as long as it takes, until another rank begins a collective of all or is lost."""
        if self._exchange is None:
            deliver(None, None)
            return
        self._issued += 1  # the links are in use: `attend` must not read them meanwhile

        def ended(value: Any, error: BaseException | None) -> None:
            self._ended += 1
            deliver(None, error)

        self._executors.communicate(self._exchange.await_call, ended)

    # ------------------------------------------------------------------ all alike

    def communicate(
        self, what: str, job: Callable[[], Any], deliver: Deliver, *, everyone: bool = True
    ) -> None:
        """Hold a collective; what was piggybacked is recorded when the answer is handed over."""
        self._issued += 1
        number = self._issued
        number_of_all = self._account.hand.begin_collective() if everyone else None
        self._issuing(number)
        self._others.take_back()  # on the loop: the strategy cannot be using it now

        def guarded() -> Any:
            began = time.monotonic()
            try:
                return job()
            except WaitTimeoutError as error:
                waited_s = time.monotonic() - began
                held = f"{what} (collective #{number})"
                raise gave_up(self._context.rank, held, waited_s, self._timeout_s, error) from error
            finally:
                self._span(what, began)

        self._executors.communicate(guarded, self._entering(deliver, number_of_all))

    def _entering(self, deliver: Deliver, number_of_all: int | None) -> Deliver:
        def arrive(result: tuple[Any, Note], error: BaseException | None) -> None:
            self._ended += 1
            if error is not None:
                deliver(None, error)
                return
            answer, note = result
            try:
                self._context.record(note, number_of_all)
            except HocketError as failure:
                deliver(None, failure)
            else:
                deliver(answer, None)

        return arrive
