"""The acoustic model."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.runs import real, same_model, simulated
from torch.nn.functional import cross_entropy

from hocket import Constant, KStep, Synthetic
from hocket.errors import ConfigError
from hocket.models import DNN, PNorm
from hocket.models.input_transform import estimate, lda_like, scatter
from hocket.models.pnorm import PNormalised


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
    *_, output = model.children()
    assert isinstance(output, torch.nn.Linear)
    output.reset_parameters()  # it starts at zero
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))
    with pytest.raises(ConfigError, match="dropout"):
        DNN(dropout=1.0)


# ------------------------------------------------------------------ p-norm


def test_p_norm_by_hand() -> None:
    layer = PNormalised(group=2)
    z = torch.tensor([[3.0, -4.0, 0.0, 0.0], [6.0, 8.0, 5.0, 12.0]])
    groups = torch.tensor([[5.0, 0.0], [10.0, 13.0]])
    expected = groups / groups.square().mean(1, keepdim=True).sqrt()
    torch.testing.assert_close(layer(z), expected)
    assert torch.equal(layer(torch.zeros(1, 4)), torch.zeros(1, 2)), "a frame of zeros stays one"
    one = PNormalised(group=2, p=1.0)(torch.tensor([[3.0, -4.0, 1.0, 0.0]]))
    torch.testing.assert_close(one, torch.tensor([[7.0, 1.0]]) / 5.0)


def test_p_norm_gradients_are_finite_and_right() -> None:
    layer = PNormalised(group=2)
    z = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (z,))
    dead = torch.zeros(2, 6, requires_grad=True)
    layer(dead).sum().backward()
    assert dead.grad is not None
    assert bool(torch.isfinite(dead.grad).all())


@pytest.mark.parametrize("seed", range(2))
def test_a_deep_p_norm_network_learns_from_scratch(seed: int) -> None:
    torch.manual_seed(seed)
    model = PNorm(layers=4, width=100, group=5).build(40, 10)
    centres = torch.randn(10, 40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for step in range(300):
        labels = torch.randint(10, (128,))
        loss = cross_entropy(model(centres[labels] + 0.5 * torch.randn(128, 40)), labels)
        if step == 0:
            assert loss.item() == pytest.approx(math.log(10), abs=1e-4)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert loss.item() < 0.8


def test_bad_p_norm_sizes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"multiple of model\.group"):
        PNorm(width=25, group=10)
    with pytest.raises(ConfigError, match=r"model\.p "):
        PNorm(p=0.5)


# ------------------------------------------------------------------ the input transform


def labelled(frames: int = 4000, dims: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    means = rng.normal(size=(5, dims)) * np.array([3.0, 1.0, 0.3, 0.1, 0.0, 0.0])
    labels = rng.integers(5, size=frames)
    mixing = rng.normal(size=(dims, dims))
    x = (means[labels] + rng.normal(size=(frames, dims))) @ mixing + 7.0
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(labels)


def test_the_transform_leaves_what_tells_classes_apart() -> None:
    """Afterwards the mean is 0 and the covariance 0.001 + lambda, of Fisher's ratios lambda."""
    x, labels = labelled()
    y = estimate(x, labels, 5)(x)
    torch.testing.assert_close(y.mean(0), torch.zeros(6), atol=1e-4, rtol=0)
    within, between = scatter(x.numpy().astype(np.float64), labels.numpy(), 5)
    ratios = np.sort(np.linalg.eigvals(np.linalg.solve(within, between)).real)[::-1]
    covariance = np.cov(y.numpy().T, bias=True)
    np.testing.assert_allclose(np.diag(covariance), 0.001 + np.maximum(ratios, 0), rtol=1e-3)
    np.testing.assert_allclose(covariance - np.diag(np.diag(covariance)), 0, atol=1e-4)


def test_singular_values_are_capped_and_dead_inputs_survived() -> None:
    x, labels = labelled()
    x = x * 1e-4  # tiny inputs would be blown up without the cap
    x[:, 2] = 0.5
    transform = lda_like(*scatter(x.numpy().astype(np.float64), labels.numpy(), 5))
    assert np.isfinite(transform).all()
    assert np.linalg.svd(transform, compute_uv=False).max() <= 5.0 + 1e-9


def test_the_transform_is_not_trained_and_travels_with_the_model() -> None:
    task = Synthetic(
        num_frames=3000, dev_frames=1000, batch_frames=64, num_classes=6, num_features=6, context=1,
        model=PNorm(layers=1, width=20, group=5, input_transform="lda"),
    )  # fmt: skip
    a = simulated(task, KStep(sync_every=3), 2, schedule=Constant(epochs=1))
    b = real(task, KStep(sync_every=3), 2, schedule=Constant(epochs=1))
    assert same_model(a, b)
    fresh = task.build_model().state_dict()
    assert torch.equal(a.model["0.weight"], fresh["0.weight"])
    assert not torch.equal(a.model["1.weight"], fresh["1.weight"])


def test_the_transform_needs_data() -> None:
    with pytest.raises(ValueError, match="sample"):
        DNN(input_transform="lda").build(4, 3)
