"""A LightningModule trained by several learners; NeMo and ESPnet3 train on Lightning, too.

    pip install 'hocket[lightning]'
    python -m hocket.launch --learners 2 examples/lightning.py

The module and the loop are Lightning's. `strategy=HocketStrategy(...)` is all that is new.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

# This file's name would hide the package: look for it elsewhere.
sys.path = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]

import lightning  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from hocket.lightning import HocketStrategy  # noqa: E402


def data(seed: int, points: int = 1024) -> TensorDataset:
    """Two interleaved half circles."""
    rng = torch.Generator().manual_seed(seed)
    label = torch.randint(2, (points,), generator=rng)
    angle = (torch.rand(points, generator=rng) + label) * torch.pi
    x = torch.stack([angle.cos() + label, angle.sin() + 0.5 * label], dim=1)
    return TensorDataset(x + 0.1 * torch.randn(x.shape, generator=rng), label)


class Moons(lightning.LightningModule):  # type: ignore[misc]
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        """Cross-entropy of a minibatch."""
        x, label = batch
        return nn.functional.cross_entropy(self.net(x), label)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    """Train, then say how good the model is, and write it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="kstep")
    parser.add_argument("--save", metavar="FILE", help="write the final parameters")
    args = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    model = Moons()
    strategy = HocketStrategy(args.strategy, lr="sequential", frames=lambda batch: len(batch[0]))
    trainer = lightning.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data(seed=0), batch_size=32))
    x, label = data(seed=99).tensors
    accuracy = float((model.net(x).argmax(1) == label).float().mean())
    print(f"rank {strategy.global_rank} of {strategy.world_size}: accuracy {accuracy:.3f}")
    if args.save and strategy.global_rank == 0:
        torch.save(model.net.state_dict(), args.save)


if __name__ == "__main__":
    main()
