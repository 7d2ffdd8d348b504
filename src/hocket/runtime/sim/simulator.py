"""A deterministic discrete-event simulator in which the mathematics is real.

Gradients are computed for real, one after another, on real data; only time, network and faults are
modelled (`hocket.runtime.sim.cost`). So one laptop can train with 128 learners, and say how long
the cluster would have taken. The same seed gives the same trace and the same parameters, bit for
bit.

A deadlock is an empty event heap: the error lists what every rank awaits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from hocket.core.effects import (
    AllReduce,
    AllToAll,
    Boundary,
    Broadcast,
    CodedMean,
    Curvature,
    Deliver,
    Evaluate,
    Grad,
    Gradient,
    MeanGradient,
    Message,
    Recv,
    Send,
    Spend,
)
from hocket.core.stage_effects import (
    Backward,
    Draw,
    Forward,
)
from hocket.core.strategy import State
from hocket.data.counters import LocalCounters
from hocket.data.ledger import Ledger
from hocket.data.shared_ledger import open_ledger
from hocket.errors import (
    DeadlockError,
    DivergedError,
    PeerLostError,
    require,
)
from hocket.experiment import Experiment
from hocket.record.checkpoint import Checkpoints, Saved
from hocket.runtime.shared import reductions
from hocket.runtime.shared.boundary import BoundaryServices, at_boundary
from hocket.runtime.shared.boundary_effects import Attend, Gather, Quiet, Regroup, Resume
from hocket.runtime.shared.context import RankContext
from hocket.runtime.shared.context.account import Account
from hocket.runtime.shared.dispatch import Fiber, Handlers
from hocket.runtime.shared.inbox import Inbox
from hocket.runtime.shared.reductions import Post
from hocket.runtime.shared.restore import fitting, restore, restore_counters, same_ranks
from hocket.runtime.sim.cost import Cluster
from hocket.runtime.sim.exchange import SimLearner
from hocket.runtime.sim.joins import Group
from hocket.runtime.sim.stages import SimulatedStages
from hocket.support.progress import Pace


class Simulator(SimulatedStages):
    """Runs every learner of an experiment in one process, on a virtual clock."""

    def __init__(
        self,
        experiment: Experiment,
        cluster: Cluster,
        report: Callable[[dict[str, Any]], None],
        checkpoints: Checkpoints | None = None,
        saved: Saved | None = None,
        *,
        group: Group | None = None,  # of an earlier phase, with newcomers
    ) -> None:
        size = experiment.options.learners
        require(
            cluster.num_learners == size,
            f"the cluster has {cluster.num_learners} learners, but runtime.learners is {size}",
        )
        attendants = experiment.num_ranks - size
        require(
            cluster.num_attendants in (0, attendants),
            f"the cluster has places for {cluster.num_attendants} attendants ([[hosts]] "
            f"attendants), but {experiment.strategy.name!r} needs {attendants}: leave them out, or "
            "make them agree",
        )
        most = experiment.options.ranks_per_learner
        for death in cluster.deaths:
            require(
                death.stage <= most,
                f"[[deaths]] of rank {death.rank} names stage {death.stage}, but each learner has "
                f"{most} (runtime.ranks_per_learner)",
            )
        self._group = group or Group.first(experiment, cluster)
        cost = self._group.cost(cluster, experiment.options.seed, attendants)
        super().__init__(experiment, cost)
        experiment = self._experiment
        self.trace, self._checkpoints = self._group.trace, checkpoints
        self._pace = Pace(0.5)  # of the display, by the clock; nothing depends on it
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._open_workers(new=saved is None)
        self._worker = self.worker(0)
        self._group.worker, self._pool = self._worker, self._worker.pool
        self._counters = LocalCounters()
        self._report = report
        self._boundary_services = BoundaryServices(
            self._worker.layout,
            self._worker.frozen,
            lambda: self.now,
            checkpoints,
            self._common_state,
            lambda r: self.learners[r].inbox.unread(),
            self.forks.__getitem__,
            lambda: self._memory,  # type: ignore[arg-type, return-value]
        )
        self._handlers: Handlers = {
            Gradient: self._gradient,
            Curvature: self._curvature,
            MeanGradient: self._mean_gradient,
            Draw: self._draw,
            Forward: self._forward,
            Backward: self._backward,
            Send: self._send,
            Recv: self._recv,
            Evaluate: self._evaluate,
            AllReduce: self._all_reduce,
            CodedMean: self._coded_mean,
            Broadcast: self._broadcast,
            AllToAll: self._all_to_all,
            Gather: self._gather,
            Quiet: self._quiet,
            Attend: self._attend,
            Resume: self._resume,
            Regroup: self._regroup,
            Spend: self._spend,
        }
        if saved is not None and not experiment.strategy.synchronous:
            restore_counters(self._counters, self._pool, saved, self.alive, size)
        self.learners = [self._learner(rank, saved) for rank in self.alive]
        if saved is not None:
            self.now = saved.run["time_s"]
            if same_ranks(saved, self._pool, self.alive, size) and "cost" in saved.run:
                with fitting(saved):
                    self._cost.load_state_dict(saved.run["cost"])
        if saved is not None and saved.staying:
            self._plan(cluster, None)
            self._plan_joins()
            return
        placement = experiment.strategy.placement(self._worker.layout, size)
        sizes = experiment.coded_size(self._worker.layout)
        self.learners[0].context.reporter.say([*self._worker.notes, *placement, *sizes])
        self._plan(cluster, saved)
        self._plan_joins()

    def _learner(self, rank: int, saved: Saved | None) -> SimLearner:
        context = RankContext(
            Account(self._experiment, self._pool, rank, self._ledger(rank)),
            self.worker(rank).new_state(),
            self._note_event,
            progressed=partial(self._show_progress, rank),
            trace=self._noted(rank),
            meets=self._meeting_rule(rank),
            queued=lambda tag: self.learners[rank].inbox.queued(tag),
        )
        worker = self.worker(rank)
        state = self._experiment.first_state(worker.first_params(), worker.layout)
        unread: list[Message] = []
        if saved is not None:
            state, unread = restore(context, state, saved, worker.layout, worker.place)
            name = self._group.names[rank]
            if saved.staying and name in self._group.jitter:  # it was there before
                context.account.books = self._group.past[name].books
        learner = SimLearner(context, state, Inbox(rank))
        for message in unread:
            learner.inbox.arrive(message)
        return learner

    def _ledger(self, rank: int) -> Ledger:
        learners = tuple(range(self._experiment.options.learners))
        return open_ledger(
            self._pool,
            rank,
            learners,
            self._counters,
            synchronous=self._experiment.strategy.synchronous,
            attendants=self._experiment.num_ranks - len(learners),
        )

    def _noted(self, rank: int) -> Callable[[str, str], None]:
        """Return what to do with notes for a replay; here they are not needed."""
        return lambda what, detail: None

    def _meeting_rule(self, rank: int) -> Callable[[], bool] | None:
        """Return the rule by which a rank meets the others; None: by its agenda."""
        return None

    # ------------------------------------------------------------------ running

    def stop(self) -> None:
        """Ask to stop at the next boundary."""
        for learner in self.learners:
            learner.context.agenda.stop_wanted = True

    def run(self) -> State:
        """Run to the end and return the final state of the first learner alive."""
        for rank, learner in enumerate(self.learners):
            worker = self.worker(rank)
            me = learner.context.learner(worker.layout, worker.place)
            main = self._experiment.strategy.run(me, learner.state)
            learner.main = self.spawn(rank, "main", main, self._main_ended(rank))
            self.drain()  # one rank after the other, as after a quiet point
        while not self._over():
            self._raise_failure()
            if self.regrouped:
                return self.learners[self.alive[0]].state
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

    def service_ended(self, rank: int, value: Any, error: BaseException | None) -> None:
        """Remember a service's failure; the loss of a peer is not a failure."""
        if rank in self._living and not isinstance(error, PeerLostError):
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

    # ------------------------------------------------------------------ the trampoline's questions

    @property
    def handlers(self) -> Handlers:
        """The table of this world, by class of effect."""
        return self._handlers

    def context(self, rank: int) -> RankContext:
        """Return all that the runtime keeps for a rank."""
        return self.learners[rank].context

    def boundary(self, rank: int, effect: Boundary) -> Coroutine[Any, Any, Any]:
        """Return what happens at a boundary."""
        context, worker = self.learners[rank].context, self.worker(rank)
        services = replace(self._boundary_services, layout=worker.layout, frozen=worker.frozen)
        return at_boundary(context, effect.state, services, effect.kind)

    def started(self, service: Fiber) -> None:
        """Remember a service, to know when all are idle."""
        self.learners[service.rank].services.append(service)

    # ------------------------------------------------------------------ computing

    def _gradient(self, fiber: Fiber, effect: Gradient, deliver: Deliver) -> None:
        rank, context = fiber.rank, self.context(fiber.rank)
        ticket = context.draw(effect)
        if ticket.dry:
            dry = self._worker.dry(ticket)
            context.computed(effect, ticket, dry)
            deliver(dry, None)
            return
        books = context.account.books
        books.draws += effect.ticket is None
        if self._deaths_at_draw.get(rank) == books.draws:
            self._die_as_planned(rank)
            return
        grad = self._worker.gradient(effect.params, ticket, context.worker_state, effect.part)
        start, end = self._compute(rank, grad.frames)
        books.compute_s += end - start
        self.trace.note(rank, "compute", start, end, ticket.describe(effect.part))

        def finished(value: Any, error: BaseException | None) -> None:
            try:
                context.computed(effect, ticket, grad)
            except DivergedError as failure:
                value, error = None, failure
            deliver(value, error)

        self._deliver_at(end, rank, finished, grad)

    def _mean_gradient(self, fiber: Fiber, effect: MeanGradient, deliver: Deliver) -> None:
        def post(grad: Grad, error: BaseException | None) -> None:
            along = self.context(fiber.rank).piggyback(None)
            self._post(
                fiber.rank,
                Post(
                    effect,
                    self.now,
                    deliver,
                    grad,
                    float(grad.frames),
                    piggyback=along,
                    lends=True,
                ),
            )

        self._gradient(fiber, Gradient(effect.params), post)

    def _curvature(self, fiber: Fiber, effect: Curvature, deliver: Deliver) -> None:
        rank, context = fiber.rank, self.context(fiber.rank)
        state, books = context.worker_state, context.account.books
        product = self._worker.curvature(effect.params, effect.direction, effect.tickets, state)
        start, end = self._cost.compute(rank, self.now, product.frames, 1 / product.cost)
        books.compute_s += end - start
        books.product_frames += product.frames
        self.trace.note(rank, "curvature", start, end)
        self._deliver_at(end, rank, deliver, product)

    def _resume(self, fiber: Fiber, effect: Resume, deliver: Deliver) -> None:
        deliver(None, None)

    def _spend(self, fiber: Fiber, effect: Spend, deliver: Deliver) -> None:
        start, end = self._cost.arithmetic(fiber.rank, self.now, effect.num_values)
        self.trace.note(fiber.rank, "arithmetic", start, end)
        self._deliver_at(end, fiber.rank, deliver, None)

    def _evaluate(self, fiber: Fiber, effect: Evaluate, deliver: Deliver) -> None:
        rank, context = fiber.rank, self.context(fiber.rank)
        items = reductions.slice_for(rank, self._living_learners, effect, self._pool)
        state = context.scoring_state or context.worker_state
        tally = self._worker.score(effect.params, state, effect.which, items)
        start, end = self._compute_scores(rank, tally.frames, len(items))
        self.trace.note(rank, "evaluate", start, end)
        post = Post(effect, end, deliver, tally)
        self._at(end, lambda: self._post(rank, post))

    # ------------------------------------------------------------------ the record

    def _again(self, experiment: Experiment, saved: Saved, group: Group) -> Simulator:
        cluster = group.phase_of(experiment.options.learners)
        return Simulator(experiment, cluster, self._report, self._checkpoints, saved, group=group)

    def _report_event(self, event: dict[str, Any]) -> None:
        self._report({"event": event["event"], "time_s": self.now, "clock": "virtual"} | event)

    def _note_event(self, event: dict[str, Any]) -> None:
        if event.get("rank") is not None:
            event = event | {"rank": self._group.names[event["rank"]]}
        self._report_event(event)

    def _show_progress(self, rank: int) -> None:
        """Show what a strategy tells of itself; other methods have their train events."""
        if self.learners and rank == self.alive[0]:
            reporter = self.context(rank).reporter
            if reporter.doing and self._pace.due():
                self._note_event(reporter.progress())

    def _common_state(self) -> dict[str, Any]:
        return {"cost": self._cost.state_dict()} | (
            {"group": self._group.state_dict()} if self._group.cluster.joins else {}
        )
