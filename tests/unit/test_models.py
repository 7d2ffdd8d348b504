"""The acoustic model."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from hocket.errors import ConfigError
from hocket.models.dnn import DNN


def test_the_published_network_can_be_built() -> None:
    """5 x 2048 sigmoid units, 11 frames of 40, 10,000 senones (Zhang et al. 2013)."""
    with torch.device("meta"):  # 43 million parameters, none of them in memory
        model = DNN(layers=5, width=2048, activation="sigmoid").build(440, 10_000)
    expected = 441 * 2048 + 4 * 2049 * 2048 + 2049 * 10_000
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
@pytest.mark.parametrize("seed", range(3))
def test_deep_networks_start_to_learn_from_scratch(activation: str, seed: int) -> None:
    """Five hidden layers: the signal must reach both ends, whatever the seed."""
    torch.manual_seed(seed)
    model = DNN(layers=5, width=128, activation=activation).build(40, 10)  # type: ignore[arg-type]
    centres = torch.randn(10, 40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(400):
        labels = torch.randint(10, (128,))
        loss = cross_entropy(model(centres[labels] + 0.5 * torch.randn(128, 40)), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(10), abs=1e-4)  # the first guess is uniform
    assert losses[-1] < 0.8


def test_dropout_is_an_option_and_must_be_a_share() -> None:
    model = DNN(layers=2, width=8, dropout=0.5).build(4, 3)
    x = torch.randn(5, 4)
    model[-1].reset_parameters()  # type: ignore[operator]  # it starts at zero
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))
    with pytest.raises(ConfigError, match="dropout"):
        DNN(dropout=1.0)
