"""A synthetic task like acoustic frame classification, whose best possible error is known.

Utterances are drawn from a hidden Markov model: a class lasts for a while, then one of a few
successors follows; each frame is the class mean plus Gaussian noise, and the classes overlap. A
network sees a window of frames (`context` on each side) and predicts the class of the middle one,
so temporal context helps, as in speech.

Because the generator is known, so is the Bayes error: no classifier can be right more often than
the exact posterior of the middle class given the window, by the forward-backward recursion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from hocket.core.task import Item, Loss, Task
from hocket.errors import TaskError, require
from hocket.models.dnn import DNN
from hocket.models.model import Model, evenly_spaced
from hocket.support.memory import require_room

Floats: TypeAlias = NDArray[np.float64]
_FRAME_BYTES = 40  # label, first and last frame of the utterance, a random number, an order
_ITEM_BYTES = 200  # of a minibatch, as an object
_SPLITS = {"train": 0, "dev": 1, "test": 2}


@dataclass
class Frames:
    """One split: all utterances in a row, and where the utterance of each frame begins and ends."""

    x: torch.Tensor  # (frames, features)
    labels: torch.Tensor  # (frames,)
    first: torch.Tensor  # (frames,) first frame of the utterance
    last: torch.Tensor  # (frames,) last frame of the utterance


@dataclass(frozen=True)
class Synthetic(Task):
    """The `[task]` table of the built-in task. Runs with different seeds share its data."""

    num_frames: int = 60_000  # of the training split
    dev_frames: int = 6_000
    batch_frames: int = 256
    num_classes: int = 24
    num_features: int = 12
    context: int = 3  # frames on each side
    noise: float = 1.0  # larger: more overlap
    data_seed: int = 1
    model: Model = field(default_factory=DNN)

    def __post_init__(self) -> None:
        for key in ("num_frames", "dev_frames", "batch_frames", "num_features"):
            require(getattr(self, key) >= 1, f"task.{key} must be at least 1")
        require(
            self.num_classes >= 4, f"task.num_classes must be at least 4, not {self.num_classes}"
        )
        require(self.context >= 0, f"task.context must be at least 0, not {self.context}")
        require(self.noise > 0, f"task.noise must be above 0, not {self.noise}")
        require(self.data_seed >= 0, f"task.data_seed must be at least 0, not {self.data_seed}")
        require_room(
            (self.num_frames + self.dev_frames) * (_FRAME_BYTES + 12 * self.num_features)
            + (self.num_frames + self.dev_frames) // self.batch_frames * _ITEM_BYTES
            + 16 * self.num_classes**2,
            f"the data of task.num_frames = {self.num_frames:,} with {self.num_classes:,} classes",
            "give fewer frames or classes, or larger minibatches",
        )

    # ------------------------------------------------------------------ the generator

    @cached_property
    def _chain(self) -> tuple[Floats, Floats]:
        """The class means (C, D) and transition probabilities (C, C)."""
        rng = np.random.default_rng([self.data_seed, 101])
        means = rng.normal(size=(self.num_classes, self.num_features)) * 0.6
        transition = np.eye(self.num_classes) * 0.7
        for c in range(self.num_classes):
            successors = rng.choice(
                np.delete(np.arange(self.num_classes), c), size=3, replace=False
            )
            transition[c, successors] += 0.1
        return means, transition

    @cached_property
    def _stationary(self) -> Floats:
        _, transition = self._chain
        p = np.full(self.num_classes, 1 / self.num_classes)
        for _ in range(1000):
            p = p @ transition
        return np.asarray(p / p.sum())

    def frames(self, split: str) -> Frames:
        """Generate (once) the utterances of a split."""
        if split not in _SPLITS:
            raise TaskError(f"unknown split {split!r}; there are {sorted(_SPLITS)}")
        return self._generated(split)

    def _generated(self, split: str) -> Frames:
        cache: dict[str, Frames] = self.__dict__.setdefault("_frames", {})
        if split not in cache:
            cache[split] = self._generate(split)
        return cache[split]

    def lengths(self, split: str) -> list[int]:
        """Return the frames of every utterance; they are drawn before anything else."""
        return _lengths(*self._drawing(split))

    def _drawing(self, split: str) -> tuple[np.random.Generator, int]:
        """Return the random numbers of a split, and how many frames it has."""
        rng = np.random.default_rng([self.data_seed, 202, _SPLITS[split]])
        return rng, self.num_frames if split == "train" else self.dev_frames

    def _generate(self, split: str) -> Frames:
        means, transition = self._chain
        rng, wanted = self._drawing(split)
        lengths = _lengths(rng, wanted)
        first = np.repeat(np.cumsum([0, *lengths[:-1]]), lengths)
        last = np.repeat(np.cumsum(lengths) - 1, lengths)
        cumulative = np.cumsum(transition, axis=1)
        start = np.cumsum(self._stationary)
        uniform = rng.random(wanted)
        labels = np.empty(wanted, dtype=np.int64)
        for t in range(wanted):
            row = start if t == first[t] else cumulative[labels[t - 1]]
            labels[t] = min(int(np.searchsorted(row, uniform[t])), self.num_classes - 1)
        x = means[labels] + self.noise * rng.normal(size=(wanted, self.num_features))
        return Frames(
            torch.from_numpy(x.astype(np.float32)),
            torch.from_numpy(labels),
            torch.from_numpy(first),
            torch.from_numpy(last),
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave the data out when pickled: every process generates the same."""
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    # ------------------------------------------------------------------ the task

    def prepare(self) -> None:
        """Generate the train and dev data."""
        for split in ("train", "dev"):
            self.frames(split)

    def build_model(self) -> nn.Module:
        """Return the network of the `[model]` table."""
        num_inputs = self.num_features * (2 * self.context + 1)
        return self.model.build(num_inputs, self.num_classes, self._sample)

    def _sample(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return some of the training frames and their classes."""
        frames, chosen = self.frames("train"), torch.from_numpy(evenly_spaced(self.num_frames))
        return self.splice(frames, chosen), frames.labels[chosen]

    def items(self, split: str) -> Sequence[Item]:
        """Return minibatches of `batch_frames` frames; the last one may be smaller."""
        total = self.num_frames if split == "train" else self.dev_frames
        starts = range(0, total, self.batch_frames)
        return [Item(s, min(self.batch_frames, total - s)) for s in starts]

    def load(self, split: str, item: Item, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather spliced windows; every epoch has another order of the training frames."""
        frames = self.frames(split)
        start = int(str(item.id))
        chosen = torch.arange(start, start + item.frames)
        if split == "train":
            chosen = self._shuffled(epoch)[chosen]
        return self.splice(frames, chosen), frames.labels[chosen]

    def _shuffled(self, epoch: int) -> torch.Tensor:
        held: tuple[int, torch.Tensor] | None = self.__dict__.get("_order")
        if held is None or held[0] != epoch:
            rng = np.random.default_rng([self.data_seed, 303, epoch])
            held = epoch, torch.from_numpy(rng.permutation(self.num_frames))
            self.__dict__["_order"] = held
        return held[1]

    def splice(self, frames: Frames, chosen: torch.Tensor) -> torch.Tensor:
        """Return windows around the chosen frames; beyond an utterance, its edge is repeated."""
        offsets = torch.arange(-self.context, self.context + 1)
        places = chosen[:, None] + offsets
        places = torch.minimum(places, frames.last[chosen, None])
        places = torch.maximum(places, frames.first[chosen, None])
        return frames.x[places].flatten(1)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Return the cross-entropy summed over frames."""
        x, labels = batch
        scores = model(x)
        correct = (scores.detach().argmax(1) == labels).sum()
        return Loss(cross_entropy(scores, labels, reduction="sum"), len(labels), correct)

    # ------------------------------------------------------------------ the best possible error

    def posteriors(self, split: str) -> Floats:
        """Return exact class posteriors (frames, C) given each frame's window in its utterance."""
        means, transition = self._chain
        frames = self.frames(split)
        x = frames.x.numpy().astype(np.float64)
        squared = (x**2).sum(1)[:, None] - 2 * x @ means.T + (means**2).sum(1)[None]
        likelihood = np.exp(-(squared - squared.min(1, keepdims=True)) / (2 * self.noise**2))
        t = np.arange(len(x))
        first, last = frames.first.numpy(), frames.last.numpy()
        lo = np.maximum(t - self.context, first)
        hi = np.minimum(t + self.context, last)
        forward = np.tile(self._stationary, (len(x), 1))
        backward = np.ones((len(x), self.num_classes))
        for k in range(self.context, 0, -1):  # from the left edge of each window to its middle
            use = t - k >= lo
            moved = (forward * likelihood[np.maximum(t - k, 0)]) @ transition
            forward = np.where(use[:, None], _normalised(moved), forward)
        for k in range(self.context, 0, -1):  # and from the right edge
            use = t + k <= hi
            moved = (backward * likelihood[np.minimum(t + k, len(x) - 1)]) @ transition.T
            backward = np.where(use[:, None], _normalised(moved), backward)
        return _normalised(forward * likelihood * backward)

    def bayes_error(self, split: str = "dev") -> float:
        """Return the error of the exact posterior on a split; no model can expect to do better."""
        best = self.posteriors(split).argmax(1)
        return float((best != self.frames(split).labels.numpy()).mean())

    def describe(self) -> dict[str, Any]:
        """Return facts for the run's record."""
        return {"class": "Synthetic", "bayes_error": self.bayes_error("dev")}


def _lengths(rng: np.random.Generator, wanted: int) -> list[int]:
    lengths: list[int] = []
    left = wanted
    while left > 0:
        lengths.append(min(int(rng.integers(80, 320)), left))
        left -= lengths[-1]
    return lengths


def _normalised(p: Floats) -> Floats:
    result: Floats = p / p.sum(1, keepdims=True)
    return result
