"""Natural-gradient SGD in a plain training loop, and its rule on flat vectors."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from helpers.runs import real, same_model, simulated
from helpers.tasks import acoustic
from torch import nn

from hocket import Constant, Sequential
from hocket.core.flat import Layout
from hocket.errors import ConfigError, ContractError
from hocket.experiment import Experiment
from hocket.optim import NGSGD, NaturalSGD
from hocket.optim.natural_gradient.limits import Limits, layers_of
from hocket.optim.natural_gradient.online import OnlineNaturalGradient
from hocket.optim.natural_gradient.preconditioning import (
    NaturalGradientOptions,
    Preconditioner,
    TappedLinear,
)
from hocket.optim.natural_gradient.simple import simple_natural_gradient

FREE: dict[str, Any] = {"max_change": 0.0, "max_change_output": 0.0, "max_change_global": 0.0}


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


def test_without_a_preconditioner_it_is_torch_sgd_to_the_bit() -> None:
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


# ------------------------------------------------------------------ limits and momentum


def test_limits_by_hand() -> None:
    limits = Limits(max_change=1.0, max_change_output=2.0, max_change_global=2.5)
    assert Limits(1.0, 2.0, 0.0).factors([0.5, 4.0, 8.0]) == [1.0, 0.25, 0.25]
    # layers then move by 0.5, 1 and 2: |.| = sqrt(5.25) < 2.5
    assert limits.factors([0.5, 4.0, 8.0]) == [1.0, 0.25, 0.25]
    # 1, 1 and 2: |.| = sqrt(6); the whole may move by 1
    tight = Limits(1.0, 2.0, 1.0).factors([1.0, 4.0, 8.0])
    assert tight == pytest.approx([6**-0.5, 0.25 * 6**-0.5, 0.25 * 6**-0.5])
    assert limits.factors([1.0, float("nan"), 1.0]) is None
    assert Limits(0, 0, 0).factors([9.0, 9.0]) == [1.0, 1.0]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_no_layer_and_no_model_moves_too_far(momentum: float) -> None:
    model = network()
    optimizer = NGSGD(
        model, lr=50.0, momentum=momentum,
        max_change=0.2, max_change_output=0.3, max_change_global=0.33,
    )  # fmt: skip
    for step in range(6):
        before = [p.detach().clone() for p in model.parameters()]
        backward(model, *batch(step))
        optimizer.step()
        moved = [(p.detach() - b).norm() for p, b in zip(model.parameters(), before, strict=True)]
        first, last = float(torch.stack(moved[:2]).norm()), float(torch.stack(moved[2:]).norm())
        assert first <= 0.2 * 1.0001
        assert last <= 0.3 * 1.0001
        assert (first**2 + last**2) ** 0.5 <= 0.33 * 1.0001
        assert (first**2 + last**2) ** 0.5 > 0.3, "the rate is so high that a limit acts"


def test_momentum_leaves_the_rate_as_it_is() -> None:
    """With a constant gradient the velocity tends to lr g / (1 - mu), of which 1 - mu is used."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    layer = model[0]
    assert isinstance(layer, nn.Linear)
    nn.init.zeros_(layer.weight)
    optimizer = NGSGD(model, lr=0.1, momentum=0.8, **FREE)
    steps = []
    for _ in range(60):
        before = float(layer.weight.detach())
        model.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        steps.append(before - float(layer.weight.detach()))
    assert steps[0] == pytest.approx(0.02)
    assert steps[-1] == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_change_that_is_not_finite_is_not_made(momentum: float) -> None:
    model = network()
    optimizer = NGSGD(model, lr=0.1, momentum=momentum)
    backward(model, *batch())
    optimizer.step()
    before = copy.deepcopy(model.state_dict())
    x, labels = batch(1)
    x[0, 0] = float("inf")
    backward(model, x, labels)
    optimizer.step()
    assert same_model(model.state_dict(), before)
    backward(model, *batch(2))
    optimizer.step()
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_weight_decay_is_not_preconditioned() -> None:
    """Zero gradients: what is left is plain decay of every parameter."""
    model = network()
    before = copy.deepcopy(model.state_dict())
    optimizer = NGSGD(model, lr=0.1, weight_decay=0.5, **FREE)
    model.zero_grad()
    (model(batch()[0]).sum() * 0.0).backward()
    optimizer.step()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, before[key] * 0.95)


def test_layers_are_modules() -> None:
    shapes = {"0.weight": (3, 2), "0.bias": (3,), "extra": (1,), "2.inner.weight": (4, 3)}
    assert layers_of(shapes | {"2.inner.bias": (4,)}) == [[0, 1], [2], [3, 4]]


