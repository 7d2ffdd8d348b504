"""Shared memory between real learners: chosen by itself, and nothing of it stays behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
import torch
from multiprocess.test_launcher import gone, learners_of, start, training, wait_for

from hocket.runtime import operations
from hocket.runtime.segment import Segment


def mapped(pid: int) -> int:
    """How many of our segments a process maps."""
    try:
        return Path(f"/proc/{pid}/maps").read_text().count("memfd:hocket")
    except OSError:
        return 0


def mapping() -> set[int]:
    """The processes of this machine that map any."""
    return {int(p) for p in os.listdir("/proc") if p.isdigit() and mapped(int(p))}


def test_learners_of_one_host_share_memory_and_kill_9_leaves_none(tmp_path: Path) -> None:
    before = mapping()  # this very process may hold segments of other tests
    process = start(tmp_path)
    wait_for(lambda: training(tmp_path))
    below = [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
    learners = [p.pid for p in learners_of(process)]
    assert [mapped(pid) for pid in learners] == [2, 2]  # one's own and the other's
    files = set(os.listdir("/dev/shm"))
    for pid in [process.pid, *below]:
        os.kill(pid, signal.SIGKILL)
    process.wait(20)
    wait_for(lambda: gone(below), 20)
    assert mapping() <= before
    assert "hocket" not in Path("/proc/net/unix").read_text()
    assert {f for f in set(os.listdir("/dev/shm")) - files if "hocket" in f} == set()


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
