"""A model and a loss of your own, trained alone and by two real learners, then simulated.

    python examples/own_model.py

A `Task` is all that Hocket needs: a model, a list of items, and the loss of one item. It is
defined at the top level of a module, because learner processes import it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import hocket


@dataclass(frozen=True)
class TwoMoons(hocket.Task):
    """Classify points of two interleaved half circles."""

    num_points: int = 4096
    batch: int = 32

    def build_model(self) -> nn.Module:
        """A small network."""
        return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))

    def items(self, split: str) -> Sequence[hocket.Item]:
        """One item per minibatch."""
        count = self.num_points if split == "train" else 512
        return [hocket.Item(f"{split}-{i}", self.batch) for i in range(count // self.batch)]

    def load(self, split: str, item: hocket.Item, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Make the points of one minibatch; the same item always gives the same points."""
        number = int(str(item.id).split("-")[1]) + (0 if split == "train" else 100_000)
        rng = torch.Generator().manual_seed(number)
        label = torch.randint(2, (item.frames,), generator=rng)
        angle = torch.rand(item.frames, generator=rng) * torch.pi + label * torch.pi
        centre = torch.stack([label * 1.0, label * 0.5], dim=1)
        x = torch.stack([angle.cos(), angle.sin()], dim=1) + centre
        return x + 0.1 * torch.randn(x.shape, generator=rng), label

    def loss(self, model: nn.Module, batch: Any) -> hocket.Loss:
        """Cross-entropy, summed over the points."""
        x, label = batch
        scores = model(x)
        total = nn.functional.cross_entropy(scores, label, reduction="sum")
        return hocket.Loss(total, len(label), (scores.argmax(1) == label).sum())


def main() -> None:
    """Train in three ways; the last two give the same model, bit for bit."""
    task = TwoMoons()
    common: dict[str, Any] = {
        "optimizer": {"lr": 0.2},
        "schedule": {"epochs": 5},
        "progress": False,
    }
    alone = hocket.train(task, **common)
    pair = hocket.train(task, strategy=hocket.KStep(sync_every=4), learners=2, **common)
    twin = hocket.simulate(task, strategy=hocket.KStep(sync_every=4), cluster=2, **common)
    for name, result in (("alone", alone), ("two learners", pair), ("simulated", twin)):
        print(f"{name:14} dev loss {result.loss:.4f}  accuracy {result.accuracy:.4f}")
    same = all(torch.equal(pair.model[k], twin.model[k]) for k in pair.model)
    print("real and simulated models agree bit for bit:", same)


if __name__ == "__main__":
    main()
