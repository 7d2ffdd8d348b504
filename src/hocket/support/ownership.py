"""One owner at a time for a folder: two runs in one directory would leave a mixture of both.

The owner holds a lock (flock) on FOLDER/.lock. The system gives the lock up when its owner ends,
however it ends, so nobody ever has to remove it; the file stays and says who was the last one.

Processes that an owner has started may live a moment longer than it does and finish writing. They
hold a shared lock on FOLDER/.helpers, and the next owner waits for them.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from hocket.errors import InUseError, UnreadableError
from hocket.support.inputs import read_table

LOCK: Final = ".lock"
HELPERS: Final = ".helpers"
NAMES: Final = frozenset([LOCK, HELPERS])
LINGER_S: Final = 20.0  # helpers end a moment after their owner; frozen ones when they wake
_POLL_S: Final = 0.05
_BUSY: Final = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def owned(folder: Path, doing: str, warn: Callable[[str], None]) -> Iterator[None]:
    """Own a folder that exists; raise `InUseError` if somebody else does."""
    lock = _open(folder / LOCK)
    try:
        if not _try(lock, fcntl.LOCK_EX, folder, warn):
            raise _in_use(folder, _told(folder / LOCK))
        _tell(lock, doing)
        _await_helpers(folder)
        yield
    finally:
        os.close(lock)


def help_in(folder: Path) -> None:
    """Let the next owner of the folder wait until this process has ended."""
    with suppress(OSError):
        _try(_open(folder / HELPERS), fcntl.LOCK_SH, folder, lambda _: None)  # and stays open


def _await_helpers(folder: Path) -> None:
    lock = _open(folder / HELPERS)
    try:
        until = time.monotonic() + LINGER_S
        while not _try(lock, fcntl.LOCK_EX, folder, lambda _: None):
            if time.monotonic() > until:
                raise _in_use(folder, "learners of an earlier run, which have not ended yet")
            time.sleep(_POLL_S)
    finally:
        os.close(lock)


def _open(path: Path) -> int:
    """Open a file to lock; one that is only a name for another file is refused."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnreadableError.of(path, "Hocket needs this name for a lock: remove it")
    return descriptor


def _try(lock: int, kind: int, folder: Path, warn: Callable[[str], None]) -> bool:
    """Take a lock if it is free; where the file system has none, say so and go on."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        if error.errno not in _NO_LOCKS:
            raise
        warn(
            f"warning: the file system of {folder} has no locks ({error.strerror}): nothing keeps "
            "a second run out of this folder; do not start one"
        )
    return True


def _tell(lock: int, doing: str) -> None:
    """Leave word of who owns the folder, for those who find it locked."""
    facts = {"pid": os.getpid(), "host": socket.gethostname(), "doing": doing}
    facts["since"] = time.strftime("%Y-%m-%d %H:%M:%S")
    with suppress(OSError):  # a full disk: the lock holds without it
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(facts).encode() + b"\n", 0)


def _told(path: Path) -> str:
    try:
        facts: dict[str, Any] = read_table(path)
    except UnreadableError:  # the owner is about to write it
        return "another process"
    keys = ("doing", "pid", "host", "since")
    doing, pid, host, since = (str(facts.get(key, "?"))[:80] for key in keys)
    return f"{doing} (process {pid} on {host}, since {since})"


def _in_use(folder: Path, by: str) -> InUseError:
    return InUseError(f"{folder} is in use by {by}: wait until it ends, or choose another --out")
