"""The store of a run: counters and named values that all its processes share.

Learners find each other here, asynchronous ones draw from its counters, and launchers of several
hosts talk through it. So it decides a run, and nobody gets in without the token (`handshake.py`);
torch's own store knows no such thing. One process serves it (`store_server.py`).

A request is a head, a key and a value; so is an answer, without a key:

    operation, length of the key, length of the value, number
    answer, length of the value, number

The number is what ADD adds, and for how many milliseconds GET may wait. One request is under way at
a time. Every call has a limit.
"""

from __future__ import annotations

import contextlib
import enum
import hmac
import socket
import struct
import threading
from dataclasses import dataclass, field, replace
from typing import Final

from hocket.errors import HocketError, StoreLostError, WaitTimeoutError, require
from hocket.runtime.net.addresses import LOOPBACK
from hocket.runtime.net.handshake import NOBODY, Handshake
from hocket.runtime.net.links import close_after_fork, notice_a_vanished_host

REQUEST_HEAD: Final = struct.Struct("<BHIq")
ANSWER_HEAD: Final = struct.Struct("<BIq")
MAX_KEY_BYTES: Final = 1 << 10
MAX_VALUE_BYTES: Final = 1 << 24  # the largest that is stored is the outcome of a run: kilobytes
PURPOSE: Final = "store"
SALT: Final = "salt"  # where the server keeps a random number that no other store has
_GRACE_S: Final = 5.0  # for the server to say that a value has not come


class Request(enum.IntEnum):
    """What a store can do."""

    ADD = 1
    PUT = 2
    GET = 3
    SWAP = 4  # if the value is what comes first, and is as long as the number says
    DROP = 5


class Answer(enum.IntEnum):
    """The first byte of a reply: whether the store did what it was asked."""

    DONE = 0
    MISSING = 1
    REFUSED = 2


class _Line:
    """A connection to the server: one request at a time, from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._socket: socket.socket | None = connection
        self._limit_s = 0.0  # as the kernel knows it
        self._lock = threading.Lock()
        if connection.family != socket.AF_UNIX:
            notice_a_vanished_host(connection)
        close_after_fork(lambda: [self._socket] if self._socket else [])

    def ask(
        self, what: Request, key: str, value: bytes, number: int, limit_s: float
    ) -> tuple[int, int, bytes]:
        """Return answer, number and value; StoreLostError if there is none within the limit."""
        name = key.encode()
        require(len(name) <= MAX_KEY_BYTES, f"a key of {len(name)} bytes is too long for the store")
        require(len(value) <= MAX_VALUE_BYTES, f"{key}: {len(value)} bytes are too much to store")
        request = REQUEST_HEAD.pack(what, len(name), len(value), number) + name + value
        if not self._lock.acquire(timeout=limit_s):
            raise _lost("another call of this process waits for it", key)
        try:
            return self._exchange(request, limit_s)
        except OSError as error:
            self.close()
            late = isinstance(error, BlockingIOError)
            raise _lost(f"no answer within {limit_s:g} s" if late else error, key) from error
        except BaseException:  # interrupted: an answer may still come, which is not the next one's
            self.close()
            raise
        finally:
            self._lock.release()

    def _exchange(self, request: bytes, limit_s: float) -> tuple[int, int, bytes]:
        if self._socket is None:
            raise ConnectionError("its connection has ended")
        if limit_s != self._limit_s:
            self._limit_s = limit_s
            _limit(self._socket, limit_s)
        self._socket.sendall(request)
        answer, length, number = ANSWER_HEAD.unpack(self._read(ANSWER_HEAD.size))
        if length > MAX_VALUE_BYTES:
            raise ConnectionError("its answer makes no sense")
        return answer, number, self._read(length)

    def _read(self, num_bytes: int) -> bytes:
        assert self._socket is not None
        data = b""
        while len(data) < num_bytes:
            more = self._socket.recv(num_bytes - len(data))
            if not more:
                raise ConnectionError("it has ended")
            data += more
        return data

    def close(self) -> None:
        """End the connection; further calls fail."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None


def _limit(connection: socket.socket, limit_s: float) -> None:
    """Let the kernel keep a limit: Python's own costs two more system calls for each call."""
    whole, part = divmod(max(int(limit_s * 1e6), 1), 1_000_000)
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", whole, part))


def _lost(why: object, key: str) -> StoreLostError:
    return StoreLostError(
        f"the store of the run cannot be reached ({why}; asked for {key!r}): whoever serves it has "
        "ended, is stopped or is cut off, so this part of the run ends; --resume continues it"
    )


