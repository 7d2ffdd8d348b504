"""The program of one learner process: what the launcher starts.

It obeys its launcher through a pipe (stop, status), and ends when the pipe closes: no learner
outlives its launcher, also not after `kill -9` of it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch

from hocket.core.accounts import Books, Vitals
from hocket.errors import WaitTimeoutError
from hocket.experiment import Experiment
from hocket.record.checkpoint import Checkpoints, Saved
from hocket.record.rundir import RunDirectory
from hocket.runtime.net.addresses import own_address
from hocket.runtime.net.libraries.mpi_group import end_mpi, take_wire
from hocket.runtime.net.store import Place
from hocket.runtime.real.faults import Fate, Fault
from hocket.runtime.real.members import MemberRuntime, StageLostError, line_of
from hocket.runtime.real.process import ProcessRuntime, TakenAlong
from hocket.runtime.shared.stages.making import stage_for_group, worker_of
from hocket.support.ownership import help_in
from hocket.support.signals import (
    STOP_SIGNALS,
    WARNINGS,
    leave_to_parent,
    react_from_now_on,
)

STOP = "stop"  # an order: end at the next boundary, with a checkpoint
MEET, LEAVE = "meet", "leave"  # orders: to leave the group for another one; for good
ORPHANED = 3  # exit code of a learner whose launcher has gone
LAST_WORDS = {"done": 0, "left": 0, "failed": 1}  # and of one that has said so; it may go then


@dataclass(frozen=True)
class Orders:
    """What a learner needs to know to run."""

    experiment: Experiment
    rank: int
    place: Place
    run_dir: Path | None
    resume: bool
    faults: tuple[Fault, ...] = ()
    local_rank: int = 0
    resumable: bool = True  # does the run directory outlive the run?
    joins: bool = False  # a running group, when it is told its place in it


@dataclass(frozen=True)
class NextGroup:
    """A learner's place in a group that has changed."""

    number: int
    num_learners: int
    rank: int
    names: tuple[int, ...]  # of each rank: its number in the record
    staying: tuple[int, ...]  # ranks of the group before that go on, in the order of theirs now

    def saved(self, checkpoints: Checkpoints) -> Saved:
        """Return what the group before has left, those who stay first."""
        saved = checkpoints.latest()
        others = [rank for rank in saved.ranks if rank not in self.staying]
        saved.run["ranks"] = [*self.staying, *others]
        saved.staying = len(self.staying)
        return saved


class Pipe(Protocol):
    """One end of what a launcher and a learner talk through."""

    def send(self, message: Any, /) -> None:
        """Send something; OSError if the other end has gone."""
        ...

    def recv(self) -> Any:
        """Receive something, and wait for it; EOFError or OSError if the other end has gone."""
        ...

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


class Obeys(Protocol):
    """What a launcher's orders are for."""

    def stop(self) -> None:
        """Stop at the next boundary."""
        ...

    def meet(self) -> None:
        """Meet the others."""
        ...

    def describe(self) -> str:
        """Say what it is doing."""
        ...

    def vitals(self) -> Vitals:
        """Return its signs of life."""
        ...


class Control:
    """The learner's end of the pipe; its threads give signs of life while the learner computes."""

    def __init__(self, pipe: Pipe, alive_every_s: float) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._stop = False
        self._leaving = threading.Event()
        self._told_leaving = False
        self._phases: queue.Queue[NextGroup | None] = queue.Queue()
        self.runtime: Obeys | None = None
        self._alive_every_s = alive_every_s
        self._code_at_end = ORPHANED  # of the pipe, at the launcher's end
        # A process that the task forks must not keep the pipe open after the learner has ended.
        os.register_at_fork(after_in_child=lambda: os.close(pipe.fileno()))
        threading.Thread(target=self._listen, name="control", daemon=True).start()
        threading.Thread(target=self._live, name="alive", daemon=True).start()

    def tell(self, kind: str, body: Any = None) -> None:
        """Send something to the launcher."""
        self._code_at_end = LAST_WORDS.get(kind, self._code_at_end)
        with self._lock:
            self._pipe.send((kind, body))

    def attach(self, runtime: Obeys) -> None:
        """Pass orders on to the runtime; one may have come while it was being built."""
        self.runtime = runtime
        if self._stop:
            runtime.stop()

    def leave_politely(self) -> None:
        """Let the launcher know, from a signal: the others are asked to meet, and go on without."""
        self._leaving.set()

    def next_phase(self, limit_s: float) -> NextGroup | None:
        """Wait for this learner's place in the next group; None: it is to leave."""
        try:
            return self._phases.get(timeout=limit_s)
        except queue.Empty:
            raise WaitTimeoutError(
                f"waited {limit_s:g} s for the launcher to form the next group: it is stuck or "
                "stopped. Continue the run with --resume"
            ) from None

    def _live(self) -> None:
        while True:
            self._leaving.wait(self._alive_every_s)
            with contextlib.suppress(OSError):  # the launcher has gone; `_listen` ends us
                if self._leaving.is_set():
                    if not self._told_leaving:
                        self._told_leaving = True
                        self.tell("leaving")
                    time.sleep(self._alive_every_s)
                self.tell("alive", self.runtime.vitals() if self.runtime else Vitals())

    def _listen(self) -> None:
        try:
            while True:
                order = self._pipe.recv()
                if isinstance(order, NextGroup) or order == LEAVE:
                    self._phases.put(order if isinstance(order, NextGroup) else None)
                elif order == MEET:
                    if self.runtime is not None:
                        self.runtime.meet()
                elif order == STOP:
                    self._stop = True
                    if self.runtime is not None:
                        self.runtime.stop()
                elif order == "status":
                    runtime = self.runtime
                    self.tell("status", runtime.describe() if runtime else "is starting")
        except (EOFError, OSError):
            os._exit(self._code_at_end)


