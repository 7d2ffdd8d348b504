"""Natural-gradient SGD under a strategy in a loop of one's own."""

from __future__ import annotations

import pytest
import torch
from helpers.runs import same_model
from torch import nn

import hocket
from hocket import NGSGD
from hocket.errors import ConfigError, ContractError


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.Sigmoid(), nn.Linear(10, 4))


def batch(step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(step)
    return torch.randn(32, 6, generator=rng), torch.randint(4, (32,), generator=rng)


def backward(model: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> None:
    model.zero_grad()
    nn.functional.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_attached_alone_it_is_the_plain_loop_bit_for_bit(momentum: float) -> None:
    plain, attached = network(), network()
    optimizer = NGSGD(plain, lr=0.1, momentum=momentum)
    for step in range(9):
        backward(plain, *batch(step))
        optimizer.step()
    other = NGSGD(attached, lr=0.1, momentum=momentum)
    with hocket.attach(attached, other, strategy={"name": "kstep", "sync_every": 3}) as dist:
        for step in range(9):
            backward(attached, *batch(step))
            dist.step()
    assert same_model(plain.state_dict(), attached.state_dict())


def test_attached_divided_minibatches_and_a_combination_are_refused() -> None:
    model = network()
    rule = NGSGD(model, lr=0.1)
    attached = hocket.attach(model, rule, strategy={"name": "kaldi", "combine_models": 0})
    with pytest.raises(ContractError, match="first_parts = 1"):
        attached.__enter__()
    with pytest.raises(ConfigError, match="held-out loss"):
        hocket.attach(model, rule, strategy="kaldi")
