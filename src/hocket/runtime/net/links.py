"""One connection to one other learner, and the frames that travel over it.

Within a host it is a Unix socket that keeps frames apart and can carry the descriptor of a segment;
between hosts a TCP stream. Both are read and written without blocking: two learners that send each
other a large vector at the same time must not wait for each other. The end of a stream is how a
learner's death is seen, within a millisecond of `kill -9`.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hocket.core.packing import Buffer
from hocket.errors import HocketError

_HEAD = struct.Struct("<BBHIQQQQ")  # kind, phase, -, source, group, number, view, length
MAX_LOCAL_BODY = 1 << 16  # bytes in a frame within a host; more goes through shared memory
# Nothing longer is believed, so that a damaged length takes no memory: 8 billion bytes are a stripe
# of 2 billion parameters.
MAX_BODY = 1 << 33
_CHUNK = 1 << 20
# A host that has vanished acknowledges nothing; after so many seconds the kernel gives up.
VANISHED_S = 20

PHASE, REPORT = 1, 2
# Programs that a learner starts must not inherit descriptors.
CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


@dataclass(slots=True)
class Frame:
    """What one learner tells another about one collective."""

    kind: int
    group: int  # which group of learners
    number: int  # of the group's collective
    view: int  # stands for the set of learners known to be lost
    phase: int = 0
    source: int = -1
    body: Buffer = b""
    fd: int = -1  # of a segment that comes with it

    def head(self) -> bytes:
        """Return the bytes before the body."""
        return _HEAD.pack(
            self.kind,
            self.phase,
            0,
            self.source,
            self.group,
            self.number,
            self.view,
            len(self.body),
        )

    def drop(self) -> None:
        """Close the descriptor, if it was not taken."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def descriptors(rights: Iterable[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that came with what was read from a Unix socket."""
    found = array.array("i")
    for level, kind, raw in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(raw)
    return list(found)


def close_all(fds: list[int]) -> None:
    """Close descriptors that nobody has taken."""
    while fds:
        with contextlib.suppress(OSError):
            os.close(fds.pop())


def _parse(head: Buffer, most: int) -> tuple[Frame, int]:
    """Return a frame without its body, and the length of that; ConnectionError if it is none."""
    if len(head) < _HEAD.size:
        raise ConnectionError("a frame that is too short")
    kind, phase, _, source, group, number, view, length = _HEAD.unpack_from(head)
    if kind not in (PHASE, REPORT) or length > most:
        raise ConnectionError(f"a frame of kind {kind} with {length} bytes")
    return Frame(kind, group, number, view, phase, source), length


def _hang_up(connection: socket.socket) -> bool:
    """Let both ends see the end of a connection; poll then reports it until it is closed."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    return True


class Link(Protocol):
    """What both kinds of connections have in common."""

    socket: socket.socket

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        ...

    def send(self, frame: Frame) -> bool:
        """Send, or keep until there is room (False); OSError if the other end has gone."""
        ...

    def flush(self) -> bool:
        """Send more of what was kept; True when nothing is left."""
        ...

    def read(self) -> list[Frame] | None:
        """Return the frames that have come, None at the end of the stream.

        A link that carries anything but frames has ended: the other end is another version.
        """
        ...

    def close(self) -> None:
        """End the connection; the peer sees the end of the stream, as if this learner had died."""
        ...


class LocalLink:
    """Within a host: whole frames over a Unix socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = self._socket = connection
        self._kept: deque[Frame] = deque()
        self._broken = False
        self.fileno = connection.fileno

    def send(self, frame: Frame) -> bool:
        """Send a frame and its descriptor."""
        if frame.fd >= 0:  # the frame may wait here while the segment is replaced
            frame.fd = os.dup(frame.fd)
        self._kept.append(frame)
        return self.flush()

    def flush(self) -> bool:
        """Send kept frames while there is room."""
        while self._kept:
            frame = self._kept[0]
            rights = []
            if frame.fd >= 0:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [frame.fd]))]
            try:
                self._socket.sendmsg([frame.head(), frame.body], rights)
            except BlockingIOError:
                return False
            self._kept.popleft().drop()
        return True

    def read(self) -> list[Frame] | None:
        """Return the frames that have come."""
        frames: list[Frame] = []
        while not self._broken:
            try:
                data, rights, flags, _ = self._socket.recvmsg(
                    _HEAD.size + MAX_LOCAL_BODY, socket.CMSG_SPACE(4), CLOEXEC
                )
            except BlockingIOError:
                return frames
            except OSError:
                data, rights, flags = b"", [], 0
            if not data:
                return frames or None  # first what came before the end; the end is read again
            if flags & socket.MSG_CTRUNC:
                raise HocketError(
                    "a descriptor of shared memory could not be received: too many files are open "
                    "in this process. Close some, or raise the limit (ulimit -n)"
                )
            fds = descriptors(rights)
            try:
                frame, length = _parse(data, len(data) - _HEAD.size)
            except ConnectionError:
                self._broken = _hang_up(self._socket)
                close_all(fds)
                break
            frame.body = memoryview(data)[_HEAD.size : _HEAD.size + length]
            frame.fd = fds.pop(0) if fds else -1
            close_all(fds)  # a frame has one at most
            frames.append(frame)
        return frames or None

    def close(self) -> None:
        """Close; what was kept is not sent."""
        while self._kept:
            self._kept.popleft().drop()
        with contextlib.suppress(OSError):
            self._socket.close()


