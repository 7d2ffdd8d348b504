"""Learner processes as their launcher sees them."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final, Protocol

from hocket.core.accounts import Books, LostLearner, Vitals
from hocket.experiment import Seat
from hocket.record.status import LearnerStatus, State
from hocket.runtime.launch.learner_process import Pipe

_MARKS: Final = ("met", "started", "ready", "regrouped", "leaving", "left")
_BODIES: Final[dict[str, type[Any]]] = {
    **dict.fromkeys(_MARKS, type(None)),
    "alive": Vitals,
    "status": str,
    "event": dict,
}


def _processor_time(pid: int | None) -> int | None:
    """Return how long a process has used the processor, in ticks of the kernel; None: unknown."""
    try:
        words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(words[11]) + int(words[12])  # as a user and in the kernel: see man 5 proc


class LearnerProcess(Protocol):
    """What a launcher does with the process of a learner."""

    @property
    def pid(self) -> int | None:
        """Its number on this host; None: it is elsewhere."""
        ...

    @property
    def exitcode(self) -> int | None:
        """How it ended; None: that is not known."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        ...

    def is_alive(self) -> bool:
        """True if it has not ended."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


@dataclass
class Child:
    """One learner process."""

    rank: int
    process: LearnerProcess
    pipe: Pipe
    host: str = ""  # empty: this one
    belongs_to: Seat | None = None  # it is a rank of that learner, but not its first
    summary: dict[str, Any] | None = None
    failure: tuple[str, str, str, str] | None = None  # type, message, doing, traceback
    status: str | None = None
    met: bool = False  # has connected to the others; before that, its death is a failed start
    started: bool = False  # before that it loads modules and data, and may be silent for long
    loss: LostLearner | None = None
    seat: int = -1  # its rank in the group as it is now
    waits: bool = False  # a newcomer that has not been let in
    ready: bool = False  # ... and could be
    regrouped: bool = False  # has left its group, and waits for its place in the next one
    leaving: bool = False  # was asked to end, by a signal
    left: bool = False  # has left politely
    ended: bool = False  # its pipe has ended before it was let in
    silent: bool = False  # ended by the launcher because it gave no sign of life
    nonsense: bool = False  # ... because nobody can make anything of what it sends
    vitals: Vitals = field(default_factory=Vitals)
    heard: float = field(default_factory=time.monotonic)
    _used: int | None = None  # processor time, when last looked at

    def __post_init__(self) -> None:
        if self.seat < 0:
            self.seat = self.rank

    @property
    def working(self) -> bool:
        """True if its summary is still to come."""
        return self.summary is None and self.loss is None and not self.left

    def enter(self, seat: int) -> None:
        """Note its place in a new group, where it has not met anybody yet."""
        self.seat, self.heard = seat, time.monotonic()
        self.waits = self.regrouped = self.met = False

    def receive(self) -> tuple[str, Any] | None:
        """Receive one message of it, and return kind and body; None if its pipe has ended."""
        try:
            said = self.pipe.recv()
        except BlockingIOError:  # a part of a message: the rest is to come, or it is silent
            return "", None
        except (EOFError, OSError):
            return None
        self.heard = time.monotonic()
        if not _makes_sense(said):
            self.nonsense = True
            self.process.kill()
            return None
        kind, body = said
        self._note(kind, body)
        return kind, body

    def _note(self, kind: str, body: Any) -> None:
        """Keep what a message says."""
        if kind == "done":
            self.summary = body
        elif kind == "failed":
            self.failure = body
        elif kind == "alive":
            if body.time_s >= self.vitals.time_s:  # while a group is formed there are none
                self.vitals = body
        elif kind == "status":
            self.status = body
        elif kind in _MARKS:
            setattr(self, kind, True)

    def pipe_has_news(self) -> bool:
        """True if it has said something that was not received, or if its pipe has ended."""
        return bool(wait([self.pipe.fileno()], timeout=0))

    @property
    def state(self) -> State:
        """How it stands, in a word."""
        if self.left:
            return "left"
        return "lost" if self.loss else "finished" if self.summary is not None else "working"

    def stands(self, host: str) -> LearnerStatus:
        """Return what `hocket watch` shows of it."""
        books = self.vitals.books if self.summary is None else self.summary["books"]
        until = self.loss.time_s if self.loss else None
        where = self.host or host
        return LearnerStatus.of(self.rank, self.state, books, until_s=until, host=where)

    def at_work(self) -> bool:
        """True if it has used the processor since the last call, or if that cannot be seen.

        Before it can give signs of life it loads modules and unpacks its orders. One of another
        host has done so before it called.
        """
        if self.process.pid is None:
            return False
        before, self._used = self._used, _processor_time(self.process.pid)
        return self._used is None or self._used != before

    def fence(self) -> None:
        """End a learner that gives no sign of life, so that it cannot wake up again."""
        self.silent = True
        self.process.kill()

    def ended_by(self) -> str:
        """Say how the process ended."""
        if self.silent:
            return "gave no sign of life (runtime.silence_s) and was ended"
        if self.nonsense:
            return "sent a message that makes no sense, and was cut off: is it another version?"
        code = self.process.exitcode
        if self.host and code is None:
            return f"has ended, or its host {self.host} is gone"
        if code is not None and code < 0:
            return f"was ended by signal {-code} ({signal.Signals(-code).name})"
        return f"ended with exit code {code}"

    def lose(self, time_s: float, reason: str) -> LostLearner:
        """Note that it is lost, and why."""
        self.loss = LostLearner(self.rank, time_s, reason, self.vitals.books)
        return self.loss


def _makes_sense(said: Any) -> bool:
    """True of a kind and a body that belong together; one of another host may send anything."""
    if not isinstance(said, (tuple, list)) or len(said) != 2 or not isinstance(said[0], str):
        return False
    kind, body = said
    if kind == "failed":
        is_list = isinstance(body, (tuple, list))
        return is_list and len(body) == 4 and all(isinstance(text, str) for text in body)
    if kind == "done":
        return isinstance(body, dict) and isinstance(body.get("books"), Books)
    return kind in _BODIES and isinstance(body, _BODIES[kind])


def tell_all(children: list[Child], order: str) -> None:
    """Give all learners an order; some may have ended."""
    for child in children:
        try:
            child.pipe.send(order)
        except OSError:
            continue
