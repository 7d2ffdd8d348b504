"""Messages between learners: one connection per pair and direction.

Between hosts it is a TCP connection: tensors are sent from where they are, and received where they
will stay. Within a host it is a Unix socket, and large tensors are handed over in shared memory
(`handover.py`): through a socket 27 MB cost sender and receiver 7 ms of processor time each.

A message from A to B with any tag goes through one stream, so order holds per (source, destination,
tag). A reader thread takes in whatever arrives, so a sender never waits for a receiver to ask, and
an end-of-file says at once that a peer has gone.
"""

from __future__ import annotations

import array
import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from hocket.core.effects import Message
from hocket.core.packing import Buffer, from_buffer, to_parts
from hocket.errors import WaitTimeoutError
from hocket.runtime.net.handover import Handover
from hocket.runtime.net.handshake import Handshake, Welcome
from hocket.runtime.net.links import (
    CLOEXEC,
    close_after_fork,
    descriptors,
    notice_a_vanished_host,
)
from hocket.runtime.net.store import Store

_HEAD = struct.Struct("<qq")  # length of the tag, length of the payload
_CHUNK = 1 << 20
_BUFFER_BYTES = 1 << 22  # of a socket: sender and receiver then work at the same time
_NEARBY = "mail", socket.SOCK_STREAM
_MAX_PARTS = 64  # of one call of sendmsg
_MAX_FDS = 64  # that come with one message


@dataclass
class _Stream:
    """How far one incoming connection has been read, and who is at its other end."""

    welcome: Welcome
    rank: int | None = None  # None until it has greeted us
    head: bytearray = field(default_factory=bytearray)
    tag: str | None = None
    payload: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    filled: int = 0
    fds: list[int] = field(default_factory=list)  # of slots that come with the message

    def wanted(self) -> int:
        """Bytes until the head is complete: lengths, then a tag."""
        if len(self.head) < _HEAD.size:
            return _HEAD.size - len(self.head)
        return int(_HEAD.size + _HEAD.unpack_from(self.head)[0] - len(self.head))

    def hear_greeting(self) -> None:
        """Take in what has come of the greeting; OSError if it is a stranger's."""
        try:
            next(self.welcome)
        except StopIteration as done:
            self.rank = done.value


