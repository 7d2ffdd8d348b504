"""What `hocket join` does on another host than the launcher's: it brings learners of its own.

Each of them calls the launcher and waits. When all have called, the launcher is asked to let them
in; it seats them, and from then on they obey it as its own children do. This program only stays:
they end with it, so a host that is taken away is a host whose learners are lost, and no more.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from hocket.core.limits import MOST_PROCESSES
from hocket.errors import ConfigError, HocketError, LearnerFailedError, require
from hocket.experiment import Experiment
from hocket.runtime.launch import joining, learner_process
from hocket.runtime.launch.guests.arrivals import CALL_S, LauncherPlace, end_order
from hocket.runtime.launch.guests.line import Assignment, Hello
from hocket.runtime.launch.joining import Door
from hocket.runtime.launch.learner_process import LAST_WORDS, ORPHANED, Orders
from hocket.runtime.net.store import Store
from hocket.support.fork_server import fork_context
from hocket.support.progress import Pace
from hocket.support.signals import WARNINGS, end_with_parent, on_signals, signals_held_back

START_S: Final = 180.0 + CALL_S  # loading torch takes seconds, on a slow disk a minute
PATIENCE_S: Final = 5.0
_POLL_S: Final = 0.2
_LOOK_EVERY_S: Final = 1.0


@dataclass
class Guest:
    """One learner that this host brings."""

    caller: int
    process: BaseProcess
    pipe: Connection  # tells that it has called the launcher
    called: bool = False


@dataclass
class GuestHost:
    """Brings learners into a run, and stays until they have ended."""

    experiment: Experiment  # of the run
    run_dir: Path
    door: Door
    say: Callable[[str], None] = print
    guests: list[Guest] = field(default_factory=list)
    _interrupts: int = 0

    def __post_init__(self) -> None:
        require(
            bool(self.door.guests),
            f"the run in {self.run_dir} takes in learners of its own host alone, "
            f"{self.door.host}: join it there, or end it and resume it with --listen ADDRESS, an "
            "address of that host which others reach",
        )

    def bring(self, learners: int, timeout_s: float) -> list[int]:
        """Start so many, let the run take them in, and stay until they have ended.

        Returns their numbers in the record.
        """
        require(
            1 <= learners <= MOST_PROCESSES,
            f"--learners must be from 1 to {MOST_PROCESSES:,}, not {learners}",
        )
        store = self.door.connect(self.run_dir)
        try:
            with (
                on_signals(self._count_interrupt, [signal.SIGINT]),
                on_signals(self._heed_warning, WARNINGS),
            ):
                self._start(learners, store)
                self._await_calls()
                callers = [one.caller for one in self.guests]
                asked = {"learners": learners, "callers": callers}
                names = joining.request(store, asked, timeout_s, self._check_interrupts)
                self._say_joined(names)
                self._stay(store)
        finally:
            self._end_all()
            store.close()
        return names

    # ------------------------------------------------------------------ the start

    def _start(self, learners: int, store: Store) -> None:
        first = store.add("join/callers", learners) - learners
        place = LauncherPlace(self.door.guests, self.door.place.token)
        orders = Orders(self.experiment, -1, self.door.place, self.run_dir, False, joins=True)
        context = fork_context([learner_process.__name__, __name__])
        with signals_held_back():
            for local_rank in range(learners):
                ours, theirs = context.Pipe(duplex=False)
                caller = first + local_rank
                process = context.Process(
                    target=_guest,
                    args=(replace(orders, local_rank=local_rank), place, caller, theirs),
                    name=f"hocket guest {caller}",
                )
                self.guests.append(Guest(caller, process, ours))
                process.start()
                theirs.close()

    def _await_calls(self) -> None:
        until = time.monotonic() + START_S
        while waiting := {one.pipe.fileno(): one for one in self.guests if not one.called}:
            self._check_interrupts()
            if time.monotonic() > until:
                raise LearnerFailedError(
                    f"a learner of this host did not reach the launcher of the run at "
                    f"{self.door.guests} within {START_S:g} s: is it stopped, or does a firewall "
                    "block the port?"
                )
            for number in wait(list(waiting), timeout=_POLL_S):
                self._hear(waiting[number])  # type: ignore[index]

    def _hear(self, one: Guest) -> None:
        try:
            problem = str(one.pipe.recv())
        except (EOFError, OSError):
            one.process.join(PATIENCE_S)
            problem = f"a learner ended before it could call (exit code {one.process.exitcode})"
        if problem:
            raise LearnerFailedError(problem)
        one.called = True

    def _check_interrupts(self) -> None:
        if self._interrupts:
            raise KeyboardInterrupt

    def _say_joined(self, names: list[int]) -> None:
        ranks = ", ".join(f"rank {name}" for name in names)
        self.say(
            f"joined as {ranks} on {socket.gethostname()}. They end with this command; Ctrl-C or "
            "SIGTERM lets them leave, and the others go on"
        )

    # ------------------------------------------------------------------ while they work

    def _stay(self, store: Store) -> None:
        told, pace = 0, Pace(_LOOK_EVERY_S)
        while self._living():
            if pace.due():
                self._obey(store)
            if self._interrupts > 1 and told:
                raise KeyboardInterrupt
            if self._interrupts and not told:
                told = self._interrupts
                self.say("they leave at the next boundary (Ctrl-C again to end them at once)")
                for one in self.guests:
                    one.process.terminate()
            wait([one.process.sentinel for one in self._living()], _POLL_S)
        codes = [one.process.exitcode for one in self.guests]
        failed = LAST_WORDS["failed"] in codes  # of the launcher's end, perhaps, before they see it
        if ORPHANED in codes or (failed and _is_over(store)):
            raise LearnerFailedError(
                f"the launcher of the run, on {self.door.host}, has ended or is cut off: resume "
                "the run there, and join it again"
            )
        if any(codes):
            raise LearnerFailedError(
                f"learners of this host ended with exit codes {codes}; the launcher on "
                f"{self.door.host} says why"
            )

    def _obey(self, store: Store) -> None:
        """End learners of which the launcher has heard nothing, and all if there is no run."""
        try:
            silent = [one for one in self._living() if store.look(end_order(one.caller))]
        except HocketError:  # the run has ended, or is cut off: they notice, unless they are frozen
            wait([one.process.sentinel for one in self._living()], PATIENCE_S)
            silent = self._living()
        for one in silent:
            one.process.kill()
            one.process.join(PATIENCE_S)

    def _living(self) -> list[Guest]:
        return [one for one in self.guests if one.process.is_alive()]

    def _count_interrupt(self) -> None:
        self._interrupts += 1

    def _heed_warning(self) -> None:
        self._interrupts = max(self._interrupts, 1)

    def _end_all(self) -> None:
        for one in self.guests:
            with contextlib.suppress(OSError):
                one.pipe.close()
            if one.process.pid is not None and one.process.is_alive():
                one.process.kill()
                one.process.join(PATIENCE_S)


def _is_over(store: Store) -> bool:
    """True if the launcher of the run serves its store no more."""
    try:
        store.look(joining.ASKED)
    except HocketError:
        return True
    return False


def _guest(orders: Orders, place: LauncherPlace, caller: int, pipe: Connection) -> None:
    """Call the launcher, wait for a seat, and be a learner like any other."""
    end_with_parent()
    try:
        line = place.call(caller)
        line.send(Hello("", socket.gethostname()))
    except (HocketError, OSError) as error:
        pipe.send(str(error))
        return
    pipe.send("")
    pipe.close()
    try:
        told = line.recv()
    except (EOFError, OSError):
        raise SystemExit(ORPHANED) from None
    if not isinstance(told, Assignment):
        raise ConfigError("the launcher of the run speaks another language: is it another version?")
    learner_process.main(replace(orders, rank=told.rank, joins=told.joins), line)
