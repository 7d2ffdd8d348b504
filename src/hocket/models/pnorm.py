"""p-norm networks with normalisation, the acoustic model of Kaldi's nnet2 recipes.

    z = W h + b,   y_j = (sum over the j-th group of z of |z_i|^p)^(1/p),   h' = y / rms(y)   (1)

Reference: X. Zhang, J. Trmal, D. Povey, S. Khudanpur, "Improving deep neural network acoustic
models using generalized maxout networks", ICASSP 2014. Each frame is scaled to unit root mean
square after the nonlinearity, because nothing else bounds it. Weights begin as N(0, 1/inputs),
biases as N(0, 0.5^2), the output layer as zero (Kaldi).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from hocket.errors import require
from hocket.models.model import Model

_TINY = 2.0**-66  # Kaldi's floor of a squared norm: a frame of zeros stays zero


def unit_rms(y: torch.Tensor) -> torch.Tensor:
    """Scale every frame to unit root mean square, as Kaldi's NormalizeComponent does."""
    return y * torch.rsqrt(y.square().mean(-1, keepdim=True).clamp(min=_TINY))


class PNormalised(nn.Module):
    """Computes the p-norm of groups, then scales each frame to unit root mean square."""

    def __init__(self, group: int, p: float = 2.0) -> None:
        super().__init__()
        self.group = group
        self.p = p

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Apply the second and third part of eq. 1."""
        groups = z.view(*z.shape[:-1], -1, self.group)
        y = torch.linalg.vector_norm(groups, self.p, dim=-1)
        return unit_rms(y)

    def extra_repr(self) -> str:
        """Show the group size and p when the model is printed."""
        return f"group={self.group}, p={self.p:g}"


@dataclass(frozen=True, kw_only=True)
class PNorm(Model):
    """The `[model]` table of name = "pnorm". Kaldi's: width 3000 in groups of 10, 3 to 5 layers."""

    layers: int = 3
    width: int = 3000  # before the nonlinearity; width / group after it
    group: int = 10
    p: float = 2.0

    name: ClassVar[str] = "pnorm"

    def __post_init__(self) -> None:
        require(self.layers >= 0, f"model.layers must be at least 0, not {self.layers}")
        require(self.group >= 1, f"model.group must be at least 1, not {self.group}")
        require(
            self.width >= self.group and self.width % self.group == 0,
            f"model.width must be a multiple of model.group = {self.group}, not {self.width}",
        )
        require(self.p >= 1, f"model.p must be at least 1, not {self.p}")

    def network(self, num_inputs: int, num_outputs: int) -> nn.Sequential:
        """Return a new network; its output layer starts at zero, so the first guess is uniform."""
        modules: list[nn.Module] = []
        fan_in = num_inputs
        for _ in range(self.layers):
            linear = nn.Linear(fan_in, self.width)
            nn.init.normal_(linear.weight, std=fan_in**-0.5)
            nn.init.normal_(linear.bias, std=0.5)
            modules += [linear, PNormalised(self.group, self.p)]
            fan_in = self.width // self.group
        output = nn.Linear(fan_in, num_outputs)
        nn.init.zeros_(output.weight)
        nn.init.zeros_(output.bias)
        return nn.Sequential(*modules, output)
