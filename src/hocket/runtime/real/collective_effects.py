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
    Deliver,
    Evaluate,
    Grad,
    MeanGradient,
)
from hocket.errors import HocketError, WaitTimeoutError
from hocket.runtime.net.exchange import NOTHING, Exchange, Piggyback
from hocket.runtime.real.executors import Executors
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

    def _piggyback(self) -> Piggyback:
        """Let the tally and a wish to stop be piggybacked on a collective of all."""
        if not self._context.experiment.strategy.synchronous:
            return NOTHING
        return Piggyback(self._account.tally.take(), self._context.agenda.stop_wanted)

    def _piggyback_in_group(self) -> Piggyback:
        """Piggyback a wish to meet all: members of a group must reach the same boundary."""
        if not self._context.experiment.strategy.moves_in_groups:
            return NOTHING
        return Piggyback(Tally(), self._context.agenda.wish().quiet)

    def _all_reduce(self, fiber: Fiber, effect: AllReduce, deliver: Deliver) -> None:
        pending = self._account.ledger.pending_frames
        weight = float(pending if effect.weight is None else effect.weight)
        if self._exchange is None:
            deliver(reductions.answer_alone(fiber.rank, effect, weight), None)
            return
        piggyback = self._piggyback() if effect.group is None else self._piggyback_in_group()
        size = effect.x.numel() * 4
        self._account.books.bytes_sent += self._others.reduced_bytes(size, effect.group)
        self.communicate(
            "allreduce",
            lambda: self._others.all_reduce(effect, weight, piggyback),
            deliver,
            everyone=effect.group is None,
        )

    def then_reduce(self, effect: MeanGradient, deliver: Deliver) -> Deliver:
        """Return what to do with a gradient once it is there: the mean over all learners."""

        def reduce(grad: Grad, error: BaseException | None) -> None:
            if error is not None or self._exchange is None:
                deliver(grad, error)
                return
            piggyback = self._piggyback()
            coded = effect.codec.coded_bytes(self._worker.layout.size)
            self._account.books.bytes_sent += self._others.reduced_bytes(coded)
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
        items = reductions.slice_of(
            reductions.num_scored(effect, account.pool),
            account.alive.index(account.rank),
            len(account.alive),
        )
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

    # ------------------------------------------------------------------ all alike

    def communicate(
        self, what: str, job: Callable[[], Any], deliver: Deliver, *, everyone: bool = True
    ) -> None:
        """Hold a collective; what was piggybacked is recorded when the answer is handed over."""
        self._issued += 1
        number = self._issued
        self._issuing(number)
        self._others.take_back()  # on the loop: the strategy cannot be using it now

        def guarded() -> Any:
            began = time.monotonic()
            try:
                return job()
            except WaitTimeoutError as error:
                waited_s = time.monotonic() - began
                raise self._timed_out(f"{what} (collective #{number})", waited_s, error) from error
            finally:
                self._span(what, began)

        self._executors.communicate(guarded, self._entering(deliver, everyone=everyone))

    def _timed_out(self, what: str, waited_s: float, error: WaitTimeoutError) -> WaitTimeoutError:
        return WaitTimeoutError(
            f"rank {self._context.rank} waited {waited_s:.1f} s for {what} and gave up: {error}. "
            "Another learner is stuck, paused or much slower: see what each was doing below; if it "
            f"is only slow, raise runtime.timeout_s (now {self._timeout_s:g})"
        )

    def _entering(self, deliver: Deliver, *, everyone: bool) -> Deliver:
        def arrive(result: tuple[Any, Note], error: BaseException | None) -> None:
            self._ended += 1
            if error is not None:
                deliver(None, error)
                return
            answer, note = result
            try:
                if everyone:
                    self._context.took_part(note)
                else:
                    self._context.trace("joined", "")
                    if note.rode:
                        self._context.agenda.group_wishes = note.stop
            except HocketError as failure:
                deliver(None, failure)
            else:
                deliver(answer, None)

        return arrive
