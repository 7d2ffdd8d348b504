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
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hocket.core.effects import Message
from hocket.core.packing import Buffer, from_buffer, to_parts
from hocket.errors import ContractError, WaitTimeoutError
from hocket.runtime.net import addresses
from hocket.runtime.net.handover import Handover
from hocket.runtime.net.handshake import Handshake
from hocket.runtime.net.links import (
    CLOEXEC,
    MAX_BODY,
    close_after_fork,
    close_all,
    descriptors,
    notice_a_vanished_host,
)
from hocket.runtime.net.reception import Reception
from hocket.runtime.net.store import Store

_HEAD = struct.Struct("<qq")  # length of the tag, length of the payload
_CHUNK = 1 << 20
_BUFFER_BYTES = 1 << 22  # of a socket: sender and receiver then work at the same time
_PURPOSE = "mail"
_MAX_PARTS = 64  # of one call of sendmsg
_MAX_FDS = 64  # that come with one message
_MAX_TAG = 1 << 10  # bytes


@dataclass
class _Stream:
    """How far one incoming connection has been read."""

    rank: int  # who is at its other end
    head: bytearray = field(default_factory=bytearray)
    tag: str | None = None
    payload: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    filled: int = 0
    fds: list[int] = field(default_factory=list)  # of slots that come with the message

    def wanted(self) -> int:
        """Bytes until the head is complete: lengths, then a tag."""
        if len(self.head) < _HEAD.size:
            return _HEAD.size - len(self.head)
        tag, payload = _HEAD.unpack_from(self.head)
        if not (0 <= tag <= _MAX_TAG and 0 <= payload <= MAX_BODY):
            raise ContractError(
                f"rank {self.rank} sent a message whose tag has {tag} and whose payload has "
                f"{payload} bytes: it may run another version of Hocket"
            )
        return int(_HEAD.size + tag - len(self.head))


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
        self._handshake = handshake = replace(handshake, purpose=_PURPOSE)
        self._rank = rank = handshake.rank
        self._near = near
        self._handover = Handover(rank, near)
        self._arrived = arrived
        self._lost = lost
        self._failed = failed
        self._selector = selectors.DefaultSelector()
        listeners = [addresses.listen(f"{address}:0")]
        where = addresses.address_of(listeners[0])
        if len(near) > 1:
            listeners.append(addresses.listen(handshake.nearby_address(rank)))
        self._reception = Reception(handshake, listeners)
        self._expected = set(range(size)) - {rank}  # who has not called yet
        self._wake_r, self._wake_w = socket.socketpair()
        self._closed = False
        self._incoming: set[socket.socket] = set()
        for one in (self._reception, self._wake_r):
            self._selector.register(one, selectors.EVENT_READ, None)
        store.put(f"mailbox/{rank}", where)
        self._thread = threading.Thread(target=self._read_all, name="mailbox", daemon=True)
        self._thread.start()
        # To all others, at once: a learner that waits for a message must see the sender die.
        self._outgoing = {to: self._connect(store, to) for to in range(size) if to != rank}
        close_after_fork(
            lambda: [*self._outgoing.values(), *self._incoming, *self._reception.sockets]
        )

    def _connect(self, store: Store, to: int) -> socket.socket:
        where = store.get(f"mailbox/{to}")
        if to in self._near:
            connection = self._handshake.call(to, self._handshake.nearby_address(to))
        else:
            connection = self._handshake.call(to, where)
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
                for key, _ in self._selector.select(self._reception.patience_s):
                    if isinstance(key.data, _Stream):
                        assert isinstance(key.fileobj, socket.socket)
                        self._read(key.fileobj, key.data)
                if self._expected and not self._closed:
                    self._let_in()
        except Exception as error:  # else a receive would wait for ever
            if not self._closed:
                self._failed(error)

    def _let_in(self) -> None:
        """Take the connections of others; when all have come, nobody listens any more."""
        for rank, connection in self._reception.admit():
            unix = connection.family == socket.AF_UNIX
            if rank not in self._expected or unix != (rank in self._near):
                connection.close()
                continue
            if not unix:
                notice_a_vanished_host(connection)
            connection.setblocking(True)
            self._expected.discard(rank)
            self._incoming.add(connection)
            self._selector.register(connection, selectors.EVENT_READ, _Stream(rank))
        if not self._expected:
            self._selector.unregister(self._reception)
            self._reception.close()

    def _read(self, connection: socket.socket, stream: _Stream) -> None:
        try:
            more = self._read_some(connection, stream)
        except OSError:
            more = False
        if not more:
            self._selector.unregister(connection)
            self._incoming.discard(connection)
            connection.close()
            close_all(stream.fds)
            self._handover.lose(stream.rank)
            if not self._closed:
                self._lost(stream.rank)

    def _read_some(self, connection: socket.socket, stream: _Stream) -> bool:
        """Read what is there; False at the end of the stream."""
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
        stream.tag = stream.head[_HEAD.size :].decode(errors="replace")
        stream.payload, stream.filled = torch.empty(length, dtype=torch.uint8), 0
        stream.head.clear()

    def _deliver_if_whole(self, stream: _Stream) -> None:
        if stream.filled < len(stream.payload):
            return
        assert stream.tag is not None
        self._arrived(Message(stream.rank, stream.tag, self._unpacked(stream)))
        stream.tag, stream.payload = None, torch.empty(0, dtype=torch.uint8)

    def _unpacked(self, stream: _Stream) -> Any:
        try:
            return from_buffer(stream.payload, lambda at: self._handover.take(at, stream.fds))
        except Exception as error:  # whatever the bytes were
            raise ContractError(
                f"rank {stream.rank} sent a message {stream.tag!r} that cannot be read ({error}): "
                "it may run another version of Hocket"
            ) from error
        finally:
            close_all(stream.fds)

    def close(self) -> None:
        """Stop reading and close every connection."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._wake_w.send(b"x")
        self._thread.join(timeout=5)
        for one in [*self._outgoing.values(), *self._incoming, self._wake_r, self._wake_w]:
            with contextlib.suppress(OSError):
                one.close()
        self._reception.close()
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
