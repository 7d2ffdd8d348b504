"""Every error a user can meet. Each says who, where, and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HocketError(Exception):
    """Base of all errors raised on purpose; the command line prints it without a traceback."""


class ConfigError(HocketError, ValueError):
    """An option that is unknown, out of range, or without effect."""


class TaskError(HocketError):
    """A task handed over something that cannot be trained on; names the item."""


class DivergedError(HocketError):
    """The training loss is not finite or has doubled; names the rate that was in use."""


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


class CheckpointError(HocketError):
    """A checkpoint cannot be written, read, or does not fit the run."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return ' Did you mean ...?' for the closest choice, or an empty string."""
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def require(condition: bool, message: str) -> None:
    """Raise `ConfigError` with `message` unless the condition holds."""
    if not condition:
        raise ConfigError(message)
