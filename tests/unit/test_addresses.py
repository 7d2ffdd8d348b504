"""Addresses as people write them: which ones a run may listen at, and which are none."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hocket.cli.main import main
from hocket.errors import ConfigError, HocketError
from hocket.runtime.launch import joining
from hocket.runtime.launch.guests.arrivals import open_to_others
from hocket.runtime.net import addresses
from hocket.runtime.net.store import Place

RUN = ["train", "synthetic", "--strategy", "kstep", "--learners", "2"]


@pytest.mark.parametrize("host", ["0.0.0.0", "0", "0x0", "<broadcast>", "224.0.0.1"])
def test_nothing_listens_on_all_interfaces(host: str) -> None:
    with pytest.raises(ConfigError, match="no address of one host"):
        addresses.listen(f"{host}:0")


@pytest.mark.parametrize(
    "address",
    [
        *("", "host", "host:", ":5", "host:-1", "host:70000", "host:5\u00b2"),
        *("host:" + "1" * 5000, "a..b:5", "a" * 70 + ":5", "\ud800:5", "a\0b:5"),
    ],
)
def test_what_is_no_address_is_refused_before_the_resolver_is_asked(address: str) -> None:
    with pytest.raises(ConfigError, match="is no address"):
        addresses.parse(address)
    assert addresses.parse("a-host.example:29500") == ("a-host.example", 29500)


@pytest.mark.parametrize(
    "listen", ["", "@name", "192.0.2.7", "127.0.0.1:29500", "::1", "0", "a..b"]
)
def test_a_run_does_not_begin_where_others_could_not_call_it(
    listen: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, "--out", str(tmp_path / "run"), "--listen", listen]) == 2
    assert "address" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["a..b:5", "127.0.0.1:\u00b2", "@" + "x" * 200, "nonsense"])
def test_a_door_that_names_no_address(address: str, tmp_path: Path) -> None:
    joining.leave_door_open(tmp_path, Place(address, b"x" * 32))
    with pytest.raises(HocketError, match="does not answer"):
        joining.ask(tmp_path, 1, 5.0)


def test_others_call_where_the_run_listens() -> None:
    server, arrivals = open_to_others("localhost", b"k" * 32)
    for address in (server.address, arrivals.place.address):
        assert address.startswith("127.0.0.1:")
        socket.create_connection(addresses.parse(address), timeout=5.0).close()
    arrivals.close()
    server.close()
