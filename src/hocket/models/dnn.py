"""The feed-forward acoustic model: spliced frames in, one score per class out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import nn

from hocket.errors import require
from hocket.models.model import Model

Activation: TypeAlias = Literal["relu", "sigmoid"]


@dataclass(frozen=True)
class DNN(Model):
    """The `[model]` table: the number of hidden layers, and their common width.

    The published one of Zhang et al. 2013 is layers=5, width=2048, activation="sigmoid".
    """

    layers: int = 3
    width: int = 256
    activation: Activation = "relu"
    dropout: float = 0.0  # probability that a hidden unit is set to zero

    name: ClassVar[str] = "dnn"

    def __post_init__(self) -> None:
        require(self.layers >= 0, f"model.layers must be at least 0, not {self.layers}")
        require(self.width >= 1, f"model.width must be at least 1, not {self.width}")
        require(
            0 <= self.dropout < 1, f"model.dropout must be at least 0 and below 1: {self.dropout}"
        )

    def network(self, num_inputs: int, num_outputs: int) -> nn.Sequential:
        """Return a new network; its output layer starts at zero, so the first guess is uniform."""
        modules: list[nn.Module] = []
        for fan_in in [num_inputs, *[self.width] * self.layers][: self.layers]:
            linear = nn.Linear(fan_in, self.width)
            self._init_(linear)
            modules += [linear, nn.ReLU() if self.activation == "relu" else nn.Sigmoid()]
            if self.dropout > 0:
                modules.append(nn.Dropout(self.dropout))
        output = nn.Linear(self.width if self.layers else num_inputs, num_outputs)
        nn.init.zeros_(output.weight)
        nn.init.zeros_(output.bias)
        return nn.Sequential(*modules, output)

    @torch.no_grad()
    def _init_(self, linear: nn.Linear) -> None:
        if self.activation == "relu":
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        else:  # 4 undoes the slope of 1/4 at 0; else deep sigmoid networks do not learn
            nn.init.xavier_normal_(linear.weight, gain=4.0)
        nn.init.zeros_(linear.bias)
