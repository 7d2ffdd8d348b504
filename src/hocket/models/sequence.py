"""What all networks that read sequences have in common: recurrent and convolutional ones.

    x (N, T, D)  ->  scores (N, T - left - right, C)                                      (1)

`left` and `right`, the network's *reach*, are the frames at either end that it reads and has no
score for: those that its convolutions consume, and those that it looks ahead. Whoever calls it
repeats an utterance's first and last frame there. A network that needs nothing from the future but
its reach can be given an utterance in pieces: `advance` carries the state of its recurrent layers,
and the scores are those of the whole utterance.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import nn

from hocket.errors import require
from hocket.models.input_transform import estimate
from hocket.models.model import Model

Lengths: TypeAlias = list[int] | None  # of every sequence, if some are padded at their end
CLIP_NORM = 1.0  # of the mean gradient of a recurrent network, unless the optimizer says otherwise
USUAL_LEFT = 10  # frames before a chunk that a recurrent layer reads to fill its state


class SequenceNetwork(nn.Module):
    """Scores the frames of sequences; see the module's eq. 1."""

    def __init__(
        self, num_hidden: int, num_outputs: int, reach: tuple[int, int], **parts: nn.Module
    ) -> None:
        """`parts` come before the output layer, which limits on a step know by being the last."""
        super().__init__()
        self.left, self.right = reach
        self.front: nn.Module = nn.Identity()  # an input transform takes its place
        for name, part in parts.items():
            self.add_module(name, part)
        self.output = nn.Linear(num_hidden, num_outputs)
        nn.init.zeros_(self.output.weight)  # so that the first guess is uniform
        nn.init.zeros_(self.output.bias)

    @property
    def streams(self) -> bool:
        """True if `advance` can be used: nothing depends on the end of the sequence."""
        return True

    @abstractmethod
    def hidden(self, x: torch.Tensor, lengths: Lengths, state: Any) -> tuple[torch.Tensor, Any]:
        """Return what the output layer reads, (N, T - left - right, H), and the new state."""

    def forward(
        self, x: torch.Tensor, lengths: Lengths = None, places: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return scores; with `places`, only those of some of the N (T - left - right) frames.

        What only fills the state of a recurrent layer, and padding, then costs no output layer.
        """
        hidden, _ = self.hidden(self.front(x), lengths, None)
        if places is not None:
            hidden = hidden.flatten(0, 1).index_select(0, places)
        scores: torch.Tensor = self.output(hidden)
        return scores

    def advance(self, x: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
        """Return the scores of the next piece of a sequence, and the state after it.

        Pieces overlap by `left + right` frames: those that the piece before had no score for.
        """
        require(self.streams, "a bidirectional network reads the end first: it has no `advance`")
        hidden, state = self.hidden(self.front(x), None, state)
        return self.output(hidden), state


@dataclass(frozen=True, kw_only=True)
class SequenceModel(Model):
    """A kind of network for sequences: its task gives it chunks, or whole utterances."""

    sequential: ClassVar[bool] = True

    @property
    @abstractmethod
    def reach(self) -> tuple[int, int]:
        """Frames at either end of a sequence that are read and have no score."""

    @property
    def usual_context(self) -> tuple[int, int]:
        """Frames before and after a chunk that the network should see, if nobody says otherwise."""
        return self.reach

    @abstractmethod
    def network(self, num_inputs: int, num_outputs: int) -> SequenceNetwork:
        """Return a new network for frames of `num_inputs` values."""

    def build(
        self,
        num_inputs: int,
        num_outputs: int,
        sample: Callable[[], tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> SequenceNetwork:
        """Return a new network; an input transform needs `sample`: frames and their classes."""
        self._require_room(num_inputs, num_outputs)
        network = self.network(num_inputs, num_outputs)
        if self.input_transform == "lda":
            if sample is None:
                raise ValueError("model.input_transform = 'lda' needs a sample of training data")
            network.front = estimate(*sample(), num_outputs)
        return network


def at_least(table: Any, low: int, *keys: str) -> None:
    """Refuse sizes of a `[model]` table that are too small."""
    for key in keys:
        value = getattr(table, key)
        require(value >= low, f"model.{key} must be at least {low}, not {value}")


def probability(table: Any, *keys: str) -> None:
    """Refuse shares of a `[model]` table that are none, or all."""
    for key in keys:
        value = getattr(table, key)
        require(0 <= value < 1, f"model.{key} must be at least 0 and below 1: {value}")
