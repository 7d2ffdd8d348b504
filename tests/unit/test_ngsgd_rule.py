"""The rule of natural-gradient SGD: limits, momentum, saved states, and flat vectors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers.plain_loop import backward, batch, network
from helpers.preconditioned import FREE
from helpers.runs import real, same_model, simulated
from helpers.tasks import acoustic
from torch import nn

from hocket import Constant, Sequential
from hocket.core.flat import Layout
from hocket.errors import ConfigError, ContractError
from hocket.experiment import Experiment
from hocket.optim import NGSGD, NaturalSGD
from hocket.optim.natural_gradient.limits import Limits, layers_of

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
def test_a_saved_state_goes_on_bit_for_bit(momentum: float) -> None:
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
def test_hocket_trains_as_a_plain_loop_does_bit_for_bit(momentum: float) -> None:
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
