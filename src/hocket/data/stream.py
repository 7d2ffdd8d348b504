"""A stream of frames that never repeats, for runs of very many small updates.

A fixed *teacher*, a random network, labels random vectors: frame x ~ N(0, I) has class c with
probability softmax(teacher(x))_c. Every epoch has new frames, keyed by the seed and the epoch, so
nothing is ever seen twice and there is no overfitting: dev loss is training loss. A student of one
small layer learns it quickly at first and then ever more slowly, as acoustic models do.

Nobody can do better than the teacher, whose posteriors are known: `floor` is its loss.

A minibatch of 16 frames takes well under a millisecond, so that a run of half a minute on one core
makes tens of thousands of updates, and 16 or 32 learners still make thousands each. That is the
regime of the papers; a run of 500 updates is all transient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hocket.core.numerics import stable_seed
from hocket.core.task import Item, Loss, Task
from hocket.errors import TaskError, require
from hocket.models.dnn import DNN
from hocket.models.model import Model
from hocket.support.memory import require_room

DEV_BATCH: Final = 1024  # frames of a dev item: scoring must not dominate the run
_ITEM_BYTES: Final = 200  # of a minibatch, as an object
KEPT_EPOCHS: Final = 2  # asynchronous learners may still be in the epoch before


@dataclass(frozen=True)
class Stream(Task):
    """The `[task]` table of the built-in task. Runs with different seeds share its data."""

    epoch_frames: int = 65_536  # new ones in every epoch
    dev_frames: int = 16_384
    batch_frames: int = 16
    num_classes: int = 16
    num_features: int = 24
    teacher_width: int = 64
    sharpness: float = 4.0  # of the teacher's posteriors: larger, and classes overlap less
    data_seed: int = 1
    model: Model = field(default_factory=lambda: DNN(layers=1, width=64))

    def __post_init__(self) -> None:
        for key in ("epoch_frames", "dev_frames", "batch_frames", "num_features", "teacher_width"):
            require(getattr(self, key) >= 1, f"task.{key} must be at least 1")
        require(
            self.num_classes >= 2, f"task.num_classes must be at least 2, not {self.num_classes}"
        )
        require(self.sharpness > 0, f"task.sharpness must be above 0, not {self.sharpness}")
        require_room(
            (KEPT_EPOCHS + 1) * self.epoch_frames * (4 * self.num_features + 8 * self.num_classes)
            + self.epoch_frames // self.batch_frames * _ITEM_BYTES
            + 4 * self.teacher_width * (self.num_features + self.num_classes + self.dev_frames),
            f"the data of task.epoch_frames = {self.epoch_frames:,} and its teacher",
            "give fewer frames, features, classes or units",
        )

    # ------------------------------------------------------------------ the teacher

    @cached_property
    def _teacher(self) -> tuple[torch.Tensor, torch.Tensor]:
        rng = torch.Generator().manual_seed(stable_seed(self.data_seed, "teacher"))
        hidden = torch.randn(self.num_features, self.teacher_width, generator=rng)
        output = torch.randn(self.teacher_width, self.num_classes, generator=rng)
        scale = self.sharpness * math.sqrt(2.0 / self.teacher_width)
        return hidden / math.sqrt(self.num_features), output * scale

    def _scores(self, x: torch.Tensor) -> torch.Tensor:
        hidden, output = self._teacher
        return torch.relu(x @ hidden) @ output

    def _drawn(self, frames: int, *key: int | str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return so many new frames and their classes."""
        rng = torch.Generator().manual_seed(stable_seed(self.data_seed, *key))
        x = torch.randn(frames, self.num_features, generator=rng)
        posteriors = self._scores(x).softmax(1)
        return x, torch.multinomial(posteriors, 1, generator=rng).squeeze(1)

    def frames(self, split: str, epoch: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all frames of an epoch, or of dev; made when first asked for."""
        if split not in ("train", "dev"):
            raise TaskError(f"unknown split {split!r}; there are 'dev' and 'train'")
        made: dict[Any, tuple[torch.Tensor, torch.Tensor]] = self.__dict__.setdefault("_made", {})
        key = epoch if split == "train" else "dev"
        if key not in made:
            for old in [e for e in made if isinstance(e, int) and e <= epoch - KEPT_EPOCHS]:
                del made[old]
            count = self.epoch_frames if split == "train" else self.dev_frames
            made[key] = self._drawn(count, split, epoch)
        return made[key]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the data out when pickled: every process makes the same."""
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    # ------------------------------------------------------------------ the task

    def prepare(self) -> None:
        """Make the dev data and the first epoch."""
        for split in ("train", "dev"):
            self.frames(split)

    def build_model(self) -> nn.Module:
        """Return the network of the `[model]` table."""
        return self.model.build(self.num_features, self.num_classes, lambda: self.frames("train"))

    def items(self, split: str) -> Sequence[Item]:
        """Return minibatches of `batch_frames`, or of more on dev; the last may be smaller."""
        train = split == "train"
        total = self.epoch_frames if train else self.dev_frames
        size = self.batch_frames if train else DEV_BATCH
        return [Item(s, min(size, total - s)) for s in range(0, total, size)]

    def load(self, split: str, item: Item, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the frames of an item, in this epoch."""
        x, labels = self.frames(split, epoch if split == "train" else 0)
        start = int(str(item.id))
        return x[start : start + item.frames], labels[start : start + item.frames]

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Return the cross-entropy summed over frames."""
        x, labels = batch
        scores = model(x)
        correct = (scores.detach().argmax(1) == labels).sum()
        return Loss(cross_entropy(scores, labels, reduction="sum"), len(labels), correct)

    # ------------------------------------------------------------------ the best possible loss

    def floor(self) -> float:
        """Return the loss of the teacher itself on dev; no student can expect to do better."""
        x, labels = self.frames("dev")
        return float(cross_entropy(self._scores(x), labels))

    def bayes_error(self) -> float:
        """Return the frame error of the teacher on dev."""
        x, labels = self.frames("dev")
        return float((self._scores(x).argmax(1) != labels).float().mean())

    def describe(self) -> dict[str, Any]:
        """Return facts for the run's record."""
        return {"class": "Stream", "bayes_error": self.bayes_error(), "floor": self.floor()}
