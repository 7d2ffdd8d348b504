"""Where strangers wait: connections that have not shown yet that they belong to the run.

Anybody may connect to a port. Until a connection has proved itself (`handshake.py`) it can do no
more than wait here: there are at most `MOST` of them, each for at most `GREETING_S`, none is waited
for, and whatever comes with them (descriptors of a Unix socket) is closed. If too many come, the
one that has waited longest is dropped; a learner that is dropped by mistake calls again.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from hocket.runtime.net.addresses import same_user
from hocket.runtime.net.handshake import Handshake, Welcome

MOST: Final = 128  # a process may usually open 1024 files; learners answer within milliseconds
GREETING_S: Final = 5.0  # a learner that was stopped for longer calls again
_AT_ONCE: Final = 64  # calls accepted before the owner goes on with its work
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_REST_S: Final = 0.02  # before the next attempt to accept, if this process can open no more files


@dataclass
class _Stranger:
    """One connection that has not proved itself, and since when."""

    welcome: Welcome
    since: float


class Reception:
    """Listens, and hands over the connections that have proved themselves."""

    def __init__(self, handshake: Handshake, listeners: Iterable[socket.socket]) -> None:
        self._handshake = handshake
        self._listeners = list(listeners)
        self._strangers: dict[socket.socket, _Stranger] = {}  # oldest first
        self._selector = selectors.DefaultSelector()
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `admit` has something to do."""
        return int(self._selector.fileno())

    @property
    def sockets(self) -> list[socket.socket]:
        """All that is open here; a forked process must close it."""
        return [*self._listeners, *self._strangers]

    @property
    def patience_s(self) -> float | None:
        """How long `admit` may wait before it is called again, to drop those who say nothing."""
        for stranger in self._strangers.values():
            return max(0.0, stranger.since + GREETING_S - time.monotonic())
        return None

    def admit(self, wait_s: float = 0.0) -> list[tuple[int, socket.socket]]:
        """Look at what has come; return who has proved itself, with its rank."""
        admitted = []
        for key, _ in self._selector.select(wait_s):
            assert isinstance(key.fileobj, socket.socket)
            if key.fileobj in self._listeners:
                self._accept(key.fileobj)
            elif (rank := self._hear(key.fileobj)) is not None:
                admitted.append((rank, key.fileobj))
        long_ago = time.monotonic() - GREETING_S
        for connection in [c for c, s in self._strangers.items() if s.since < long_ago]:
            self._drop(connection)
        return admitted

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._drop_oldest()
                    time.sleep(_REST_S)
                return  # else the caller has gone already
            if not same_user(connection):
                connection.close()
                continue
            connection.setblocking(False)
            welcome = self._handshake.welcome(connection)
            self._strangers[connection] = _Stranger(welcome, time.monotonic())
            self._selector.register(connection, selectors.EVENT_READ)
            self._hear(connection)  # up to where it waits for the caller
            if len(self._strangers) > MOST:
                self._drop_oldest()

    def _hear(self, connection: socket.socket) -> int | None:
        """Take in what has come of a greeting; return the rank when it is complete."""
        if connection not in self._strangers:
            return None  # dropped since select returned
        try:
            next(self._strangers[connection].welcome)
        except StopIteration as done:
            self._forget(connection)
            return int(done.value)
        except OSError:  # a stranger's, or it has gone
            self._drop(connection)
        return None

    def _forget(self, connection: socket.socket) -> None:
        del self._strangers[connection]
        self._selector.unregister(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()

    def _drop_oldest(self) -> None:
        for connection in self._strangers:
            self._drop(connection)
            return

    def close(self) -> None:
        """Stop listening, and drop all who have not proved themselves."""
        for connection in list(self._strangers):
            self._drop(connection)
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.close()
        self._listeners.clear()
        self._selector.close()
