"""How processes of one run know each other, and why nobody else gets in."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from helpers.strangers import (
    ANSWER_BYTES,
    HELLO_BYTES,
    VERDICT_BYTES,
    answered,
    ended,
    member,
    read_exactly,
)

from hocket.errors import HocketError
from hocket.runtime.net import addresses
from hocket.runtime.net.handshake import DroppedError, Handshake, StrangerError
from hocket.runtime.net.reception import Reception

OTHER = b"of another run.................."


def soon() -> float:
    return time.monotonic() + 10.0


def pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(10.0)
    return ours, theirs


class Greeting(threading.Thread):
    """Greets while the test listens."""

    def __init__(self, caller: Handshake, connection: socket.socket, to: int) -> None:
        super().__init__(daemon=True)
        self.caller, self.connection, self.to = caller, connection, to
        self.error: OSError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.caller.greet(self.connection, self.to, soon())
        except OSError as error:
            self.error = error

    def outcome(self) -> OSError | None:
        self.join(10)
        return self.error


# ------------------------------------------------------------------ members


def test_a_learner_of_the_run_is_known_by_its_rank() -> None:
    ours, theirs = pair()
    with ours, theirs:
        greeting = Greeting(member(3), theirs, to=0)
        assert answered(member(0).welcome(ours)) == 3
        assert greeting.outcome() is None


def test_a_greeting_may_come_in_pieces() -> None:
    ours, theirs = pair()
    with ours, theirs:
        welcome = member(0).welcome(ours)
        next(welcome)  # nothing has come: it does not block
        next(welcome)
        hello = read_exactly(theirs, HELLO_BYTES)[8:]
        mine = b"c" * 32
        proof = member(7)._proof(b"caller", 7, 0, hello, mine)
        answer = (7).to_bytes(8, "little") + mine + proof
        theirs.send(answer[:5])
        next(welcome)
        theirs.send(answer[5:])
        assert answered(welcome) == 7
        verdict = read_exactly(theirs, VERDICT_BYTES)
        assert verdict == b"\1" + member(0)._proof(b"listener", 7, 0, hello, mine)


def test_the_key_is_not_shown() -> None:
    assert "kkkk" not in repr(member(0))


# ------------------------------------------------------------------ strangers who call


@pytest.mark.parametrize(
    "stranger",
    [member(1, OTHER), member(1, purpose="mail")],
    ids=["another key", "another purpose"],
)
def test_a_caller_without_the_key_of_this_purpose_is_refused(stranger: Handshake) -> None:
    ours, theirs = pair()
    with ours, theirs:
        greeting = Greeting(stranger, theirs, to=0)
        with pytest.raises(StrangerError, match="token of this run"):
            answered(member(0).welcome(ours))
        assert isinstance(greeting.outcome(), StrangerError)


def test_a_call_for_another_rank_is_refused() -> None:
    ours, theirs = pair()
    with ours, theirs:
        Greeting(member(1), theirs, to=2)
        with pytest.raises(StrangerError):
            answered(member(0).welcome(ours))


def test_an_overheard_greeting_is_worth_nothing_later() -> None:
    """Replay: the listener's challenge is another one each time."""
    ours, theirs = pair()
    with ours, theirs:
        welcome = member(0).welcome(ours)
        next(welcome)
        hello = read_exactly(theirs, HELLO_BYTES)[8:]
        mine = b"c" * 32
        overheard = (1).to_bytes(8, "little") + mine
        overheard += member(1)._proof(b"caller", 1, 0, hello, mine)
        theirs.send(overheard)
        assert answered(welcome) == 1  # the true one is believed
    ours, theirs = pair()
    with ours, theirs:
        theirs.send(overheard)
        with pytest.raises(StrangerError):
            answered(member(0).welcome(ours))


def test_a_proof_cannot_be_sent_back_to_the_side_that_made_it() -> None:
    """Reflection: whoever listens in a learner's place has only that learner's own proof."""
    ours, theirs = pair()
    with ours, theirs:
        ours.setblocking(True)
        greeting = Greeting(member(1), theirs, to=0)
        ours.send(b"hocket/2" + b"l" * 32)
        proof = read_exactly(ours, ANSWER_BYTES)[40:]
        ours.send(b"\1" + proof)
        assert isinstance(greeting.outcome(), StrangerError)


def test_a_listener_is_no_oracle_for_callers() -> None:
    """Reflection the other way: what listeners answer to strangers proves nothing to others."""
    ours, theirs = pair()
    with ours, theirs:
        welcome = member(0).welcome(ours)
        next(welcome)
        read_exactly(theirs, HELLO_BYTES)
        theirs.send((1).to_bytes(8, "little") + b"x" * 64)
        with pytest.raises(StrangerError):
            answered(welcome)
        assert read_exactly(theirs, VERDICT_BYTES) == bytes(VERDICT_BYTES)


def test_a_caller_that_ends_in_the_middle_is_dropped() -> None:
    ours, theirs = pair()
    with ours:
        welcome = member(0).welcome(ours)
        next(welcome)
        with theirs:
            theirs.send(b"GET / HTTP/1.1\r\n")
            read_exactly(theirs, HELLO_BYTES)
        with pytest.raises(DroppedError, match="in the middle of a greeting"):
            answered(welcome)


# ------------------------------------------------------------------ strangers who listen


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request" + bytes(40), "another program"),
        (b"hocket/1" + bytes(32), "another version of Hocket"),
        (b"hocket/2" + bytes(32) + b"\1" + bytes(32), "does not have the token"),
        (b"hocket/2" + bytes(32) + b"\0" + bytes(32), "does not have the token"),
    ],
)
def test_a_listener_without_the_key_is_refused(said: bytes, reason: str) -> None:
    with addresses.listen("127.0.0.1:0") as listener:

        def listen() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(said)
                ended(connection)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        with pytest.raises(HocketError, match=reason) as caught:
            member(1).call(0, addresses.address_of(listener))
        assert "HOCKET_TOKEN" in str(caught.value)
        thread.join(10)


def test_a_listener_that_says_nothing_or_too_slowly_is_given_up() -> None:
    """The limit is for the whole greeting: a byte now and then does not prolong it."""
    impatient = Handshake(1, b"k" * 32, timeout_s=0.5)
    with addresses.listen("127.0.0.1:0") as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                try:
                    for byte in b"hocket/2" + bytes(32):
                        connection.send(bytes([byte]))
                        time.sleep(0.1)
                except OSError:
                    return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        with pytest.raises(HocketError, match=r"rank 1 cannot reach rank 0 at .*not answer|timed"):
            impatient.call(0, addresses.address_of(listener))
        thread.join(10)


def test_a_caller_that_is_dropped_calls_again() -> None:
    with addresses.listen("127.0.0.1:0") as listener:

        def listen() -> None:
            for _ in range(3):
                listener.accept()[0].close()
            reception = Reception(member(0), [listener])
            until = soon()
            while time.monotonic() < until:
                for _, connection in reception.admit(0.1):
                    connection.close()
                    return

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        member(1).call(0, addresses.address_of(listener)).close()
        thread.join(10)


def test_whoever_cannot_be_reached_is_named() -> None:
    with addresses.listen("127.0.0.1:0") as listener:
        address = addresses.address_of(listener)
    with pytest.raises(HocketError, match=r"rank 1 cannot reach rank 0 at 127\.0\.0\.1:\d+ \("):
        member(1).call(0, address)
    with pytest.raises(HocketError, match="rank 1 cannot reach rank 4 at @hocket-test-"):
        member(1).call(4, member(1).nearby_address(4))
