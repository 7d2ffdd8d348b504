"""Messages between learners: one TCP connection per pair and direction, made when first used.

A message from A to B with any tag goes through one stream, so order holds per (source, destination,
tag). A reader thread takes in whatever arrives, so a sender never waits for a receiver to ask, and
an end-of-file tells at once that a peer is gone.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hocket.effects import Message
from hocket.errors import PeerLostError
from hocket.runtime.packing import from_bytes, to_bytes
from hocket.runtime.transport import Store

_HEAD = struct.Struct("<qq")  # length of the tag, length of the payload
_HELLO = struct.Struct("<q16s")  # rank, token of the run


@dataclass
class _Stream:
    """Bytes of one incoming connection, and who is at its other end."""

    rank: int | None = None
    data: bytearray = field(default_factory=bytearray)


class Mailbox:
    """Sends at once; hands what arrives to `arrived(message)`, what is lost to `lost(rank)`."""

    def __init__(
        self,
        store: Store,
        rank: int,
        address: str,
        token: bytes,
        arrived: Callable[[Message], None],
        lost: Callable[[int], None],
        failed: Callable[[Exception], None],
        timeout_s: float,
    ) -> None:
        self._store = store
        self._rank = rank
        self._token = token
        self._arrived = arrived
        self._lost = lost
        self._failed = failed
        self._timeout_s = timeout_s
        self._outgoing: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server((address, 0), backlog=128)
        self._wake_r, self._wake_w = socket.socketpair()
        self._closed = False
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._wake_r, selectors.EVENT_READ, None)
        host, port = self._listener.getsockname()[:2]
        store.put(f"mailbox/{rank}", f"{host}:{port}")
        self._thread = threading.Thread(target=self._read_all, name="mailbox", daemon=True)
        self._thread.start()

    def send(self, to: int, tag: str, payload: Any) -> int:
        """Send a message; returns its size in bytes."""
        name, body = tag.encode(), to_bytes(payload)
        try:
            if to not in self._outgoing:
                self._outgoing[to] = self._connect(to)
            self._outgoing[to].sendall(_HEAD.pack(len(name), len(body)) + name)
            self._outgoing[to].sendall(body)
        except OSError as error:
            raise PeerLostError(
                f"rank {self._rank}: send(to={to}, tag={tag!r}) failed: {error}; rank {to} has "
                "ended or cannot be reached"
            ) from error
        return len(body)

    def _connect(self, to: int) -> socket.socket:
        host, _, port = self._store.get(f"mailbox/{to}").rpartition(":")
        connection = socket.create_connection((host, int(port)), timeout=self._timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(_HELLO.pack(self._rank, self._token))
        return connection

    def _read_all(self) -> None:
        try:
            self._read_until_closed()
        except Exception as error:  # else the receiver would wait in vain
            if not self._closed:
                self._failed(error)

    def _read_until_closed(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    self._selector.register(connection, selectors.EVENT_READ, _Stream())
                elif key.fileobj is not self._wake_r:
                    assert isinstance(key.fileobj, socket.socket)
                    self._read(key.fileobj, key.data)

    def _read(self, connection: socket.socket, stream: _Stream) -> None:
        try:
            chunk = connection.recv(1 << 20)
        except OSError:
            chunk = b""
        if not chunk:
            self._selector.unregister(connection)
            connection.close()
            if stream.rank is not None and not self._closed:
                self._lost(stream.rank)
            return
        stream.data += chunk
        if stream.rank is None and len(stream.data) >= _HELLO.size:
            rank, token = _HELLO.unpack_from(stream.data)
            if token != self._token:  # a stranger on our port
                self._selector.unregister(connection)
                connection.close()
                return
            stream.rank = rank
            del stream.data[: _HELLO.size]
        while stream.rank is not None and self._take_one(stream):
            pass

    def _take_one(self, stream: _Stream) -> bool:
        if len(stream.data) < _HEAD.size:
            return False
        tag_length, length = _HEAD.unpack_from(stream.data)
        end = _HEAD.size + tag_length + length
        if len(stream.data) < end:
            return False
        tag = stream.data[_HEAD.size : _HEAD.size + tag_length].decode()
        payload = from_bytes(bytes(stream.data[_HEAD.size + tag_length : end]))
        del stream.data[:end]
        assert stream.rank is not None
        self._arrived(Message(stream.rank, tag, payload))
        return True

    def close(self) -> None:
        """Stop reading and close every connection."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._wake_w.send(b"x")
        self._thread.join(timeout=5)
        for connection in [*self._outgoing.values(), self._listener, self._wake_r, self._wake_w]:
            with contextlib.suppress(OSError):
                connection.close()
        self._selector.close()
