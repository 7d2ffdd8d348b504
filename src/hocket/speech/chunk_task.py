"""Frame classification on a prepared experiment, for networks that read sequences.

The same frames, labels and dev set as `hocket.speech.task`, but an item is a minibatch of chunks
of utterances (`hocket.data.chunks`). Of the changes to training frames, those that keep every
frame in its place are offered: volume, noise, echo, masks. A change of speed is not: it would move
frames away from their labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from hocket.core.numerics import stable_seed
from hocket.core.task import Item, Loss, Task
from hocket.data.chunks import (
    DEV_BATCH,
    Chunks,
    Cutting,
    Pieces,
    Plan,
    chunk_loss,
    labels_of,
    places_of,
    sequence_model,
)
from hocket.errors import TaskError, require
from hocket.models.lstm import LSTM
from hocket.models.model import TRANSFORM_FRAMES, Model
from hocket.models.sequence import SequenceModel
from hocket.speech.features.augment import Augmentation
from hocket.speech.features.spectral import Kind
from hocket.speech.features.store import FeatureStore, Normalisation
from hocket.speech.task import Labelled, SpeechTask


@dataclass(frozen=True)
class SpeechChunks(Task):
    """The `[task]` table of a prepared experiment, if the model reads sequences."""

    experiment: str
    batch_frames: int = 1344  # of a minibatch: 64 chunks
    chunk_frames: int = 21  # at most; 0: whole utterances
    left_context: int | None = None  # frames before a chunk; unset: what the model usually needs
    right_context: int | None = None  # ... and after it
    features: Literal["auto", Kind] = "auto"  # auto: the first of `prepare --features`
    normalisation: Normalisation = "speaker"
    volume_db: float = 0.0  # make them louder or softer by up to so much
    noise_share: float = 0.0  # add noise to this share of them
    noise_snr_db: float = 10.0  # the loudest noise
    echo_share: float = 0.0  # let sound linger in this share of them
    mask_bins: int = 0  # hide up to so many neighbouring mel bins
    mask_frames: int = 0  # ... and frames of the chunk
    model: Model = field(default_factory=LSTM)

    def __post_init__(self) -> None:
        _ = self.frames, self.cutting
        most = self.chunk_frames
        require(
            not most or self.mask_frames < most,
            f"task.mask_frames = {self.mask_frames} could hide a whole chunk of {most} frames",
        )

    @cached_property
    def frames(self) -> SpeechTask:
        """The task of single frames on the same data: it opens the splits."""
        shared = {f.name for f in fields(SpeechTask)} & {f.name for f in fields(self)}
        given = {key: getattr(self, key) for key in shared - {"model"}}
        return SpeechTask(**given, context=self.mask_frames)  # it only checks masks against it

    @property
    def sequences(self) -> SequenceModel:
        """The model, which reads sequences."""
        return sequence_model(self.model, "speech")

    @cached_property
    def cutting(self) -> Cutting:
        """How utterances are cut."""
        return Cutting.of(self, self.sequences)

    def __getstate__(self) -> dict[str, Any]:  # open files cannot be sent; learners open their own
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def folder(self) -> Path:
        """Where the experiment is."""
        return self.frames.folder

    @property
    def num_senones(self) -> int:
        """Number of outputs of the network."""
        return self.frames.num_senones

    @property
    def num_inputs(self) -> int:
        """Number of values of a frame."""
        return self.frames.labelled("train").store.dims

    def store(self, split: str) -> FeatureStore:
        """Open the features of a split."""
        return self.frames.store(split)

    def _plan(self, split: str) -> Plan:
        plans: dict[str, Plan] = self.__dict__.setdefault("_plans", {})
        if split not in plans:
            data = self.frames.labelled(split)
            if data.frames == 0:
                raise TaskError(f"{self.folder}: the split {split!r} has no aligned frame")
            batch = self.batch_frames if split == "train" else DEV_BATCH
            lengths = data.store.frames[data.numbers]
            plans[split] = Plan(lengths, self.cutting, batch, 0)
        return plans[split]

    # ------------------------------------------------------------------ Task

    def prepare(self) -> None:
        """Open the train and dev splits, and cut their utterances."""
        for split in ("train", "dev"):
            self._plan(split)

    def build_model(self) -> nn.Module:
        """Return a new network of the `[model]` table."""
        return self.model.build(self.num_inputs, self.num_senones, self.sample)

    def sample(self, num_frames: int = TRANSFORM_FRAMES) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `num_frames` single training frames, evenly spaced, and their senones."""
        return SpeechTask(
            self.experiment, context=0, features=self.features, normalisation=self.normalisation
        ).sample(num_frames)

    def sampled_chunks(self, num_frames: int) -> Iterator[Chunks]:
        """Yield items of the training data, evenly spaced, with some `num_frames` frames."""
        plan = self._plan("train")
        every = max(1, sum(plan.frames) // num_frames)
        for item in range(0, len(plan.frames), every):
            yield self._gather(self.frames.labelled("train"), plan.pieces(item, 0))

    def items(self, split: str) -> Sequence[Item]:
        """Return minibatches of chunks; their names differ between two preparations."""
        key = self.frames.preparation[:8]
        return [Item(f"{key}-{n}", frames) for n, frames in enumerate(self._plan(split).frames)]

    def load(self, split: str, item: Item, epoch: int) -> Chunks:
        """Gather chunks; every epoch puts others together."""
        number = int(str(item.id).rpartition("-")[2])
        pieces = self._plan(split).pieces(number, epoch if split == "train" else None)
        data, changes = self.frames.labelled(split), self.frames.augmentation
        if split != "train" or not changes.any:
            return self._gather(data, pieces)
        rng = np.random.default_rng(stable_seed("augmentation", epoch, str(item.id)))
        return self._gather(data, pieces, (changes, rng))

    def _gather(
        self,
        data: Labelled,
        pieces: Pieces,
        changes: tuple[Augmentation, np.random.Generator] | None = None,
    ) -> Chunks:
        utterances = data.numbers[pieces.utterances]
        rows, size = places_of(pieces, self.cutting)
        x = data.store.stretches(utterances, rows, size, changes)
        labels = data.labels[labels_of(pieces, data.store.first[utterances])].astype(np.int64)
        counts = tuple(pieces.frames.tolist())
        left, right = self.cutting.left, self.cutting.right
        return Chunks(torch.from_numpy(x), torch.from_numpy(labels), counts, left, right)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Return the cross-entropy summed over the frames that count."""
        return chunk_loss(model, batch, self.sequences.reach)

    def describe(self) -> dict[str, Any]:
        """Return facts for the run's record."""
        return self.frames.describe() | {"class": "SpeechChunks", "inputs": self.num_inputs}
