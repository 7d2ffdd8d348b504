"""Long short-term memory networks, in one direction or in both.

The layers' equations, and when torch's fused kernel computes them, are in `lstm_layer.py`.

References: S. Hochreiter, J. Schmidhuber, Neural Computation 9 (1997); the projection: H. Sak,
A. Senior, F. Beaufays, Interspeech 2014; the linear bottleneck in front of the output layer, and
the published size (6 layers of 512 cells a direction, bottleneck 256, 32,000 states): X. Cui et
al. 2021. Biases of the forget gates begin at 1 (R. Jozefowicz et al., ICML 2015).

Recurrent dropout sets recurrent weights to zero, the same for a whole minibatch (S. Merity et al.,
arXiv:1708.02182); dropout between layers hides the same units in all frames of a sequence (Y. Gal,
Z. Ghahramani, NIPS 2016). Both leave the fused kernels in use. A network in one direction may look
some frames ahead: it gives its answer for a frame once it has read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from hocket.errors import require
from hocket.models.lstm_layer import Direction, State, kernel
from hocket.models.sequence import (
    CLIP_NORM,
    USUAL_LEFT,
    Lengths,
    SequenceModel,
    SequenceNetwork,
    at_least,
    probability,
)


class LockedDropout(nn.Module):
    """Hides the same units in all frames of a sequence."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Hide units of (N, T, H) while training."""
        if not self.training or not self.share:
            return x
        kept = torch.empty(len(x), 1, x.shape[2], device=x.device).bernoulli_(1 - self.share)
        return x * (kept / (1 - self.share))

    def extra_repr(self) -> str:
        """Show the share when the model is printed."""
        return f"share={self.share:g}"


class Recurrent(nn.Module):
    """An LSTM layer in one direction or in both, with dropout of what it gives."""

    def __init__(self, ahead: Direction, back: Direction | None, dropout: float) -> None:
        super().__init__()
        self.ahead, self.back = ahead, back
        self.dropout = LockedDropout(dropout)

    def forward(
        self, x: torch.Tensor, lengths: Lengths, state: State
    ) -> tuple[torch.Tensor, State]:
        """Return the layer's outputs for (N, T, D), and its state after the last frame."""
        ahead, back = self.ahead, self.back
        if back is None:  # padding comes after all that counts
            y, state = ahead(x, state)
        elif lengths is None and ahead.project is None and not ahead.apart and not back.apart:
            y, state = kernel(x, ahead.weights() + back.weights(), state, both=True)
        else:  # torch's packed sequences have no fused kernel: 3 times as slow
            there, _ = ahead(x)
            here, _ = back(reversed_in_time(x, lengths))
            y = torch.cat([there, reversed_in_time(here, lengths)], dim=2)
        return self.dropout(y), state


def reversed_in_time(x: torch.Tensor, lengths: Lengths) -> torch.Tensor:
    """Turn every sequence of (N, T, D) round, and leave the padding at its end where it is."""
    if lengths is None:
        return x.flip(1)
    frame = torch.arange(x.shape[1])
    ends = torch.tensor(lengths)[:, None]
    at = torch.where(frame < ends, ends - 1 - frame, frame).to(x.device)
    return x.gather(1, at[:, :, None].expand(-1, -1, x.shape[2]))


