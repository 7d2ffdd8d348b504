"""Where learners call the launcher that it has not started itself, and how it seats them.

a learner   calls, says where it is, and waits
launcher    gives it its number in the record as soon as somebody asks to let it in
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Final

from hocket.errors import ConfigError, HocketError, require
from hocket.runtime.launch.children import Child
from hocket.runtime.launch.guests.line import Assignment, Hello, Line
from hocket.runtime.net import addresses
from hocket.runtime.net.handshake import NOBODY, Handshake
from hocket.runtime.net.reception import GREETING_S, Reception
from hocket.runtime.net.store import Store
from hocket.runtime.net.store_server import StoreServer

PURPOSE: Final = "guest"
CALL_S: Final = 60.0
HELLO_S: Final = 10.0  # whoever has proved itself says where it is in the next moment


@dataclass(frozen=True)
class LauncherPlace:
    """Where the launcher listens for learners."""

    address: str
    key: bytes = field(repr=False)

    def handshake(self, number: int, timeout_s: float) -> Handshake:
        """Return how one of both ends proves who it is."""
        return Handshake(number, self.key, timeout_s, PURPOSE)

    def call(self, number: int) -> Line:
        """Connect to the launcher, as the caller of this number."""
        return Line(self.handshake(number, CALL_S).call(NOBODY, self.address))


@dataclass(frozen=True)
class Arrival:
    """A learner that has called, and that has no number in the record yet."""

    caller: int
    line: Line
    hello: Hello

    def is_gone(self) -> bool:
        """True if its line has ended; it has nothing to say before it is seated."""
        return bool(wait([self.line.fileno()], timeout=0))


class Arrivals:
    """The launcher's ear: who has called since it looked last."""

    def __init__(self, host: str, key: bytes) -> None:
        listener = addresses.listen(f"{host}:0")
        self.place = LauncherPlace(addresses.address_of(listener), key)
        self._reception = Reception(self.place.handshake(NOBODY, GREETING_S), [listener])
        self._silent: dict[Line, tuple[int, float]] = {}  # who has proved itself, and until when

    def admit(self, wait_s: float = 0.0) -> list[Arrival]:
        """Return who has called and said where it is; nobody is waited for."""
        until = time.monotonic() + HELLO_S
        for caller, connection in self._reception.admit(wait_s):
            self._silent[Line(connection, waits=False)] = caller, until
        return [one for line in list(self._silent) if (one := self._heard(line)) is not None]

    def _heard(self, line: Line) -> Arrival | None:
        """Return who is at the end of a line, once it has said so; close one that does not."""
        caller, until = self._silent[line]
        try:
            hello = line.recv()
        except BlockingIOError:
            if time.monotonic() < until:
                return None
            hello = None
        except (EOFError, OSError):  # it was lost again, or talks nonsense
            hello = None
        del self._silent[line]
        if isinstance(hello, Hello):
            return Arrival(caller, line, hello)
        line.close()
        return None

    def close(self) -> None:
        """Listen no more."""
        for line in self._silent:
            line.close()
        self._silent.clear()
        self._reception.close()


def open_to_others(host: str, key: bytes) -> tuple[StoreServer, Arrivals]:
    """Serve a store, and wait for learners, at an address of this host that others can reach."""
    require(
        not host.startswith("@") and ":" not in host,
        f"{host!r} is not what runtime.listen (--listen) takes: an IPv4 address of this host, or "
        "its name, without a port",
    )
    try:
        return StoreServer(key, [addresses.listen(f"{host}:0")]), Arrivals(host, key)
    except OSError as error:
        raise ConfigError(
            f"this host cannot listen at {host!r} ({error.strerror or error}): give runtime.listen "
            "(--listen) one of its own addresses, such as `hostname -I` prints"
        ) from error


@dataclass
class RemoteProcess:
    """The process of a learner on another host, as its launcher sees it: its line."""

    line: Line
    pid: int | None = None
    exitcode: int | None = None

    def join(self, timeout: float | None = None) -> None:
        """Do not wait: its host may be gone, and nobody could say."""

    def is_alive(self) -> bool:
        """Nobody knows; whoever asks would end it next."""
        return False

    def kill(self) -> None:
        """Cut its line, at whose end it ends itself."""
        self.line.cut()


@dataclass(kw_only=True)
class GuestProcess(RemoteProcess):
    """The process of a learner that `hocket join` has brought: that command can end it."""

    caller: int
    store: Store

    def kill(self) -> None:
        """Let its host end it: it may be frozen, and the others would wait for it."""
        with contextlib.suppress(HocketError):  # the run is over
            self.store.put(end_order(self.caller), "end")
        super().kill()


def end_order(caller: int) -> str:
    """Return where the store says that a learner must be ended."""
    return f"join/end/{caller}"


@dataclass
class GuestBook:
    """The learners that other hosts have brought, and that nobody has asked for yet."""

    arrivals: Arrivals
    waiting: dict[int, Arrival] = field(default_factory=dict)

    def look(self) -> None:
        """Forget callers who have gone, and take in new ones, each number once."""
        for one in [one for one in self.waiting.values() if one.is_gone()]:
            del self.waiting[one.caller]
            one.line.close()
        for one in self.arrivals.admit():
            if one.caller in self.waiting:  # the first one stays: nothing is wrong with it
                one.line.close()
            else:
                self.waiting[one.caller] = one

    def seat(self, callers: list[int], ranks: list[int], store: Store) -> list[Child]:
        """Give the callers their numbers in the record; ConfigError if one of them has gone."""
        self.look()  # the last one may have called, or ended, since
        require(
            len(set(callers)) == len(ranks),
            f"{len(ranks)} learners want to join, but {len(set(callers))} are named",
        )
        gone = sorted(set(callers) - set(self.waiting))
        require(
            not gone,
            f"of {len(callers)} learners that wanted to join, {len(gone)} did not call or have "
            "ended: see the messages of the host that brought them, and ask again",
        )
        children = []
        for caller, rank in zip(callers, ranks, strict=True):
            one = self.waiting.pop(caller)
            process = GuestProcess(line=one.line, caller=caller, store=store)
            children.append(seated(one, rank, process, joins=True))
        return children

    def close(self) -> None:
        """Send those away who still wait."""
        for one in self.waiting.values():
            one.line.close()
        self.arrivals.close()


def seated(
    one: Arrival, rank: int, process: RemoteProcess, *, joins: bool, directory: str = ""
) -> Child:
    """Tell a learner its number; whether it still listens, the end of its line will say."""
    child = Child(rank, process, one.line, host=one.hello.host, waits=joins, heard=time.monotonic())
    try:
        one.line.send(Assignment(rank, joins, directory))
    except OSError:
        return child
    return child
