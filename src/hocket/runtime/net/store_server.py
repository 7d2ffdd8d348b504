"""Serves the store of a run, in a thread of whoever starts the run.

On one host it is a Unix socket (or a port of the loopback interface where there is none); for
several hosts a port. One thread does everything: nothing in it waits for a single client.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from hocket.runtime.net import addresses
from hocket.runtime.net.addresses import LOOPBACK
from hocket.runtime.net.handshake import NOBODY, Handshake
from hocket.runtime.net.links import close_after_fork, notice_a_vanished_host
from hocket.runtime.net.reception import GREETING_S, Reception
from hocket.runtime.net.store import (
    ANSWER_HEAD,
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    PURPOSE,
    REQUEST_HEAD,
    SALT,
    Answer,
    Request,
    key_at,
)

_CHUNK: Final = 1 << 16
_LONGEST_S: Final = 86_400.0  # a wait; more would be too much for the selector
_LARGEST: Final = 1 << 63  # a counter stays below it, on both sides of 0


@dataclass(eq=False)
class _Client:
    """One connection that has proved itself."""

    connection: socket.socket
    incoming: bytearray = field(default_factory=bytearray)
    outgoing: bytearray = field(default_factory=bytearray)
    waits_for_room: bool = False  # to send what is outgoing
    gone: bool = False


@dataclass(eq=False)
class _Waiting:
    """A client that waits for a value."""

    client: _Client
    until: float


class BadRequestError(ValueError):
    """Bytes that are no request: the connection is closed."""


class Shelf:
    """What is stored, and what each operation does with it; no sockets, no clock."""

    def __init__(self) -> None:
        self._values: dict[str, bytes | int] = {}

    def read(self, key: str) -> bytes | None:
        """Return a value; a counter as decimal digits."""
        value = self._values.get(key)
        return str(value).encode() if isinstance(value, int) else value

    def put(self, key: str, value: bytes) -> None:
        """Keep a value, in place of an older one."""
        self._values[key] = value

    def add(self, key: str, amount: int) -> int | None:
        """Add to a counter and return it; None if the value is no counter."""
        value = self._values.get(key, 0)
        if not isinstance(value, int) or abs(value + amount) >= _LARGEST:
            return None
        self._values[key] = value + amount
        return value + amount

    def swap(self, key: str, expected: bytes, wanted: bytes) -> bytes:
        """Store a value if the present one is the expected one; return what is there then."""
        present = self.read(key)
        if (present or b"") == expected:
            self._values[key] = present = wanted
        return present or b""

    def drop(self, key: str) -> bool:
        """Remove a value; False if there was none."""
        return self._values.pop(key, None) is not None


def take_request(data: bytearray) -> tuple[Request, str, bytes, int] | None:
    """Remove the first request from what has come; None if it is not complete yet.

    Raises BadRequestError as soon as the head makes no sense: before the rest is waited for.
    """
    if len(data) < REQUEST_HEAD.size:
        return None
    code, key_bytes, value_bytes, number = REQUEST_HEAD.unpack_from(data)
    if key_bytes > MAX_KEY_BYTES or value_bytes > MAX_VALUE_BYTES:
        raise BadRequestError(f"a key of {key_bytes} and a value of {value_bytes} bytes")
    try:
        what = Request(code)
    except ValueError as error:
        raise BadRequestError(f"operation {code}") from error
    if what is Request.SWAP and not 0 <= number <= value_bytes:
        raise BadRequestError(f"{number} of {value_bytes} bytes are expected")
    end = REQUEST_HEAD.size + key_bytes + value_bytes
    if len(data) < end:
        return None
    name, value = data[REQUEST_HEAD.size : end - value_bytes], bytes(data[end - value_bytes : end])
    del data[:end]
    try:
        return what, name.decode(), value, number
    except UnicodeDecodeError as error:
        raise BadRequestError("a key that is no text") from error


class StoreServer:
    """Serves a store until it is closed."""

    def __init__(
        self, token: bytes, listeners: Iterable[socket.socket], known_by: str | None = None
    ) -> None:
        listeners = list(listeners)
        self.address = addresses.address_of(listeners[0])
        self.token = token
        self._shelf = Shelf()
        self._shelf.put(SALT, secrets.token_hex(16).encode())
        self._waiting: dict[str, list[_Waiting]] = {}
        self._clients: set[_Client] = set()
        key = key_at(token, self.address if known_by is None else known_by)
        handshake = Handshake(NOBODY, key, GREETING_S, PURPOSE)
        self._reception = Reception(handshake, listeners)
        self._wake_r, self._wake_w = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._reception, selectors.EVENT_READ)
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        self._closed = False
        close_after_fork(self._sockets)
        self._thread = threading.Thread(target=self._serve, name="store", daemon=True)
        self._thread.start()

    @classmethod
    def nearby(cls, token: bytes) -> StoreServer:
        """Serve a store for the processes of this host."""
        address = f"@hocket-store-{secrets.token_hex(16)}" if addresses.NEARBY else f"{LOOPBACK}:0"
        return cls(token, [addresses.listen(address)])

    def _sockets(self) -> list[socket.socket]:
        clients = [client.connection for client in self._clients]
        return [*self._reception.sockets, *clients, self._wake_r, self._wake_w]

    def close(self) -> None:
        """Stop serving."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._wake_w.send(b"x")
        self._thread.join(timeout=5)
        self._reception.close()
        for client in list(self._clients):
            self._end(client)
        self._selector.close()
        self._wake_r.close()
        self._wake_w.close()

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        while not self._closed:
            for key, events in self._selector.select(self._patience_s()):
                if isinstance(key.data, _Client):
                    self._attend(key.data, events)
                elif key.fileobj is self._reception:
                    self._let_in()
            if self._reception.patience_s == 0.0:
                self._let_in()
            if self._waiting:
                self._answer_late()

    def _patience_s(self) -> float | None:
        """How long there is nothing to do, unless something comes; None: for ever."""
        patience_s = self._reception.patience_s
        if not self._waiting:
            return patience_s
        now = time.monotonic()
        ends = [w.until - now for waiting in self._waiting.values() for w in waiting]
        return max(0.0, min([*ends, *([] if patience_s is None else [patience_s])]))

    def _let_in(self) -> None:
        for _, connection in self._reception.admit():
            if connection.family != socket.AF_UNIX:
                notice_a_vanished_host(connection)
            client = _Client(connection)
            self._clients.add(client)
            self._selector.register(connection, selectors.EVENT_READ, client)

    def _end(self, client: _Client) -> None:
        """End a connection; an answer to one client may have ended another, or itself, before."""
        if client.gone:
            return
        client.gone = True
        self._clients.discard(client)
        self._selector.unregister(client.connection)
        client.connection.close()

    def _attend(self, client: _Client, events: int) -> None:
        """Read what a client asks and send what it is answered; it ends if it makes no sense."""
        if client.gone:  # since select returned
            return
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(client)
            if events & selectors.EVENT_READ:
                self._read(client)
        except BlockingIOError:
            return
        except (OSError, BadRequestError):
            self._end(client)

    def _read(self, client: _Client) -> None:
        data = client.connection.recv(_CHUNK)
        if not data:
            raise ConnectionResetError
        client.incoming += data
        while not client.gone and (request := take_request(client.incoming)) is not None:
            self._do(client, *request)

    def _send(self, client: _Client, answer: Answer, number: int = 0, value: bytes = b"") -> None:
        if client.gone:
            return
        client.outgoing += ANSWER_HEAD.pack(answer, len(value), number) + value
        self._flush(client)

    def _flush(self, client: _Client) -> None:
        try:
            sent = client.connection.send(client.outgoing)
            del client.outgoing[:sent]
        except BlockingIOError:
            pass
        if bool(client.outgoing) != client.waits_for_room:
            client.waits_for_room = not client.waits_for_room
            more = selectors.EVENT_WRITE if client.waits_for_room else 0
            self._selector.modify(client.connection, selectors.EVENT_READ | more, client)

    # ------------------------------------------------------------------ what is asked

    def _do(self, client: _Client, what: Request, key: str, value: bytes, number: int) -> None:
        if what is Request.ADD:
            total = self._shelf.add(key, number)
            if total is None:
                self._send(client, Answer.REFUSED)
            else:
                self._stored(key)
                self._send(client, Answer.DONE, total)
        elif what is Request.PUT:
            self._shelf.put(key, value)
            self._stored(key)  # first: this client may have gone
            self._send(client, Answer.DONE)
        elif what is Request.GET:
            self._get(client, key, number)
        elif what is Request.SWAP:
            there = self._shelf.swap(key, value[:number], value[number:])
            self._stored(key)
            self._send(client, Answer.DONE, value=there)
        elif what is Request.DROP:
            self._send(client, Answer.DONE if self._shelf.drop(key) else Answer.MISSING)

    def _get(self, client: _Client, key: str, wait_ms: int) -> None:
        value = self._shelf.read(key)
        if value is not None:
            self._send(client, Answer.DONE, value=value)
        elif wait_ms <= 0:
            self._send(client, Answer.MISSING)
        else:
            until = time.monotonic() + min(wait_ms / 1000, _LONGEST_S)
            self._waiting.setdefault(key, []).append(_Waiting(client, until))

    def _stored(self, key: str) -> None:
        """Answer those who wait for a value that is there now."""
        if key not in self._waiting:
            return
        value = self._shelf.read(key)
        if value is None:  # a swap that stored nothing
            return
        for waiting in self._waiting.pop(key):
            self._answer(waiting, Answer.DONE, value)

    def _answer(self, waiting: _Waiting, answer: Answer, value: bytes = b"") -> None:
        try:
            self._send(waiting.client, answer, value=value)
        except OSError:  # it has gone; the others still get their answer
            self._end(waiting.client)

    def _answer_late(self) -> None:
        """Tell those who have waited long enough that nothing has come; forget who has gone."""
        now = time.monotonic()
        for key, waiting in list(self._waiting.items()):
            for one in [w for w in waiting if w.until <= now]:
                self._answer(one, Answer.MISSING)
            left = [w for w in waiting if w.until > now and not w.client.gone]
            if left:
                self._waiting[key] = left
            else:
                del self._waiting[key]
