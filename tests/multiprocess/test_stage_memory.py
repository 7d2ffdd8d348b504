"""A rank with a stage holds it and no more, also while it is built, scored and saved."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.runs import real
from torch import nn

from hocket import SGD, Constant, Item, Loss, Pipeline, Sequential, Task

# A layer has 41 MB: what is below 32 the C library may keep when it is given back. Beside its stage
# a rank loads modules and opens connections: some 12 MB, whatever the model.
WIDTH, STAGES, BATCH = 3200, 4, 16
LAYER_BYTES = 4 * (WIDTH * WIDTH + WIDTH)
ALLOWED = 1.2  # times the stage


def memory(key: str) -> int:
    """A figure of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


@dataclass(frozen=True)
class Heavy(Task):
    """As many wide layers as there are stages; each process writes down its largest memory."""

    folder: str

    def prepare(self) -> None:
        """What any learner needs has been loaded when the baseline is taken."""
        name = multiprocessing.current_process().name
        if not name.startswith("hocket learner"):
            return
        warm = nn.Linear(512, 512)
        warm(torch.randn(64, 512, requires_grad=True)).sum().backward()
        gc.collect()  # touches what was inherited from the fork server, once and for all
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        baseline, path = memory("VmRSS"), Path(self.folder) / f"{name.rpartition(' ')[2]}.txt"

        def watch() -> None:
            with path.open("a", buffering=1) as file:
                while True:
                    file.write(f"{baseline} {memory('VmHWM')}\n")
                    time.sleep(0.01)

        threading.Thread(target=watch, daemon=True).start()

    def build_model(self) -> nn.Module:
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(STAGES)))

    def items(self, split: str) -> Sequence[Item]:
        return [Item(n, BATCH) for n in range(12)]

    def load(self, split: str, item: Item, epoch: int) -> torch.Tensor:
        return torch.full((BATCH, WIDTH), 0.01 * int(str(item.id)))

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        time.sleep(0.02)  # so that the peak is seen by the thread that watches
        return Loss(model(batch).square().mean(1).sum(), BATCH)


def largest(folder: Path, process: int) -> int:
    """The largest memory of a process above its baseline."""
    lines = (folder / f"{process}.txt").read_text().split("\n")
    baseline, peak = map(int, lines[-2].split())  # the last one that is whole
    return peak - baseline


@pytest.mark.long
def test_a_rank_holds_its_stage_and_no_more(tmp_path: Path) -> None:
    strategy = Pipeline(stages=STAGES, cut=tuple(range(1, STAGES)))
    real(
        Heavy(str(tmp_path)),
        strategy,
        optimizer=SGD(lr=0.01, momentum=0.9),
        schedule=Constant(epochs=1),
        checkpoint_every=0.5,
        evaluate_every=0.5,
    )
    stage = 3 * LAYER_BYTES  # parameters, their gradients, and what momentum remembers
    for rank in range(STAGES):
        window = 2 * (strategy.delay(rank) + 1) * BATCH * WIDTH * 4  # what came in and went out
        share = largest(tmp_path, rank) / (stage + window)
        print(f"rank {rank}: {share:.2f} times its stage")
        assert 0.6 < share < ALLOWED, f"rank {rank} held {share:.2f} times its stage"


@pytest.mark.long
def test_a_rank_of_a_group_that_is_not_its_first_holds_its_stage_and_no_more(
    tmp_path: Path,
) -> None:
    """Parameters and a gradient, and what it shares with the first rank to hand them over.

    That are the parameters, and up to three gradients: a slot is free again when the strategy has
    let go of the one in it.
    """
    real(
        Heavy(str(tmp_path)),
        Sequential(),
        optimizer=SGD(lr=0.01, momentum=0.9),
        schedule=Constant(epochs=1),
        checkpoint_every=0.5,
        evaluate_every=0.5,
        ranks_per_learner=STAGES,
        cut=tuple(range(1, STAGES)),
    )
    window = 2 * BATCH * WIDTH * 4
    for process in range(STAGES):
        share = largest(tmp_path, process) / (LAYER_BYTES + window)
        print(f"process {process}: {share:.2f} times the parameters of its stage")
        if process:  # a first rank holds vectors of the whole model as well
            assert 2 < share < ALLOWED * 5, f"process {process} held {share:.2f} times its layer"