class RemoteLink:
    """Between hosts: a TCP stream."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            notice_a_vanished_host(connection)
        self.socket = self._socket = connection
        self._kept: deque[memoryview] = deque()
        self._head = bytearray()
        self._frame: Frame | None = None
        self._body = memoryview(b"")
        self._filled = 0
        self._broken = False
        self.fileno = connection.fileno

    def send(self, frame: Frame) -> bool:
        """Send a frame; a large body is not copied, so it must not change until it is sent."""
        self._kept.append(memoryview(frame.head()))
        if len(frame.body):
            self._kept.append(memoryview(frame.body).cast("B"))
        return self.flush()

    def flush(self) -> bool:
        """Send while there is room."""
        while self._kept:
            try:
                sent = self._socket.sendmsg([self._kept[i] for i in range(min(8, len(self._kept)))])
            except BlockingIOError:
                return False
            while sent:
                first = self._kept[0]
                if sent < len(first):
                    self._kept[0] = first[sent:]
                    break
                sent -= len(first)
                self._kept.popleft()
        return True

    def read(self) -> list[Frame] | None:
        """Return the frames that have come; a body is read straight into its own memory."""
        frames: list[Frame] = []
        budget = 64  # so that one fast sender does not keep others waiting
        while budget and not self._broken:
            budget -= 1
            try:
                if not (self._read_head() if self._frame is None else self._read_body()):
                    return frames or None
            except BlockingIOError:
                return frames
            except OSError:
                self._broken = _hang_up(self._socket)
                return frames or None
            if self._frame is not None and self._filled == len(self._body):
                self._frame.body = self._body
                frames.append(self._frame)
                self._frame = None
        return None if self._broken and not frames else frames

    def _read_head(self) -> int:
        data = self._socket.recv(_HEAD.size - len(self._head))
        self._head += data
        if len(self._head) == _HEAD.size:
            self._frame, length = _parse(self._head, MAX_BODY)
            self._head = bytearray()
            self._body, self._filled = memoryview(np.empty(length, dtype=np.uint8).data), 0
        return len(data)

    def _read_body(self) -> int:
        count = self._socket.recv_into(self._body[self._filled : self._filled + _CHUNK])
        self._filled += count
        return count

    def close(self) -> None:
        """Close; what was kept is not sent."""
        self._kept.clear()
        with contextlib.suppress(OSError):
            self._socket.close()


def close_after_fork(sockets: Callable[[], Iterable[socket.socket]]) -> None:
    """Close connections in processes that the learner forks (data loaders).

    Otherwise the others would see no end-of-file at its death while such a process lives.
    """

    def close() -> None:
        for one in sockets():
            with contextlib.suppress(OSError):
                os.close(one.detach())

    os.register_at_fork(after_in_child=close)


def notice_a_vanished_host(connection: socket.socket) -> None:
    """Let a TCP connection end when the other host answers nothing for `VANISHED_S`."""
    with contextlib.suppress(OSError):  # it has ended already, which the next read shows
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_S * 1000)
