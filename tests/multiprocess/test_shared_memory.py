"""Shared memory between real learners: chosen by itself, and nothing of it stays behind."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from helpers.programs import gone, learners_of, start, training, wait_for

from hocket.runtime.net import operations
from hocket.runtime.net.shared_memory import Segment


def segments(pid: int) -> set[str]:
    """The inodes of our segments that a process maps."""
    try:
        rows = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {row.split()[4] for row in rows if "memfd:hocket" in row}


def sockets(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            target = os.readlink(link)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def unix_sockets() -> set[str]:
    """The inodes of all Unix sockets of this network namespace."""
    return {row.split()[6] for row in Path("/proc/net/unix").read_text().splitlines()[1:]}


def test_learners_of_one_host_share_memory_and_kill_9_leaves_none(tmp_path: Path) -> None:
    """Looks at this run's own memory and sockets: others may train on the same machine."""
    process = start(tmp_path)
    wait_for(lambda: training(tmp_path))
    below = [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
    learners = [p.pid for p in learners_of(process)]
    assert [len(segments(pid)) for pid in learners] == [2, 2]  # one's own and the other's
    memory = set().union(*map(segments, learners))
    connections = set().union(*map(sockets, learners))
    assert len(memory) == 2
    for pid in [process.pid, *below]:
        os.kill(pid, signal.SIGKILL)
    process.wait(20)
    wait_for(lambda: gone(below), 20)
    everybody = [int(p) for p in os.listdir("/proc") if p.isdigit()]
    assert not any(segments(pid) & memory for pid in everybody)
    # The kernel collects sockets whose descriptors were under way between the dead a little later.
    wait_for(lambda: not unix_sockets() & connections, 20)
    assert not [f for f in os.listdir("/dev/shm") if "hocket" in f]  # nothing ever has a name


def test_another_learners_memory_can_only_be_read() -> None:
    mine = Segment.create(4096)
    theirs = Segment.open(os.dup(mine.fd))
    mine.values(0, 4).copy_(torch.arange(4.0))
    assert theirs.values(0, 4).tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="readonly"):
        theirs._memory[0] = 1
    mine.close()
    theirs.close()


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [0, 1, 16, 17, 1000])
def test_stripes_cover_a_vector_exactly(size: int, parts: int) -> None:
    cuts = operations.stripes(size, parts)
    assert len(cuts) == parts
    assert [i for first, last in cuts for i in range(first, last)] == list(range(size))
    assert all(first % 16 == 0 or first == size for first, _ in cuts)
