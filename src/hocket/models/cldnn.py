"""Convolution, LSTM, dense: the CLDNN, whose first layer looks for patterns in time and frequency.

    mel bins of some frames -> convolution -> maximum over neighbouring bins -> linear
    -> LSTM layers -> dense layers -> scores

Reference: T. Sainath, O. Vinyals, A. Senior, H. Sak, "Convolutional, long short-term memory, fully
connected deep neural networks", ICASSP 2015, with 256 maps of 9 x 9 and a maximum over 3 bins, a
linear layer of 256, 2 LSTM layers of 832 cells projected to 512 and one dense layer of 1024. The
comparison of H. Li et al., Interspeech 2017, trains one on LibriSpeech. Difference: one
convolution instead of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from hocket.errors import require
from hocket.models.lstm import Stack, lstm_stack
from hocket.models.sequence import (
    CLIP_NORM,
    USUAL_LEFT,
    Lengths,
    SequenceModel,
    SequenceNetwork,
    at_least,
    probability,
)


class Patterns(nn.Module):
    """Convolution over time and frequency, the maximum over bins, and a linear layer."""

    def __init__(self, num_bins: int, model: CLDNN) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, model.maps, (model.conv_frames, model.conv_bins))
        nn.init.kaiming_normal_(self.convolution.weight, nonlinearity="relu")
        nn.init.zeros_(_bias(self.convolution))
        self.pool = nn.MaxPool2d((1, model.pool_bins))
        left = (num_bins - model.conv_bins + 1) // model.pool_bins
        self.linear = nn.Linear(model.maps * left, model.linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return T - conv_frames + 1 frames."""
        maps_NMTB = self.pool(torch.relu(self.convolution(x.unsqueeze(1))))
        return self.linear(maps_NMTB.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def _bias(layer: nn.Conv2d) -> torch.Tensor:
    assert layer.bias is not None
    return layer.bias


class CLDNNNetwork(SequenceNetwork):
    """The three parts and the output layer."""

    patterns: Patterns
    stack: Stack
    dense: nn.Sequential

    def __init__(
        self,
        patterns: Patterns,
        stack: Stack,
        dense: nn.Sequential,
        sizes: tuple[int, int],
        reach: tuple[int, int],
    ) -> None:
        super().__init__(*sizes, reach, patterns=patterns, stack=stack, dense=dense)

    def hidden(self, x: torch.Tensor, lengths: Lengths, state: Any) -> tuple[torch.Tensor, Any]:
        """Return the outputs of the last dense layer."""
        y, state = self.stack(self.patterns(x), lengths, state)
        return self.dense(y), state


@dataclass(frozen=True, kw_only=True)
class CLDNN(SequenceModel):
    """The `[model]` table of name = "cldnn". Its input must be mel energies, bin after bin."""

    maps: int = 32
    conv_frames: int = 9  # an odd number
    conv_bins: int = 9
    pool_bins: int = 3
    linear: int = 128  # what the LSTM layers read
    layers: int = 2
    cells: int = 128
    projection: int = 0  # h is brought to so many values; 0: none
    dense_layers: int = 1
    width: int = 256  # of the dense layers
    dropout: float = 0.0  # share of what LSTM and dense layers give that is set to zero
    recurrent_dropout: float = 0.0  # share of the recurrent weights that are set to zero

    name: ClassVar[str] = "cldnn"
    clip_norm: ClassVar[float | None] = CLIP_NORM

    def __post_init__(self) -> None:
        at_least(self, 1, "maps", "conv_frames", "conv_bins", "pool_bins", "linear", "width")
        at_least(self, 1, "layers", "cells")
        at_least(self, 0, "projection", "dense_layers")
        probability(self, "dropout", "recurrent_dropout")
        require(
            self.conv_frames % 2 == 1,
            f"model.conv_frames must be odd, with a frame in the middle, not {self.conv_frames}",
        )
        require(
            self.projection < self.cells,
            f"model.projection must be below model.cells = {self.cells}, not {self.projection}",
        )
        require(
            self.input_transform == "none",
            f"model.input_transform = {self.input_transform!r} would mix the mel bins that the "
            "convolution needs side by side: leave it out",
        )

    @property
    def reach(self) -> tuple[int, int]:
        """The convolution consumes frames on both sides."""
        return self.conv_frames // 2, self.conv_frames // 2

    @property
    def usual_context(self) -> tuple[int, int]:
        """The LSTM layers need some frames to fill their states."""
        return USUAL_LEFT + self.reach[0], self.reach[1]

    def network(self, num_inputs: int, num_outputs: int) -> CLDNNNetwork:
        """Return a new network, if convolution and pooling fit into so many values."""
        require(
            num_inputs >= self.conv_bins + self.pool_bins - 1,
            f"model.conv_bins = {self.conv_bins} and model.pool_bins = {self.pool_bins} leave "
            f"nothing of frames of {num_inputs} values: make them smaller",
        )
        stack = lstm_stack(
            self.linear,
            self.cells,
            self.layers,
            projection=self.projection,
            dropout=self.dropout,
            recurrent_dropout=self.recurrent_dropout,
        )
        size = self.projection or self.cells
        dense: list[nn.Module] = []
        for fan_in in [size, *[self.width] * self.dense_layers][: self.dense_layers]:
            dense += [nn.Linear(fan_in, self.width), nn.ReLU(), nn.Dropout(self.dropout)]
        last = self.width if self.dense_layers else size
        patterns = Patterns(num_inputs, self)
        return CLDNNNetwork(patterns, stack, nn.Sequential(*dense), (last, num_outputs), self.reach)
