"""One pool of items, in a seeded order, from which all learners draw.

The pool only knows *which* items there are and in what order an epoch visits them. Who drew what,
and what became of it, is in the ledger (`hocket.data.ledger`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hocket.core.accounts import DRY
from hocket.core.task import Item, Task
from hocket.errors import TaskError

Sharding: TypeAlias = Literal["pool", "fixed"]
Ints: TypeAlias = NDArray[np.int64]


class Pool:
    """The items of a task and the order in which each epoch visits them."""

    def __init__(self, task: Task, *, epochs: int, seed: int, sharding: Sharding = "pool") -> None:
        self._items = {split: list(task.items(split)) for split in ("train", "dev")}
        for split, items in self._items.items():
            if not items:
                raise TaskError(f"the task has no items in its {split!r} split: nothing to work on")
            bad = next((i for i in items if i.frames < 1), None)
            if bad is not None:
                raise TaskError(
                    f"item {bad.id!r} of split {split!r} has {bad.frames} frames: leave it out"
                )
        self.epochs = epochs
        self.seed = seed
        self.sharding: Sharding = sharding
        self.frames: Ints = np.array([i.frames for i in self._items["train"]], dtype=np.int64)
        self.epoch_frames = int(self.frames.sum())
        self.total_frames = epochs * self.epoch_frames
        self.order = lru_cache(maxsize=8)(self._order)
        self.rounds = lru_cache(maxsize=8)(self._first_rounds)

    def __len__(self) -> int:
        return len(self.frames)

    def items(self, split: str) -> Sequence[Item]:
        """Return the items of a split; an unknown split is refused."""
        if split not in self._items:
            raise TaskError(f"unknown split {split!r}; this pool has {sorted(self._items)}")
        return self._items[split]

    def frames_in(self, split: str) -> int:
        """Return the frames of a whole split."""
        return sum(item.frames for item in self.items(split))

    def _order(self, epoch: int) -> Ints:
        return np.random.default_rng([self.seed, epoch]).permutation(len(self)).astype(np.int64)

    def _first_rounds(self, epoch: int, members: tuple[int, ...]) -> Ints:
        return self.deal(self.order(epoch), members)

    def deal(self, queue: Ints, members: tuple[int, ...]) -> Ints:
        """Deal a queue out in rounds: a (rounds, members) array of item indices or DRY.

        pool:  draw n of the r-th member is item n * P + r of the queue.
        fixed: an item belongs to member (index mod P) in every epoch.
        """
        size = len(members)
        if self.sharding == "pool":
            padded = np.full(-(-len(queue) // size) * size, DRY, dtype=np.int64)
            padded[: len(queue)] = queue
            return padded.reshape(-1, size)
        lanes = [queue[queue % size == r] for r in range(size)]
        dealt = np.full((max(len(lane) for lane in lanes), size), DRY, dtype=np.int64)
        for r, lane in enumerate(lanes):
            dealt[: len(lane), r] = lane
        return dealt

    def frames_of(self, indices: Ints) -> int:
        """Sum the frames of some items; DRY places count nothing."""
        return int(self.frames[indices[indices != DRY]].sum())
