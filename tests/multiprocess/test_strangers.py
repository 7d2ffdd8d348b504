"""A whole run, attacked from its first moment by somebody who has no part in it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import pytest
from helpers import strangers
from helpers.programs import wait_for

from hocket.runtime.launch.script import main as launch_script
from hocket.runtime.net import addresses

TESTS = Path(__file__).parents[1]
Held: TypeAlias = deque[socket.socket]
MOST_HELD = 4000
KINDS = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)


@pytest.fixture(autouse=True)
def _many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Asynchronous: it uses store, links and mailboxes. One learner comes late, so the others listen.
SCRIPT = """
import sys, hocket
from helpers.tasks import Late
if __name__ == "__main__":
    hocket.train(
        Late(num_items=200), strategy="adpsgd", learners=3, out=sys.argv[1], tensorboard=False,
        schedule=hocket.Constant(epochs=int(sys.argv[2])), progress=False,
    )
"""
FRAMES = 400


def start(out: Path, epochs: int = 4) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(out), str(epochs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS)])},
    )


def below(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The launcher and all processes below it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(process.pid)
        return [top, *top.children(recursive=True)]
    return []


def listeners(process: subprocess.Popen[str]) -> set[str]:
    """Where a run listens, as anybody on this host can find out; other runs are left in peace."""
    found, named = set(), strangers.unix_listeners()
    for one in below(process):
        with contextlib.suppress(psutil.Error):
            for connection in one.net_connections("all"):
                if connection.family == socket.AF_UNIX:
                    found |= {connection.laddr} & named
                elif connection.status == psutil.CONN_LISTEN:
                    found.add(f"{connection.laddr.ip}:{connection.laddr.port}")
    return found


class Attacker(threading.Thread):
    """Does something to every address where a run listens, again and again."""

    def __init__(self, process: subprocess.Popen[str], attack: Callable[..., int]) -> None:
        super().__init__(daemon=True)
        self.process, self.attack = process, attack
        self.attacked: Counter[str] = Counter()
        self.most_files = 0

    def run(self) -> None:
        held: Held = deque()
        try:
            while self.process.poll() is None:
                for address in listeners(self.process):
                    for kind in KINDS:
                        self.try_at(held, address, kind)
                while len(held) > MOST_HELD:  # what was dropped long ago
                    held.popleft().close()
                for one in below(self.process):
                    with contextlib.suppress(psutil.Error, OSError):
                        self.most_files = max(self.most_files, one.num_fds())
                time.sleep(0.01)
        finally:
            for connection in held:
                connection.close()

    def try_at(self, held: Held, address: str, kind: Any) -> None:
        unix = address.startswith("@")
        with contextlib.suppress(OSError):
            for _ in range(self.attack(held, address, kind)):
                self.attacked[address.split("-")[1] if unix else "port"] += 1


def finish(process: subprocess.Popen[str], out: Path, attacker: Attacker) -> None:
    _, err = process.communicate(timeout=100)
    attacker.join(10)
    assert process.returncode == 0, err
    summary = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert summary["event"] == "summary"
    assert summary["frames"] + summary["discarded_frames"] == 4 * FRAMES, "the ledger is exact"
    assert not any(one["lost"] for one in summary["learners"])
    assert {"mesh", "store", "port"} <= set(attacker.attacked), "they were attacked as they met"
    assert attacker.most_files < 500


def say_nothing(held: Held, address: str, kind: Any) -> int:
    held.append(addresses.connect(address, kind, time.monotonic() + 0.2))
    return 1


def crowd(held: Held, address: str, kind: Any) -> int:
    for count in range(200):
        try:
            say_nothing(held, address, kind)
        except OSError:  # no room just now
            return count
    return 200


def talk_nonsense(held: Held, address: str, kind: Any) -> int:
    with addresses.connect(address, kind, time.monotonic() + 0.2) as connection:
        data = random.randbytes(random.choice([1, 24, 40, 71, 72, 73, 4000]))
        if connection.family == socket.AF_UNIX:
            strangers.send_with_descriptors(connection, data, 60)
        else:
            connection.sendall(data)
    return 1


@contextmanager
def attacked(out: Path, attack: Callable[..., int]) -> Iterator[Any]:
    process = start(out)
    attacker = Attacker(process, attack)
    attacker.start()
    try:
        yield process, attacker
    finally:
        process.kill()
        process.wait()
        attacker.join(10)


def everything(held: Held, address: str, kind: Any) -> int:
    """Now this, now that; the first connection says nothing and stays."""
    return sum(attack(held, address, kind) for attack in (say_nothing, talk_nonsense, crowd))


@pytest.mark.parametrize(
    "attack", [everything, *(pytest.param(a, marks=pytest.mark.long) for a in (say_nothing, crowd))]
)
def test_a_run_that_is_attacked_ends_as_if_it_were_not(attack: Any, tmp_path: Path) -> None:
    """Silent connections from the first moment, thousands of them, wrong hellos with files."""
    with attacked(tmp_path / "run", attack) as (process, attacker):
        finish(process, tmp_path / "run", attacker)
    assert attack is say_nothing or attacker.attacked.total() > 1100


def test_a_run_on_one_host_listens_on_that_host_alone(tmp_path: Path) -> None:
    """On loopback while learners meet; afterwards only the store of the run listens."""
    process = start(tmp_path / "run", epochs=3000)
    seen: set[str] = set()
    try:

        def training() -> bool:
            seen.update(listeners(process))
            path = tmp_path / "run" / "metrics.jsonl"
            return path.exists() and '"train"' in path.read_text()

        wait_for(training)
        ports = {address for address in seen if not address.startswith("@")}
        assert ports, "the meeting was seen"
        assert {address.rpartition(":")[0] for address in ports} == {addresses.LOOPBACK}
        left = listeners(process)
        assert len(left) == 1
        assert next(iter(left)).startswith("@hocket-store-")
        for one in below(process):
            told = " ".join(one.cmdline()) + " ".join(one.environ().values())
            assert "TOKEN" not in told
    finally:
        process.kill()
        process.communicate()


def test_the_token_of_a_script_is_in_no_environment(tmp_path: Path) -> None:
    """It comes through a pipe; what is in the environment is the number of that pipe."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, stat\n"
        "number = int(os.environ['HOCKET_TOKEN_FD'])\n"
        "assert stat.S_ISFIFO(os.fstat(number).st_mode)\n"
        "token = os.read(number, 100)\n"
        "assert len(token) == 32\n"
        "assert not any(token.hex() in value for value in os.environ.values())\n"
    )
    assert launch_script(["--learners", "2", str(script)]) == 0
