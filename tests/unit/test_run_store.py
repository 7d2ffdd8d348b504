"""The store of a run: what it does, its limits, and who gets in."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.strangers import ended, idle_connections, knock, read_exactly

from hocket.data.counters import LocalCounters
from hocket.errors import ConfigError, HocketError, StoreLostError, WaitTimeoutError
from hocket.runtime.net import addresses
from hocket.runtime.net.store import (
    MAX_VALUE_BYTES,
    REQUEST_HEAD,
    Place,
    Request,
    Store,
)
from hocket.runtime.net.store_server import StoreServer

TOKEN = b"t" * 32


@pytest.fixture(params=["nearby", "tcp"])
def server(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    one = (
        StoreServer.nearby(TOKEN)
        if request.param == "nearby"
        else StoreServer(TOKEN, [addresses.listen("127.0.0.1:0")])
    )
    yield one
    one.close()


def connect(server: StoreServer, timeout_s: float = 10.0) -> Store:
    return Store.connect(server.address, TOKEN, timeout_s)


# ------------------------------------------------------------------ what it does


def test_it_counts_and_keeps_as_the_simulators_counters_do(server: StoreServer) -> None:
    store, twin = connect(server), LocalCounters()
    for counters in (store.prefix("ledger"), twin):
        seen = [counters.add("drawn", 1), counters.add("drawn", -3), counters.add("other", 0)]
        counters.put("returned/1", "[0, 7]")
        counters.put("returned/1", "ünï")
        assert seen == [1, -2, 0]
        assert counters.get("returned/1") == "ünï"
    assert connect(server).prefix("ledger").add("drawn", 0) == -2
    assert connect(server).add("drawn", 0) == 0, "another prefix"


def test_additions_from_many_are_not_lost(server: StoreServer) -> None:
    def draw(_: int) -> list[int]:
        store = connect(server)
        return [store.add("drawn", 1) for _ in range(200)]

    with ThreadPoolExecutor(8) as pool:
        drawn = [number for numbers in pool.map(draw, range(8)) for number in numbers]
    assert sorted(drawn) == list(range(1, 1601))


def test_a_get_waits_for_the_put(server: StoreServer) -> None:
    def later() -> None:
        time.sleep(0.2)
        connect(server).put("why", "because")

    thread = threading.Thread(target=later)
    thread.start()
    assert connect(server).get("why") == "because"
    thread.join()


def test_values_are_swapped_and_dropped(server: StoreServer) -> None:
    store = connect(server)
    assert store.swap("leader", b"", b"rank 1") == b"rank 1"
    assert store.swap("leader", b"", b"rank 2") == b"rank 1"
    assert store.swap("leader", b"rank 1", b"rank 2") == b"rank 2"
    assert store.look("leader") == b"rank 2"
    assert store.drop("leader")
    assert not store.drop("leader")
    assert store.look("leader") is None
    assert store.add("count", 4) == 4
    assert store.get("count") == "4"


def test_no_two_stores_have_one_name_or_give_one_secret(server: StoreServer) -> None:
    other = StoreServer.nearby(TOKEN)
    stores = [connect(server), connect(server).prefix("attach/1"), connect(other)]
    assert len({store.derived_key() for store in stores}) == 3
    assert stores[0].derived_key() == connect(server).derived_key()
    assert stores[0].name() != stores[2].name()
    assert TOKEN.decode() not in repr(stores[0]) + repr(Place(server.address, TOKEN))
    other.close()


def test_a_large_value_arrives_and_a_larger_one_is_refused(server: StoreServer) -> None:
    store = connect(server)
    store.put_bytes("large", bytes(range(256)) * (MAX_VALUE_BYTES // 256))
    assert len(connect(server).get_bytes("large")) == MAX_VALUE_BYTES
    with pytest.raises(ConfigError, match="too much to store"):
        store.put_bytes("large", bytes(MAX_VALUE_BYTES + 1))
    with pytest.raises(ConfigError, match="too long for the store"):
        store.add("k" * 2000, 1)
    assert store.add("still there", 1) == 1


def test_a_value_that_is_no_counter_is_not_added_to(server: StoreServer) -> None:
    store = connect(server)
    store.put("name", "hocket")
    with pytest.raises(HocketError, match="refused add of 'name': it is no counter"):
        store.add("name", 1)
    store.add("large", 2**62)
    with pytest.raises(HocketError, match="refused add of 'large'"):
        store.add("large", 2**62)
    assert store.get("name") == "hocket"


# ------------------------------------------------------------------ limits


def test_a_wait_for_a_value_has_a_limit_and_names_it(server: StoreServer) -> None:
    store = connect(server)
    with pytest.raises(WaitTimeoutError, match=r"waited 0\.2 s for 'mesh/3' in the store"):
        store.limited(0.2).get("mesh/3")
    assert store.add("still there", 1) == 1


def test_a_server_that_is_stopped_is_given_up() -> None:
    """Also for calls that wait for nothing: torch's store would wait for ever there."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            server = StoreServer.nearby(TOKEN)
            os.write(theirs, server.address.encode())
            time.sleep(60)
        finally:
            os._exit(0)
    try:
        store = Store.connect(os.read(ours, 200).decode(), TOKEN, 10.0)
        assert store.add("drawn", 1) == 1
        os.kill(child, signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)  # it stops a moment after the signal
        with pytest.raises(
            StoreLostError, match=r"no answer within 0\.3 s; asked for 'drawn'.*--resume"
        ):
            store.limited(0.3).add("drawn", 1)
        os.kill(child, signal.SIGCONT)
        with pytest.raises(StoreLostError, match="connection has ended"):
            store.add("drawn", 1)  # the answer to the first call must not be taken for this one's
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ours)
        os.close(theirs)


