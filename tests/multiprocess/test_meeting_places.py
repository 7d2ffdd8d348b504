"""Learners that another program has started: where they meet, and who is let in."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import attached

ROOT = Path(__file__).parents[2]
SECRET, OTHER = "correct horse battery staple", "an entirely different secret"


def launch(out: Path, **options: Any) -> list[int | None]:
    """Run the smallest loop on two learners that know MASTER_ADDR and MASTER_PORT."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hocket.runtime.launch.learner_process"])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = {"steps": [3, 3], "strategy": "allreduce", **options}
    processes = [context.Process(target=_one, args=(rank, port, out, options)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    return [process.exitcode for process in processes]


def _one(rank: int, port: int, out: Path, options: dict[str, Any]) -> None:
    for number in (1, 2):  # what each says goes to a file
        os.dup2(os.open(out / f"said-{rank}.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY), number)
    attached.linear(rank, 2, port, out, options)


def said(out: Path, rank: int) -> str:
    return (out / f"said-{rank}.txt").read_text()


def same_models(out: Path) -> bool:
    one, other = (torch.load(p, weights_only=True) for p in sorted(out.glob("model-*.pt")))
    return all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("initialise", [False, True], ids=["variables", "group"])
def test_learners_meet_and_say_that_anybody_can_join(initialise: bool, tmp_path: Path) -> None:
    """Also in a torch.distributed that the script has initialised, which holds the port."""
    assert launch(tmp_path, initialise=initialise) == [0, 0]
    assert same_models(tmp_path)
    assert said(tmp_path, 0).count("anybody who reaches its ports can join") == 1
    assert "anybody" not in said(tmp_path, 1)


@pytest.mark.long
def test_with_a_token_nothing_is_said(tmp_path: Path) -> None:
    assert launch(tmp_path, tokens=[SECRET, SECRET], initialise=True) == [0, 0]
    assert same_models(tmp_path)
    assert "anybody" not in said(tmp_path, 0)


@pytest.mark.long
@pytest.mark.parametrize("initialise", [False, True], ids=["variables", "group"])
def test_a_learner_with_another_token_is_not_let_in(initialise: bool, tmp_path: Path) -> None:
    codes = launch(tmp_path, tokens=[SECRET, OTHER], initialise=initialise, timeout_s=6.0)
    assert codes == [1, 1]
    assert "HOCKET_TOKEN" in said(tmp_path, 1)
    assert "rank 0 waited 6 s for rank 1 to say where it is" in said(tmp_path, 0)


@pytest.mark.long
@pytest.mark.parametrize("way", [["--standalone"], ["--master-addr=127.0.0.1"]])
def test_torchrun_brings_learners_together(way: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    way = way if way == ["--standalone"] else [*way, f"--master-port={port}"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *way, "--nproc-per-node=2",
         str(ROOT / "examples" / "attach.py")],
        env=os.environ | {"HOCKET_TOKEN": SECRET, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of 2: accuracy") == 2
    assert "anybody" not in done.stderr