def key_at(token: bytes, known_by: str) -> bytes:
    """Return the key of a store that callers know by its address, or by another name.

    The address is part of the key: somebody who makes callers call him, and passes on to the store
    what they say, gets nowhere, because they prove that they call another address.
    """
    return hmac.digest(token, b"store at " + known_by.encode(), "sha256")


@dataclass(frozen=True)
class Store:
    """A process's view of the store."""

    _line: _Line
    _token: bytes = field(repr=False)
    _limit_s: float
    _prefix: str = ""

    @classmethod
    def connect(
        cls,
        address: str,
        token: bytes,
        timeout_s: float,
        *,
        rank: int = NOBODY,
        known_by: str | None = None,
    ) -> Store:
        """Connect to a store; it may not be there yet. `known_by`: see `key_at`."""
        key = key_at(token, address if known_by is None else known_by)
        handshake = Handshake(rank, key, timeout_s, PURPOSE)
        return cls(_Line(handshake.call(NOBODY, address, patient=True)), token, timeout_s)

    def prefix(self, name: str) -> Store:
        """Return a view in which every key begins with `name`."""
        return replace(self, _prefix=f"{self._prefix}{name}/")

    def limited(self, limit_s: float) -> Store:
        """Return a view in which each call ends within `limit_s`."""
        return replace(self, _limit_s=limit_s)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return it; atomic."""
        return self._ask(Request.ADD, key, number=amount)[1]

    def put(self, key: str, value: str) -> None:
        """Store a value; whoever waits for this key in `get` goes on."""
        self.put_bytes(key, value.encode())

    def get(self, key: str) -> str:
        """Return a value; waits for it, up to the limit."""
        return self.get_bytes(key).decode()

    def put_bytes(self, key: str, value: bytes) -> None:
        """Store a value as it is; `get_bytes` reads it."""
        self._ask(Request.PUT, key, value)

    def get_bytes(self, key: str) -> bytes:
        """Return stored bytes; waits for them, up to the limit."""
        value = self.look(key, self._limit_s)
        if value is None:
            raise WaitTimeoutError(
                f"waited {self._limit_s:g} s for {self._prefix + key!r} in the store of the run"
            )
        return value

    def look(self, key: str, wait_s: float = 0.0) -> bytes | None:
        """Return stored bytes, or None if none have come after `wait_s`."""
        answer, _, value = self._ask(Request.GET, key, number=int(wait_s * 1000), wait_s=wait_s)
        return None if answer == Answer.MISSING else value

    def swap(self, key: str, expected: bytes, wanted: bytes) -> bytes:
        """Store a value if the present one is the expected one, or empty; return what is there."""
        return self._ask(Request.SWAP, key, expected + wanted, len(expected))[2]

    def drop(self, key: str) -> bool:
        """Remove a value; False if there was none."""
        return self._ask(Request.DROP, key)[0] == Answer.DONE

    def _ask(
        self,
        what: Request,
        key: str,
        value: bytes = b"",
        number: int = 0,
        wait_s: float | None = None,
    ) -> tuple[int, int, bytes]:
        limit_s = self._limit_s if wait_s is None else wait_s + _GRACE_S
        answer = self._line.ask(what, self._prefix + key, value, number, limit_s)
        if answer[0] == Answer.REFUSED:
            raise HocketError(
                f"the store refused {what.name.lower()} of {self._prefix + key!r}: it is no counter"
            )
        return answer

    def name(self) -> str:
        """Return a name that no other store has."""
        return replace(self, _prefix="").get(SALT)

    def derived_key(self) -> bytes:
        """Return the secret of the learners that meet under this prefix: no two stores share it.

        The token itself may be the same for many runs (HOCKET_TOKEN).
        """
        return hmac.digest(self._token, f"{self.name()} {self._prefix}".encode(), "sha256")

    def close(self) -> None:
        """End the connection, also for all other views of it."""
        self._line.close()


@dataclass(frozen=True)
class Place:
    """Where the store of a run is, and what it takes to get in."""

    address: str
    token: bytes = field(repr=False)
    towards: str = LOOPBACK  # what this host's own address is looked up for
    known_by: str | None = None  # if hosts may call it by different addresses

    def store(self, timeout_s: float, rank: int = NOBODY) -> Store:
        """Connect to the store."""
        return Store.connect(self.address, self.token, timeout_s, rank=rank, known_by=self.known_by)
