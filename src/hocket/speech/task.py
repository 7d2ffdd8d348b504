"""Frame classification on a prepared experiment: the task of a hybrid acoustic model.

An item is a minibatch of frames drawn from the whole corpus in an order that changes every epoch.
Its inputs are windows of normalised features around each frame, its labels the frames' senones.
Windows are cut from the shared store when the minibatch is gathered; they are never stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from hocket.core.numerics import stable_seed
from hocket.core.task import Item, Loss, Task
from hocket.data.shuffle import Permutation
from hocket.errors import TaskError, UnreadableError, require
from hocket.models.dnn import DNN
from hocket.models.model import TRANSFORM_FRAMES, Model, evenly_spaced
from hocket.speech.features.augment import Augmentation
from hocket.speech.features.spectral import Kind
from hocket.speech.features.store import FeatureStore, Normalisation, kinds_in
from hocket.support.arrays import read_array
from hocket.support.inputs import TABLE_LIMIT, read_table, well_formed

DEV_BATCH = 4096  # frames; the dev set is evaluated without a backward pass


@dataclass(frozen=True)
class Labelled:
    """A split's features and the senone of each of their frames."""

    store: FeatureStore
    labels: NDArray[np.int32]
    numbers: NDArray[np.int64]  # the utterances that have an alignment
    ends: NDArray[np.int64]  # number of frames up to the end of each of them

    @property
    def frames(self) -> int:
        """How many frames have a label."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def find(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the utterance, and the frame in it, of each position among all aligned frames."""
        at = np.searchsorted(self.ends, positions, side="right")
        utterances = self.numbers[at]
        return utterances, positions - (self.ends[at] - self.store.frames[utterances])

    def gather(
        self,
        positions: NDArray[np.int64],
        context: int,
        changes: tuple[Augmentation, np.random.Generator] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return windows (n, dims) and labels (n,)."""
        utterances, frames = self.find(positions)
        if changes is None:
            x = self.store.gather(utterances, frames, context)
        else:
            x = self.store.gather_changed(utterances, frames, context, *changes)
        labels = self.labels[self.store.first[utterances] + frames]
        return torch.from_numpy(x), torch.from_numpy(labels.astype(np.int64))


@dataclass(frozen=True)
class SpeechTask(Task):
    """The `[task]` table of a prepared experiment (a folder made by `hocket prepare`)."""

    experiment: str
    context: int = 5  # frames on each side: 11 in all
    batch_frames: int = 256
    features: Literal["auto", Kind] = "auto"  # auto: the first of `prepare --features`
    normalisation: Normalisation = "speaker"
    speed: float = 0.0  # play some training frames so much slower or faster, e.g. 0.1
    volume_db: float = 0.0  # make them louder or softer by up to so much
    noise_share: float = 0.0  # add noise to this share of them
    noise_snr_db: float = 10.0  # the loudest noise
    echo_share: float = 0.0  # let sound linger in this share of them
    mask_bins: int = 0  # hide up to so many neighbouring mel bins
    mask_frames: int = 0  # ... and frames of the window
    model: Model = field(default_factory=DNN)

    def __post_init__(self) -> None:
        require(self.context >= 0, f"task.context must be at least 0, not {self.context}")
        require(
            self.batch_frames >= 1, f"task.batch_frames must be at least 1, not {self.batch_frames}"
        )
        self._check_changes()
        if not is_experiment(self.folder):
            raise TaskError(
                f"{self.folder} is not a prepared experiment: make one with "
                f"`hocket prepare DATA --out {self.experiment}`"
            )

    def _check_changes(self) -> None:
        changes = self.augmentation
        require(
            changes.noise_share > 0 or changes.noise_snr_db == Augmentation.noise_snr_db,
            "task.noise_snr_db has no effect without noise: set task.noise_share, too",
        )
        require(
            self.mask_frames <= 2 * self.context,
            f"task.mask_frames = {self.mask_frames} would hide the whole window of "
            f"{2 * self.context + 1} frames",
        )

    @property
    def augmentation(self) -> Augmentation:
        """How training frames are changed."""
        return Augmentation(**{f.name: getattr(self, f.name) for f in fields(Augmentation)})

    def __getstate__(self) -> dict[str, Any]:  # open files cannot be sent; learners open their own
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def folder(self) -> Path:
        """Where the experiment is."""
        return Path(self.experiment)

    @cached_property
    def _facts(self) -> dict[str, Any]:
        path = self.folder / "alignment" / "step.json"
        try:
            facts = read_table(path, TABLE_LIMIT)
            with well_formed(path):
                known = {"key": str(facts["key"]), "senones": int(facts["facts"]["senones"])}
        except UnreadableError as error:
            raise TaskError(f"{error}: delete {path.parent} and prepare it again") from error
        return known

    @property
    def num_senones(self) -> int:
        """Number of outputs of the network."""
        return int(self._facts["senones"])

    @property
    def num_inputs(self) -> int:
        """Number of inputs of the network."""
        return self._split("train").store.dims * (2 * self.context + 1)

    @property
    def preparation(self) -> str:
        """What tells two preparations of one experiment apart."""
        return str(self._facts["key"])

    def labelled(self, split: str) -> Labelled:
        """Open a split's features and labels, once."""
        return self._split(split)

    def _split(self, split: str) -> Labelled:
        opened: dict[str, Labelled] = self.__dict__.setdefault("_splits", {})
        if split not in opened:
            opened[split] = self._open(split)
        return opened[split]

    @property
    def kind(self) -> Kind:
        """The kind of features that the network reads."""
        if self.features != "auto":
            return self.features
        return next(iter(kinds_in(self.folder / "features" / "train")), "fbank")

    def store(self, split: str) -> FeatureStore:
        """Open the features of a split."""
        return FeatureStore(self.folder / "features" / split, self.kind, self.normalisation)

    def _open(self, split: str) -> Labelled:
        path = self.folder / "alignment" / f"{split}.npy"
        if not path.exists():
            raise TaskError(f"{self.folder} has no aligned split {split!r}")
        store = self.store(split)
        try:
            labels = read_array(path, "integer", 1, mapped=True)
        except UnreadableError as error:
            raise TaskError(f"{error}: delete {path.parent} and prepare it again") from error
        if split == "train" and self.augmentation.any and self.kind != "fbank":
            raise TaskError(
                f"speed, volume, noise, echo and masks change log mel energies, but this task "
                f"reads {self.kind}: set task.features = 'fbank', or leave them out"
            )
        if len(labels) != len(store.x):
            raise TaskError(
                f"{path} has {len(labels):,} labels for {len(store.x):,} frames: delete "
                f"{path.parent} and prepare it again"
            )
        aligned = labels[store.first] >= 0
        lowest = np.minimum.reduceat(labels, store.first) if len(store) else labels[:0]
        if len(labels) and (labels.max() >= self.num_senones or (aligned & (lowest < 0)).any()):
            raise TaskError(
                f"{path} has the senones {labels.min()} to {labels.max()}, but there are "
                f"{self.num_senones}, from 0: delete {path.parent} and prepare it again"
            )
        numbers = np.flatnonzero(aligned)
        return Labelled(store, labels, numbers, np.cumsum(store.frames[numbers]))

    # ------------------------------------------------------------------ Task

    def prepare(self) -> None:
        """Open the train and dev splits."""
        self._split("train")
        self._split("dev")

    def build_model(self) -> nn.Module:
        """Return a new network of the `[model]` table."""
        return self.model.build(self.num_inputs, self.num_senones, self.sample)

    def sample(self, num_frames: int = TRANSFORM_FRAMES) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `num_frames` training frames, evenly spaced, and their senones."""
        data = self._split("train")
        return data.gather(evenly_spaced(data.frames, num_frames), self.context)

    def _batch(self, split: str) -> int:
        return self.batch_frames if split == "train" else DEV_BATCH

    def items(self, split: str) -> Sequence[Item]:
        """Return the minibatches of a split; their names differ between two preparations."""
        frames, batch = self._split(split).frames, self._batch(split)
        if frames == 0:
            raise TaskError(f"{self.folder}: the split {split!r} has no aligned frame")
        key = self._facts["key"][:8]
        return [
            Item(f"{key}-{start // batch}", min(batch, frames - start))
            for start in range(0, frames, batch)
        ]

    def load(self, split: str, item: Item, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather a minibatch; every epoch has another order of the training frames."""
        data = self._split(split)
        start = int(str(item.id).rpartition("-")[2]) * self._batch(split)
        positions = np.arange(start, start + item.frames)
        if split != "train":
            return data.gather(positions, self.context)
        positions = self._order(epoch)(positions)
        changes = self.augmentation
        if not changes.any:
            return data.gather(positions, self.context)
        rng = np.random.default_rng(stable_seed("augmentation", epoch, str(item.id)))
        return data.gather(positions, self.context, (changes, rng))

    def _order(self, epoch: int) -> Permutation:
        known: dict[int, Permutation] = self.__dict__.setdefault("_orders", {})
        if epoch not in known:
            known.clear()
            known[epoch] = Permutation(self._split("train").frames, stable_seed("frames", epoch))
        return known[epoch]

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> Loss:
        """Return the cross-entropy summed over frames."""
        x, labels = batch
        scores = model(x)
        total = cross_entropy(scores, labels, reduction="sum")
        return Loss(total, len(labels), (scores.argmax(1) == labels).sum())

    def describe(self) -> dict[str, Any]:
        """Return facts for the run's record."""
        return {
            "class": "SpeechTask",
            "prepared": self._facts["key"],
            "inputs": self.num_inputs,
            "senones": self.num_senones,
        }


def is_experiment(folder: Path) -> bool:
    """Return whether a folder holds a prepared experiment with all that training needs."""
    return (folder / "alignment" / "step.json").is_file()
