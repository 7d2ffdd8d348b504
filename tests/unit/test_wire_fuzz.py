"""Whatever bytes come in a greeting or a request: an error that names its cause, and nothing else.

Known answers are mixed in: true greetings with one bit changed, true requests cut anywhere.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time

from helpers.strangers import (
    ANSWER_BYTES,
    HELLO_BYTES,
    VERDICT_BYTES,
    member,
    read_exactly,
)
from helpers.wire import CUTS, few_or_many, fuzz, pieces
from hypothesis import strategies as st

from hocket.runtime.net.handshake import Handshake, StrangerError
from hocket.runtime.net.store import MAX_KEY_BYTES, REQUEST_HEAD, Request, Store
from hocket.runtime.net.store_server import BadRequestError, StoreServer, take_request

# ------------------------------------------------------------------ greetings


def _told(listener: Handshake, parts: list[bytes]) -> int | None:
    """Let a listener hear something; return whom it believes to hear."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        welcome = listener.welcome(ours)
        try:
            next(welcome)
            for part in parts:
                theirs.sendall(part)
                for _ in range(3):
                    next(welcome)
            theirs.shutdown(socket.SHUT_WR)
            for _ in range(3):
                next(welcome)
        except StopIteration as done:
            return int(done.value)
        except OSError:
            return None
    raise AssertionError("it still waits for somebody who has gone")


@few_or_many
def test_no_bytes_are_taken_for_a_greeting(examples: int) -> None:
    @fuzz(examples, st.binary(max_size=200), CUTS)
    def never(data: bytes, cuts: list[int]) -> None:
        assert _told(member(0), pieces(data, cuts)) is None


@few_or_many
def test_a_true_answer_is_believed_and_one_wrong_bit_is_not(examples: int) -> None:
    @fuzz(examples, st.integers(0, 5), st.integers(0, ANSWER_BYTES * 8), CUTS)
    def exactly(rank: int, bit: int, cuts: list[int]) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours, theirs:
            welcome = member(9).welcome(ours)
            next(welcome)
            hello = read_exactly(theirs, HELLO_BYTES)[8:]
            mine = secrets.token_bytes(32)
            proof = member(rank)._proof(b"caller", rank, 9, hello, mine)
            answer = bytearray(rank.to_bytes(8, "little", signed=True) + mine + proof)
            spoilt = bit < ANSWER_BYTES * 8
            if spoilt:
                answer[bit // 8] ^= 1 << bit % 8
            try:
                for part in pieces(bytes(answer), cuts):
                    theirs.sendall(part)
                    for _ in range(2):
                        next(welcome)
                raise AssertionError("a whole answer was neither believed nor refused")
            except StopIteration as done:
                believed = done.value
            except StrangerError:
                believed = None
            assert believed == (None if spoilt else rank)


@few_or_many
def test_no_bytes_are_taken_for_a_listener(examples: int) -> None:
    """A caller goes on only with a proof; a true verdict with one wrong bit is none."""

    @fuzz(examples, st.binary(max_size=120), st.integers(0, VERDICT_BYTES * 8), st.booleans())
    def never(data: bytes, bit: int, plausible: bool) -> None:
        ours, theirs = socket.socketpair()
        outcome: list[OSError | None] = []

        def greet() -> None:
            try:
                member(1).greet(theirs, 0, time.monotonic() + 5)
                outcome.append(None)
            except OSError as error:
                outcome.append(error)

        caller = threading.Thread(target=greet)
        with ours, theirs:
            caller.start()
            if plausible:
                ours.sendall(b"hocket/2" + bytes(32))
                answer = read_exactly(ours, ANSWER_BYTES)
                proof = member(0)._proof(b"listener", 1, 0, bytes(32), answer[8:40])
                data_ = bytearray(b"\1" + proof)
                if bit < VERDICT_BYTES * 8:
                    data_[bit // 8] ^= 1 << bit % 8
                ours.sendall(data_)
            else:
                ours.sendall(data)
            ours.shutdown(socket.SHUT_WR)
            caller.join(10)
        assert (outcome == [None]) is (plausible and bit == VERDICT_BYTES * 8)


# ------------------------------------------------------------------ the store


REQUESTS = st.tuples(
    st.sampled_from(list(Request)),
    st.text(max_size=20),
    st.binary(max_size=60),
    st.integers(-(2**63), 2**63 - 1),
)


def _written(what: Request, key: str, value: bytes, number: int) -> bytes:
    number = number % (len(value) + 1) if what is Request.SWAP else number
    return REQUEST_HEAD.pack(what, len(key.encode()), len(value), number) + key.encode() + value


@few_or_many
def test_requests_are_read_as_they_were_written_wherever_they_are_cut(examples: int) -> None:
    @fuzz(examples, st.lists(REQUESTS, max_size=5), CUTS)
    def same(requests: list[tuple[Request, str, bytes, int]], cuts: list[int]) -> None:
        waiting, read = bytearray(), []
        for part in pieces(b"".join(_written(*one) for one in requests), cuts):
            waiting += part
            while (request := take_request(waiting)) is not None:
                read.append(request)
        assert [(what, key, value) for what, key, value, _ in read] == [r[:3] for r in requests]
        assert not waiting


@few_or_many
def test_any_bytes_are_a_request_or_are_refused(examples: int) -> None:
    @fuzz(examples, st.binary(max_size=3 * REQUEST_HEAD.size))
    def decided(data: bytes) -> None:
        waiting = bytearray(data)
        try:
            while (request := take_request(waiting)) is not None:
                assert len(request[1].encode()) <= MAX_KEY_BYTES
        except BadRequestError:
            return
        assert waiting == data[len(data) - len(waiting) :]


@few_or_many
def test_the_store_survives_whatever_is_sent_to_it(examples: int) -> None:
    """From a stranger, and from somebody with the token."""
    token = b"t" * 32
    server = StoreServer.nearby(token)
    store = Store.connect(server.address, token, 10.0)
    store.put("ledger", "exact")

    @fuzz(examples, st.lists(st.binary(max_size=90) | REQUESTS.map(lambda r: _written(*r))))
    def survives(data: list[bytes]) -> None:
        mad = Store.connect(server.address, token, 10.0)
        assert mad._line._socket is not None
        mad._line._socket.settimeout(5.0)
        stranger = socket.socket(socket.AF_UNIX)
        with stranger:
            stranger.connect("\0" + server.address[1:])
            for one in data:
                for connection in (mad._line._socket, stranger):
                    try:
                        connection.sendall(one)
                    except OSError:
                        continue
        mad.close()
        assert store.add("alive", 1) > 0

    assert store.get("ledger") == "exact", "no random request has found this key"
    server.close()
