"""How learners of one run know each other."""

from __future__ import annotations

import socket

import pytest

from hocket.errors import HocketError
from hocket.runtime.net.handshake import Handshake, StrangerError, put_token
from hocket.runtime.net.store import Store

TOKEN = b"0123456789abcdef"


def learner(rank: int, token: bytes = TOKEN) -> Handshake:
    return Handshake(rank, token, timeout_s=10.0)


def finish(listener: Handshake, connection: socket.socket) -> int:
    welcome = listener.welcome(connection)
    try:
        while True:
            next(welcome)
    except StopIteration as done:
        return int(done.value)


def test_a_learner_of_the_run_is_known_by_its_rank() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        learner(3).greet(theirs)
        assert finish(learner(0), ours) == 3


def test_a_greeting_may_come_in_pieces() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        welcome = learner(0).welcome(ours)
        next(welcome)  # nothing has come: it does not block
        theirs.send((7).to_bytes(8, "little") + TOKEN[:5])
        next(welcome)
        theirs.send(TOKEN[5:])
        with pytest.raises(StopIteration) as done:
            next(welcome)
        assert done.value.value == 7


def test_a_stranger_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        learner(1, b"of another run..").greet(theirs)
        with pytest.raises(StrangerError, match="token of this run"):
            finish(learner(0), ours)


def test_a_caller_that_ends_in_the_middle_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.send(b"GET")
        with pytest.raises(StrangerError, match="before it said who it is"):
            finish(learner(0), ours)


def test_a_listener_accepts_learners_and_closes_on_strangers() -> None:
    listener = learner(0).listen("127.0.0.1")
    port = listener.getsockname()[1]
    with listener, learner(1, b"of another run..").call(0, "127.0.0.1", port) as stranger:
        assert learner(0).accept(listener) is None
        assert stranger.recv(1) == b""
        with learner(2).call(0, "127.0.0.1", port):
            accepted = learner(0).accept(listener)
            assert accepted is not None
            assert accepted[0] == 2
            accepted[1].close()


def test_whoever_cannot_be_reached_is_named() -> None:
    with learner(0).listen("127.0.0.1") as listener:
        port = listener.getsockname()[1]
    with pytest.raises(HocketError, match=r"rank 1 cannot reach rank 0 at 127\.0\.0\.1:"):
        learner(1).call(0, "127.0.0.1", port)
    with pytest.raises(HocketError, match="rank 1 cannot reach rank 4 at its Unix socket"):
        learner(1).call_nearby(4, "mesh", socket.SOCK_STREAM)


def test_the_token_is_found_in_the_store() -> None:
    store = Store.serve("127.0.0.1", 10.0)
    put_token(store)
    one, other = (Handshake.from_store(store, rank, 10.0) for rank in (0, 1))
    assert one.token == other.token
    assert len(one.token) == 16
    assert one.token.hex() not in repr(one)
