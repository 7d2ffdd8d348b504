"""The server that processes are forked from, with torch loaded, and what it leaves behind: nothing.

`multiprocessing` keeps the server's socket in a temporary folder, which it removes when the program
ends; a program that is ended by `kill -9` removes nothing. The server itself lives until its
program and all processes that were forked from it have ended. So it is the one to clear up after a
program that could not.

The server imports this module first (`fork_context`). In any other process it does nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.util
import os
import shutil
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Final

from hocket.errors import require
from hocket.support.signals import signals_held_back

LONGEST_SOCKET: Final = 107  # bytes of the path of a Unix socket, on Linux
_LISTENER: Final = len("/listener-12345678")  # how multiprocessing calls its socket
_PROGRAM: Final = "HOCKET_PROGRAM"  # whose server it is; the parent may have ended before we look


def fork_context(preload: Sequence[str]) -> ForkServerContext:
    """Return the context in which processes are forked from a server that has modules loaded."""
    context = multiprocessing.get_context("forkserver")
    os.environ[_PROGRAM] = str(os.getpid())
    context.set_forkserver_preload([__name__, *preload])
    _start_server()
    return context


def _start_server() -> None:
    """Start the server, unless it runs; signals are held back in it for as long as it lives.

    Slurm sends SIGUSR1 and its like to every process of a job. A server that is ended by it while
    learners are being started takes the run with it. Its processes call `leave_to_parent`.
    """
    folder = os.fsencode(multiprocessing.util.get_temp_dir())
    require(
        len(folder) + _LISTENER <= LONGEST_SOCKET,
        f"the temporary folder {os.fsdecode(folder)} has a name too long for the socket that "
        "processes are started through: set TMPDIR to a shorter one, such as /tmp",
    )
    with signals_held_back():
        resource_tracker.ensure_running()  # lets two of them through when it has started
    with signals_held_back():
        forkserver.ensure_running()


def temporary_folder() -> Path:
    """Return a folder for this program, which is gone when all its processes are."""
    return Path(multiprocessing.util.get_temp_dir())


def _own_sockets() -> Iterator[str]:
    """Yield the paths of the Unix sockets on which this process listens."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    continue
                with socket.socket(fileno=os.dup(int(name))) as one:
                    listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    if one.family == socket.AF_UNIX and listens:
                        yield os.fsdecode(one.getsockname())


def _clear_up(server: int, folders: list[Path]) -> None:
    """Remove what a program has left that was ended; runs when the server ends."""
    if os.getpid() == server and os.environ.get(_PROGRAM) not in (None, str(os.getppid())):
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _is_server() -> bool:
    return any("multiprocessing.forkserver" in word for word in sys.orig_argv)


if _is_server():
    # Its name is multiprocessing's own choice: nothing else is ever removed.
    _folders = [p.parent for p in map(Path, _own_sockets()) if p.parent.name.startswith("pymp-")]
    atexit.register(_clear_up, os.getpid(), _folders)
