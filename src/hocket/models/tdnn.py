"""Time-delay networks: each layer reads three frames of the layer below, ever further apart.

    z_t = W [h_{t-d}; h_t; h_{t+d}] + b,   h'_t = normalised(relu(z_t))                   (1)

A dilated 1-D convolution of width 3 is an affine function of three frames laid side by side; it is
computed as one, like in Kaldi, so that the natural gradient covers all of it. `normalised` scales
each frame to unit root mean square (Kaldi's NormalizeComponent). Factorised (TDNN-F):

    u_t = V [h_{t-d}; h_t],   z_t = W [u_t; u_{t+d}] + b,
    h'_t = normalised(relu(z_t)) + 0.66 h_t                                               (2)

References: V. Peddinti, D. Povey, S. Khudanpur, Interspeech 2015; D. Povey et al.,
"Semi-orthogonal low-rank matrix factorization for deep neural networks", Interspeech 2018.
Difference from the latter: V begins semi-orthogonal, and is not brought back to it afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from hocket.errors import require
from hocket.models.pnorm import unit_rms
from hocket.models.sequence import Lengths, SequenceModel, SequenceNetwork, at_least, probability

BYPASS = 0.66  # Kaldi's, of the layer's input that is added to its output


def beside(x: torch.Tensor, *shifts: int) -> torch.Tensor:
    """Lay frames t + shift of (N, T, D) side by side, for every t that has them all."""
    size = x.shape[1] - max(shifts)
    return torch.cat([x[:, s : s + size] for s in shifts], dim=2) if len(shifts) > 1 else x


class Delay(nn.Module):
    """One layer of eq. 1; without context, if d is 0."""

    def __init__(self, fan_in: int, width: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.dilation = dilation
        self.affine = nn.Linear(fan_in * (3 if dilation else 1), width)
        nn.init.kaiming_normal_(self.affine.weight, nonlinearity="relu")
        nn.init.zeros_(self.affine.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Return T - 2 d frames."""
        d = self.dilation
        wide = beside(h, 0, d, 2 * d) if d else h
        return self.dropout(unit_rms(torch.relu(self.affine(wide))))  # type: ignore[no-any-return]


class FactorisedDelay(nn.Module):
    """One layer of eq. 2."""

    def __init__(self, width: int, narrow: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.dilation = dilation
        self.linear = nn.Linear(width * (2 if dilation else 1), narrow, bias=False)
        self.affine = nn.Linear(narrow * (2 if dilation else 1), width)
        if self.linear.weight.device.type != "meta":  # there are no values to make orthogonal
            nn.init.orthogonal_(self.linear.weight)
        nn.init.kaiming_normal_(self.affine.weight, nonlinearity="relu")
        nn.init.zeros_(self.affine.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Return T - 2 d frames."""
        d = self.dilation
        u = self.linear(beside(h, 0, d) if d else h)
        z = self.affine(beside(u, 0, d) if d else u)
        middle = h[:, d : h.shape[1] - d]
        return self.dropout(unit_rms(torch.relu(z))) + BYPASS * middle  # type: ignore[no-any-return]


class TDNNNetwork(SequenceNetwork):
    """Time-delay layers and the output layer."""

    layers: nn.Sequential

    def __init__(self, layers: nn.Sequential, sizes: tuple[int, int], reach: int) -> None:
        super().__init__(*sizes, (reach, reach), layers=layers)

    def hidden(self, x: torch.Tensor, lengths: Lengths, state: Any) -> tuple[torch.Tensor, Any]:
        """Padding comes after all that counts, and nothing is carried over."""
        return self.layers(x), ()


@dataclass(frozen=True, kw_only=True)
class TDNN(SequenceModel):
    """The `[model]` table of name = "tdnn"."""

    width: int = 256
    dilations: tuple[int, ...] = (1, 1, 2, 3, 3)  # d of each layer; 0: a layer without context
    bottleneck: int = 0  # factorised layers with so many values in between; 0: plain layers
    dropout: float = 0.0

    name: ClassVar[str] = "tdnn"

    def __post_init__(self) -> None:
        at_least(self, 1, "width")
        at_least(self, 0, "bottleneck")
        probability(self, "dropout")
        require(bool(self.dilations), "model.dilations must name at least one layer")
        require(
            all(0 <= d <= 1000 for d in self.dilations),
            f"model.dilations must lie between 0 and 1000, not {list(self.dilations)}",
        )
        require(
            not self.bottleneck or len(self.dilations) > 1,
            "model.bottleneck has no effect on the first layer, and there is no other",
        )
        require(
            self.bottleneck < self.width,
            f"model.bottleneck must be below model.width = {self.width}, not {self.bottleneck}",
        )

    @property
    def reach(self) -> tuple[int, int]:
        """Each layer consumes its dilation on both sides."""
        return sum(self.dilations), sum(self.dilations)

    def network(self, num_inputs: int, num_outputs: int) -> TDNNNetwork:
        """Return a new network; the first layer is never factorised."""
        first, *others = self.dilations
        layers: list[nn.Module] = [Delay(num_inputs, self.width, first, self.dropout)]
        for d in others:
            if self.bottleneck:
                layers.append(FactorisedDelay(self.width, self.bottleneck, d, self.dropout))
            else:
                layers.append(Delay(self.width, self.width, d, self.dropout))
        return TDNNNetwork(nn.Sequential(*layers), (self.width, num_outputs), self.reach[0])
