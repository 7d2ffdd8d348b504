"""Learner processes as their launcher sees them."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from hocket.core.accounts import LostLearner, Vitals


@dataclass
class Child:
    """One learner process."""

    rank: int
    process: BaseProcess
    pipe: Connection
    summary: dict[str, Any] | None = None
    failure: tuple[str, str, str, str] | None = None  # type, message, doing, traceback
    status: str | None = None
    met: bool = False  # has connected to the others; before that, its death is a failed start
    started: bool = False  # before that it prepares its data, and may be silent for long
    loss: LostLearner | None = None
    silent: bool = False  # ended by the launcher because it gave no sign of life
    vitals: Vitals = field(default_factory=Vitals)
    heard: float = field(default_factory=time.monotonic)

    @property
    def working(self) -> bool:
        """True if its summary is still to come."""
        return self.summary is None and self.loss is None

    def receive(self) -> tuple[str, Any] | None:
        """Receive one message of it, and return kind and body; None if its pipe has ended."""
        try:
            kind, body = self.pipe.recv()
        except (EOFError, OSError):
            return None
        self.heard = time.monotonic()
        if kind == "done":
            self.summary = body
        elif kind == "failed":
            self.failure = body
        elif kind == "status":
            self.status = body
        elif kind == "met":
            self.met = True
        elif kind == "started":
            self.started = True
        elif kind == "alive":
            self.vitals = body
        return kind, body

    def fence(self) -> None:
        """End a learner that gives no sign of life, so that it cannot wake up again."""
        self.silent = True
        self.process.kill()

    def ended_by(self) -> str:
        """Say how the process ended."""
        if self.silent:
            return "gave no sign of life (runtime.silence_s) and was ended"
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"was ended by signal {-code} ({signal.Signals(-code).name})"
        return f"ended with exit code {code}"

    def lose(self, time_s: float, reason: str) -> LostLearner:
        """Note that it is lost, and why."""
        self.loss = LostLearner(self.rank, time_s, reason, self.vitals.books)
        return self.loss
