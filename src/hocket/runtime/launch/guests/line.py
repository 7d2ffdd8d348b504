"""What a launcher and a learner on another host tell each other: JSON over a connection.

It takes the place of the pipe to a learner on this host. Nothing that comes over a network is
unpickled, so the few dataclasses that travel are listed here.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from dataclasses import dataclass, fields
from typing import Any, Final

from hocket.core.accounts import Books, Vitals
from hocket.runtime.launch.learner_process import NextGroup
from hocket.runtime.net.links import close_after_fork, notice_a_vanished_host

_LENGTH: Final = struct.Struct("<I")
_MOST_BYTES: Final = 1 << 24  # the largest is an error with its traceback: kilobytes


@dataclass(frozen=True)
class Hello:
    """The first thing a learner says: where it is."""

    node: str  # as Ray calls it
    host: str


@dataclass(frozen=True)
class Assignment:
    """The answer: its number in the record, and whether a running group is to take it in."""

    rank: int
    joins: bool
    directory: str  # what the launcher has written into the run directory


_KNOWN: Final[dict[str, type[Any]]] = {
    kind.__name__: kind for kind in (Books, Vitals, NextGroup, Hello, Assignment)
}
_KIND: Final = "$kind"


def encoded(message: Any) -> bytes:
    """Return a message as JSON; dataclasses by name."""
    return json.dumps(message, default=_fields_of).encode()


def _fields_of(value: Any) -> dict[str, Any]:
    name = type(value).__name__
    if _KNOWN.get(name) is not type(value):
        raise TypeError(f"{name} does not travel between a launcher and its learners")
    return {_KIND: name} | {one.name: getattr(value, one.name) for one in fields(value)}


def decoded(data: bytes) -> Any:
    """Return the message; ValueError if it makes no sense."""
    try:
        return json.loads(data, object_hook=_restored)
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"a message that makes no sense ({error})") from error


def _restored(table: dict[str, Any]) -> Any:
    if _KIND not in table:
        return table
    kind = _KNOWN[table.pop(_KIND)]
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in table.items()})


class Line:
    """One end of the connection, with the methods of a multiprocessing pipe."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        notice_a_vanished_host(connection)
        self._socket = connection
        self._sending = threading.Lock()
        self.closed = False
        close_after_fork(lambda: [] if self.closed else [self._socket])

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Send a message; OSError if the other end has gone."""
        data = encoded(message)
        with self._sending:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def recv(self) -> Any:
        """Receive a message, and wait for it; EOFError at its end or at nonsense."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > _MOST_BYTES:
            raise EOFError(f"a message of {length} bytes")
        try:
            return decoded(self._read(length))
        except ValueError as error:
            raise EOFError(str(error)) from error

    def _read(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            more = self._socket.recv(length - len(data))
            if not more:
                raise EOFError("the other end has gone")
            data += more
        return bytes(data)

    def cut(self) -> None:
        """Let both ends see the end, without closing the descriptor that somebody waits for."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended already
            return

    def close(self) -> None:
        """End the connection."""
        if not self.closed:
            self.closed = True
            self.cut()
            self._socket.close()
