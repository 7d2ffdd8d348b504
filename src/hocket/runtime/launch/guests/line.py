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
from typing import Any, Final, get_args, get_type_hints

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
_HINTS: Final = {kind: get_type_hints(kind) for kind in _KNOWN.values()}
_KIND: Final = "$kind"


def encoded(message: Any) -> bytes:
    """Return a message as JSON; dataclasses by name."""
    return json.dumps(message, default=_fields_of).encode()


def _fields_of(value: Any) -> dict[str, Any]:
    name = type(value).__name__
    if _KNOWN.get(name) is not type(value):
        raise TypeError(f"{name} does not travel between a launcher and its learners")
    return {_KIND: name} | {one.name: getattr(value, one.name) for one in fields(value)}


def decoded(data: bytes | bytearray) -> Any:
    """Return the message; ValueError if it makes no sense."""
    try:
        return json.loads(data, object_hook=_restored)
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"a message that makes no sense ({error})") from error


def _restored(table: dict[str, Any]) -> Any:
    if _KIND not in table:
        return table
    kind = _KNOWN[table.pop(_KIND)]
    made = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in table.items()})
    for name, hint in _HINTS[kind].items():
        if not _fits(getattr(made, name), hint):
            raise TypeError(f"{kind.__name__}.{name} is {getattr(made, name)!r:.100}")
    return made


def _fits(value: Any, hint: Any) -> bool:
    """True if a value is what the field of a dataclass says: a type, or a tuple of one."""
    if inner := get_args(hint):
        return isinstance(value, tuple) and all(_fits(one, inner[0]) for one in value)
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint


class Line:
    """One end of the connection, with the methods of a multiprocessing pipe.

    `waits`: `recv` waits for a message; else it raises BlockingIOError until a whole one has come.
    A launcher does not wait: half a message must not keep it from all its other learners.
    """

    def __init__(self, connection: socket.socket, *, waits: bool = True) -> None:
        connection.setblocking(True)
        notice_a_vanished_host(connection)
        self._socket = connection
        self._flags = 0 if waits else socket.MSG_DONTWAIT
        self._come = bytearray()  # of the message that is on its way
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
        """Receive a message; EOFError at its end or at nonsense."""
        self._gather(_LENGTH.size)
        (length,) = _LENGTH.unpack_from(self._come)
        if length > _MOST_BYTES:
            raise EOFError(f"a message of {length} bytes")
        self._gather(_LENGTH.size + length)
        message, self._come = self._come[_LENGTH.size :], bytearray()
        try:
            return decoded(message)
        except ValueError as error:
            raise EOFError(str(error)) from error

    def _gather(self, length: int) -> None:
        """Read on until so much of the message has come; not a byte of the next one."""
        while len(self._come) < length:
            more = self._socket.recv(length - len(self._come), self._flags)
            if not more:
                raise EOFError("the other end has gone")
            self._come += more

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
