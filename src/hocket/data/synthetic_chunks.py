"""The synthetic task for networks that read sequences: the same frames, in chunks.

Nobody can do better than the exact posterior of each frame's class given its whole utterance, by
the forward-backward recursion: `bayes_error` is its error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from hocket.core.task import Item, Loss, Task
from hocket.data.chunks import (
    DEV_BATCH,
    Chunks,
    Cutting,
    Plan,
    chunk_loss,
    labels_of,
    places_of,
    sequence_model,
)
from hocket.data.synthetic import Synthetic
from hocket.models.lstm import LSTM
from hocket.models.model import Model, evenly_spaced

WHOLE_UTTERANCE = 320  # context with which a window holds it: utterances are shorter


@dataclass(frozen=True)
class SyntheticChunks(Task):
    """The `[task]` table of the built-in task, if the model reads sequences."""

    num_frames: int = 60_000  # of the training split
    dev_frames: int = 6_000
    batch_frames: int = 336  # of a minibatch: 16 chunks
    num_classes: int = 24
    num_features: int = 12
    noise: float = 1.0  # larger: more overlap
    data_seed: int = 1
    chunk_frames: int = 21  # at most; 0: whole utterances
    left_context: int | None = None  # frames before a chunk; unset: what the model usually needs
    right_context: int | None = None  # ... and after it
    model: Model = field(default_factory=LSTM)

    def __post_init__(self) -> None:
        _ = self._source, self._cutting

    @property
    def _model(self) -> Any:
        return sequence_model(self.model, "synthetic")

    @cached_property
    def _source(self) -> Synthetic:
        return Synthetic(
            num_frames=self.num_frames,
            dev_frames=self.dev_frames,
            num_classes=self.num_classes,
            num_features=self.num_features,
            context=WHOLE_UTTERANCE,
            noise=self.noise,
            data_seed=self.data_seed,
        )

    @cached_property
    def _cutting(self) -> Cutting:
        return Cutting.of(self, self._model)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the data out when pickled: every process generates the same."""
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def _plan(self, split: str) -> Plan:
        plans: dict[str, Plan] = self.__dict__.setdefault("_plans", {})
        if split not in plans:
            lengths = np.array(self._source.lengths(split), dtype=np.int64)
            batch = self.batch_frames if split == "train" else DEV_BATCH
            plans[split] = Plan(lengths, self._cutting, batch, self.data_seed)
        return plans[split]

    # ------------------------------------------------------------------ the task

    def prepare(self) -> None:
        """Generate the train and dev data."""
        self._source.prepare()

    def build_model(self) -> nn.Module:
        """Return the network of the `[model]` table."""
        return self.model.build(self.num_features, self.num_classes, self._sample)

    def _sample(self) -> tuple[torch.Tensor, torch.Tensor]:
        frames, chosen = self._source.frames("train"), evenly_spaced(self.num_frames)
        return frames.x[chosen], frames.labels[chosen]

    def items(self, split: str) -> Sequence[Item]:
        """Return minibatches of chunks."""
        return [Item(number, frames) for number, frames in enumerate(self._plan(split).frames)]

    def load(self, split: str, item: Item, epoch: int) -> Chunks:
        """Gather chunks; every epoch puts others together."""
        number = int(str(item.id))
        pieces = self._plan(split).pieces(number, epoch if split == "train" else None)
        frames = self._source.frames(split)
        starts = torch.unique_consecutive(frames.first).numpy()[pieces.utterances]
        rows, size = places_of(pieces, self._cutting)
        at = torch.from_numpy((starts + rows)[:, None] + np.arange(size))
        begin = torch.from_numpy(starts)[:, None]
        at = torch.clamp(at, begin, frames.last[begin])  # beyond an utterance, its edge is repeated
        labels = frames.labels[torch.from_numpy(labels_of(pieces, starts))]
        counts = tuple(pieces.frames.tolist())
        return Chunks(frames.x[at], labels, counts, self._cutting.left, self._cutting.right)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Return the cross-entropy summed over the frames that count."""
        return chunk_loss(model, batch, self._model.reach)

    def bayes_error(self, split: str = "dev") -> float:
        """Return the error of the exact posterior given whole utterances."""
        return self._source.bayes_error(split)

    def describe(self) -> dict[str, Any]:
        """Return facts for the run's record."""
        return {"class": "SyntheticChunks", "bayes_error": self.bayes_error("dev")}
