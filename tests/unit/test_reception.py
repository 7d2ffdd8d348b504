"""Connections that have not proved themselves: few, short-lived, in nobody's way."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from helpers import strangers
from helpers.strangers import ended, idle_connections, knock, member, num_descriptors

from hocket.runtime.net import addresses, reception
from hocket.runtime.net.reception import Reception

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@pytest.fixture(params=["tcp", "unix"])
def desk(request: pytest.FixtureRequest) -> Iterator[tuple[Reception, str]]:
    where = "127.0.0.1:0" if request.param == "tcp" else f"@hocket-test-{secrets.token_hex(8)}"
    listener = addresses.listen(where)
    address = addresses.address_of(listener)
    one = Reception(member(0), [listener])
    yield one, address
    one.close()


def call_in_thread(address: str) -> threading.Thread:
    thread = threading.Thread(target=lambda: member(1).call(0, address).close(), daemon=True)
    thread.start()
    return thread


def admitted(one: Reception, limit_s: float = 10.0) -> list[int]:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if found := one.admit(0.05):
            for _, connection in found:
                connection.close()
            return [rank for rank, _ in found]
    return []


def test_a_learner_is_let_in_while_strangers_say_nothing(desk: tuple[Reception, str]) -> None:
    one, address = desk
    with knock(address), knock(address) as half:
        one.admit(0.1)
        half.send(b"x" * 71)
        call_in_thread(address)
        assert admitted(one) == [1]


def test_there_are_never_many_of_them(desk: tuple[Reception, str]) -> None:
    """The longest waiting are dropped; descriptors do not run out; a learner still gets in."""
    one, address = desk
    before = num_descriptors()
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            for _, connection in one.admit(0.05):
                connection.close()

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    with idle_connections(address, 400, socket.SOCK_STREAM) as held:
        assert held > 350
        time.sleep(0.2)
        ours = num_descriptors() - before - held
        assert ours <= reception.MOST + 1, "one may be about to be dropped"
        caller = call_in_thread(address)
        caller.join(10)
        assert not caller.is_alive(), "it was let in"
    stop.set()
    server.join(10)


def test_they_are_dropped_after_a_while(
    desk: tuple[Reception, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow ones, too: a byte now and then does not prolong it."""
    monkeypatch.setattr(reception, "GREETING_S", 0.4)
    one, address = desk
    with knock(address) as silent, knock(address) as slow:
        one.admit(0.1)
        assert one.patience_s is not None
        assert one.patience_s <= 0.4
        for _ in range(12):
            try:
                slow.send(b"x")
            except OSError:
                break
            one.admit(0.05)
            time.sleep(0.05)
        assert one.patience_s is None, "nobody waits here any more"
        assert ended(silent)
        assert ended(slow)


def test_descriptors_that_come_with_a_wrong_greeting_are_closed() -> None:
    listener = addresses.listen(f"@hocket-test-{secrets.token_hex(8)}")
    address = addresses.address_of(listener)
    one = Reception(member(0), [listener])
    before = num_descriptors()
    for size in [1, 72, 100] * 6:
        with knock(address) as stranger:
            one.admit(0.05)
            strangers.send_with_descriptors(stranger, b"x" * size, 60)
            one.admit(0.05)
    one.admit(0.05)
    assert num_descriptors() == before
    one.close()


@needs_root
def test_another_user_of_this_host_is_turned_away_at_once() -> None:
    """Even with the key: whoever has stolen it still is another user."""
    listener = addresses.listen(f"@hocket-test-{secrets.token_hex(8)}")
    address = addresses.address_of(listener)
    one = Reception(member(0), [listener])

    def try_it() -> bool:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(5.0)
        connection.connect("\0" + address[1:])
        return connection.recv(100) == b""

    told = []
    thread = threading.Thread(target=lambda: told.append(strangers.as_nobody(try_it)), daemon=True)
    thread.start()
    until = time.monotonic() + 10
    while thread.is_alive() and time.monotonic() < until:
        assert one.admit(0.05) == []
    thread.join(10)
    assert told == [True]
    one.close()


@needs_root
def test_a_listener_of_another_user_is_not_believed() -> None:
    """The name of a Unix socket can be taken by anybody, once its owner has gone."""
    listener = addresses.listen(f"@hocket-test-{secrets.token_hex(8)}")
    address = addresses.address_of(listener)

    def try_it() -> bool:
        try:
            addresses.connect(address, socket.SOCK_STREAM, time.monotonic() + 5)
        except PermissionError as error:
            return "another user" in str(error)
        return False

    assert strangers.as_nobody(try_it)
    listener.close()


def test_a_process_that_can_open_no_more_files_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = addresses.listen("127.0.0.1:0")
    address = addresses.address_of(listener)
    one = Reception(member(0), [listener])
    accept, full = socket.socket.accept, [True]

    def refuse(self: socket.socket) -> tuple[socket.socket, object]:
        if full[0]:
            raise OSError(24, "Too many open files")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", refuse)
    call_in_thread(address)
    assert one.admit(0.2) == []
    full[0] = False
    assert admitted(one) == [1]
    one.close()
