"""Every error a user can meet. Each says who, where, and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar


class HocketError(Exception):
    """Base of all errors raised on purpose; the command line prints it without a traceback."""

    exit_status: ClassVar[int] = 1  # of the command line


class InputError(HocketError):
    """What was typed or handed in cannot be used; the same command would fail again."""

    exit_status: ClassVar[int] = 2


class UnreadableError(InputError):
    """A file that is missing, is no regular file, is too large, or holds something else."""

    reason: str = ""
    missing: bool = False

    @classmethod
    def of(cls, path: Path, reason: object, *, missing: bool = False) -> UnreadableError:
        """Return the error about a file; whoever asked for the file adds what to do about it."""
        error = cls(f"{path}: {reason}")  # one text: errors travel between processes as such
        error.reason, error.missing = str(reason), missing
        return error


class ConfigError(InputError, ValueError):
    """An option that is unknown, out of range, or without effect."""


class TaskError(InputError):
    """A task handed over something that cannot be trained on; names the item."""


class DivergedError(HocketError):
    """The training loss is not finite or has doubled; names the rate that was in use."""


class NotFiniteError(HocketError):
    """A value that is infinite or not a number was to be coded; names the parameter."""


class ContractError(HocketError):
    """A strategy broke the runtime contract (see `hocket.core.strategy`)."""


class DeadlockError(HocketError):
    """Nothing can happen any more; lists what every rank awaits."""


class WaitTimeoutError(HocketError):
    """A wait reached its limit; names the rank, what it awaited, and what to do."""


class PeerLostError(HocketError):
    """A receive from a learner that has died."""


class FencedError(HocketError):
    """This learner was declared lost while it lived; the others go on without it."""


class StoreLostError(HocketError):
    """The store through which hosts talk cannot be reached any more."""


class LearnerFailedError(HocketError):
    """A learner ended before its work was done; names the rank and the first cause."""

    trace: str = ""  # of what nobody foresaw, in the learner

    @classmethod
    def unforeseen(cls, message: str, trace: str) -> LearnerFailedError:
        """Return the error for a failure that is a bug, of Hocket or of a task of one's own."""
        error = cls(message)
        error.trace = trace
        error.add_note(f"--- the learner's traceback ---\n{trace}")
        return error


class TrackerError(HocketError):
    """A tracker of experiments failed; says in its own words why."""


class InUseError(HocketError):
    """Somebody else works in this folder; the same command may succeed later."""


class CheckpointError(HocketError):
    """A checkpoint cannot be written, or does not fit the run."""


class DamagedError(CheckpointError, InputError):
    """A checkpoint is not what was written; names the file."""


def by_name(name: str) -> type[HocketError] | None:
    """Return the error of this name, to raise again what another process raised; None: not ours."""
    ahead = [HocketError]
    while ahead:
        kind = ahead.pop()
        if kind.__name__ == name:
            return kind
        ahead += kind.__subclasses__()
    return None


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return ' Did you mean ...?' for the closest choice, or an empty string."""
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def require(condition: bool, message: str) -> None:
    """Raise `ConfigError` with `message` unless the condition holds."""
    if not condition:
        raise ConfigError(message)
