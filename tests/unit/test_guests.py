"""Learners that call the launcher from other hosts, and do not behave when they are known."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import config
from hocket.core.accounts import Books, Vitals
from hocket.data.synthetic import Synthetic
from hocket.errors import ConfigError, InputError, LearnerFailedError, WaitTimeoutError
from hocket.experiment import Experiment
from hocket.record.rundir import RunDirectory
from hocket.running import bring_guests
from hocket.runtime.launch import joining
from hocket.runtime.launch.children import Child
from hocket.runtime.launch.guests import arrivals, guest_host
from hocket.runtime.launch.guests.arrivals import Arrivals, GuestBook, RemoteProcess
from hocket.runtime.launch.guests.line import Assignment, Hello, Line, encoded
from hocket.runtime.launch.joining import Door
from hocket.runtime.net.addresses import LOOPBACK
from hocket.runtime.net.store import Place
from hocket.runtime.net.store_server import StoreServer

LIMIT_S = 20.0
STORE: Any = None  # of a run that does not ask for anything


@pytest.fixture
def book() -> Iterator[GuestBook]:
    book = GuestBook(Arrivals(LOOPBACK, b"k" * 32))
    yield book
    book.close()


def looked(book: GuestBook, until: Callable[[], Any]) -> None:
    """Let the launcher look at its callers until something holds."""
    end = time.monotonic() + LIMIT_S
    while not until():
        assert time.monotonic() < end, "waited in vain"
        book.look()
        time.sleep(0.002)


def caller(book: GuestBook, number: int) -> Line:
    """A caller that has the token, and has said nothing yet."""
    line: list[Line] = []
    call = threading.Thread(target=lambda: line.append(book.arrivals.place.call(number)))
    call.start()
    looked(book, lambda: not call.is_alive())
    return line[0]


def sent_away(line: Line, book: GuestBook) -> None:
    """Let the launcher look until it has closed this line, which nobody else has."""
    line._socket.settimeout(0.01)

    def ended() -> bool:
        try:
            line.recv()
        except TimeoutError:
            return False
        except (EOFError, ConnectionError):
            return True
        raise AssertionError("it was answered")

    looked(book, ended)
    line.close()


def says(line: Line, data: bytes) -> None:
    line._socket.sendall(data)


HALF = struct.pack("<I", 100) + b'{"'


@pytest.mark.parametrize("said", [b"", HALF[:2], HALF, struct.pack("<I", 1 << 24)])
def test_nobody_waits_for_a_caller_that_does_not_finish(said: bytes, book: GuestBook) -> None:
    """While one says nothing, or half of it, another one is seated."""
    slow = caller(book, 1)
    says(slow, said)
    quick = caller(book, 2)
    quick.send(Hello("", "there"))
    looked(book, lambda: 2 in book.waiting)
    (child,) = book.seat([2], [7], STORE)
    assert quick.recv() == Assignment(7, True, "")
    assert child.host == "there"
    assert 1 not in book.waiting
    for line in (slow, quick, child.pipe):
        line.close()


def test_a_caller_that_says_nothing_is_sent_away(
    book: GuestBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "HELLO_S", 0.05)
    line = caller(book, 1)
    sent_away(line, book)
    assert not book.waiting


@pytest.mark.parametrize(
    "body",
    [b"5", b"{", b'{"$kind": "Hello", "node": 5, "host": "a"}', encoded(Vitals()), b"[" * 9999],
    ids=lambda body: body[:20].decode(),
)
def test_a_caller_that_talks_nonsense_is_sent_away(body: bytes, book: GuestBook) -> None:
    line = caller(book, 1)
    says(line, struct.pack("<I", len(body)) + body)
    sent_away(line, book)
    assert not book.waiting


def test_a_number_is_one_caller(book: GuestBook) -> None:
    """The second one of a number is sent away, and the first one keeps its place."""
    first, second = caller(book, 7), caller(book, 7)
    first.send(Hello("", "first"))
    looked(book, lambda: book.waiting)
    second.send(Hello("", "second"))
    sent_away(second, book)
    assert book.waiting[7].hello.host == "first"
    first.close()
    looked(book, lambda: not book.waiting)  # it has died before it was seated
    second.close()


@pytest.mark.parametrize("named", [[7, 7], [7], [7, 8, 9], [7, 9]])
def test_who_is_to_be_seated_must_be_there_once(named: list[int], book: GuestBook) -> None:
    lines = [caller(book, number) for number in (7, 8)]
    for line in lines:
        line.send(Hello("", "there"))
    looked(book, lambda: len(book.waiting) == 2)
    with pytest.raises(ConfigError, match="to join"):
        book.seat(named, [3, 4], STORE)
    assert set(book.waiting) == {7, 8}
    for line in lines:
        line.close()


def seated() -> tuple[Child, socket.socket]:
    ours, theirs = socket.socketpair()
    line = Line(ours, waits=False)
    return Child(2, RemoteProcess(line), line, host="there", waits=True), theirs


BOOKS = {"$kind": "Books"}


@pytest.mark.parametrize(
    "said",
    [
        5,
        [],
        ["alive"],
        ["alive", 5],
        ["alive", {"$kind": "Vitals", "time_s": "now"}],
        ["alive", {"$kind": "Vitals", "books": 5}],
        ["event", "a"],
        ["failed", ["one", "two"]],
        ["failed", [1, 2, 3, 4]],
        ["done", {"books": 3}],
        ["status", BOOKS],
        ["left", 1],
        ["pipe", None],
        [["a"], None],
    ],
    ids=str,
)
def test_a_learner_that_sends_nonsense_is_cut_off(said: Any) -> None:
    child, other = seated()
    body = json.dumps(said).encode()
    other.sendall(struct.pack("<I", len(body)) + body)
    assert child.receive() is None
    assert child.vitals == Vitals()
    child.pipe.close()
    other.close()


def test_a_learner_that_sends_nonsense_is_named() -> None:
    child, other = seated()
    other.sendall(struct.pack("<I", 1) + b"5")
    assert child.receive() is None
    assert "makes no sense" in child.ended_by()
    assert other.recv(1) == b"", "its line is cut"
    child.pipe.close()
    other.close()


def test_half_a_message_is_no_sign_of_life() -> None:
    """Whoever freezes in the middle of one is found like any other."""
    child, other = seated()
    whole = encoded(["alive", Vitals(1.5, 300, 2, Books(frames=7))])
    whole = struct.pack("<I", len(whole)) + whole
    before = child.heard
    for byte in whole[:-1]:
        other.sendall(bytes([byte]))
        assert child.receive() == ("", None)
    assert child.heard == before
    other.sendall(whole[-1:])
    assert child.receive() == ("alive", Vitals(1.5, 300, 2, Books(frames=7)))
    assert child.heard > before
    child.pipe.close()
    other.close()


def test_one_of_another_host_may_not_be_silent_before_it_has_started() -> None:
    """Its processor cannot be looked at, so nothing but its messages shows that it lives."""
    child, other = seated()
    assert not child.at_work()
    child.pipe.close()
    other.close()


@pytest.mark.parametrize("change", [{"versions": 5}, {"versions": {}}, {"data": None}])
def test_a_run_that_does_not_say_what_it_is_brings_nobody(
    change: dict[str, Any], tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path)
    noted = config.record(Experiment(Synthetic(num_frames=512), hocket.KStep()), None)
    run.config_path.write_text(json.dumps({**noted, **change}))
    door = Door(Place("127.0.0.1:1", b"k" * 32), "there", "127.0.0.1:1")
    with pytest.raises(InputError):
        bring_guests(tmp_path, door, 1, 1.0)


def test_who_waits_to_be_let_in_can_be_interrupted() -> None:
    """Nobody answers, and Ctrl-C is only noted: it ends the wait all the same."""
    server = StoreServer.nearby(b"k" * 32)
    store = Place(server.address, b"k" * 32).store(LIMIT_S)
    looks = iter([None, None, KeyboardInterrupt])

    def meanwhile() -> None:
        if (noted := next(looks)) is not None:
            raise noted

    with pytest.raises(KeyboardInterrupt):
        joining.request(store, {"learners": 1, "callers": [3]}, LIMIT_S, meanwhile)
    with pytest.raises(WaitTimeoutError, match="Those of this host end now"):
        joining.request(store, {"learners": 1, "callers": [3]}, 0.01)
    store.close()
    server.close()


class Frozen:
    """The process of a learner that was stopped (SIGSTOP): it does nothing until it is killed."""

    def __init__(self) -> None:
        self.sentinel, self._ours = socket.socketpair()
        self.exitcode: int | None = None

    def is_alive(self) -> bool:
        return self.exitcode is None

    def kill(self) -> None:
        self.exitcode = -9
        self._ours.close()

    def join(self, timeout: float) -> None: ...


@pytest.mark.parametrize("how", ["it is silent", "the run has ended"])
def test_a_frozen_guest_is_ended_by_the_host_that_has_brought_it(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its launcher cannot kill it, and while it lives the others wait for what it has to say."""
    monkeypatch.setattr(guest_host, "PATIENCE_S", 0.01)
    monkeypatch.setattr(guest_host, "_LOOK_EVERY_S", 0.01)
    server = StoreServer.nearby(b"k" * 32)
    place = Place(server.address, b"k" * 32)
    store = place.store(LIMIT_S)
    host = guest_host.GuestHost(
        Experiment(Synthetic(num_frames=512), hocket.KStep()),
        tmp_path,
        Door(place, "there", "127.0.0.1:1"),
    )
    frozen: Any = Frozen()
    host.guests = [guest_host.Guest(7, frozen, frozen)]
    if how == "it is silent":
        ours, theirs = socket.socketpair()
        line = Line(ours, waits=False)
        Child(2, arrivals.GuestProcess(line=line, caller=7, store=store), line).fence()
        assert theirs.recv(1) == b"", "its line is cut"
        line.close()
        theirs.close()
    else:
        server.close()
    with pytest.raises(LearnerFailedError, match="exit codes"):
        host._stay(store)
    assert not frozen.is_alive()
    frozen.sentinel.close()
    store.close()
    server.close()
