"""Where the secret of a run comes from, and how processes find its store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import ConfigError, HocketError, StoreLostError
from hocket.runtime.launch import engines, meeting, tokens
from hocket.runtime.launch.engines import Started
from hocket.runtime.net import addresses
from hocket.support import distributed

SECRET = "correct horse battery staple"


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("HOCKET_STORE", "MASTER_ADDR", "MASTER_PORT", tokens.VALUE, tokens.FILE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(meeting, "_met", {})
    monkeypatch.setattr(meeting, "_serving", {})
    monkeypatch.setattr(tokens, "_received", None)
    yield
    for server in meeting._serving.values():
        server.close()


# ------------------------------------------------------------------ tokens


def test_a_token_comes_from_the_environment_or_from_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(tokens.VALUE, SECRET)
    given = tokens.shared("run")
    assert not given.is_open
    assert given == tokens.shared("another run")
    monkeypatch.delenv(tokens.VALUE)
    path = tmp_path / "token"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    monkeypatch.setenv(tokens.FILE, str(path))
    assert tokens.shared("run") == given
    assert SECRET not in repr(given)


def test_without_a_token_anybody_can_work_one_out() -> None:
    assert tokens.shared("run").is_open
    assert tokens.shared("run") == tokens.shared("run")
    assert tokens.shared("run") != tokens.shared("another run")
    assert "anybody who reaches its ports can join" in tokens.OPEN


def test_bad_tokens_are_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(tokens.VALUE, "short")
    with pytest.raises(ConfigError, match=r"has 5 letters, at least 16 are needed.*openssl"):
        tokens.shared("run")
    monkeypatch.setenv(tokens.FILE, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="are both set"):
        tokens.shared("run")
    monkeypatch.delenv(tokens.VALUE)
    with pytest.raises(ConfigError, match="none cannot be read"):
        tokens.shared("run")
    path = tmp_path / "token"
    path.write_text(SECRET)
    path.chmod(0o644)
    monkeypatch.setenv(tokens.FILE, str(path))
    with pytest.raises(ConfigError, match="can be read by others: chmod 600"):
        tokens.shared("run")
    monkeypatch.setenv(tokens.FILE, str(tmp_path))
    with pytest.raises(ConfigError, match="cannot be read"):
        tokens.shared("run")


def test_a_learner_gets_the_token_through_a_pipe_once(monkeypatch: pytest.MonkeyPatch) -> None:
    token = tokens.random()
    pipe = tokens.into_pipe(token)
    monkeypatch.setenv(tokens.PIPE, str(pipe))
    assert tokens.from_pipe() == token
    assert tokens.from_pipe() == token, "a second `attach` needs it again"
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(pipe)


@pytest.mark.parametrize("number", ["", "x", "987654"])
def test_a_pipe_that_was_closed_on_the_way_is_explained(
    monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    monkeypatch.setenv(tokens.PIPE, number)
    with pytest.raises(ConfigError, match="close_fds=False"):
        tokens.from_pipe()


# ------------------------------------------------------------------ meeting


class Carrier:
    """A store of torch's: whoever reaches it can read and change it."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        if key not in self.values:
            raise RuntimeError("wait timeout after 1 s")
        return self.values[key]


def meet(monkeypatch: pytest.MonkeyPatch, rank: int, carrier: Any) -> meeting.Meeting:
    """Meet as one of two processes in a torch.distributed that is initialised."""
    monkeypatch.setattr(distributed, "initialised_store", lambda: carrier)
    monkeypatch.setattr(meeting, "_met", {})
    return meeting.meet(Started(engines.INITIALISED, rank, 2), 10.0)


@pytest.mark.parametrize("secret", [None, SECRET])
def test_a_store_of_torchs_carries_an_address_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, secret: str | None
) -> None:
    if secret is not None:
        monkeypatch.setenv(tokens.VALUE, secret)
    carrier = Carrier()
    first, second = (meet(monkeypatch, rank, carrier) for rank in (0, 1))
    assert first.place == second.place
    assert first.is_open is (secret is None)
    ((value,),) = [carrier.values.values()]
    assert value.startswith(first.place.address.encode() + b" ")
    assert first.place.token.hex() not in value.decode()
    assert first.place.token not in value
    assert second.place.store(10.0).add("drawn", 1) == 1
    assert first.place.store(10.0).add("drawn", 1) == 2


def test_an_address_that_somebody_else_wrote_is_not_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or he could stand in the middle and pass the proofs on."""
    monkeypatch.setenv(tokens.VALUE, SECRET)
    carrier = Carrier()
    meet(monkeypatch, 0, carrier)
    ((run, value),) = carrier.values.items()
    for forged in (
        b"192.0.2.66:6666 " + value.partition(b" ")[2],
        b"192.0.2.66:6666",
        b"\xff\xfe " * 20,
        b"",
    ):
        carrier.values[run] = forged
        with pytest.raises(HocketError, match="was not written by a process with this token"):
            meet(monkeypatch, 1, carrier)


def test_a_first_process_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreLostError, match=r"first process was not found.*has not started"):
        meet(monkeypatch, 1, Carrier())


def test_master_addr_and_port_name_the_store_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with addresses.listen("127.0.0.1:0") as free:
        port = addresses.address_of(free).rpartition(":")[2]
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", port)
    first = meeting.meet(Started(engines.VARIABLES, 0, 2), 10.0)
    assert meeting.meet(Started(engines.VARIABLES, 0, 2), 10.0) is first, "a second `attach`"
    monkeypatch.setattr(meeting, "_met", {})
    second = meeting.meet(Started(engines.VARIABLES, 1, 2), 10.0)
    assert second.place.store(10.0).add("drawn", 1) == 1


def test_a_master_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with addresses.listen("127.0.0.1:0") as taken:
        port = addresses.address_of(taken).rpartition(":")[2]
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", port)
        with pytest.raises(ConfigError, match=f"MASTER_PORT={port} is used by another program"):
            meeting.meet(Started(engines.VARIABLES, 0, 2), 10.0)
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")
    monkeypatch.setattr(addresses, "own_address", lambda host: "192.0.2.1")
    with pytest.raises(ConfigError, match=r"cannot listen at MASTER_ADDR=192\.0\.2\.1"):
        meeting.meet(Started(engines.VARIABLES, 0, 2), 10.0)
    monkeypatch.setenv("MASTER_ADDR", "nowhere.invalid")
    with pytest.raises(ConfigError, match=r"MASTER_ADDR=nowhere\.invalid is not known to this"):
        meeting.meet(Started(engines.VARIABLES, 0, 2), 10.0)
    monkeypatch.setenv("MASTER_PORT", "a port")
    with pytest.raises(ConfigError, match=r"'nowhere\.invalid:a port' is no address"):
        meeting.meet(Started(engines.VARIABLES, 0, 2), 10.0)
