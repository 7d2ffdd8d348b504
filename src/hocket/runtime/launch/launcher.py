"""Starts the learners of one host, serves their store, watches them, and ends them all at the end.

Learners are forked from a server process that has torch loaded already, so starting them costs
tenths of a second, not two seconds each. The launcher:

* on Ctrl-C or SIGTERM asks them to stop at the next boundary, with a checkpoint; a second Ctrl-C
  ends them at once;
* when one dies, records the loss and lets the others go on without it (`runtime.on_loss`);
* ends one that gives no sign of life for `runtime.silence_s`, so that it is lost for good;
* when one fails, asks the others what they were doing, ends them, and names the cause;
* leaves no process behind: learners also end by themselves when the launcher's pipe closes.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from hocket import errors
from hocket.core.accounts import LostLearner
from hocket.errors import ConfigError, HocketError, LearnerFailedError
from hocket.experiment import Experiment
from hocket.runtime.launch import learner_process
from hocket.runtime.launch.children import Child
from hocket.runtime.launch.learner_process import Place
from hocket.runtime.net.handshake import put_token
from hocket.runtime.net.store import Store
from hocket.runtime.real.faults import Fault
from hocket.support.signals import STOPPING, on_signals, signals_held_back

HOST = "127.0.0.1"
PATIENCE_S = 5.0  # between asking a process to end and killing it
_POLL_S = 0.2
# Errors of learners that only noticed the failure of another.
_NOTICED = {"LearnerFailedError", "PeerLostError", "WaitTimeoutError"}


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
    children: list[Child] = field(default_factory=list)
    _store: Store | None = None  # held open while learners use it
    _interrupts: int = 0
    _looked: float = 0.0

    def run(self) -> list[dict[str, Any]]:
        """Run to the end and return the summaries of the survivors, in rank order."""
        place = self.open_place()
        try:
            with on_signals(self._count_interrupt):
                self._start(place)
                self._watch()
        finally:
            self._end_all()
        return self.summaries

    def open_place(self) -> Place:
        """Open the store in which learners find each other."""
        self._store = Store.serve(HOST, self.experiment.options.timeout_s)
        put_token(self._store)
        return Place(HOST, self._store.port)

    def ranks(self) -> range:
        """Return the learners to start here."""
        return range(self.experiment.options.learners)

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """What the survivors report."""
        return [c.summary for c in self.children if c.summary is not None]

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
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["hocket.runtime.launch.learner_process"])
        with signals_held_back():
            self._start_all(context, place)

    def _start_all(self, context: ForkServerContext, place: Place) -> None:
        for local_rank, rank in enumerate(self.ranks()):
            ours, theirs = context.Pipe()
            orders = learner_process.Orders(
                self.experiment, rank, place, self.run_dir, self.resume, self.faults, local_rank
            )
            process = context.Process(
                target=learner_process.main, args=(orders, theirs), name=f"hocket learner {rank}"
            )
            self.children.append(Child(rank, process, ours))
            process.start()
            theirs.close()  # else the end of the pipe would never be seen

    # ------------------------------------------------------------------ watching

    def _watch(self) -> None:
        told = 0
        self._looked = time.monotonic()
        while self.at_work():
            if self._interrupts > told:
                told = self._interrupts
                self._interrupted(told)
            by_pipe = {c.pipe: c for c in self.children if c.working}
            for pipe in wait(list(by_pipe), timeout=_POLL_S):
                self._hear(by_pipe[pipe])  # type: ignore[index]
            failed = next((c for c in self.children if c.failure and c.loss is None), None)
            if failed is not None:
                raise self._cause(failed)
            self._fence_the_silent()
            self.look_around()

    def at_work(self) -> bool:
        """True while any learner works."""
        return any(c.working for c in self.children)

    def look_around(self) -> None:
        """Look for news from other hosts; here there are none."""

    def note_event(self, event: dict[str, Any]) -> None:
        """Record an event."""
        self.report(event)

    def _hear(self, child: Child) -> None:
        said = child.receive()
        if said is None:
            child.process.join(PATIENCE_S)
            self._gone(child, child.ended_by())
        elif said[0] == "event":
            self.note_event(said[1])
        elif said[0] == "failed" and child.failure and child.failure[0] == "FencedError":
            self._gone(child, child.failure[1])

    def _fence_the_silent(self) -> None:
        """End learners that give no sign of life, unless this launcher itself was stopped."""
        now, limit = time.monotonic(), self.experiment.options.silence_s
        if now - self._looked > limit / 2:  # stopped (Ctrl-Z), perhaps together with the learners
            for child in self.children:
                child.heard = now
        self._looked = now
        for child in self.children:
            late = now - child.heard > limit
            if child.working and child.started and late and not child.silent:
                child.fence()  # the end of its pipe follows

    def _count_interrupt(self) -> None:
        self._interrupts += 1

    def _interrupted(self, count: int) -> None:
        if count > 1:
            raise KeyboardInterrupt
        self.say(STOPPING)
        self._tell_all("stop")

    def _tell_all(self, order: str) -> None:
        for child in self.children:
            try:
                child.pipe.send(order)
            except OSError:
                continue

    # ------------------------------------------------------------------ losses

    def _gone(self, child: Child, reason: str) -> None:
        """Go on without a learner, or stop, as runtime.on_loss says."""
        if not child.met or not self.experiment.goes_on_without:
            raise self._died(child)
        self.note_loss(child.lose(self.now_s(), reason))
        if not self.anybody_left():
            raise self._died(child)

    def anybody_left(self) -> bool:
        """True if a learner works or has finished."""
        return any(c.working or c.summary is not None for c in self.children)

    def _furthest(self) -> Child:
        """Return the child whose last sign of life is the most recent in the run."""
        return max(self.children, key=lambda c: (c.vitals.time_s, c.vitals.frames))

    def now_s(self) -> float:
        """Return the time of the run, by the last sign of life of its learners."""
        best = self._furthest()
        return best.vitals.time_s + time.monotonic() - best.heard

    def note_loss(self, loss: LostLearner) -> None:
        """Record a loss."""
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

    # ------------------------------------------------------------------ failures

    def _cause(self, failed: Child) -> HocketError:
        """Turn the error of a learner into one of the same kind that says what all were doing."""
        first = self._first_cause(failed)
        assert first.failure is not None
        name, message, doing, trace = first.failure
        kind = getattr(errors, name, None)
        others = self._whereabouts(first)
        if isinstance(kind, type) and issubclass(kind, HocketError):
            return kind(message + (others if name in _NOTICED else ""))
        return LearnerFailedError(
            f"rank {first.rank} failed while it {doing}: {name}: {message}{others}\n"
            f"--- rank {first.rank}'s traceback ---\n{trace}"
        )

    def _first_cause(self, failed: Child) -> Child:
        """Return the learner that failed first; others may only have noticed its failure."""
        self._listen_on(0.5)
        spared = failed.failure is not None and failed.failure[0] != "PeerLostError"
        for child in self.children:
            ended = child.process.exitcode not in (None, 0)
            if ended and child.failure is None and not (spared and child.loss is not None):
                raise self._died(child)
        own = [c for c in self.children if c.failure and c.failure[0] not in _NOTICED]
        return next(iter(own), failed)

    def _listen_on(self, seconds: float) -> None:
        """Receive what others send within a short time; that they end is expected now."""
        until = time.monotonic() + seconds
        talking = {c.pipe: c for c in self.children if c.working and c.failure is None}
        while talking and (left := until - time.monotonic()) > 0:
            for pipe in wait(list(talking), timeout=left):
                child = talking[pipe]  # type: ignore[index]
                ended = child.receive() is None
                if ended:  # its exit code comes a moment after the end of its pipe
                    child.process.join(max(0.0, until - time.monotonic()))
                if ended or child.failure is not None:
                    del talking[pipe]  # type: ignore[arg-type]

    def _died(self, child: Child) -> LearnerFailedError:
        code = child.process.exitcode
        nobody = "" if self.anybody_left() else "; nobody is left"
        text = (
            f"rank {child.rank} (process {child.process.pid}) {child.ended_by()} before its work "
            f"was done{nobody}, so the run was stopped{self._whereabouts(child)}"
        )
        if code == 1:  # it could not report: it did not even start
            text += (
                "\nIt could not start; its own error is above. A script that calls "
                'hocket.train must guard its entry point with `if __name__ == "__main__":`'
            )
        elif code is not None and code < 0:
            text += "\nIf the system ran out of memory, use fewer learners or a smaller model"
        if self.resumable:
            text += f"\nA checkpoint in {self.run_dir}, if there is one, is continued by --resume"
        return LearnerFailedError(text)

    def _whereabouts(self, but: Child) -> str:
        """Ask the others what they are doing."""
        self._tell_all("status")
        self._listen_on(0.5)
        lines = []
        for c in self.children:
            if c is but or c.loss is not None:
                continue
            state = c.status or (f"failed while it {c.failure[2]}" if c.failure else None)
            lines.append(f"\n  rank {c.rank} {state or 'did not answer'}")
        return "".join(lines)

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
