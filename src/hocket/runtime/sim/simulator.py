"""A deterministic discrete-event simulator in which the mathematics is real.

Gradients are computed for real, one after another, on real data; only time, network and faults are
modelled (`hocket.runtime.sim.cost`). So one laptop can train with 128 learners, and say how long
the cluster would have taken. The same seed gives the same trace and the same parameters, bit for
bit.

A deadlock is an empty event heap: the error lists what every rank awaits.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from hocket.core import device
from hocket.core.effects import (
    AllReduce,
    AllToAll,
    Broadcast,
    Deliver,
    Effect,
    Evaluate,
    Grad,
    Gradient,
    MeanGradient,
    Message,
    Recv,
    Send,
)
from hocket.core.strategy import State
from hocket.data.ledger import Ledger
from hocket.data.shared_ledger import LocalCounters, open_ledger, save_counters
from hocket.errors import (
    DeadlockError,
    DivergedError,
    PeerLostError,
    require,
)
from hocket.experiment import Experiment
from hocket.record.checkpoint import Checkpoints, Saved
from hocket.runtime.shared import reductions
from hocket.runtime.shared.account import Account
from hocket.runtime.shared.boundary import Meeting, hold
from hocket.runtime.shared.boundary_effects import Gather, Quiet
from hocket.runtime.shared.context import RankContext
from hocket.runtime.shared.dispatch import Fiber, Handlers
from hocket.runtime.shared.inbox import Inbox
from hocket.runtime.shared.reductions import Post
from hocket.runtime.shared.restore import restore, restore_counters
from hocket.runtime.shared.worker import Worker
from hocket.runtime.sim.cost import EVALUATION_SPEED, Cluster, CostModel, Death
from hocket.runtime.sim.exchange import SimLearner, SimulatedExchange


class Simulator(SimulatedExchange):
    """Runs every learner of an experiment in one process, on a virtual clock."""

    def __init__(
        self,
        experiment: Experiment,
        cluster: Cluster,
        report: Callable[[dict[str, Any]], None],
        checkpoints: Checkpoints | None = None,
        saved: Saved | None = None,
    ) -> None:
        size = experiment.options.learners
        require(
            cluster.num_learners == size,
            f"the cluster has {cluster.num_learners} learners, but runtime.learners is {size}",
        )
        super().__init__(experiment, CostModel(cluster, experiment.options.seed))
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._pool = experiment.pool()
        self._worker = Worker(
            experiment.task,
            self._pool,
            experiment.options.seed,
            on=device.resolve(experiment.options.device, 0),
            precision=experiment.options.precision,
            natural_gradient=experiment.optimizer.natural_gradient,
        )
        self._counters = LocalCounters()
        self._report = report
        self._meeting = Meeting(
            self._worker.layout,
            self._worker.frozen,
            lambda: self.now,
            checkpoints,
            self._common_state,
            lambda r: self.learners[r].inbox.unread(),
            self.forks.__getitem__,
        )
        self._handlers: Handlers = {
            Gradient: self._gradient,
            MeanGradient: self._mean_gradient,
            Send: self._send,
            Recv: self._recv,
            Evaluate: self._evaluate,
            AllReduce: self._collective,
            Broadcast: self._collective,
            AllToAll: self._collective,
            Gather: self._collective,
            Quiet: self._collective,
        }
        if saved is not None and not experiment.strategy.synchronous:
            restore_counters(self._counters, saved, self.alive)
        self.learners = [self._learner(rank, saved) for rank in range(size)]
        if saved is not None:
            self.now = saved.run["time_s"]
            if saved.ranks == list(self.alive) and "cost" in saved.run:
                self._cost.load_state_dict(saved.run["cost"])
        self.learners[0].context.reporter.say(self._worker.notes)
        self._deaths_at_draw: dict[int, int] = {}
        self._planned: list[Death] = []
        self._plan_deaths(cluster.deaths, saved)

    def _learner(self, rank: int, saved: Saved | None) -> SimLearner:
        context = RankContext(
            Account(self._experiment, self._pool, rank, self._ledger(rank)),
            self._worker.new_state(),
            self._note_event,
            meets=self._meeting_rule(rank),
        )
        strategy = self._experiment.strategy
        state = strategy.init(self._worker.initial.clone(), self._experiment.optimizer)
        unread: list[Message] = []
        if saved is not None:
            state, unread = restore(context, state, saved, self._worker.layout)
        learner = SimLearner(context, state, Inbox(rank))
        for message in unread:
            learner.inbox.arrive(message)
        return learner

    def _ledger(self, rank: int) -> Ledger:
        synchronous = self._experiment.strategy.synchronous
        return open_ledger(self._pool, rank, self.alive, self._counters, synchronous=synchronous)

    def _meeting_rule(self, rank: int) -> Callable[[], bool] | None:
        """Return the rule by which a rank meets the others; None: by its agenda."""
        return None

    def _plan_deaths(self, deaths: tuple[Death, ...], saved: Saved | None) -> None:
        """Schedule the planned deaths; those that happened before a resumption are left out."""
        for death in deaths:
            if saved is not None and death.rank not in saved.ranks:
                continue
            if death.at_draw is not None:
                self._deaths_at_draw[death.rank] = death.at_draw
            elif death.at_s is not None and death.at_s >= self.now:
                self._at(death.at_s, partial(self._die, death.rank))
            else:
                continue
            self._planned.append(death)

    # ------------------------------------------------------------------ running

    def stop(self) -> None:
        """Ask to stop at the next boundary."""
        for learner in self.learners:
            learner.context.agenda.stop_wanted = True

    def run(self) -> State:
        """Run to the end and return the final state of the first learner alive."""
        for rank, learner in enumerate(self.learners):
            me = learner.context.learner(self._worker.layout)
            main = self._experiment.strategy.run(me, learner.state)
            learner.main = self.spawn(rank, "main", main, self._main_ended(rank))
            self.drain()  # one rank after the other, as after a quiet point
        while not self._over():
            self._raise_failure()
            if not self._heap:
                raise DeadlockError(self._deadlock())
            self.now, _, happen = heapq.heappop(self._heap)
            happen()
            self.drain()
            while self._unquiet and self._all_quiet():
                self._retry(*self._unquiet.pop())
                self.drain()
        self._raise_failure()
        self._check_lent()
        return self.learners[self.alive[0]].state

    def _over(self) -> bool:
        return all(self.learners[r].returned for r in self.alive)

    def _main_ended(self, rank: int) -> Deliver:
        def ended(value: Any, error: BaseException | None) -> None:
            if rank not in self._living:
                return
            if error is not None:
                error.add_note(f"(rank {rank}, at virtual time {self.now:.6f} s)")
                self._failure = self._failure or error
                return
            self.learners[rank].state = value
            self.learners[rank].returned = True

        return ended

    def service_ended(self, value: Any, error: BaseException | None) -> None:
        """Remember a service's failure; the end of a peer is none."""
        if error is not None and not isinstance(error, PeerLostError):
            self._failure = self._failure or error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, happen))

    def _deliver_at(self, when: float, rank: int, deliver: Deliver, value: Any) -> None:
        def happen() -> None:
            if rank in self._living:
                deliver(value, None)

        self._at(when, happen)

    def _deadlock(self) -> str:
        awaited: dict[str, list[int]] = defaultdict(list)
        for rank in self.alive:
            learner = self.learners[rank]
            if not learner.returned:
                awaited[self._describe(rank)].append(rank)
        lines = [
            f"rank {ranks[0]} awaits {what}"
            if len(ranks) == 1
            else f"ranks {', '.join(map(str, ranks))} await {what}"
            for what, ranks in awaited.items()
        ]
        return (
            f"Deadlock at virtual time {self.now:.6f} s: {'; '.join(lines)}. Nothing is under way "
            "that could wake any of them: the strategy's sends and receives, or its collectives, "
            "do not match."
        )

    def _describe(self, rank: int) -> str:
        for (group, number), gathering in self._gatherings.items():
            if rank in gathering.posts:
                name = gathering.posts[rank].effect.describe()
                return f"{name} #{number}" + (f" of group {group}" if group else "")
        main = self.learners[rank].main
        return main.describe() if main else "nothing"

    # ------------------------------------------------------------------ the trampoline's questions

    @property
    def handlers(self) -> Handlers:
        """The table of this world, by class of effect."""
        return self._handlers

    def context(self, rank: int) -> RankContext:
        """Return all that the runtime keeps for a rank."""
        return self.learners[rank].context

    def boundary(self, rank: int, state: Any) -> Coroutine[Any, Any, Any]:
        """Return what happens at a boundary."""
        return hold(self.learners[rank].context, state, self._meeting)

    def started(self, service: Fiber) -> None:
        """Remember a service, to know when all are idle."""
        self.learners[service.rank].services.append(service)

    def begin(self, fiber: Fiber, effect: Effect[Any], deliver: Deliver) -> None:
        """Begin an effect, unless its rank has died."""
        if fiber.rank in self._living:
            super().begin(fiber, effect, deliver)

    # ------------------------------------------------------------------ computing

    def _gradient(self, fiber: Fiber, effect: Gradient, deliver: Deliver) -> None:
        rank, context = fiber.rank, self.context(fiber.rank)
        ticket = effect.ticket or context.account.ledger.draw()
        if ticket.dry:
            deliver(self._worker.dry(ticket), None)
            return
        books = context.account.books
        books.draws += effect.ticket is None
        if self._deaths_at_draw.get(rank) == books.draws:
            self._die(rank)
            return
        grad = self._worker.gradient(effect.params, ticket, context.worker_state, effect.part)
        start, end = self._cost.compute(rank, self.now, grad.frames)
        books.compute_s += end - start
        self.trace.note(rank, "compute", start, end, ticket.describe(effect.part))

        def finished(value: Any, error: BaseException | None) -> None:
            try:
                context.drew(grad)
            except DivergedError as failure:
                value, error = None, failure
            deliver(value, error)

        self._deliver_at(end, rank, finished, grad)

    def _mean_gradient(self, fiber: Fiber, effect: MeanGradient, deliver: Deliver) -> None:
        def post(grad: Grad, error: BaseException | None) -> None:
            self._post(fiber.rank, Post(effect, self.now, deliver, grad, float(grad.frames)))

        self._gradient(fiber, Gradient(effect.params), post)

    def _collective(self, fiber: Fiber, effect: Effect[Any], deliver: Deliver) -> None:
        self._post(fiber.rank, Post(effect, self.now, deliver))

    def _evaluate(self, fiber: Fiber, effect: Evaluate, deliver: Deliver) -> None:
        rank, context = fiber.rank, self.context(fiber.rank)
        members = self.alive
        items = reductions.slice_of(
            reductions.num_scored(effect, self._pool), members.index(rank), len(members)
        )
        state = context.scoring_state or context.worker_state
        tally = self._worker.score(effect.params, state, effect.which, items)
        start, end = self._cost.compute(rank, self.now, tally.frames, EVALUATION_SPEED)
        self.trace.note(rank, "evaluate", start, end)
        post = Post(effect, end, deliver, tally)
        self._at(end, lambda: self._post(rank, post))

    # ------------------------------------------------------------------ faults

    def _die(self, rank: int) -> None:
        if rank not in self._living or self.learners[rank].returned:
            return
        self.alive = tuple(r for r in self.alive if r != rank)
        self._living.discard(rank)
        self.learners[rank].lost_s = self.now
        self.trace.note(rank, "lost", self.now, self.now)
        self._give_back()
        self._note_event(
            {
                "event": "lost",
                "frames": self.context(self.alive[0]).account.ledger.committed_frames,
                "epoch": self.context(self.alive[0]).account.ledger.epoch,
                "rank": rank,
                "reason": "planned fault",
            }
        )
        for r in self.alive:
            self.learners[r].inbox.lose(rank)
        for gathering in self._gatherings.values():
            gathering.posts.pop(rank, None)
        for key in list(self._gatherings):
            self._retry(*key)

    def _give_back(self) -> None:
        """Return what was lost to the pool at once; real learners do it at the next quiet point."""
        ledgers = [self.context(r).account.ledger for r in self.alive]
        behind = [ledger for ledger in ledgers if ledger.behind(self.alive)]
        if behind:
            held = [place for ledger in behind for place in ledger.pending_places()]
            behind[0].recover(held, self.alive)
            for ledger in behind:
                ledger.survived_by(self.alive)

    def deaths_to_come(self) -> list[Death]:
        """Return the planned deaths of learners that are still alive."""
        return [d for d in self._planned if d.rank in self._living]

    # ------------------------------------------------------------------ the record

    def _note_event(self, event: dict[str, Any]) -> None:
        self._report({"event": event["event"], "time_s": self.now, "clock": "virtual"} | event)

    def _common_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"cost": self._cost.state_dict()}
        if not self._experiment.strategy.synchronous:
            state["counters"] = save_counters(self._counters)
        return state
