"""How learners of one run know each other: the secret of the run, and the greeting on a connection.

Whoever starts the run puts a random *token* into the store; learners read it there. Each connection
begins with a greeting: `greet` is the caller's side, `welcome` the listener's. A connection that
does not greet with the token is a stranger's (a port scanner, a learner of another run) and is
closed without an answer.

`welcome` is a generator that stops wherever it must wait for the caller. So a listener with other
things to do advances it whenever bytes have come, and a silent stranger holds up nobody.
"""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Generator
from dataclasses import dataclass, field
from hashlib import blake2b

from hocket.errors import HocketError
from hocket.runtime.net.store import Store

_TOKEN_BYTES = 16
_GREETING = struct.Struct(f"<q{_TOKEN_BYTES}s")  # rank, token
_BACKLOG = 128  # connections that wait to be accepted; all learners may call at once

Welcome = Generator[None, None, int]


class StrangerError(ConnectionError):
    """The caller is no learner of this run."""


def put_token(store: Store) -> None:
    """Make the secret of a run, and let its learners find it."""
    store.put("token", secrets.token_hex(_TOKEN_BYTES))


@dataclass(frozen=True)
class Handshake:
    """How one learner calls others of its run, and is called by them."""

    rank: int
    token: bytes = field(repr=False)
    timeout_s: float  # of calling and of being greeted

    @classmethod
    def from_store(cls, store: Store, rank: int, timeout_s: float) -> Handshake:
        """Read the secret of the run; waits until it is there."""
        return cls(rank, bytes.fromhex(store.get("token")), timeout_s)

    # ------------------------------------------------------------------ the greeting

    def greet(self, connection: socket.socket) -> None:
        """Caller: say who calls, and show that it belongs to the run."""
        connection.sendall(_GREETING.pack(self.rank, self.token))

    def welcome(self, connection: socket.socket) -> Welcome:
        """Listener: return the caller's rank; stops before it reads. Raises StrangerError."""
        rank, token = _GREETING.unpack((yield from _read(connection, _GREETING.size)))
        if not secrets.compare_digest(token, self.token):
            raise StrangerError("the caller does not have the token of this run")
        return int(rank)

    # ------------------------------------------------------------------ calling

    def call(self, to: int, host: str, port: int) -> socket.socket:
        """Connect to a learner of another host, and greet it."""
        try:
            connection = socket.create_connection((host, port), timeout=self.timeout_s)
            self.greet(connection)
        except OSError as error:
            raise self._unreachable(to, f"{host}:{port}", error) from error
        return connection

    def call_nearby(self, to: int, purpose: str, kind: socket.SocketKind) -> socket.socket:
        """Connect to a learner of this host, and greet it."""
        connection = socket.socket(socket.AF_UNIX, kind)
        connection.settimeout(self.timeout_s)
        try:
            connection.connect(self._name(purpose, to))
            self.greet(connection)
        except OSError as error:
            connection.close()
            raise self._unreachable(to, "its Unix socket", error) from error
        return connection

    def _unreachable(self, to: int, where: str, error: OSError) -> HocketError:
        return HocketError(
            f"rank {self.rank} cannot reach rank {to} at {where} ({error}): has it ended, or does "
            "a firewall stand between?"
        )

    # ------------------------------------------------------------------ listening

    def listen(self, address: str) -> socket.socket:
        """Wait for calls from other hosts, at any port that is free."""
        return socket.create_server((address, 0), backlog=_BACKLOG)

    def listen_nearby(self, purpose: str, kind: socket.SocketKind) -> socket.socket:
        """Wait for calls from this host."""
        listener = socket.socket(socket.AF_UNIX, kind)
        listener.bind(self._name(purpose, self.rank))
        listener.listen(_BACKLOG)
        return listener

    def accept(self, listener: socket.socket) -> tuple[int, socket.socket] | None:
        """Accept one call and wait for its greeting; None if it was a stranger's."""
        connection, _ = listener.accept()
        connection.settimeout(self.timeout_s)
        welcome = self.welcome(connection)
        try:
            while True:
                next(welcome)
        except StopIteration as done:
            return done.value, connection
        except OSError:  # a stranger, or nothing came in time
            connection.close()
            return None

    def _name(self, purpose: str, rank: int) -> str:
        """Return the abstract name of a Unix socket; the token is hashed, as any user sees it."""
        digest = blake2b(self.token, digest_size=16, person=purpose.encode()).hexdigest()
        return f"\0hocket-{purpose}-{digest}-{rank}"


def _read(connection: socket.socket, num_bytes: int) -> Generator[None, None, bytes]:
    data = b""
    while len(data) < num_bytes:
        yield
        more = connection.recv(num_bytes - len(data))
        if not more:
            raise StrangerError("the caller ended the connection before it said who it is")
        data += more
    return data
