"""Natural-gradient steps made in the backward pass equal those made after it, within the limits."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from helpers.preconditioned import FREE, batch, moved, network, train, values
from hypothesis import given, settings, strategies as st
from torch import nn

import hocket
from hocket import LSTM
from hocket.errors import ConfigError, ContractError
from hocket.optim import NGSGD
from hocket.optim.natural_gradient.in_backward import tightened
from hocket.optim.natural_gradient.preconditioning import (
    NaturalGradientOptions,
    Preconditioner,
)


@pytest.mark.parametrize("bias", [True, False])
def test_equals_stepping_afterwards(bias: bool) -> None:
    early, late = network(bias), network(bias)
    train(early, NGSGD(early, lr=0.3, in_backward=True, **FREE), range(30))
    train(late, NGSGD(late, lr=0.3, **FREE), range(30))
    assert moved(values(network(bias)), values(late)) > 0.5
    torch.testing.assert_close(values(early), values(late), rtol=1e-9, atol=1e-11)


def test_the_gates_of_an_lstm_step_there_too() -> None:
    """The way back through time reads the recurrent weights before the step changes them."""
    torch.manual_seed(0)
    early = LSTM(layers=2, cells=4, projection=3).network(5, 3).double()
    nn.init.normal_(early.output.weight)
    late, before = copy.deepcopy(early), copy.deepcopy(early)
    x = torch.randn(10, 2, 12, 5, dtype=torch.float64)
    for model, in_backward in ((early, True), (late, False)):
        optimizer = NGSGD(model, lr=0.3, in_backward=in_backward, **FREE)
        for sequences in x:
            optimizer.zero_grad()
            model(sequences).log_softmax(-1)[..., 0].mean().neg().backward()
            optimizer.step()
    assert moved(values(before), values(late)) > 0.1
    torch.testing.assert_close(values(early), values(late), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("lr", [0.02, 1.0, 30.0])
def test_limits_equal_those_of_stepping_afterwards(lr: float) -> None:
    """Where nothing, something and everything is limited: tightened limits, applied afterwards."""
    hidden, _, output = tightened([0.3, 0.3, 0.5], 0.4)
    early, late = network(), network()
    options: dict[str, Any] = {
        "max_change": 0.3,
        "max_change_output": 0.5,
        "max_change_global": 0.4,
    }
    train(early, NGSGD(early, lr=lr, in_backward=True, **options), range(10))
    options = {"max_change": hidden, "max_change_output": output, "max_change_global": 0.0}
    train(late, NGSGD(late, lr=lr, **options), range(10))
    torch.testing.assert_close(values(early), values(late), rtol=1e-8, atol=1e-10)


def test_the_model_never_moves_too_far() -> None:
    model = network()
    optimizer = NGSGD(model, lr=50.0, in_backward=True, max_change_global=0.4)
    farthest = 0.0
    for step in range(10):
        before = values(model)
        train(model, optimizer, range(step, step + 1))
        farthest = max(farthest, moved(before, values(model)))
    assert 0.2 < farthest <= 0.4 * (1 + 1e-9)


def test_limits_are_tightened_by_hand() -> None:
    assert tightened([3.0, 4.0], 2.5) == pytest.approx([1.5, 2.0])
    assert tightened([3.0, 4.0], 6.0) == [3.0, 4.0]
    assert tightened([3.0, 0.0], 0.0) == [3.0, 0.0]


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 20), seed=st.integers(0, 1000), size=st.floats(-3, 3))
def test_no_change_is_longer_than_its_bound(rows: int, seed: int, size: float) -> None:
    """Eq. 2, also where a side has one direction only and is left alone."""
    rng = torch.Generator().manual_seed(seed)
    for outputs in (1, 7):
        linear = nn.Linear(5, outputs).double()
        layer = Preconditioner(nn.Sequential(linear), NaturalGradientOptions()).layers["0"]
        for _ in range(5):
            x = torch.randn(rows, 5, generator=rng, dtype=torch.float64) * 10**size
            y = torch.randn(rows, outputs, generator=rng, dtype=torch.float64)
            weight, bias = layer.gradient(x, y)
            assert weight is not None
            assert bias is not None
            whole = torch.cat([x, torch.ones(rows, 1, dtype=x.dtype)], 1)
            bound = float(whole.norm() * y.norm())
            assert math.hypot(float(weight.norm()), float(bias.norm())) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_the_bound_is_sharp_for_one_row(share: float) -> None:
    """|y x'| = |y| |x|: a limit just below acts, one just above does not."""
    linear = nn.Linear(5, 3).double()
    x, target = torch.randn(1, 5).double(), torch.tensor([1])
    scores = linear(x)
    (y,) = torch.autograd.grad(nn.functional.cross_entropy(scores, target), scores)
    length = 0.5 * float(y.norm()) * math.hypot(float(x.norm()), 1.0)
    before = values(linear)
    limit = share * length
    optimizer = NGSGD(
        linear, lr=0.5, in_backward=True, max_change_output=limit, max_change_global=0
    )
    nn.functional.cross_entropy(linear(x), target).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    assert moved(before, values(linear)) == pytest.approx(min(limit, length))


