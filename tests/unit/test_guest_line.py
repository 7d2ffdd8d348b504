"""What a launcher and its learners on Ray tell each other: what travels, and what nonsense does."""

from __future__ import annotations

import json
import random
import socket
import struct
import sys
from typing import Any

import pytest

from hocket.cli.main import main as hocket_command
from hocket.core.accounts import Books, Ticket, Vitals
from hocket.runtime.launch.guests.line import Assignment, Hello, Line, decoded, encoded
from hocket.runtime.launch.learner_process import NextGroup

LIMIT_S = 20.0


@pytest.fixture
def ends() -> Any:
    ours, theirs = socket.socketpair()
    theirs.settimeout(LIMIT_S)
    line = Line(ours)
    yield line, theirs
    line.close()
    theirs.close()


@pytest.mark.parametrize(
    "message",
    [
        "stop",
        NextGroup(3, 2, 1, (0, 4, 7), (0, 2)),
        Hello("a node", "a host"),
        Assignment(4, True, "a mark"),
        ["alive", Vitals(1.5, 300, 2, Books(compute_s=0.1, frames=7, draws=3), 0.25)],
        ["done", {"rank": 1, "books": Books(bytes_sent=9), "scores": [0.5, 0.75], "lr": 0.1}],
        ["failed", ["ConfigError", "ü", "was starting", ""]],
        ["event", {"event": "train", "loss": float("inf"), "rank": None}],
    ],
    ids=lambda message: str(message)[:20],
)
def test_a_message_arrives_as_it_was(message: Any) -> None:
    ours, theirs = socket.socketpair()
    here, there = Line(ours), Line(theirs)
    here.send(message)
    assert there.recv() == message
    here.close()
    with pytest.raises(EOFError, match="has gone"):
        there.recv()
    there.close()


def test_only_what_is_listed_travels() -> None:
    with pytest.raises(TypeError, match="Ticket does not travel"):
        encoded(["event", Ticket(0, 0, 1)])


@pytest.mark.parametrize(
    "text",
    [
        '{"$kind": "Popen", "args": ["ls"]}',
        '{"$kind": "Books", "what": 1}',
        '{"$kind": [1]}',
        '{"$kind": "Hello"}',
        "{",
        "[" * 100_000,
        "\x00",
    ],
    ids=lambda text: text[:20],
)
def test_nonsense_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decoded(text.encode())


def test_nonsense_ends_a_line_and_nothing_else(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    other.sendall(struct.pack("<I", 2) + b"{]")
    with pytest.raises(EOFError, match="Expecting"):
        line.recv()
    other.sendall(struct.pack("<I", 1 << 31))
    with pytest.raises(EOFError, match="a message of 2147483648 bytes"):
        line.recv()


def test_random_bytes_are_the_end_of_a_line() -> None:
    dice = random.Random(25)
    for _ in range(300):
        ours, theirs = socket.socketpair()
        line = Line(ours)
        body = dice.choice([dice.randbytes(dice.randrange(40)), json.dumps([1, {}]).encode()[:5]])
        theirs.sendall(struct.pack("<I", len(body)) + body)
        theirs.close()
        with pytest.raises(EOFError):
            line.recv(), line.recv()
        line.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--cpus", "2"], "--cpus has no effect without --engine ray"),
        (["--gpus", "1"], "--gpus has no effect without --engine ray"),
        (["--engine", "ray", "--cpus", "-1"], "--cpus must be 0 or more"),
        (["--engine", "ray", "--gpus", "nan"], "--gpus must be 0 or more"),
    ],
)
def test_options_of_ray(
    options: list[str], reason: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert hocket_command(["train", "synthetic", *options, "--out", str(out)]) == 2
    assert reason in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


def test_a_client_outside_the_cluster_is_refused(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", object())
    monkeypatch.setenv("RAY_ADDRESS", "ray://192.0.2.7:10001")
    command = ["train", "synthetic", "--engine", "ray", "--out", str(tmp_path / "run")]
    assert hocket_command(command) == 2
    assert "cannot be reached by its learners" in " ".join(capsys.readouterr().err.split())


def test_without_ray_its_extra_is_named(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    command = ["train", "synthetic", "--engine", "ray", "--out", str(tmp_path / "run")]
    assert hocket_command(command) == 2
    assert "pip install 'hocket[ray]'" in " ".join(capsys.readouterr().err.split())
