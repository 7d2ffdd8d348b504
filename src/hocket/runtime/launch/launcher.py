"""Starts the learners of one host, serves their store, watches them, and ends them all at the end.

Learners are forked from a server process that has torch loaded already, so starting them costs
tenths of a second, not two seconds each. The launcher:

* on Ctrl-C, SIGTERM, SIGUSR1 or SIGUSR2 asks them to stop at the next boundary, with a checkpoint;
  a second Ctrl-C ends them at once;
* when one dies, records the loss and lets the others go on without it (`runtime.on_loss`);
* ends one that gives no sign of life for `runtime.silence_s`, so that it is lost for good;
* when one fails, asks the others what they were doing, ends them, and names the cause;
* leaves no process behind: learners also end by themselves when the launcher's pipe closes.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Literal

from hocket.core.accounts import LostLearner
from hocket.errors import ConfigError, WaitTimeoutError, require
from hocket.experiment import Experiment
from hocket.record.status import LearnerStatus, Status, StatusFile
from hocket.runtime.launch import groups, joining, learner_process, tokens
from hocket.runtime.launch.children import Child, tell_all
from hocket.runtime.launch.guests.arrivals import GuestBook, open_to_others
from hocket.runtime.launch.inquiry import Inquiry
from hocket.runtime.launch.regrouping import Regrouping
from hocket.runtime.net.libraries.mpi_group import wire_of_mpi
from hocket.runtime.net.store import Place
from hocket.runtime.net.store_server import StoreServer
from hocket.runtime.real.faults import Fault
from hocket.support.fork_server import fork_context
from hocket.support.signals import STOPPING, WARNINGS, on_signals, signals_held_back
from hocket.support.waiting import within

START_S = 180.0  # for all processes; loading torch takes seconds, on a slow disk a minute
PATIENCE_S = 5.0  # between asking a process to end and killing it
STORE_LIMIT_S = 30.0
_POLL_S = 0.2


@dataclass
class Launcher:
    """Runs one experiment in real processes."""

    experiment: Experiment
    run_dir: Path | None
    resume: bool
    report: Callable[[dict[str, Any]], None]
    say: Callable[[str], None] = print
    resumable: bool = True  # does the run directory outlive the run?
    faults: tuple[Fault, ...] = ()  # planned, by tests and benchmarks
    status: StatusFile | None = None  # how the run stands, for `hocket watch`
    total_frames: int = 0  # of the whole run
    children: list[Child] = field(default_factory=list)
    attending: frozenset[int] = frozenset()  # numbers of the ranks that only serve
    _regrouping: Regrouping | None = None
    _place: Place | None = None
    _server: StoreServer | None = None  # while learners use it
    _guests: GuestBook | None = None  # learners that other hosts bring
    _interrupts: int = 0
    _looked: float = 0.0

    def __post_init__(self) -> None:
        learners = self.experiment.options.learners
        self.attending = frozenset(range(learners, self.experiment.num_ranks))

    def run(self) -> list[dict[str, Any]]:
        """Run to the end and return the summaries of the survivors, in rank order."""
        place = self.open_place()
        try:
            self.open_door(place)
            with (
                on_signals(self._count_interrupt, [signal.SIGINT]),
                on_signals(self._heed_warning, WARNINGS),
            ):
                self._start(place)
                self._watch()
        finally:
            self._end_all()
            if self._regrouping is not None and self.run_dir is not None:
                joining.close_door(self.run_dir)
                self._regrouping.store.close()
            if self.status is not None and self.children:
                self.status.write(self.stands("ended"))
        return self.summaries

    def open_place(self) -> Place:
        """Open the store of the run, for learners of this host or, if asked, of others as well."""
        token, here = tokens.random().secret, self.experiment.options.listen
        if not here:
            self._server = StoreServer.nearby(token)
            return Place(self._server.address, token)
        self._server, arrivals = open_to_others(here, token)
        if self._server.address.startswith("127."):
            self.say(f"note: {here} is an address that only this host can reach (runtime.listen)")
        self._guests = GuestBook(arrivals)
        return Place(self._server.address, token, here)

    def ranks(self) -> list[int]:
        """Return what to start here: learners, who attends to them, other ranks of learners."""
        return list(range(self.experiment.num_processes))

    def attends(self, rank: int) -> bool:
        """True of a rank that draws nothing and serves the others, who cannot spare it."""
        return rank in self.attending

    def open_door(self, place: Place) -> None:
        """Let others ask to join; where there are several hosts, nobody can."""
        if self.run_dir is None:
            return
        self._place = place
        store = place.store(STORE_LIMIT_S)
        self._regrouping = Regrouping(store, self._begin, self._note_change, self.attending)
        call_at = self._guests.arrivals.place.address if self._guests else ""
        joining.leave_door_open(self.run_dir, place, call_at)

    def _begin(self, numbers: list[int], callers: list[int]) -> list[Child]:
        """Start newcomers, or seat those that another host has brought; they wait to be let in."""
        assert self._place is not None
        before = len(self.children)
        if callers and self._guests is not None:
            assert self._regrouping is not None
            self.children += self._guests.seat(callers, numbers, self._regrouping.store)
            return self.children[before:]
        require(not callers, "it takes in learners of its own host alone: see --listen")
        with signals_held_back():
            context = fork_context([learner_process.__name__])
            self._start_each(context, self._place, numbers, joins=True)
        return self.children[before:]

    def _note_change(self, kind: str, rank: int, facts: dict[str, Any]) -> None:
        """Put a joining or a polite leaving into the record."""
        where = self._furthest().vitals
        at = {"frames": where.frames, "epoch": where.epoch, "rank": rank}
        self.report({"event": kind, "time_s": self.now_s(), "clock": "wall", **at, **facts})

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """What the survivors report."""
        there = groups.learners_of(self.children)
        return [c.summary for c in there if c.summary is not None]

    @property
    def losses(self) -> list[LostLearner]:
        """The lost learners: who, when and why."""
        return [c.loss for c in self.children if c.loss is not None]

    def _start(self, place: Place) -> None:
        try:
            ForkingPickler.dumps(self.experiment)
        except Exception as error:
            raise ConfigError(
                f"the task or strategy cannot be sent to the learner processes ({error}): define "
                "its class at the top level of a module, and keep open files and lambdas out of it"
            ) from error
        try:
            within(START_S, lambda: self._start_all(place), "start")
        except TimeoutError as error:
            raise WaitTimeoutError(
                f"rank {len(self.children) - 1} was not started within {START_S:g} s: the server "
                "that learners are forked from is stuck or stopped, or cannot load its modules"
            ) from error

    def _start_all(self, place: Place) -> None:
        with signals_held_back():
            self._start_each(fork_context([learner_process.__name__]), place, self.ranks())

    def _start_each(
        self, context: ForkServerContext, place: Place, ranks: list[int], *, joins: bool = False
    ) -> None:
        wire = wire_of_mpi() if self.experiment.options.transport == "mpi" else None
        for local_rank, rank in enumerate(ranks, len(self.children)):
            ours, theirs = context.Pipe()
            orders = learner_process.Orders(
                self.experiment,
                rank,
                place,
                self.run_dir,
                self.resume,
                self.faults,
                local_rank,
                self.resumable,
                joins,
            )
            process = context.Process(
                target=learner_process.main,
                args=(orders, theirs, wire),
                name=f"hocket learner {rank}",
            )
            seat = None if joins else self.experiment.seat(rank)
            belongs_to = seat if seat is not None and seat.stage else None
            self.children.append(Child(rank, process, ours, waits=joins, belongs_to=belongs_to))
            process.start()
            theirs.close()  # else the end of the pipe would never be seen

    # ------------------------------------------------------------------ watching

    def _watch(self) -> None:
        told = 0
        self._looked = time.monotonic()
        for child in self.children:  # the first one may have been started long ago
            child.heard = self._looked
        while self.at_work():
            if self._interrupts > told:
                told = self._interrupts
                self._interrupted(told)
            by_pipe = {c.pipe.fileno(): c for c in self.children if c.working and not c.ended}
            for pipe in wait(list(by_pipe), timeout=_POLL_S):
                self._hear(by_pipe[pipe])  # type: ignore[index]
            failed = next((c for c in self.children if c.failure and c.loss is None), None)
            if failed is not None and failed.waits:
                failed = None  # `Regrouping` turns it away
            if failed is not None:
                raise self._inquiry().cause(failed)
            self._fence_the_silent()
            self.look_around()
            if self.status is not None and self.status.due():
                self.status.write(self.stands("running"))

    def stands(self, state: Literal["running", "ended"]) -> Status:
        """Return how the run stands, by the last signs of life."""
        where = self._furthest().vitals
        learners = tuple(sorted(self.learners_stand(), key=lambda one: one.rank))
        train_s = where.time_s - where.aside_s
        return Status(
            where.time_s,
            train_s,
            "wall",
            where.frames,
            self.total_frames,
            where.epoch,
            state,
            learners,
        )

    def learners_stand(self) -> list[LearnerStatus]:
        """Return how each learner stands."""
        here = socket.gethostname()
        return [child.stands(here) for child in groups.learners_of(self.children)]

    def at_work(self) -> bool:
        """True while any learner works."""
        return any(c.working and not c.waits for c in self.children)

    def look_around(self) -> None:
        """See who wants to join or to leave; with several hosts: what the others report."""
        if self._guests is not None:
            self._guests.look()
        if self._regrouping is not None:
            stopping = self._interrupts > 0
            grouped = self.experiment.options.ranks_per_learner > 1  # these take nobody in
            there = groups.learners_of(self.children) if grouped else self.children
            self.experiment = self._regrouping.look(self.experiment, there, stopping=stopping)

    def note_event(self, event: dict[str, Any]) -> None:
        """Pass an event on to the record; with several hosts, the first one keeps it."""
        self.report(event)

    def _hear(self, child: Child) -> None:
        said = child.receive()
        if said is None and child.waits:
            child.process.join(PATIENCE_S)
            child.ended = True
        elif said is None:
            child.process.join(PATIENCE_S)
            self._gone(child, child.ended_by())
        elif said[0] == "event":
            self.note_event(said[1])
        elif said[0] == "failed" and not child.waits:
            if child.failure and child.failure[0] == "FencedError":
                self._gone(child, child.failure[1])
        elif said[0] == "leaving" and child.belongs_to is not None:
            groups.first_of(self.children, child).leaving = True

    def _fence_the_silent(self) -> None:
        """End learners that give no sign of life, unless this launcher itself was stopped."""
        now, limit = time.monotonic(), self.experiment.options.silence_s
        if now - self._looked > limit / 2:  # stopped (Ctrl-Z), perhaps together with the learners
            for child in self.children:
                child.heard = now
        self._looked = now
        for child in self.children:
            if not child.started and child.at_work():
                child.heard = now
            late = now - child.heard > limit
            if child.working and late and not child.silent:
                child.fence()  # the end of its pipe follows

    def _count_interrupt(self) -> None:
        self._interrupts += 1

    def _heed_warning(self) -> None:
        """Stop with a checkpoint; a scheduler that warns again does not hurry anybody."""
        self._interrupts = max(self._interrupts, 1)

    def _interrupted(self, count: int) -> None:
        if count > 1:
            raise KeyboardInterrupt
        self.say(STOPPING)
        tell_all(self.children, learner_process.STOP)

    # ------------------------------------------------------------------ losses

    def _gone(self, child: Child, reason: str) -> None:
        """Go on without a learner, or stop, as runtime.on_loss says."""
        if child.belongs_to is not None:
            self._member_gone(child)
            return
        others = groups.others_of(self.children, child)
        if groups.failed_before(others):
            return  # which is looked at next
        first = groups.ended_first(child, others)
        if first is not child:
            reason = groups.why_lost(first)
        if not child.met or not self.experiment.goes_on_without or self.attends(child.rank):
            raise self._inquiry().died(first)
        self.note_loss(child.lose(self.now_s(), reason))
        groups.dismiss(others)
        if not self.anybody_left():
            raise self._inquiry().died(first)

    def _member_gone(self, member: Child) -> None:
        """Lose the learner that a rank belonged to, unless it has ended itself."""
        first = groups.first_of(self.children, member)
        if first.working and not (first.met and member.met):
            raise self._inquiry().died(member)
        member.left = True
        if first.working:
            first.process.kill()
            first.process.join(PATIENCE_S)
            self._gone(first, groups.why_lost(member))

    def anybody_left(self) -> bool:
        """True if a learner works or has finished."""
        there = groups.learners_of(self.children)
        learners = [c for c in there if not self.attends(c.rank)]
        return any(c.working or c.summary is not None for c in learners)

    def _inquiry(self) -> Inquiry:
        """Return the means to find out who failed, and why."""
        kept = self.run_dir if self.resumable else None
        by = self.experiment.strategy.attends_by
        return Inquiry(self.children, self.attending, by, kept, self.anybody_left)

    def _furthest(self) -> Child:
        """Return the child whose last sign of life is the most recent in the run."""
        return max(self.children, key=lambda c: (c.vitals.time_s, c.vitals.frames))

    def now_s(self) -> float:
        """Return the time of the run, by the last sign of life of its learners."""
        best = self._furthest()
        return best.vitals.time_s + time.monotonic() - best.heard

    def note_loss(self, loss: LostLearner) -> None:
        """Put a loss into the record, with how far the run was."""
        where = self._furthest().vitals
        self.report(
            {
                "event": "lost",
                "time_s": loss.time_s,
                "clock": "wall",
                "frames": where.frames,
                "epoch": where.epoch,
                "rank": loss.rank,
                "reason": loss.reason,
            }
        )

    # ------------------------------------------------------------------ ending

    def _end_all(self) -> None:
        """End every process of this launcher: close its pipe, then kill it if it stays."""
        for child in self.children:
            child.pipe.close()
        for child in self.children:
            if child.process.pid is None:
                continue
            child.process.join(PATIENCE_S)
            if child.process.is_alive():
                child.process.kill()
                child.process.join(PATIENCE_S)
        if self._guests is not None:
            self._guests.close()
        if self._server is not None:
            self._server.close()
