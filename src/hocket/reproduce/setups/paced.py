"""A task whose minibatches take a stated time, more for one learner: stragglers in real processes.

A learner sleeps for the rest of the stated time, so that more learners than cores can be tried.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from hocket.core.task import Item, Loss, Task


@dataclass(frozen=True)
class Paced(Task):
    """Another task, at the pace of an imagined machine."""

    task: Task
    seconds: float  # of a minibatch, computing included
    slow_rank: int = -1
    factor: float = 1.0  # how much longer a minibatch takes the slow one

    def build_model(self) -> nn.Module:
        """Return the other task's model."""
        return self.task.build_model()

    def items(self, split: str) -> Sequence[Item]:
        """Return the other task's items."""
        return self.task.items(split)

    def prepare(self) -> None:
        """Prepare the other task."""
        self.task.prepare()

    def load(self, split: str, item: Item, epoch: int) -> Any:
        """Return the data of an item, and when its computing may end."""
        began = time.monotonic()
        pace = self.seconds * (self.factor if own_rank() == self.slow_rank else 1.0)
        return self.task.load(split, item, epoch), began + pace if split == "train" else 0.0

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Return the loss, but not before the stated time is over."""
        data, ready_at = batch
        found = self.task.loss(model, data)
        time.sleep(max(0.0, ready_at - time.monotonic()))
        return found

    def describe(self) -> dict[str, Any]:
        """Return the other task's description: the pace does not change what is learnt."""
        return self.task.describe()


def own_rank() -> int:
    """Return the rank of the learner whose process this is, by the name its launcher gave it."""
    *_, last = multiprocessing.current_process().name.rpartition(" ")
    return int(last) if last.isdigit() else -1
