"""The connections of one learner to all others: how collectives travel, and how a death is seen.

Learners of one host connect through Unix sockets in the abstract namespace (these have no file, so
none is left behind) and hand each other the descriptors of their segments. Others connect over TCP.
Who is on which host is found out here; it is not configured.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hocket.core.device import Transport
from hocket.errors import HocketError, WaitTimeoutError
from hocket.runtime.net import addresses, shared_memory
from hocket.runtime.net.handshake import Handshake
from hocket.runtime.net.links import (
    Frame,
    Link,
    LocalLink,
    RemoteLink,
    close_after_fork,
)
from hocket.runtime.net.reception import Reception
from hocket.runtime.net.store import Store

# What a socket says when the process at the other end has gone.
_ENDED = (errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN)
_UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
_POLL_S = 0.5  # between two looks at the limit
_PURPOSE = "mesh"
_KIND = socket.SOCK_SEQPACKET  # within a host: a packet is a frame


def host_name() -> str:
    """Return a name that two learners share if, and only if, they can share memory."""
    if not shared_memory.AVAILABLE or sys.platform != "linux":
        return f"{socket.gethostname()}/{os.getpid()}"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/net')}"


class Mesh:
    """One learner's links, who is near, and who is lost."""

    def __init__(
        self,
        store: Store,
        handshake: Handshake,
        size: int,
        *,
        address: str,
        transport: Transport = "auto",
        sending: Callable[[], None] = lambda: None,  # called before each frame: planned faults
    ) -> None:
        self.rank = rank = handshake.rank
        self.lost: set[int] = set()
        self._sending = sending
        self._handshake = handshake = replace(handshake, purpose=_PURPOSE)
        self._links: dict[int, Link] = {}
        self._by_fd: dict[int, int] = {}
        self._poll = select.poll()
        self._dead: list[int] = []  # their links failed while something was sent
        close_after_fork(lambda: [link.socket for link in self._links.values()])
        host = host_name() if transport != "sockets" else f"{rank}"
        listeners = [addresses.listen(f"{address}:0")]
        where = addresses.address_of(listeners[0])
        if transport != "sockets" and shared_memory.AVAILABLE:
            listeners.append(addresses.listen(handshake.nearby_address(rank), _KIND))
        reception = Reception(handshake, listeners)
        try:
            store.put(f"mesh/{rank}", json.dumps([host, where]))
            self._connect_all(store, size, host, reception)
        finally:
            reception.close()
        if transport == "shared_memory" and len(self.near) < size:
            raise HocketError(
                f"runtime.transport = 'shared_memory', but rank {rank} shares memory only with "
                f"ranks {sorted(self.near)}: use 'auto' for learners on several hosts"
            )

    # ------------------------------------------------------------------ meeting

    def _connect_all(self, store: Store, size: int, host: str, reception: Reception) -> None:
        """Connect to lower ranks, and accept the connections of higher ones."""
        places = [self._place_of(r, store) for r in range(size)]
        self.hosts = tuple(place[0] for place in places)
        self.near = frozenset(r for r in range(size) if self.hosts[r] == host)
        for r in range(self.rank):
            self._connect(r, places[r][1])
        until = time.monotonic() + self._handshake.timeout_s
        while len(self._links) < size - 1:
            left = until - time.monotonic()
            if left <= 0:
                missing = [r for r in range(size) if r != self.rank and r not in self._links]
                raise WaitTimeoutError(
                    f"rank {self.rank} waited {self._handshake.timeout_s:g} s for ranks {missing} "
                    f"to connect to {places[self.rank][1]}: are they running, and does a firewall "
                    "let them in?"
                )
            for rank, connection in reception.admit(min(left, _POLL_S)):
                self._accept(rank, connection, size)

    def _place_of(self, rank: int, store: Store) -> tuple[str, str]:
        """Return the host and the address of a learner; waits until it has said so."""
        try:
            found = store.limited(self._handshake.timeout_s).get(f"mesh/{rank}")
        except WaitTimeoutError as error:
            raise WaitTimeoutError(
                f"rank {self.rank} waited {self._handshake.timeout_s:g} s for rank {rank} to say "
                "where it is: it has not started, or is stuck at its start; if it is only slow, "
                "raise runtime.timeout_s"
            ) from error
        host, where = json.loads(found)
        return host, where

    @property
    def num_hosts(self) -> int:
        """How many hosts the learners are on."""
        return len(set(self.hosts))

    def _connect(self, to: int, where: str) -> None:
        if to in self.near:
            nearby = self._handshake.nearby_address(to)
            connection = self._handshake.call(to, nearby, _KIND)
        else:
            connection = self._handshake.call(to, where)
        self._add(to, connection)

    def _accept(self, rank: int, connection: socket.socket, size: int) -> None:
        """Take the connection of a higher rank that has not come yet, if it came its own way."""
        unix = connection.family == socket.AF_UNIX
        if self.rank < rank < size and rank not in self._links and unix == (rank in self.near):
            self._add(rank, connection)
        else:
            connection.close()

    def _add(self, rank: int, connection: socket.socket) -> None:
        link: Link = LocalLink(connection) if rank in self.near else RemoteLink(connection)
        self._links[rank] = link
        self._by_fd[link.fileno()] = rank
        self._poll.register(link.fileno(), select.POLLIN)

    # ------------------------------------------------------------------ talking

    def send(self, to: int, frame: Frame) -> None:
        """Send a frame; one to a lost learner is dropped."""
        if to not in self._links:
            return
        self._sending()
        try:
            if not self._links[to].send(frame):
                self._poll.modify(self._links[to].fileno(), select.POLLIN | select.POLLOUT)
        except OSError as error:
            if error.errno not in (*_ENDED, *_UNREACHABLE):
                raise  # an error of this process (no descriptors left), not a death of the other
            self._dead.append(to)  # handled in the next look, after what it sent before it died

    def lose(self, rank: int) -> None:
        """Note that a learner is lost, and close its link."""
        self.lost.add(rank)
        link = self._links.pop(rank, None)
        if link is not None:
            self._poll.unregister(link.fileno())
            del self._by_fd[link.fileno()]
            link.close()

    def look(self, until: float, take: Callable[[Frame], None]) -> bool:
        """Wait until a time or until something comes, for `take`; False if nothing has."""
        left = max(0.0, until - time.monotonic())
        came = bool(self._dead)
        for fd, events in self._poll.poll(0 if came else min(left, _POLL_S) * 1000):
            came = True
            if fd not in self._by_fd:
                continue  # lost since poll returned
            rank = self._by_fd[fd]
            if events & select.POLLOUT:
                self._flush(rank)
            if events & ~select.POLLOUT:
                self._read(rank, take)
        for rank in self._dead:
            if rank in self._links:
                self._read(rank, take)
                self.lose(rank)
        self._dead.clear()
        return came or time.monotonic() < until

    def _flush(self, rank: int) -> bool:
        link = self._links[rank]
        with contextlib.suppress(OSError):  # the next read shows the end
            if link.flush():
                self._poll.modify(link.fileno(), select.POLLIN)
                return True
        return False

    def _read(self, rank: int, take: Callable[[Frame], None]) -> None:
        frames = self._links[rank].read()
        if frames is None:
            self.lose(rank)
            return
        for frame in frames:
            frame.source = rank  # whatever the frame says
            take(frame)

    def drain(self, until: float, take: Callable[[Frame], None]) -> None:
        """Send what still waits to be sent, so that closing loses nothing."""
        while not all(map(self._flush, list(self._links))) and self.look(until, take):
            pass

    def close(self) -> None:
        """End every connection; a peer still at work takes this learner for lost."""
        for rank in list(self._links):
            self.lose(rank)
