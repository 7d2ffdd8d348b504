"""A small network cut into stages, and a run of it, for the tests of the pipeline."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from helpers.runs import simulated
from hocket import SGD, Constant, Loss, Pipeline
from hocket.core.task import Item, Task

ITEMS, WIDTHS = 12, (6, 7, 8, 9, 4)
LR = 1.0


@dataclass(frozen=True)
class Layers(Task):
    """Sigmoid layers, and classes of noise: small, and nothing in it is symmetric."""

    def build_model(self) -> nn.Module:
        layers: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise(WIDTHS):
            linear = nn.Linear(fan_in, fan_out)
            nn.init.normal_(linear.weight, std=fan_in**-0.5 * 2)
            layers += [linear, nn.Sigmoid()]
        return nn.Sequential(*layers[:-1])

    def items(self, split: str) -> list[Item]:
        return [Item(n, 8) for n in range(ITEMS if split == "train" else 5)]

    def load(self, split: str, item: Item, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        rng = np.random.default_rng([3, int(str(item.id)), split == "dev"])
        x = rng.normal(size=(item.frames, WIDTHS[0])).astype(np.float32)
        labels = rng.integers(0, WIDTHS[-1], item.frames)
        # Memory of torch's own: a product is rounded otherwise where numbers begin at odd places.
        return torch.from_numpy(x).clone(), torch.from_numpy(labels)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        x, labels = batch
        scores = model(x)
        correct = (scores.argmax(1) == labels).sum()
        return Loss(cross_entropy(scores, labels, reduction="sum"), len(labels), correct)


CUTS = {1: (), 2: (3,), 3: (2, 4), 4: (2, 4, 6)}  # before a layer, and between it and its sigmoid


def layered(stages: int, **more: Any) -> Pipeline:
    return Pipeline(stages=stages, cut=CUTS[stages], **more)


def run(strategy: Any, epochs: int = 2, momentum: float = 0.5, **more: Any) -> Any:
    return simulated(
        Layers(),
        strategy,
        optimizer=SGD(lr=LR, momentum=momentum),
        schedule=Constant(epochs=epochs),
        **{"evaluate_every": epochs, "checkpoint_every": epochs} | more,
    )
