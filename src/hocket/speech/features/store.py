"""Features of a split in one memory-mapped file, shared by all processes of a machine.

    FOLDER/KIND.npy        float32 (frames, dims), utterance after utterance, as extracted
    FOLDER/KIND.sums.npy   float64 (utterances, 2, dims): sums of x and x^2, for normalisation
    FOLDER/index.json      utterances in order: id, speaker, words, first frame, number of frames

Nothing derived is stored: normalisation and splicing happen when a minibatch is gathered. Only the
pages that are read occupy memory, and the system may drop them, so 100 hours need no more memory
than one hour. `extraction.py` writes these files.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from hocket.errors import ConfigError, UnreadableError
from hocket.speech.errors import SpeechError
from hocket.speech.features.augment import Augmentation
from hocket.speech.features.spectral import Kind
from hocket.support.arrays import read_array
from hocket.support.inputs import TABLE_LIMIT, read_table, well_formed

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int64]
Normalisation: TypeAlias = Literal["speaker", "utterance", "none"]

MIN_DEVIATION = 1e-3  # of a feature that never changes: dividing by less would amplify noise


class FeatureStore:
    """One split's features of one kind; opening it reads the index, not the features."""

    def __init__(self, folder: Path, kind: Kind, normalisation: Normalisation = "speaker") -> None:
        if normalisation not in get_args(Normalisation):
            choices = ", ".join(get_args(Normalisation))
            raise ConfigError(f"normalisation must be one of {choices}, not {normalisation!r}")
        self.folder, self.kind, self.normalisation = folder, kind, normalisation
        try:
            index = folder / "index.json"
            facts = read_table(index, TABLE_LIMIT)
            self.x: Floats = read_array(folder / f"{kind}.npy", "float", 2, mapped=True)
            sums = read_array(folder / f"{kind}.sums.npy", "float", 3)
            self._sums: NDArray[np.float64] = sums
            with well_formed(index):
                self._read_index(facts)
        except UnreadableError as error:
            raise SpeechError(
                f"{folder} holds no {kind} features that can be read ({error}): prepare it again"
                f"{_others(folder, kind)}"
            ) from error

    def _read_index(self, facts: dict[str, Any]) -> None:
        """Take over what is known of the utterances; their frames must lie in the features."""
        rows = facts["utterances"]
        self.sample_rate: int = int(facts["sample_rate"])
        self.ids: list[str] = [str(row["id"]) for row in rows]
        self.speakers: list[str] = [str(row["speaker"]) for row in rows]
        self.words: list[list[str]] = [[str(word) for word in row["words"]] for row in rows]
        self.paths: list[str] = [str(row["path"]) for row in rows]
        self.first: Ints = np.array([int(row["first"]) for row in rows], dtype=np.int64)
        self.frames: Ints = np.array([int(row["frames"]) for row in rows], dtype=np.int64)
        ends = self.first + self.frames
        if len(rows) and not (self.first.min() >= 0 and self.frames.min() >= 1):
            raise ValueError("an utterance has no frame, or begins before the first one")
        if len(rows) and (ends.max() > len(self.x) or ends.min() < 0):
            raise ValueError("an utterance ends after the last frame")
        if self._sums.shape != (len(rows), 2, self.dims):
            raise ValueError(f"sums of shape {self._sums.shape} for {len(rows)} utterances")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def dims(self) -> int:
        """How many numbers a frame has."""
        return int(self.x.shape[1])

    @property
    def seconds(self) -> float:
        """Length of the speech, at 100 frames a second."""
        return float(self.frames.sum()) / 100

    @cached_property
    def _shift_scale(self) -> tuple[Floats, Floats]:
        """Mean and 1 / deviation of each utterance, or of its speaker, (utterances, dims)."""
        if self.normalisation == "none":
            shape = (len(self), self.dims)
            return np.zeros(shape, np.float32), np.ones(shape, np.float32)
        _, group = np.unique(
            self.speakers if self.normalisation == "speaker" else self.ids, return_inverse=True
        )
        count = np.bincount(group, weights=self.frames)[:, None]
        sums = np.zeros((len(count), 2, self.dims))
        np.add.at(sums, group, self._sums)
        mean = sums[:, 0] / count
        variance = np.maximum(sums[:, 1] / count - mean**2, MIN_DEVIATION**2)
        scale = 1 / np.sqrt(variance)
        return mean[group].astype(np.float32), scale[group].astype(np.float32)

    def utterance(self, number: int) -> Floats:
        """Return one utterance, normalised, (frames, dims)."""
        shift, scale = self._shift_scale
        first = self.first[number]
        x: Floats = self.x[first : first + self.frames[number]] - shift[number]
        x *= scale[number]
        return x

    def gather(self, utterances: Ints, frames: Ints, context: int) -> Floats:
        """Return frames with their neighbours, normalised: (n, (2 * context + 1) * dims).

        Frame `frames[i]` of utterance `utterances[i]`; at an utterance's edge its first or last
        frame is repeated.
        """
        shift, scale = self._shift_scale
        first = self.first[utterances][:, None]
        last = first + self.frames[utterances][:, None] - 1
        window = np.arange(-context, context + 1)
        rows = np.clip(first + frames[:, None] + window, first, last)
        x: Floats = self.x.take(rows, axis=0)  # (n, window, dims)
        x -= shift[utterances][:, None]
        x *= scale[utterances][:, None]
        return x.reshape(len(rows), -1)

    def gather_changed(
        self,
        utterances: Ints,
        frames: Ints,
        context: int,
        augmentation: Augmentation,
        rng: np.random.Generator,
    ) -> Floats:
        """Return the same with the changes of an augmentation."""
        shift, scale = self._shift_scale
        speeds = augmentation.speeds(rng, len(frames))
        steps = 1.0 + augmentation.speed * speeds.astype(np.float64)
        x = self._windows(utterances, frames, context, steps)
        augmentation.energies_(x, self._levels[utterances], rng)
        x -= shift[utterances][:, None]
        x *= scale[utterances][:, None]
        augmentation.spectra_(x, speeds, self.sample_rate, rng)
        return x.reshape(len(x), -1)

    def stretches(
        self,
        utterances: Ints,
        starts: Ints,
        size: int,
        changes: tuple[Augmentation, np.random.Generator] | None = None,
    ) -> Floats:
        """Return `size` frames of each utterance from `starts` on, normalised: (n, size, dims).

        Before and after an utterance its first or last frame is repeated. Of an augmentation, all
        but the speed is applied.
        """
        shift, scale = self._shift_scale
        first = self.first[utterances][:, None]
        last = first + self.frames[utterances][:, None] - 1
        rows = np.clip(first + starts[:, None] + np.arange(size), first, last)
        x: Floats = self.x.take(rows, axis=0)
        if changes is not None:
            changes[0].energies_(x, self._levels[utterances], changes[1])
        x -= shift[utterances][:, None]
        x *= scale[utterances][:, None]
        if changes is not None:
            still = np.zeros(len(x), np.int64)
            changes[0].spectra_(x, still, self.sample_rate, changes[1])
        return x

    def _windows(
        self, utterances: Ints, frames: Ints, context: int, steps: NDArray[np.float64]
    ) -> Floats:
        """Return windows whose frames lie `steps` apart: between two frames, a mixture of both."""
        first = self.first[utterances][:, None]
        last = first + self.frames[utterances][:, None] - 1
        at = first + frames[:, None] + np.arange(-context, context + 1) * steps[:, None]
        at = np.clip(at, first, last)
        low = at.astype(np.int64)
        x: Floats = self.x.take(low, axis=0)
        share = (at - low).astype(np.float32)
        between = np.flatnonzero(share.any(axis=1))
        after = self.x.take(np.minimum(low[between] + 1, last[between]), axis=0)
        x[between] += share[between][:, :, None] * (after - x[between])
        return x

    @cached_property
    def _levels(self) -> Floats:
        """How loud each utterance is: the logarithm of the mean energy of an average bin."""
        mean = self._sums[:, 0] / self.frames[:, None]
        variance = np.maximum(self._sums[:, 1] / self.frames[:, None] - mean**2, 0.0)
        level: Floats = (mean + variance / 2).mean(1).astype(np.float32)  # log-normal energies
        return level


def new_array(path: Path, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Create a memory-mapped file and reserve its space on the disk.

    Without the reservation, a full disk would be noticed in the middle of a write to memory, and
    the process would be killed without a message. With it, a lack of space is an error here.
    """
    file = open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    size = path.stat().st_size
    try:
        with path.open("r+b") as opened:
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(opened.fileno(), 0, size)
    except OSError as error:
        path.unlink()
        raise SpeechError(
            f"{path}: no room for {size / 1e6:,.1f} MB ({error.strerror}): free some space and run "
            "the same command again; finished steps are kept"
        ) from error
    return file


def kinds_in(folder: Path) -> list[Kind]:
    """Return the kinds of features of a split, the one that networks read by default first."""
    try:
        kinds = read_table(folder / "index.json", TABLE_LIMIT).get("kinds", [])
    except UnreadableError:
        return []
    known = get_args(Kind)
    return [kind for kind in kinds if kind in known] if isinstance(kinds, list) else []


def _others(folder: Path, kind: Kind) -> str:
    others = [k for k in kinds_in(folder) if k != kind]
    return f" with --features {kind}, or use {' or '.join(others)}" if others else ""
