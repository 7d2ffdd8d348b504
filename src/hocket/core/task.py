"""The seam between training and what is trained.

A `Task` gives a model, a list of items (minibatches, chunks or utterances), and the loss of one
item. Training knows nothing more: not that there is audio, not how batches are made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Item:
    """One unit that a learner draws: an opaque name, and how many frames it has."""

    id: Hashable
    frames: int


@dataclass(slots=True)
class Loss:
    """What a task says of one item: sums over frames, never means."""

    total: torch.Tensor  # scalar; its gradient is taken
    frames: int
    correct: torch.Tensor | float = 0.0


@runtime_checkable
class Divisible(Protocol):
    """A batch that knows where it may be divided: between chunks, but not within one."""

    def cut(self, which: int, of: int) -> tuple[Any, int]:
        """Return one of several parts of it, and the frames of that part; they add up."""
        ...


class Task(ABC):
    """What is to be learnt. Instances travel to learner processes, so they must pickle."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return a new model; torch's generator has been seeded just before."""

    @abstractmethod
    def items(self, split: str) -> Sequence[Item]:
        """Return all items of a split ('train' or 'dev'), in a fixed order."""

    @abstractmethod
    def load(self, split: str, item: Item, epoch: int) -> Any:
        """Return the data of one item. May depend on the epoch, never on rank or time."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Return the loss summed over the frames of a batch."""

    def prepare(self) -> None:  # noqa: B027  (optional)
        """Read or make whatever is slow; called once in every learner before the clock starts."""

    def describe(self) -> dict[str, Any]:
        """Facts for the run's record, such as a known error floor."""
        return {"class": type(self).__qualname__}
