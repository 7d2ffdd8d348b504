"""Two network namespaces joined by a veth pair: two hosts, as far as sockets can tell.

Making them needs root (CAP_NET_ADMIN) and iproute2. The link can be limited (`tc tbf`), so that a
run on this machine meets the network of a slower one.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hocket import config
from hocket.errors import LearnerFailedError
from hocket.experiment import Experiment

DEVICES: Final = ("veth-a", "veth-b")
LIMIT_S: Final = 600.0  # of one run; none of ours takes a tenth of it
WHY_NOT: Final = "needs root and iproute2 (`ip`, `tc`) to make network namespaces"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def available() -> bool:
    """True if this process may make network namespaces, and limit the link between them."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        return False
    name = f"hocket-try-{os.getpid()}"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "netns", "del", name)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


@dataclass(frozen=True)
class Pair:
    """The two hosts, and the first one's address."""

    names: tuple[str, str]
    address: str = "10.77.0.1"

    def torchrun(self, host: int, *arguments: str, port: int = 29511) -> subprocess.Popen[str]:
        """Start torchrun on one host, with one process."""
        return self.python(
            host,
            *("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
            *(f"--node-rank={host}", f"--master-addr={self.address}", f"--master-port={port}"),
            *arguments,
        )

    def python(self, host: int, *arguments: str) -> subprocess.Popen[str]:
        """Start Python on one host."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # gloo asks the host's name for its address, which is that of neither namespace
            env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": DEVICES[host]},
        )

    def run(self, *arguments: str, limit_s: float = LIMIT_S) -> list[str]:
        """Run torchrun on both hosts to the end; return what each printed."""
        started = [self.torchrun(host, *arguments) for host in range(2)]
        try:
            said = [process.communicate(timeout=limit_s) for process in started]
        finally:
            for process in started:
                process.kill()
        for process, (_, errors) in zip(started, said, strict=True):
            if process.returncode:
                raise LearnerFailedError(f"training on two hosts failed:\n{errors[-2000:]}")
        return [printed for printed, _ in said]

    def cut(self) -> None:
        """Pull the plug: nobody hears anything any more, not even an end."""
        _run("ip", "-n", self.names[0], "link", "set", "veth-a", "down")

    def limit(self, mbit: float) -> None:
        """Limit both directions of the wire."""
        for name, device in zip(self.names, DEVICES, strict=True):
            rate = ("rate", f"{mbit}mbit", "burst", f"{burst_kb(mbit)}kb", "latency", "50ms")
            inside = ("ip", "netns", "exec", name)
            _run(*inside, "tc", "qdisc", "replace", "dev", device, "root", "tbf", *rate)


def burst_kb(mbit: float) -> int:
    """Return what may pass at once: a millisecond's worth, ten full frames at least.

    With more, a short message passes as if there were no limit.
    """
    return max(15, round(mbit / 8))


@contextmanager
def two_hosts() -> Iterator[Pair]:
    """Make two hosts; they are gone afterwards."""
    a, b = names = (f"hocket-{os.getpid()}-a", f"hocket-{os.getpid()}-b")
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        ends = ("veth-a", "netns", a, "type", "veth", "peer", "name", "veth-b", "netns", b)
        _run("ip", "link", "add", *ends)
        for name, device, number in ((a, "veth-a", 1), (b, "veth-b", 2)):
            _run("ip", "-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", device)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", device, "up")
        yield Pair(names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def train(experiment: Experiment, out: Path, link_mbit: float) -> None:
    """Train with one learner on each of two hosts, joined by a link of that speed."""
    out.mkdir(parents=True, exist_ok=True)
    tables = out.with_name("asked") / "config.json"
    tables.parent.mkdir(exist_ok=True)
    tables.write_text(json.dumps(config.record(experiment)))
    name = config.record(experiment)["task"]["name"]
    arguments = ("-m", "hocket", "train", name, "--config", str(tables), "--out", str(out))
    with two_hosts() as pair:
        if math.isfinite(link_mbit):
            pair.limit(link_mbit)
        pair.run(*arguments)
