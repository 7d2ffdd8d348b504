"""A small network and data of uneven size, trained by natural gradient."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from hocket.optim import NGSGD

FREE: dict[str, Any] = {"max_change": 0.0, "max_change_output": 0.0, "max_change_global": 0.0}


def network(bias: bool = True, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 10, bias=bias), nn.LayerNorm(10), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Linear(10, 4, bias=bias)).to(dtype)


def batch(step: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(step)
    x = torch.randn(32, 6, generator=rng) @ torch.diag(torch.tensor([5.0, 3, 1, 1, 0.3, 0.1]))
    return x.to(dtype), (x[:, 4] > 0).long() + 2 * (x[:, 5] > 0).long()


def train(model: nn.Module, optimizer: NGSGD, steps: range) -> None:
    dtype = next(model.parameters()).dtype
    for step in steps:
        x, labels = batch(step, dtype)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def loss_of(model: nn.Module, step: int = 0) -> torch.Tensor:
    x, labels = batch(step, next(model.parameters()).dtype)
    return nn.functional.cross_entropy(model(x), labels)


def values(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def moved(before: list[torch.Tensor], after: list[torch.Tensor]) -> float:
    return math.hypot(*(float((a - b).norm()) for a, b in zip(after, before, strict=True)))
