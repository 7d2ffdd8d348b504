"""Two network namespaces joined by a veth pair: two hosts, as far as sockets can tell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def available() -> bool:
    """True if this process may make network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
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
        command = [
            *("ip", "netns", "exec", self.names[host], sys.executable),
            *("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
            *(f"--node-rank={host}", f"--master-addr={self.address}", f"--master-port={port}"),
        ]
        return subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def cut(self) -> None:
        """Pull the plug: nobody hears anything any more, not even an end."""
        _run("ip", "-n", self.names[0], "link", "set", "veth-a", "down")

    def limit(self, mbit: float) -> None:
        """Limit both directions of the wire."""
        for name, device in zip(self.names, ("veth-a", "veth-b"), strict=True):
            rate = ("rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms")
            _run("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", device, "root",
                 "tbf", *rate)  # fmt: skip


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
