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
    Effect,
    Evaluate,
    Grad,
    Mean,
    MeanGradient,
)
from hocket.errors import ContractError, HocketError, WaitTimeoutError
from hocket.runtime.net.exchange import NOTHING, Exchange, Riding
from hocket.runtime.real.executors import Jobs
from hocket.runtime.shared import reductions
from hocket.runtime.shared.account import Desk
from hocket.runtime.shared.boundary_effects import Gather
from hocket.runtime.shared.worker import Worker

Span = Callable[[str, float], None]


class Together:
    """Collectives of one learner, in the order in which they are issued."""

    def __init__(
        self, desk: Desk, worker: Worker, exchange: Exchange | None, jobs: Jobs, span: Span
    ) -> None:
        self._desk = desk
        self._worker = worker
        self._exchange = exchange  # None: there is nobody else
        self._jobs = jobs
        self._span = span
        self._timeout_s = desk.experiment.options.timeout_s
        self.issued = 0
        self._ended = 0
        self.issuing: Callable[[int], None] = lambda number: None  # planned faults strike here

    @property
    def _others(self) -> Exchange:
        assert self._exchange is not None
        return self._exchange

    def begin(self, effect: Effect[Any], deliver: Deliver) -> None:
        """Begin a collective of any kind."""
        if isinstance(effect, Evaluate):
            self._evaluate(effect, deliver)
        elif self._exchange is None:
            self._alone(effect, deliver)
        elif isinstance(effect, AllReduce):
            self._all_reduce(effect, deliver)
        elif isinstance(effect, Broadcast):
            self._broadcast(effect, deliver)
        elif isinstance(effect, AllToAll):
            self._all_to_all(effect, deliver)
        elif isinstance(effect, Gather):
            value = effect.value
            self.communicate("gather", lambda: self._others.gather(value), deliver)
        else:
            raise ContractError(
                f"rank {self._desk.rank} awaited {effect!r}, which is not an effect"
            )

    def _alone(self, effect: Effect[Any], deliver: Deliver) -> None:
        """Answer a collective of one."""
        if isinstance(effect, AllReduce):
            weight = effect.weight if effect.weight is not None else self._pending
            value = effect.x if effect.in_place else effect.x.clone()
            deliver(Mean(value, 1, float(weight)), None)
        elif isinstance(effect, Broadcast):
            deliver(effect.x.clone(), None)
        elif isinstance(effect, AllToAll):
            deliver([s.clone() for s in effect.stripes], None)
        elif isinstance(effect, Gather):
            deliver([effect.value], None)
        else:
            raise ContractError(
                f"rank {self._desk.rank} awaited {effect!r}, which is not an effect"
            )

    # ------------------------------------------------------------------ one by one

    @property
    def _pending(self) -> int:
        return self._desk.ledger.pending_frames

    def _riding(self) -> Riding:
        """Let the tally and a wish to stop ride along with a collective of all."""
        if not self._desk.experiment.strategy.synchronous:
            return NOTHING
        return Riding(self._desk.own_tally.take(), self._desk.stop_wanted)

    def _riding_in_group(self) -> Riding:
        """Let a wish to meet all ride along: members of a group must reach the same boundary."""
        if not self._desk.experiment.strategy.moves_in_groups:
            return NOTHING
        return Riding(Tally(), self._desk.wish().quiet)

    def _all_reduce(self, effect: AllReduce, deliver: Deliver) -> None:
        weight = float(self._pending if effect.weight is None else effect.weight)
        riding = self._riding() if effect.group is None else self._riding_in_group()
        size = effect.x.numel() * 4
        self._desk.books.bytes_sent += self._others.reduced_bytes(size, effect.group)
        self.communicate(
            "allreduce",
            lambda: self._others.all_reduce(effect, weight, riding),
            deliver,
            everyone=effect.group is None,
        )

    def then_reduce(self, effect: MeanGradient, deliver: Deliver) -> Deliver:
        """Return what to do with a gradient once it is there: the mean over all learners."""

        def reduce(grad: Grad, error: BaseException | None) -> None:
            if error is not None or self._exchange is None:
                deliver(grad, error)
                return
            riding = self._riding()
            coded = effect.codec.coded_bytes(self._worker.layout.size)
            self._desk.books.bytes_sent += self._others.reduced_bytes(coded)
            lend = not self._jobs.concurrent
            self.communicate(
                "mean_gradient",
                lambda: self._others.mean_gradient(grad, riding, lend=lend),
                deliver,
            )

        return reduce

    def _broadcast(self, effect: Broadcast, deliver: Deliver) -> None:
        members = effect.group or self._desk.alive
        if effect.root == self._desk.rank:
            self._desk.books.bytes_sent += effect.x.numel() * 4 * (len(members) - 1)
        job = lambda: self._others.broadcast(effect)  # noqa: E731
        self.communicate("broadcast", job, deliver, everyone=effect.group is None)

    def _all_to_all(self, effect: AllToAll, deliver: Deliver) -> None:
        own = effect.stripes[0].numel() * effect.stripes[0].element_size()
        whole = sum(s.numel() * s.element_size() for s in effect.stripes)
        self._desk.books.bytes_sent += whole - own
        job = lambda: self._others.all_to_all(effect)  # noqa: E731
        self.communicate("all_to_all", job, deliver, everyone=effect.group is None)

    def _evaluate(self, effect: Evaluate, deliver: Deliver) -> None:
        def exchange(tally: Tally | None, error: BaseException | None) -> None:
            if tally is None:
                deliver(None, error)
            elif self._exchange is None:
                deliver(reductions.scores([tally]), None)
            else:
                self.communicate("evaluate", lambda: self._others.scores(tally), deliver)

        self._jobs.compute(lambda: self._score(effect), exchange)

    def _score(self, effect: Evaluate) -> Tally:
        desk = self._desk
        items = reductions.slice_of(
            reductions.num_scored(effect, desk.pool), desk.alive.index(desk.rank), len(desk.alive)
        )
        state = desk.scoring_state or desk.worker_state
        began = time.monotonic()
        tally = self._worker.score(effect.params, state, effect.which, items)
        self._span("evaluate", began)
        return tally

    def attend(self) -> None:
        """Answer those who agree on a loss, while this learner waits for something else.

        A waits for a message from B; B is in a collective that A has completed, learns of a death
        there, and must hear from A who lives.
        """
        if self._exchange is not None and self.issued == self._ended:
            self._exchange.attend()

    # ------------------------------------------------------------------ all alike

    def communicate(
        self, what: str, job: Callable[[], Any], deliver: Deliver, *, everyone: bool = True
    ) -> None:
        """Hold a collective; what rode along is entered when the answer is handed over."""
        self.issued += 1
        number = self.issued
        self.issuing(number)
        self._others.take_back()  # here on the loop, where the strategy cannot be using it

        def guarded() -> Any:
            began = time.monotonic()
            try:
                return job()
            except WaitTimeoutError as error:
                waited_s = time.monotonic() - began
                raise self._timed_out(f"{what} (collective #{number})", waited_s, error) from error
            finally:
                self._span(what, began)

        self._jobs.communicate(guarded, self._entering(deliver, everyone=everyone))

    def _timed_out(self, what: str, waited_s: float, error: WaitTimeoutError) -> WaitTimeoutError:
        return WaitTimeoutError(
            f"rank {self._desk.rank} waited {waited_s:.1f} s for {what} and gave up: {error}. "
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
                    self._desk.took_part(note)
                else:
                    self._desk.record("joined", "")
                    if note.rode:
                        self._desk.group_wishes = note.stop
            except HocketError as failure:
                deliver(None, failure)
            else:
                deliver(answer, None)

        return arrive
