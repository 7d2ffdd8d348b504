"""Natural-gradient steps in the backward pass: what must not make a step, and what is refused."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.preconditioned import batch, loss_of, moved, network, train, values
from torch import nn

from hocket.errors import ConfigError, ContractError
from hocket.optim import NGSGD
from hocket.optim.natural_gradient.preconditioning import (
    Scratch,
)


def test_gradients_of_the_inputs_change_nothing() -> None:
    model = network()
    optimizer = NGSGD(model, lr=0.1, in_backward=True)
    before = values(model)
    x, labels = batch(0)
    x.requires_grad_()
    (grad,) = torch.autograd.grad(nn.functional.cross_entropy(model(x), labels), x)
    assert float(grad.norm()) > 0
    nn.functional.cross_entropy(model(x), labels).backward(inputs=[x])  # type: ignore[no-untyped-call]
    assert moved(before, values(model)) == 0
    train(model, optimizer, range(1))
    assert moved(before, values(model)) > 0


def test_gradients_of_the_weights_by_hand_are_refused() -> None:
    model = network()
    NGSGD(model, lr=0.1, in_backward=True)
    before = values(model)
    with pytest.raises(ContractError, match=r"torch\.autograd\.grad asks"):
        torch.autograd.grad(loss_of(model), list(model.parameters()))
    assert moved(before, values(model)) == 0


def test_a_refusal_leaves_the_model_as_it_was() -> None:
    model = network()
    with pytest.raises(ConfigError, match="momentum"):
        NGSGD(model, in_backward=True, momentum=0.5)
    train(model, NGSGD(model), range(1))


def test_shared_parameters_are_refused() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4))
    first, last = model
    assert isinstance(first, nn.Linear)
    last.bias = first.bias
    with pytest.raises(ConfigError, match="shares a parameter"):
        NGSGD(model, in_backward=True)
    assert type(first) is nn.Linear


def test_a_gradient_beside_the_step_is_refused() -> None:
    model = network()
    optimizer = NGSGD(model, lr=0.1, in_backward=True)
    loss = loss_of(model)
    (loss + sum(p.square().sum() for p in model.parameters())).backward()  # type: ignore[no-untyped-call]
    with pytest.raises(ContractError, match="penalty in the loss"):
        optimizer.step()


def test_another_weight_than_its_own_is_refused() -> None:
    model = network()
    NGSGD(model, lr=0.1, in_backward=True)
    others = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    scores = torch.func.functional_call(model, others, (batch(0)[0],))
    with pytest.raises(ContractError, match="another weight"):
        scores.sum().backward()


def test_a_layer_frozen_after_the_forward_pass_stays() -> None:
    model = network()
    NGSGD(model, lr=0.1, in_backward=True)
    loss, before = loss_of(model), values(model)
    for p in model.parameters():
        p.requires_grad_(False)
    loss.backward()  # type: ignore[no-untyped-call]
    assert moved(before, values(model)) == 0


def test_momentum_by_a_scheduler_and_scaled_losses_are_refused() -> None:
    model = network()
    optimizer = NGSGD(model, lr=0.1, in_backward=True)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    with pytest.raises(ConfigError, match="momentum"):
        train(model, optimizer, range(1))
    model = network(dtype=torch.float32)
    optimizer = NGSGD(model, lr=0.1, in_backward=True)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(model)).backward()  # type: ignore[no-untyped-call]
    with pytest.raises(ConfigError, match="GradScaler"):
        scaler.step(optimizer)


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(ConfigError, match="DistributedDataParallel"):
        NGSGD(network(), in_backward=True)


# ------------------------------------------------------------------ copies, and beginning anew


def test_a_copy_of_the_model_hands_out_gradients() -> None:
    model = network()
    optimizer = NGSGD(model, lr=0.1, in_backward=True)
    train(model, optimizer, range(2))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        before = values(twin)
        loss_of(twin).backward()  # type: ignore[no-untyped-call]
        assert moved(before, values(twin)) == 0
        assert all(p.grad is not None for p in twin.parameters())


def test_what_was_loaded_may_be_trained_at_once() -> None:
    model = network()
    optimizer = NGSGD(model, lr=0.1, in_backward=True)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, range(1))
    expected = values(model)
    loss_of(model, 1).backward()  # type: ignore[no-untyped-call]
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    train(model, optimizer, range(1))
    assert moved(expected, values(model)) == 0


def test_what_was_built_before_remove_steps_no_more() -> None:
    model = network()
    optimizer = NGSGD(model, lr=0.1, in_backward=True)
    loss, before = loss_of(model), values(model)
    optimizer.remove()
    loss.backward()  # type: ignore[no-untyped-call]
    assert moved(before, values(model)) == 0


def test_memory_is_a_threads_own_and_is_not_saved() -> None:
    scratch, x = Scratch(), torch.zeros(1000, 100)
    mine = scratch.like(x, "in")
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(scratch.like, x, "in").result()
    assert mine is not None
    assert theirs is not None
    assert mine.data_ptr() != theirs.data_ptr()
    assert len(pickle.dumps(scratch)) < 1000
    doubles = scratch.like(x.double(), "in")
    assert doubles is not None
    assert doubles.dtype == torch.float64
