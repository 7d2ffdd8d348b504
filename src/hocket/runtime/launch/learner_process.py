"""The program of one learner process: what the launcher starts.

It obeys its launcher through a pipe (stop, status), and ends when the pipe closes: no learner
outlives its launcher, also not after `kill -9` of it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from hocket.core.accounts import Vitals
from hocket.experiment import Experiment
from hocket.record.checkpoint import Checkpoints
from hocket.record.rundir import RunDirectory
from hocket.runtime.net.store import Store
from hocket.runtime.real.faults import Fate, Fault
from hocket.runtime.real.process import ProcessRuntime
from hocket.support.signals import STOP_SIGNALS, leave_to_parent

ORPHANED = 3  # exit code of a learner whose launcher has gone


@dataclass(frozen=True)
class Place:
    """Where learners find each other: a store, and the prefix of its keys."""

    address: str
    port: int
    prefix: str = ""

    def store(self, timeout_s: float) -> Store:
        """Connect to the store."""
        store = Store.connect(self.address, self.port, timeout_s)
        return store.prefix(self.prefix) if self.prefix else store


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


class Control:
    """The learner's end of the pipe; its threads give signs of life while the learner computes."""

    def __init__(self, pipe: Connection, alive_every_s: float) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._stop = False
        self.runtime: ProcessRuntime | None = None
        self._alive_every_s = alive_every_s
        # A process that the task forks must not keep the pipe open after the learner has ended.
        os.register_at_fork(after_in_child=lambda: os.close(pipe.fileno()))
        threading.Thread(target=self._listen, name="control", daemon=True).start()
        threading.Thread(target=self._live, name="alive", daemon=True).start()

    def tell(self, kind: str, body: Any = None) -> None:
        """Send something to the launcher."""
        with self._lock:
            self._pipe.send((kind, body))

    def attach(self, runtime: ProcessRuntime) -> None:
        """Pass orders on to the runtime; one may have come while it was being built."""
        self.runtime = runtime
        if self._stop:
            runtime.stop()

    def _live(self) -> None:
        while True:
            time.sleep(self._alive_every_s)
            with contextlib.suppress(OSError):  # the launcher has gone; `_listen` ends us
                self.tell("alive", self.runtime.vitals() if self.runtime else Vitals())

    def _listen(self) -> None:
        try:
            while True:
                order = self._pipe.recv()
                if order == "stop":
                    self._stop = True
                    if self.runtime is not None:
                        self.runtime.stop()
                elif order == "status":
                    runtime = self.runtime
                    self.tell("status", runtime.describe() if runtime else "is starting")
        except (EOFError, OSError):
            os._exit(ORPHANED)


def main(orders: Orders, pipe: Connection) -> None:
    """Run one learner; before it ends, the launcher hears how."""
    leave_to_parent(STOP_SIGNALS)
    options = orders.experiment.options
    torch.set_num_threads(options.threads)
    control = Control(pipe, min(0.5, options.silence_s / 5))
    code = 0
    try:
        runtime = _build(orders, control)
        control.attach(runtime)
        control.tell("started")
        runtime.run()
        if orders.run_dir is not None and orders.experiment.options.trace:
            runtime.trace.write(RunDirectory(orders.run_dir).trace_path(orders.rank))
        control.tell("done", runtime.summary())
    except BaseException as error:
        doing = control.runtime.describe() if control.runtime else "was starting"
        control.tell("failed", (type(error).__name__, str(error), doing, traceback.format_exc()))
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread may still wait in a collective that will never complete


def _build(orders: Orders, control: Control) -> ProcessRuntime:
    options = orders.experiment.options
    store = orders.place.store(options.timeout_s)
    checkpoints = saved = None
    if orders.run_dir is not None:
        checkpoints = Checkpoints(orders.run_dir, options.keep_checkpoints)
        saved = checkpoints.latest() if orders.resume else None
    return ProcessRuntime(
        orders.experiment,
        orders.rank,
        store,
        orders.place.address,
        lambda event: control.tell("event", event),
        checkpoints,
        saved,
        local_rank=orders.local_rank,
        met=lambda: control.tell("met"),
        fate=Fate(orders.faults, orders.rank),
    )