class Mailbox:
    """Sends at once; hands what arrives to `arrived(message)`, what is lost to `lost(rank)`."""

    def __init__(
        self,
        store: Store,
        handshake: Handshake,
        address: str,
        *,
        size: int,
        near: frozenset[int],
        arrived: Callable[[Message], None],
        lost: Callable[[int], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._handshake = handshake
        self._rank = rank = handshake.rank
        self._near = near
        self._handover = Handover(rank, near)
        self._arrived = arrived
        self._lost = lost
        self._failed = failed
        self._selector = selectors.DefaultSelector()
        self._listeners = [handshake.listen(address)]
        if len(near) > 1:
            self._listeners.append(handshake.listen_nearby(*_NEARBY))
        self._wake_r, self._wake_w = socket.socketpair()
        self._closed = False
        self._incoming: list[socket.socket] = []
        for one in (*self._listeners, self._wake_r):
            self._selector.register(one, selectors.EVENT_READ, None)
        port = self._listeners[0].getsockname()[1]
        store.put(f"mailbox/{rank}", f"{address}:{port}")
        self._thread = threading.Thread(target=self._read_all, name="mailbox", daemon=True)
        self._thread.start()
        # To all others, at once: a learner that waits for a message must see the sender die.
        self._outgoing = {to: self._connect(store, to) for to in range(size) if to != rank}
        close_after_fork(lambda: [*self._outgoing.values(), *self._incoming])

    def _connect(self, store: Store, to: int) -> socket.socket:
        host, _, port = store.get(f"mailbox/{to}").rpartition(":")
        if to in self._near:
            connection = self._handshake.call_nearby(to, *_NEARBY)
        else:
            connection = self._handshake.call(to, host, int(port))
            notice_a_vanished_host(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        return connection

    # ------------------------------------------------------------------ sending

    def send(self, to: int, tag: str, payload: Any) -> int:
        """Send a message and return its bytes; one to a lost learner is dropped."""
        connection = self._outgoing.get(to)
        if connection is None:
            return 0
        fds: list[int] = []
        handed_over: list[int] = []

        def put(tensor: torch.Tensor) -> list[int] | None:
            where = self._handover.put(tensor, to, fds)
            handed_over.append(where[2] if where else 0)
            return where

        name, parts = tag.encode(), to_parts(payload, put)
        length = sum(len(part) for part in parts)
        try:
            _send_all(connection, [_HEAD.pack(len(name), length), name, *parts], fds)
        except TimeoutError as error:
            raise WaitTimeoutError(
                f"rank {self._rank} waited {self._handshake.timeout_s:g} s in send(to={to}, "
                f"tag={tag!r}): rank {to} reads nothing; it is stuck or frozen, or "
                "slow: then raise runtime.timeout_s"
            ) from error
        except OSError:  # it has gone: a receive from it fails, a send to it is dropped
            self._outgoing.pop(to).close()
            self._handover.lose(to)
            return 0
        return length + sum(handed_over)

    # ------------------------------------------------------------------ taking in

    def _read_all(self) -> None:
        try:
            while not self._closed:
                for key, _ in self._selector.select():
                    if key.fileobj in self._listeners:
                        self._accept(key.fileobj)
                    elif key.fileobj is not self._wake_r:
                        assert isinstance(key.fileobj, socket.socket)
                        self._read(key.fileobj, key.data)
        except Exception as error:  # else a receive would wait for ever
            if not self._closed:
                self._failed(error)

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        if connection.family != socket.AF_UNIX:
            notice_a_vanished_host(connection)
        self._incoming.append(connection)
        stream = _Stream(self._handshake.welcome(connection))
        self._selector.register(connection, selectors.EVENT_READ, stream)
        self._read(connection, stream)  # up to where it waits for the caller

    def _read(self, connection: socket.socket, stream: _Stream) -> None:
        try:
            more = self._read_some(connection, stream)
        except OSError:
            more = False
        if not more:
            self._selector.unregister(connection)
            connection.close()
            if stream.rank is not None:
                self._handover.lose(stream.rank)
            if stream.rank is not None and not self._closed:
                self._lost(stream.rank)

    def _read_some(self, connection: socket.socket, stream: _Stream) -> bool:
        """Read what is there; False at the end of the stream, OSError if it is a stranger's."""
        if stream.rank is None:
            stream.hear_greeting()
            return True
        if stream.tag is None:
            data = _receive(connection, stream.wanted(), stream.fds)
            stream.head += data
            if data and stream.wanted() == 0:
                self._head_complete(stream)
            return bool(data)
        view = memoryview(stream.payload.numpy().data)
        count = connection.recv_into(view[stream.filled : stream.filled + _CHUNK])
        stream.filled += count
        self._deliver_if_whole(stream)
        return count > 0

    def _head_complete(self, stream: _Stream) -> None:
        _, length = _HEAD.unpack_from(stream.head)
        stream.tag = stream.head[_HEAD.size :].decode()
        stream.payload, stream.filled = torch.empty(length, dtype=torch.uint8), 0
        stream.head.clear()

    def _deliver_if_whole(self, stream: _Stream) -> None:
        if stream.filled < len(stream.payload):
            return
        assert stream.rank is not None
        assert stream.tag is not None
        payload = from_buffer(stream.payload, lambda where: self._handover.take(where, stream.fds))
        self._arrived(Message(stream.rank, stream.tag, payload))
        stream.tag, stream.payload = None, torch.empty(0, dtype=torch.uint8)

    def close(self) -> None:
        """Stop reading and close every connection."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._wake_w.send(b"x")
        self._thread.join(timeout=5)
        for one in [*self._outgoing.values(), *self._listeners, self._wake_r, self._wake_w]:
            with contextlib.suppress(OSError):
                one.close()
        self._selector.close()
        self._handover.close()


def _receive(connection: socket.socket, num_bytes: int, fds: list[int]) -> bytes:
    """Read some bytes, and the descriptors that come with them."""
    if connection.family != socket.AF_UNIX:
        return connection.recv(num_bytes)
    room = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
    data, rights, _, _ = connection.recvmsg(num_bytes, room, CLOEXEC)
    fds += descriptors(rights)
    return data


def _send_all(connection: socket.socket, parts: list[Buffer], fds: list[int]) -> None:
    """Send all parts in as few calls as possible; descriptors go with the first."""
    left = [memoryview(part).cast("B") for part in parts if len(part)]
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    while left:
        sent = connection.sendmsg(left[:_MAX_PARTS], rights)
        rights = []
        while sent and left:
            if sent < len(left[0]):
                left[0] = left[0][sent:]
                break
            sent -= len(left.pop(0))
