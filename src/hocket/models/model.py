"""The base of all acoustic models: the `[model]` table, and how a network is built from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from torch import nn

from hocket.models.input_transform import estimate

InputTransform: TypeAlias = Literal["none", "lda"]
TRANSFORM_FRAMES = 50_000  # of the training data, evenly spaced; enough for some hundred dimensions


@dataclass(frozen=True, kw_only=True)
class Model(ABC):
    """A kind of network; its fields are the keys of the `[model]` table."""

    input_transform: InputTransform = "none"  # lda: fixed, from the training data

    name: ClassVar[str]

    @abstractmethod
    def network(self, num_inputs: int, num_outputs: int) -> nn.Sequential:
        """Return a new network without an input transform."""

    def build(
        self,
        num_inputs: int,
        num_outputs: int,
        sample: Callable[[], tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> nn.Sequential:
        """Return a new network; an input transform needs `sample`: frames and their classes."""
        network = self.network(num_inputs, num_outputs)
        if self.input_transform == "none":
            return network
        if sample is None:
            raise ValueError("model.input_transform = 'lda' needs a sample of the training data")
        return nn.Sequential(estimate(*sample(), num_outputs), *network)


def evenly_spaced(
    num_frames: int, at_most: int = TRANSFORM_FRAMES
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the numbers of at most `at_most` frames, evenly spaced among `num_frames`."""
    count = min(num_frames, at_most)
    return np.arange(count, dtype=np.int64) * num_frames // count
