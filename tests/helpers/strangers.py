"""Whoever is not part of a run, and what he tries."""

from __future__ import annotations

import array
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hocket.runtime.net import addresses
from hocket.runtime.net.handshake import Handshake, Welcome

_LISTENS = 1 << 16  # the flag of a listening socket in /proc/net/unix
HELLO_BYTES, ANSWER_BYTES, VERDICT_BYTES = 40, 72, 33


def member(rank: int, key: bytes = b"k" * 32, purpose: str = "test") -> Handshake:
    """A process of the run; with another key it is a stranger."""
    return Handshake(rank, key, timeout_s=10.0, purpose=purpose)


def answered(welcome: Welcome, limit_s: float = 10.0) -> int:
    """Drive a listener's side of a greeting to its end, and return the rank."""
    until = time.monotonic() + limit_s
    try:
        while time.monotonic() < until:
            next(welcome)
            time.sleep(0.001)
    except StopIteration as done:
        return int(done.value)
    raise AssertionError("nothing came")


def read_exactly(connection: socket.socket, num_bytes: int) -> bytes:
    """Read so many bytes, or what came before the end."""
    data = b""
    with suppress(ConnectionError):
        while len(data) < num_bytes and (more := connection.recv(num_bytes - len(data))):
            data += more
    return data


def ended(connection: socket.socket) -> bool:
    """True if the other end has closed the connection."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def knock(address: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Connect as anybody can."""
    return addresses.connect(address, kind, time.monotonic() + 10.0)


@contextmanager
def idle_connections(address: str, count: int, kind: socket.SocketKind) -> Iterator[int]:
    """Hold connections open that say nothing; yields how many were let in."""
    with ExitStack() as stack:
        held = 0
        for _ in range(count):
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                try:
                    stack.enter_context(addresses.connect(address, kind, until))
                except BlockingIOError:  # no room just now
                    time.sleep(0.001)
                    continue
                except OSError:  # nobody listens any more
                    break
                held += 1
                break
        yield held


def send_with_descriptors(connection: socket.socket, data: bytes, count: int) -> None:
    """Send some bytes, and open files with them."""
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
    try:
        connection.sendmsg([data], rights)
    finally:
        for file in files:
            os.close(file)


def num_descriptors(pid: int | str = "self") -> int:
    """How many files a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def unix_listeners() -> set[str]:
    """The abstract Unix sockets of Hocket on this host; any user can see their names."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    listening = [row[-1] for row in rows if int(row[3], 16) & _LISTENS]
    return {name for name in listening if name.startswith("@hocket-")}


def as_nobody(act: Callable[[], bool]) -> bool:
    """Do something as another user of this host, and return what it returned; root only."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            os.write(theirs, struct.pack("?", act()))
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as told:
        answer = told.read(1)
    os.waitpid(child, 0)
    assert answer, "the other user came to grief"
    return bool(struct.unpack("?", answer)[0])
