"""A plain torch LSTM, and a task of one's own that trains it on sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hocket import Item, Loss, Task

INPUTS: Final = 4
CLASSES: Final = 3


class Recurrent(nn.Module):
    """An LSTM with a linear layer on top."""

    def __init__(self, inputs: int = INPUTS, outputs: int = CLASSES) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, 3, batch_first=True)
        self.output = nn.Linear(3, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(x)
        scores: torch.Tensor = self.output(hidden)
        return scores.flatten(0, -2)


@dataclass(frozen=True)
class Sequences(Task):
    """Sequences of different lengths; the class is that of the larger input, a frame before."""

    num_items: int = 9

    def build_model(self) -> nn.Module:
        return Recurrent()

    def items(self, split: str) -> Sequence[Item]:
        return [Item(i, 3 + i % 4) for i in range(self.num_items)]

    def load(self, split: str, item: Item, epoch: int) -> Any:
        generator = torch.Generator().manual_seed(int(str(item.id)))
        x = torch.randn(1, item.frames, INPUTS, generator=generator)
        return x, x[0, :, :CLASSES].roll(1, 0).argmax(1)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        x, labels = batch
        return Loss(cross_entropy(model(x), labels, reduction="sum"), len(labels))
