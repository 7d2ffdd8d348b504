"""Natural-gradient SGD in a plain training loop: the gradient, and the layers it covers."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from helpers.plain_loop import backward, batch, network
from helpers.preconditioned import FREE
from helpers.runs import same_model
from torch import nn

from hocket.errors import ConfigError
from hocket.optim import NGSGD
from hocket.optim.natural_gradient.online import OnlineNaturalGradient
from hocket.optim.natural_gradient.preconditioning import (
    NaturalGradientOptions,
    Preconditioner,
    TappedLinear,
)
from hocket.optim.natural_gradient.simple import simple_natural_gradient

# ------------------------------------------------------------------ the gradient


@pytest.mark.parametrize("form", ["online", "simple"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_gradient_is_the_product_of_both_sides(form: Any, bias: bool) -> None:
    """By hand: [X, 1] and N Y through a preconditioner each, then Y^' X^, rescaled."""
    model = nn.Sequential(nn.Linear(6, 4, bias=bias)).double()
    tapped = copy.deepcopy(model)
    Preconditioner(tapped, NaturalGradientOptions(form, rank_in=2, rank_out=1))
    sides = OnlineNaturalGradient(2), OnlineNaturalGradient(1)
    for step in range(5):
        x, labels = batch(step)
        x = x.double()
        backward(tapped, x, labels)
        scores = model(x)
        (y,) = torch.autograd.grad(nn.functional.cross_entropy(scores, labels), scores)
        ones = torch.ones(len(x), 1, dtype=x.dtype)
        whole = torch.cat([x, ones], 1) if bias else x
        if form == "online":
            (x_hat, s), (y_hat, t) = sides[0].precondition(whole), sides[1].precondition(32 * y)
        else:
            (x_hat, s), (y_hat, t) = (simple_natural_gradient(m) for m in (whole, 32 * y))
        expected = s * t * y_hat.T @ x_hat / 32
        layer = tapped[0]
        assert isinstance(layer, nn.Linear)
        torch.testing.assert_close(layer.weight.grad, expected[:, :6], rtol=1e-6, atol=1e-9)
        if bias:
            torch.testing.assert_close(layer.bias.grad, expected[:, 6], rtol=1e-6, atol=1e-9)


def test_outputs_inputs_gradients_and_keys_are_those_of_linear() -> None:
    plain, tapped = network(), network()
    Preconditioner(tapped, NaturalGradientOptions())
    x = batch()[0].requires_grad_()
    z = batch()[0].requires_grad_()
    a, b = plain(x), tapped(z)
    assert torch.equal(a, b)
    a.square().mean().backward()
    b.square().mean().backward()
    assert torch.equal(x.grad, z.grad)  # type: ignore[arg-type]
    assert plain.state_dict().keys() == tapped.state_dict().keys()
    first = plain[0].weight.grad, tapped[0].weight.grad
    assert not torch.equal(*first)  # type: ignore[arg-type]


def test_without_a_preconditioner_it_is_torch_sgd_bit_for_bit() -> None:
    a, b = network(), network()
    ours = NGSGD(a, lr=0.3, form="none", **FREE)
    theirs = torch.optim.SGD(b.parameters(), lr=0.3, foreach=False)
    for step in range(10):
        for model, optimizer in ((a, ours), (b, theirs)):
            backward(model, *batch(step))
            optimizer.step()
    assert same_model(a.state_dict(), b.state_dict())


def test_learns_faster_than_sgd_where_directions_differ_in_size() -> None:
    """The labels hang on the two smallest of six directions, fifty times below the largest."""
    losses = {}
    for form in ("none", "online", "simple"):
        model = network()
        optimizer = NGSGD(model, lr=0.3, form=form, **FREE)
        for step in range(200):
            losses[form] = backward(model, *batch(step, 256))
            optimizer.step()
    assert losses["online"] < 0.9 * losses["none"]
    assert losses["simple"] < 0.9 * losses["none"]


def test_any_shape_of_input_and_layers_used_twice() -> None:
    layer = nn.Linear(5, 5)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    optimizer = NGSGD(model, lr=0.1)
    for step in range(5):
        x = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(step))
        model.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_lower_precision() -> None:
    model = network()
    optimizer = NGSGD(model, lr=0.1)
    for step in range(5):
        x, labels = batch(step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    grads = [p.grad for p in model.parameters()]
    assert all(g is not None and g.dtype == torch.float32 for g in grads)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


# ------------------------------------------------------------------ what it covers


def test_what_is_not_linear_takes_plain_sgd_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6)
            self.body = network()
            self.extra = nn.Parameter(torch.ones(4))
            self.frozen = nn.Linear(4, 4)
            self.frozen.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.frozen(self.body(self.norm(x)) * self.extra)
            return scores

    model = Mixed()
    with caplog.at_level(logging.INFO, logger="hocket"):
        optimizer = NGSGD(model, lr=0.5, **FREE)
    assert optimizer.plain == ["extra", "norm.weight", "norm.bias"]
    assert "plain SGD for 3 parameters: extra, norm.weight, norm.bias" in caplog.text
    assert not isinstance(model.frozen, TappedLinear)
    twin = copy.deepcopy(model)  # a copy of a tapped model trains too, with estimates of its own
    backward(model, *batch())
    before, grad = model.extra.detach().clone(), model.extra.grad
    assert grad is not None
    optimizer.step()
    assert torch.equal(model.extra.detach(), before - 0.5 * grad)
    backward(twin, *batch())


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no trained nn\.Linear"):
        NGSGD(nn.Sequential(nn.Conv1d(2, 2, 1)), lr=0.1)


def test_two_preconditioners_on_one_layer_are_refused_and_remove_makes_way() -> None:
    model = network()
    optimizer = NGSGD(model, lr=0.1)
    with pytest.raises(ConfigError, match="remove"):
        NGSGD(model, lr=0.1)
    optimizer.remove()
    assert type(model[0]) is nn.Linear
    plain = network()
    for m in (model, plain):
        backward(m, *batch())
    assert torch.equal(model[0].weight.grad, plain[0].weight.grad)  # type: ignore[arg-type]
    NGSGD(model, lr=0.1)