class Stack(nn.Module):
    """LSTM layers one upon the other; the state is a list with that of each."""

    def __init__(self, layers: list[Recurrent]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(
        self, x: torch.Tensor, lengths: Lengths, state: list[State] | None
    ) -> tuple[torch.Tensor, list[State]]:
        """Return the outputs of the last layer, and the new state."""
        after = []
        for layer, before in zip(self.layers, state or [None] * len(self.layers), strict=True):
            x, new = layer(x, lengths, before)
            after.append(new)
        return x, after


def lstm_stack(
    num_inputs: int,
    cells: int,
    layers: int,
    *,
    bidirectional: bool = False,
    projection: int = 0,
    dropout: float = 0.0,
    recurrent_dropout: float = 0.0,
) -> Stack:
    """Return new LSTM layers, each reading what the one below gives."""
    size = (projection or cells) * (2 if bidirectional else 1)
    made = []
    for fan_in in [num_inputs, *[size] * (layers - 1)]:
        ahead, back = (
            Direction(fan_in, cells, projection, recurrent_dropout) if wanted else None
            for wanted in (True, bidirectional)
        )
        assert ahead is not None
        made.append(Recurrent(ahead, back, dropout))
    return Stack(made)


class LSTMNetwork(SequenceNetwork):
    """LSTM layers, perhaps a linear bottleneck, and the output layer."""

    stack: Stack
    bottleneck: nn.Module

    def __init__(self, stack: Stack, bottleneck: nn.Module, sizes: tuple[int, int], ahead: int):
        super().__init__(*sizes, (0, ahead), stack=stack, bottleneck=bottleneck)

    @property
    def streams(self) -> bool:
        """True in one direction."""
        return all(m.back is None for m in self.modules() if isinstance(m, Recurrent))

    def hidden(self, x: torch.Tensor, lengths: Lengths, state: Any) -> tuple[torch.Tensor, Any]:
        """Return the bottleneck's outputs; the first `right` ones belong to no frame."""
        first = self.right if state is None else 0
        y, state = self.stack(x, lengths, state)
        return self.bottleneck(y[:, first:]), state

    def advance(self, x: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
        """Go on after the frames that were read before, looked at ahead or not."""
        return super().advance(x if state is None else x[:, self.right :], state)


@dataclass(frozen=True, kw_only=True)
class LSTM(SequenceModel):
    """The `[model]` table of name = "lstm". The published one: `LSTM.published()`."""

    layers: int = 2
    cells: int = 128  # of a layer, in each direction
    bidirectional: bool = False
    projection: int = 0  # h is brought to so many values; 0: none
    bottleneck: int = 0  # a linear layer of this width in front of the output layer; 0: none
    look_ahead: int | None = None  # frames; unset: 5 in one direction, 0 in both
    dropout: float = 0.0  # share of a layer's outputs that are set to zero
    recurrent_dropout: float = 0.0  # share of the recurrent weights that are set to zero

    name: ClassVar[str] = "lstm"
    clip_norm: ClassVar[float | None] = CLIP_NORM

    def __post_init__(self) -> None:
        at_least(self, 1, "layers", "cells")
        at_least(self, 0, "projection", "bottleneck")
        probability(self, "dropout", "recurrent_dropout")
        require(
            self.projection < self.cells,
            f"model.projection must be below model.cells = {self.cells}, not {self.projection}",
        )
        require(
            self.look_ahead is None or self.look_ahead >= 0,
            f"model.look_ahead must be at least 0, not {self.look_ahead}",
        )
        require(
            not (self.bidirectional and self.look_ahead),
            "model.look_ahead has no effect with model.bidirectional = true, which reads all of "
            "the future: leave it out",
        )

    @classmethod
    def published(cls) -> LSTM:
        """Return the published network of Switchboard-2000: about 43 million parameters."""
        return cls(layers=6, cells=512, bidirectional=True, bottleneck=256)

    @property
    def reach(self) -> tuple[int, int]:
        """A network in one direction looks ahead."""
        usual = 0 if self.bidirectional else 5  # frames
        return 0, usual if self.look_ahead is None else self.look_ahead

    @property
    def usual_context(self) -> tuple[int, int]:
        """Both directions need some frames to fill their states."""
        return USUAL_LEFT, USUAL_LEFT if self.bidirectional else self.reach[1]

    def network(self, num_inputs: int, num_outputs: int) -> LSTMNetwork:
        """Return a new network: the LSTM layers, and one affine layer on top."""
        stack = lstm_stack(
            num_inputs,
            self.cells,
            self.layers,
            bidirectional=self.bidirectional,
            projection=self.projection,
            dropout=self.dropout,
            recurrent_dropout=self.recurrent_dropout,
        )
        size = (self.projection or self.cells) * (2 if self.bidirectional else 1)
        narrow = nn.Linear(size, self.bottleneck) if self.bottleneck else nn.Identity()
        return LSTMNetwork(stack, narrow, (self.bottleneck or size, num_outputs), self.reach[1])
