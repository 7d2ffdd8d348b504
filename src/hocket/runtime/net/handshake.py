"""How the processes of one run know each other: challenge and response, in both directions.

All share a secret key, which never travels. Each side sends a random *challenge* and must be
answered with a *proof*: an HMAC of both challenges under the key.

    listener -> caller    HELLO    the protocol, challenge L
    caller -> listener    ANSWER   the caller's rank, challenge C, proof("caller", ...)
    listener -> caller    VERDICT  whether it believes the caller, proof("listener", ...)

A proof covers the side that makes it, the purpose of the connection, both ranks and both
challenges. So one that was overheard is worth nothing later (the challenges are new each time), and
none can be sent back to the side that made it or be used for another purpose or another learner.

Nothing but these messages, which have a fixed length, is read from a connection before the proof.
What travels afterwards is neither encrypted nor signed: see docs/security.md.

`welcome` is a generator that stops wherever it must wait for the caller, so a silent stranger holds
up nobody (`reception.py`).
"""

from __future__ import annotations

import errno
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from hocket.errors import HocketError
from hocket.runtime.net import addresses
from hocket.runtime.net.addresses import Kind

_MAGIC: Final = b"hocket/2"  # the protocol and its version
_CHALLENGE_BYTES: Final = 32
_HELLO: Final = struct.Struct(f"<8s{_CHALLENGE_BYTES}s")  # magic, challenge L
_ANSWER: Final = struct.Struct(f"<q{_CHALLENGE_BYTES}s32s")  # rank, challenge C, proof
_VERDICT: Final = struct.Struct("<B32s")  # 1: believed; proof
_PROVEN: Final = struct.Struct(f"<8s8sqq{_CHALLENGE_BYTES}s{_CHALLENGE_BYTES}s")

# A listener that is flooded may drop a call or have no room for it: try again.
_BUSY: Final = (errno.EAGAIN, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.EINTR)
_RETRY_S: Final = 0.05

NOBODY: Final = -1  # the rank of a store and of a launcher

Welcome = Generator[None, None, int]


class StrangerError(ConnectionError):
    """Whoever is at the other end is no part of this run."""


class DroppedError(ConnectionError):
    """The connection ended before both sides had proved who they are."""


@dataclass(frozen=True)
class Handshake:
    """How one process calls others of its run for one purpose, and is called by them."""

    rank: int
    key: bytes = field(repr=False)
    timeout_s: float  # of calling
    purpose: str = ""  # at most 8 letters

    def _proof(self, side: bytes, caller: int, listener: int, hello: bytes, answer: bytes) -> bytes:
        """Prove the knowledge of the key for one connection."""
        text = _PROVEN.pack(side, self.purpose.encode(), caller, listener, hello, answer)
        return hmac.digest(self.key, text, "sha256")

    # ------------------------------------------------------------------ the greeting

    def greet(self, connection: socket.socket, to: int, until: float) -> None:
        """Caller: prove who calls, and that rank `to` listens. StrangerError, DroppedError."""
        magic, hello = _HELLO.unpack(_read_until(connection, _HELLO.size, until))
        if magic != _MAGIC:
            raise StrangerError("another program, or another version of Hocket, listens there")
        answer = secrets.token_bytes(_CHALLENGE_BYTES)
        proof = self._proof(b"caller", self.rank, to, hello, answer)
        connection.sendall(_ANSWER.pack(self.rank, answer, proof))
        believed, theirs = _VERDICT.unpack(_read_until(connection, _VERDICT.size, until))
        expected = self._proof(b"listener", self.rank, to, hello, answer)
        if believed != 1 or not hmac.compare_digest(theirs, expected):
            raise StrangerError("it does not have the token of this run")

    def welcome(self, connection: socket.socket) -> Welcome:
        """Listener: return the caller's rank; stops before it reads. StrangerError, DroppedError.

        The connection must not block: what is sent here is short and fits into any buffer.
        """
        hello = secrets.token_bytes(_CHALLENGE_BYTES)
        connection.sendall(_HELLO.pack(_MAGIC, hello))
        caller, answer, proof = _ANSWER.unpack((yield from _read(connection, _ANSWER.size)))
        if not hmac.compare_digest(proof, self._proof(b"caller", caller, self.rank, hello, answer)):
            connection.sendall(_VERDICT.pack(0, b""))
            raise StrangerError("the caller does not have the token of this run")
        mine = self._proof(b"listener", caller, self.rank, hello, answer)
        connection.sendall(_VERDICT.pack(1, mine))
        return int(caller)

    # ------------------------------------------------------------------ calling and listening

    def call(
        self, to: int, address: str, kind: Kind = socket.SOCK_STREAM, *, patient: bool = False
    ) -> socket.socket:
        """Connect to a process of this run; both are then known to each other.

        `patient`: the listener may not be there yet.
        """
        until = time.monotonic() + self.timeout_s
        passing = (*_BUSY, errno.ECONNREFUSED) if patient else _BUSY
        while True:
            try:
                return self._attempt(to, address, kind, until)
            except OSError as error:
                again = isinstance(error, DroppedError) or error.errno in passing
                if not again or time.monotonic() >= until:
                    raise self._unreachable(to, address, error) from error
            time.sleep(_RETRY_S)

    def _attempt(self, to: int, address: str, kind: Kind, until: float) -> socket.socket:
        connection = addresses.connect(address, kind, until)
        try:
            self.greet(connection, to, until)
        except BaseException:
            connection.close()
            raise
        connection.settimeout(self.timeout_s)
        return connection

    def _unreachable(self, to: int, address: str, error: OSError) -> HocketError:
        me = "this process" if self.rank == NOBODY else f"rank {self.rank}"
        whom = "the store of the run" if to == NOBODY else f"rank {to}"
        remedy = "has it ended, or does a firewall block it?"
        if isinstance(error, StrangerError):
            remedy = (
                "is the port used by something else, or is HOCKET_TOKEN not the same everywhere?"
            )
        why = error.strerror or str(error)
        return HocketError(f"{me} cannot reach {whom} at {address} ({why}): {remedy}")

    def nearby_address(self, rank: int) -> str:
        """Return where a learner of this host listens; the key is hashed, as any user sees it."""
        digest = blake2b(self.key, digest_size=16, person=self.purpose.encode()).hexdigest()
        return f"@hocket-{self.purpose}-{digest}-{rank}"


def _read(connection: socket.socket, num_bytes: int) -> Generator[None, None, bytes]:
    """Read from a connection that does not block; stops whenever there is nothing to read."""
    data = b""
    while len(data) < num_bytes:
        yield
        try:
            more = connection.recv(num_bytes - len(data))
        except BlockingIOError:
            continue
        if not more:
            raise DroppedError("the connection ended in the middle of a greeting")
        data += more
    return data


def _read_until(connection: socket.socket, num_bytes: int, until: float) -> bytes:
    """Read so many bytes; the limit is for all of them, however slowly they come."""
    data = b""
    while len(data) < num_bytes:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("it does not answer")
        connection.settimeout(left)
        more = connection.recv(num_bytes - len(data))
        if not more:
            raise DroppedError("the connection ended in the middle of a greeting")
        data += more
    return data
