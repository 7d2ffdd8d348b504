"""A small network, data of uneven size, and the backward pass of a plain training loop."""

from __future__ import annotations

import torch
from torch import nn


def network(bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10, bias=bias), nn.Sigmoid(), nn.Linear(10, 4, bias=bias))


def batch(step: int = 0, rows: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(step)
    x = torch.randn(rows, 6, generator=rng) @ torch.diag(torch.tensor([5.0, 3, 1, 1, 0.3, 0.1]))
    return x, (x[:, 4] > 0).long() + 2 * (x[:, 5] > 0).long()


def backward(model: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> float:
    loss = nn.functional.cross_entropy(model(x), labels)
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())