def test_no_gradient_is_kept_but_for_what_takes_plain_sgd() -> None:
    model = network()
    first = values(model)
    optimizer = NGSGD(model, lr=0.1, in_backward=True)
    x, labels = batch(0)
    nn.functional.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
    held = {name for name, p in model.named_parameters() if p.grad is not None}
    assert held == set(optimizer.plain) == {"1.weight", "1.bias"}
    optimizer.step()
    assert not any(torch.equal(a, b) for a, b in zip(first, values(model), strict=True))


def test_twice_before_a_step_is_refused() -> None:
    model = network()
    NGSGD(model, lr=0.1, in_backward=True)
    x, labels = batch(0)
    nn.functional.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
    with pytest.raises(ContractError, match=r"reached layer '3' twice.*in_backward=False"):
        nn.functional.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]


def test_a_layer_used_twice_is_refused() -> None:
    layer = nn.Linear(6, 6)
    model = nn.Sequential(layer, nn.Sigmoid(), layer)
    NGSGD(model, lr=0.1, in_backward=True)
    with pytest.raises(ContractError, match="uses the layer twice"):
        model(torch.randn(8, 6)).square().mean().backward()


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"momentum": 0.5}, "momentum"),
        ({"weight_decay": 1e-4}, "weight_decay"),
        ({"form": "simple"}, "form"),
        ({"max_change": 0.0}, "max_change_global"),
    ],
)
def test_what_needs_stored_gradients_is_refused(bad: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        NGSGD(network(), lr=0.1, in_backward=True, **bad)


def test_attach_refuses_it() -> None:
    model = network(dtype=torch.float32)
    with pytest.raises(ConfigError, match=r"in_backward=False under hocket\.attach"):
        hocket.attach(model, NGSGD(model, lr=0.1, in_backward=True))


def test_a_change_that_is_not_finite_is_not_made() -> None:
    model = network()
    optimizer = NGSGD(model, lr=0.1, in_backward=True)
    train(model, optimizer, range(3))
    before = values(model)
    x, labels = batch(3)
    nn.functional.cross_entropy(model(x * math.nan), labels).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    torch.testing.assert_close(values(model), before, rtol=0, atol=0)
    train(model, optimizer, range(4, 6))
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_a_frozen_bias_and_a_frozen_layer_stay() -> None:
    model = network()
    first, last = model[0], model[3]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    first.bias.requires_grad_(False)
    for lr in (0.1, 50.0):  # within the limits, and beyond
        optimizer = NGSGD(model, lr=lr, in_backward=True)
        kept = first.bias.detach().clone()
        train(model, optimizer, range(3))
        assert torch.equal(first.bias, kept)
        optimizer.remove()
    optimizer = NGSGD(model, lr=0.1, in_backward=True)
    last.weight.requires_grad_(False)
    kept = last.weight.detach().clone()
    train(model, optimizer, range(3))
    assert torch.equal(last.weight, kept)


def test_rates_may_be_scheduled_and_a_saved_state_goes_on_bit_for_bit() -> None:
    def begin(model: nn.Module) -> tuple[NGSGD, Any]:
        optimizer = NGSGD(model, lr=0.4, in_backward=True)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    model = network()
    optimizer, schedule = begin(model)
    for step in range(4):
        train(model, optimizer, range(step, step + 1))
        schedule.step()
        if step == 1:
            saved = copy.deepcopy(
                (model.state_dict(), optimizer.state_dict(), schedule.state_dict())
            )
    again = network()
    optimizer, schedule = begin(again)
    for part, state in zip((again, optimizer, schedule), saved, strict=True):
        part.load_state_dict(state)
    for step in (2, 3):
        train(again, optimizer, range(step, step + 1))
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.4 / 16
    assert all(map(torch.equal, values(model), values(again)))


def test_a_rate_that_changes_takes_effect_at_the_next_backward() -> None:
    trained = []
    for in_backward in (True, False):
        model = network()
        optimizer = NGSGD(model, lr=9.0, in_backward=in_backward, **FREE)
        for step, lr in enumerate((0.4, 0.01, 0.1)):
            optimizer.param_groups[0]["lr"] = lr
            train(model, optimizer, range(step, step + 1))
        trained.append(values(model))
    torch.testing.assert_close(*trained, rtol=1e-9, atol=1e-11)


def test_weights_of_less_precision() -> None:
    model = network(dtype=torch.bfloat16)
    first = values(model)
    train(model, NGSGD(model, lr=0.1, in_backward=True), range(3))
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    assert moved(first, values(model)) > 1e-3


def test_remove_gives_gradients_back() -> None:
    model = network()
    optimizer = NGSGD(model, lr=0.1, in_backward=True)
    optimizer.remove()
    assert not optimizer.in_backward
    x, labels = batch(0)
    nn.functional.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None for p in model.parameters())
