"""Why a run failed: which learner failed first, and what the others were doing.

Learners that wait for one another fail together. The first cause is the one to name; the errors of
those that only noticed it are not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final

from hocket import errors
from hocket.errors import HocketError, LearnerFailedError
from hocket.runtime.launch.children import Child, tell_all

# Errors of learners that only noticed the failure of another.
_NOTICED: Final = {"FencedError", "LearnerFailedError", "PeerLostError", "WaitTimeoutError"}


@dataclass(frozen=True)
class Inquiry:
    """Asks the learners of a host after one of them has failed."""

    children: list[Child]
    attending: frozenset[int]  # numbers of the ranks that only serve
    attends_by: str  # what these do
    kept: Path | None  # the run directory, if it outlives the run
    anybody_left: Callable[[], bool]  # does a learner, of any host, still work, or has it finished?

    def cause(self, failed: Child) -> HocketError:
        """Turn the error of a learner into one of the same kind that says what all were doing."""
        first = self._first_cause(failed)
        assert first.failure is not None
        name, message, doing, trace = first.failure
        kind = errors.by_name(name)
        others = self._whereabouts(first)
        if kind is not None:
            return kind(message + (others if name in _NOTICED else ""))
        told = f"{self._name(first)} failed while it {doing}: {name}: {message}{others}"
        return LearnerFailedError.unforeseen(told, trace)

    def _first_cause(self, failed: Child) -> Child:
        """Return the learner that failed first; others may only have noticed its failure."""
        self._listen_on(0.5)
        spared = failed.failure is not None and failed.failure[0] != "PeerLostError"
        for child in self.children:
            ended = child.process.exitcode not in (None, 0)
            if ended and child.failure is None and not (spared and child.loss is not None):
                raise self.died(child)
        own = [c for c in self.children if c.failure and c.failure[0] not in _NOTICED]
        return next(iter(own), failed)

    def _listen_on(self, seconds: float) -> None:
        """Receive what others send within a short time; that they end is expected now."""
        until = time.monotonic() + seconds
        talking = {c.pipe.fileno(): c for c in self.children if c.working and not c.failure}
        while talking and (left := until - time.monotonic()) > 0:
            for pipe in wait(list(talking), timeout=left):
                child = talking[pipe]  # type: ignore[index]
                ended = child.receive() is None
                if ended:  # its exit code comes a moment after the end of its pipe
                    child.process.join(max(0.0, until - time.monotonic()))
                if ended or child.failure is not None:
                    del talking[pipe]  # type: ignore[arg-type]

    def died(self, child: Child) -> LearnerFailedError:
        """Return the error of a learner that ended without a word."""
        code = child.process.exitcode
        nobody = "" if self.anybody_left() else "; nobody is left"
        text = (
            f"{self._name(child)} (process {child.process.pid}) {child.ended_by()} before its "
            f"work was done{nobody}, so the run was stopped{self._whereabouts(child)}"
        )
        if code == 1:  # it could not report: it did not even start
            text += (
                "\nIt could not start; its own error is above. A script that calls "
                'hocket.train must guard its entry point with `if __name__ == "__main__":`'
            )
        elif code is not None and code < 0:
            text += "\nIf the system ran out of memory, use fewer learners or a smaller model"
        if self.kept is not None:
            text += f"\nA checkpoint in {self.kept}, if there is one, is continued by --resume"
        return LearnerFailedError(text)

    def _name(self, child: Child) -> str:
        """Name a process by its rank, and by what it did if it was no learner of its own."""
        if (seat := child.belongs_to) is not None:
            return f"process {child.rank}, which held stage {seat.stage + 1} of rank {seat.rank},"
        role = f" (which {self.attends_by})" if child.rank in self.attending else ""
        return f"rank {child.rank}{role}"

    def _whereabouts(self, but: Child) -> str:
        """Ask the others what they are doing."""
        tell_all(self.children, "status")
        self._listen_on(0.5)
        lines = []
        for c in self.children:
            if c is but or c.loss is not None:
                continue
            state = c.status or (f"failed while it {c.failure[2]}" if c.failure else None)
            who = "rank" if c.belongs_to is None else "process"
            lines.append(f"\n  {who} {c.rank} {state or 'did not answer'}")
        return "".join(lines)