def test_a_server_that_ends_is_noticed(server: StoreServer) -> None:
    store = connect(server)
    store.add("drawn", 1)
    server.close()
    with pytest.raises(StoreLostError, match="cannot be reached"):
        store.add("drawn", 1)


def test_a_client_may_come_before_the_server() -> None:
    with addresses.listen("127.0.0.1:0") as free:
        address = addresses.address_of(free)
    opened: list[StoreServer] = []

    def later() -> None:
        time.sleep(0.3)
        opened.append(StoreServer(TOKEN, [addresses.listen(address)]))

    thread = threading.Thread(target=later)
    thread.start()
    assert Store.connect(address, TOKEN, 10.0).add("x", 1) == 1
    thread.join()
    opened[0].close()


def test_a_client_that_dies_while_it_waits_harms_nobody(server: StoreServer) -> None:
    waiting = connect(server)
    thread = threading.Thread(target=lambda: _swallow(waiting), daemon=True)
    thread.start()
    time.sleep(0.2)
    assert waiting._line._socket is not None
    waiting._line._socket.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    store = connect(server)
    store.put("never", "now")
    assert store.get("never") == "now"


def _swallow(store: Store) -> None:
    with pytest.raises(StoreLostError):
        store.get("never")


# ------------------------------------------------------------------ strangers


def test_whoever_does_not_have_the_token_is_told_so(server: StoreServer) -> None:
    with pytest.raises(HocketError, match=r"cannot reach the store of the run .*HOCKET_TOKEN"):
        Store.connect(server.address, b"x" * 32, 10.0)


def test_a_stranger_forges_nothing_and_learns_nothing(server: StoreServer) -> None:
    """He speaks the protocol, but has not proved himself; he gets a challenge and nothing else."""
    store = connect(server)
    store.add("ledger/drawn", 5)
    forged = REQUEST_HEAD.pack(Request.ADD, 12, 0, 1000) + b"ledger/drawn"
    ask = REQUEST_HEAD.pack(Request.GET, 4, 0, 0) + b"salt"
    with knock(server.address) as stranger:
        stranger.settimeout(10.0)
        stranger.sendall(forged * 10 + ask * 10)
        said = read_exactly(stranger, 1 << 16)
    assert len(said) <= 40 + 33
    assert store.name().encode() not in said
    assert store.add("ledger/drawn", 0) == 5


def test_nobody_can_stand_in_the_middle(server: StoreServer) -> None:
    """Somebody who makes a learner call him passes on what both say, word for word."""
    with addresses.listen("127.0.0.1:0") as listener:

        def pass_on() -> None:
            caller, _ = listener.accept()
            with caller, knock(server.address) as called:
                caller.sendall(read_exactly(called, 40))
                called.sendall(read_exactly(caller, 72))
                caller.sendall(read_exactly(called, 33))

        thread = threading.Thread(target=pass_on, daemon=True)
        thread.start()
        with pytest.raises(HocketError, match="does not have the token"):
            Store.connect(addresses.address_of(listener), TOKEN, 10.0)
        thread.join(10)


def test_a_thousand_idle_connections_leave_the_store_at_work(server: StoreServer) -> None:
    store = connect(server)
    with idle_connections(server.address, 400, socket.SOCK_STREAM) as held:
        assert held > 300
        assert store.add("drawn", 1) == 1
        assert connect(server).add("drawn", 1) == 2, "and others still get in"


@pytest.mark.parametrize(
    "request_",
    [
        struct.pack("<BHIq", 1, 65535, 0, 1),
        struct.pack("<BHIq", 2, 1, 2**32 - 1, 1),
        struct.pack("<BHIq", 77, 1, 0, 1) + b"k",
        struct.pack("<BHIq", 4, 1, 3, 9) + b"kabc",
        struct.pack("<BHIq", 1, 2, 0, 1) + b"\xff\xfe",
    ],
    ids=["long key", "long value", "no operation", "swap of more than came", "no text"],
)
def test_what_makes_no_sense_ends_its_connection_alone(
    server: StoreServer, request_: bytes
) -> None:
    """Even from somebody with the token; nothing is kept for what a head announces."""
    store, mad = connect(server), connect(server)
    assert mad._line._socket is not None
    mad._line._socket.sendall(request_)
    assert ended(mad._line._socket)
    assert store.add("drawn", 1) == 1


def test_a_forked_process_does_not_keep_the_store_open(server: StoreServer) -> None:
    store = connect(server)
    assert store.add("x", 1) == 1
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        server.close()
        with pytest.raises(StoreLostError):
            store.add("x", 1)
        with pytest.raises(OSError, match=r"refused|No such"):
            knock(server.address)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_connection_that_is_ended_twice_ends_nothing_else() -> None:
    """An answer to one client may find another gone; the thread that serves all must live on."""
    server = StoreServer.nearby(bytes(32))
    store = Store.connect(server.address, server.token, timeout_s=10.0)
    store.add("x", 1)
    (client,) = server._clients
    server.close()
    server._end(client)