def test_the_output_layer_is_the_last_with_a_matrix() -> None:
    """A normalisation after it is not."""
    shapes = {"0.weight": (3, 2), "1.weight": (4, 3), "1.bias": (4,), "norm.weight": (4,)}
    assert layers_of(shapes) == [[0], [3], [1, 2]]
    assert layers_of({"a": (2,), "b": (3,)}) == [[0, 1]], "without any matrix"


def test_the_state_of_another_optimizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="not the state of an NGSGD"):
        NGSGD(network()).load_state_dict(torch.optim.SGD(network().parameters()).state_dict())


def test_a_shared_weight_takes_plain_sgd() -> None:
    """Its gradient is a sum over its uses, of which only some are those of a linear layer."""
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False))
    model[2].weight = model[0].weight
    optimizer = NGSGD(model, lr=0.1)
    assert optimizer.plain == ["0.weight"]
    assert type(model[2]) is nn.Linear


# ------------------------------------------------------------------ going on


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_saved_state_goes_on_to_the_bit(momentum: float) -> None:
    model, other = network(), network()
    optimizer = NGSGD(model, lr=0.1, momentum=momentum)
    for step in range(13):
        backward(model, *batch(step))
        optimizer.step()
    other.load_state_dict(model.state_dict())
    second = NGSGD(other, lr=0.1, momentum=momentum)
    second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(13, 25):
        for m, o in ((model, optimizer), (other, second)):
            backward(m, *batch(step))
            o.step()
    assert same_model(model.state_dict(), other.state_dict())


def test_schedulers_and_closures_work() -> None:
    model = network()
    optimizer = NGSGD(model, lr=0.2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    loss = optimizer.step(lambda: backward(model, *batch()))
    assert loss == pytest.approx(1.4, abs=0.3)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


# ------------------------------------------------------------------ the same rule on flat vectors


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_hocket_trains_as_a_plain_loop_does_to_the_bit(momentum: float) -> None:
    task = acoustic(num_frames=1500)
    rule = NaturalSGD(lr=2.0, momentum=momentum, max_change=0.1, max_change_global=0.15)
    schedule = Constant(epochs=2)
    result = simulated(task, Sequential(), 1, optimizer=rule, schedule=schedule)
    torch.manual_seed(0)
    pool = Experiment(task, Sequential(), rule, schedule).pool()
    worker_seeded = real(task, Sequential(), 1, optimizer=rule, schedule=schedule)
    assert same_model(result, worker_seeded)
    from hocket.core.numerics import stable_seed

    torch.manual_seed(stable_seed(0, "model"))
    model = task.build_model()
    optimizer = NGSGD(model, lr=2.0, momentum=momentum, max_change=0.1, max_change_global=0.15)
    for epoch in range(2):
        for index in pool.order(epoch):
            loss = task.loss(model, task.load("train", task.items("train")[int(index)], epoch))
            optimizer.zero_grad()
            (loss.total / loss.frames).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert same_model(result.model, model.state_dict())


@pytest.mark.parametrize("more", [{}, {"momentum": 0.5}, {"weight_decay": 0.1}, {"clip_norm": 0.1}])
def test_a_gradient_in_parts_gives_the_same_bits_as_the_whole(more: dict[str, float]) -> None:
    model = network()
    layout = Layout.of(model)
    rule = NaturalSGD(lr=1.0, max_change=0.05, **more).fitted(layout)  # type: ignore[arg-type]
    whole, parted = layout.flatten(model), layout.flatten(model)
    states = rule.init(whole), rule.init(parted)
    for _ in range(5):
        grads = [torch.randn(e.shape) for e in layout.entries]
        rule.apply_(whole, layout.pack(grads), states[0], rule.lr)
        rule.apply_(parted, layout.parts(grads), states[1], rule.lr)
        assert torch.equal(whole, parted)


def test_the_rule_must_know_the_layout() -> None:
    rule = NaturalSGD()
    with pytest.raises(ContractError, match="fitted"):
        rule.apply_(torch.zeros(4), torch.zeros(4), rule.init(torch.zeros(4)), 0.1)


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"momentum": 1.0}, "momentum"),
        ({"max_change": -1.0}, "max_change"),
        ({"rank_in": 0}, "rank"),
        ({"update_period": 0}, "update_period"),
        ({"form": "simple", "rank_in": 5}, "rank_in has no effect"),
        ({"form": "none", "alpha": 1.0}, "alpha has no effect"),
    ],
)
def test_bad_values_are_named_here_too(bad: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        NaturalSGD(**bad)
