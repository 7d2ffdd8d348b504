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
from hocket.errors import TaskError, require

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
        self._shared_out: dict[tuple[bytes, tuple[float, ...]], Ints] = {}

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

    def share_out(
        self, queue: Ints, members: tuple[int, ...], speeds: tuple[float, ...] | None = None
    ) -> Ints:
        """Deal a queue out so that all members need as long, as nearly as whole items allow.

        The longest item first, each to whoever would be done with it soonest (Graham 1969): at most
        4/3 of the best possible time. Each member keeps its items in the order of the queue. With
        fixed shards items stay with their owners. `speeds`: of the members; None: all alike.
        """
        if self.sharding == "fixed":
            require(
                speeds is None,
                "runtime.sharding = 'fixed' leaves every item with its owner, so nothing can be "
                "shared out by speed: leave one of them out",
            )
            return self.deal(queue, members)
        key = queue.tobytes(), speeds or (1.0,) * len(members)
        if key not in self._shared_out:  # simulated learners all ask for the same
            self._shared_out.clear()
            self._shared_out[key] = _lanes(queue, self.frames[queue], key[1])
        return self._shared_out[key]

    def frames_of(self, indices: Ints) -> int:
        """Sum the frames of some items; DRY places count nothing."""
        return int(self.frames[indices[indices != DRY]].sum())


def _lanes(queue: Ints, frames: Ints, speeds: tuple[float, ...]) -> Ints:
    """Return a column of items for each speed; `frames` are those of the queue's items."""
    lanes: list[list[int]] = [[] for _ in speeds]
    pace = 1.0 / np.array(speeds)
    done = np.zeros(len(speeds))  # when each of them will be done
    for place in np.argsort(-frames, kind="stable"):
        soonest = int(np.argmin(done + frames[place] * pace))
        done[soonest] += frames[place] * pace[soonest]
        lanes[soonest].append(int(place))
    dealt = np.full((max(map(len, lanes)), len(speeds)), DRY, dtype=np.int64)
    for column, lane in enumerate(lanes):
        dealt[: len(lane), column] = queue[sorted(lane)]
    return dealt