def main(orders: Orders, pipe: Pipe, wire: Connection | None = None) -> None:
    """Run one learner in a process of its own, and end the process; `wire`: to its MPI."""
    if wire is not None:
        take_wire(wire)
    code = serve(orders, pipe)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread may still wait in a collective that will never complete


def serve(orders: Orders, pipe: Pipe) -> int:
    """Run one learner; at its end the launcher hears how. Return the exit code."""
    leave_to_parent((*STOP_SIGNALS, *WARNINGS))
    options = orders.experiment.options
    torch.set_num_threads(options.threads)
    control = Control(pipe, min(0.5, options.silence_s / 5))
    code = 0
    try:
        if orders.run_dir is not None:
            help_in(orders.run_dir)
        react_from_now_on(control.leave_politely, signal.SIGTERM)
        if orders.experiment.seat(orders.rank).stage:
            _serve_learner(orders, control)
            control.tell("done", {"books": Books()})  # its learner's are the first rank's
            return 0
        runtime = _run(orders, control)
        if runtime is None:
            control.tell("left")
            return 0
        if orders.run_dir is not None and orders.experiment.options.trace:
            runtime.trace.write(RunDirectory(orders.run_dir).trace_path(orders.rank))
        end_mpi()
        control.tell("done", runtime.summary())
    except BaseException as error:
        doing = control.runtime.describe() if control.runtime else "was starting"
        control.tell("failed", (type(error).__name__, str(error), doing, traceback.format_exc()))
        code = 1
    return code


def _serve_learner(orders: Orders, control: Control) -> None:
    """Be one of the ranks that a learner consists of, but not its first, to the end."""
    experiment, seat = orders.experiment, orders.experiment.seat(orders.rank)
    options = experiment.options
    store = orders.place.store(options.timeout_s, orders.rank)
    line = line_of(experiment, store, seat, own_address(orders.place.towards))
    control.tell("met")
    stage = stage_for_group(experiment, orders.local_rank, seat.stage, new=not orders.resume)
    fate = Fate(orders.faults, orders.rank)
    runtime = MemberRuntime(stage, line, seat, fate)
    control.attach(runtime)
    control.tell("started")
    try:
        runtime.run()
    except StageLostError:
        time.sleep(options.timeout_s)  # the learner is lost: its launcher ends this process, too
        raise
    line.close()


def _run(orders: Orders, control: Control) -> ProcessRuntime | None:
    """Run to the end, in one group after the other; None if this learner has left."""
    limit_s = orders.experiment.options.timeout_s
    past = TakenAlong()
    phase = None
    if orders.joins:
        past.worker = worker_of(orders.experiment, orders.local_rank, new=False)
        control.tell("ready")
        phase = control.next_phase(limit_s)  # its launcher ends it if the run ends before
        if phase is None:
            return None
    while True:
        runtime = _build(orders, control, phase, past)
        control.attach(runtime)
        control.tell("started")
        runtime.run()
        if not runtime.regrouped:
            runtime.dismiss()
            return runtime
        past = runtime.past()
        control.tell("regrouped")
        phase = control.next_phase(limit_s)
        if phase is None:
            runtime.dismiss()
            return None


def _build(
    orders: Orders, control: Control, phase: NextGroup | None, past: TakenAlong
) -> ProcessRuntime:
    options = orders.experiment.options
    rank = orders.rank if phase is None else phase.rank
    store = orders.place.store(options.timeout_s, rank)
    checkpoints = saved = None
    experiment = orders.experiment
    if orders.run_dir is not None:
        checkpoints = Checkpoints(
            orders.run_dir, options.keep_checkpoints, durable=orders.resumable
        )
        saved = checkpoints.latest() if orders.resume and phase is None else None
    if phase is not None and checkpoints is not None:
        store = store.prefix(f"group{phase.number}")
        experiment = experiment.with_learners(phase.num_learners)
        saved = phase.saved(checkpoints)
        past = replace(past, names=phase.names)
    return ProcessRuntime(
        experiment,
        rank,
        store,
        orders.place.towards,
        lambda event: control.tell("event", event),
        checkpoints,
        saved,
        local_rank=orders.local_rank,
        met=lambda: control.tell("met"),
        fate=past.fate or Fate(orders.faults, orders.rank),
        past=past,
    )
