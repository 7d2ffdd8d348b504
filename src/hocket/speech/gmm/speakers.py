"""The transforms of speakers, as passes over utterances use them; `fmllr.py` estimates them.

    y(t) -> W xi(t),    xi(t) = [y(t); 1]

y(t) is what the model sees of a frame (`front.py`); every speaker of a split has a W of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.errors import UnreadableError
from hocket.speech.features.store import FeatureStore
from hocket.support.arrays import read_array

Doubles = NDArray[np.float64]


def identity(dims: int) -> Doubles:
    """Return the W that changes nothing."""
    return np.eye(dims, dims + 1)


def transformed(y: torch.Tensor, w: Doubles) -> torch.Tensor:
    """Return W xi of every frame."""
    narrow = torch.from_numpy(w.astype(np.float32))
    return torch.addmm(narrow[:, -1], y, narrow[:, :-1].T)


def numbered(store: FeatureStore) -> NDArray[np.int64]:
    """Return the speaker of each utterance: a number by the sorted names."""
    number: NDArray[np.int64] = np.unique(store.speakers, return_inverse=True)[1]
    return number


@dataclass(frozen=True)
class Speakers:
    """The transforms of all speakers of a split: a file (speakers, dims, dims + 1)."""

    transforms: Doubles
    number: NDArray[np.int64]  # the speaker of each utterance

    def of(self, utterance: int) -> Doubles:
        """Return the transform for an utterance."""
        w: Doubles = self.transforms[self.number[utterance]]
        return w

    def adapted(self, y: torch.Tensor, utterance: int) -> torch.Tensor:
        """Return an utterance's frames, transformed for its speaker."""
        return transformed(y, self.of(utterance))

    @classmethod
    def read(cls, path: Path, store: FeatureStore, dims: int) -> Speakers:
        """Read a file of transforms for the utterances of a store."""
        return _read(path, path.stat().st_mtime_ns, store, dims)


@lru_cache(maxsize=4)
def _read(path: Path, written_ns: int, store: FeatureStore, dims: int) -> Speakers:
    transforms, number = read_array(path, "float", 3), numbered(store)
    if transforms.shape != (int(number.max(initial=-1)) + 1, dims, dims + 1):
        raise UnreadableError.of(path, "it was made for other speakers: prepare again")
    return Speakers(transforms, number)
