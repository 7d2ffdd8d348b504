from __future__ import annotations

from typing import Any

import pytest
import torch

from hocket.core.flat import Layout
from hocket.errors import ConfigError
from hocket.optim import SGD, AdaGrad, AdamW, Constant, Exponential, Newbob, Optimizer, Warmup
from hocket.optim.compensation import ramp, target_factor
from hocket.optim.schedules import ScheduleState


def both(
    ours: Optimizer, theirs: Any, size: int = 100, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    flat = torch.randn(size)
    p = torch.nn.Parameter(flat.clone())
    optimizer = theirs([p], lr=ours.lr, foreach=False, **options)
    state = ours.init(flat)
    for _ in range(20):
        g = torch.randn(size)
        p.grad = g.clone()
        if ours.clip_norm:
            torch.nn.utils.clip_grad_norm_([p], ours.clip_norm)
        optimizer.step()
        kept = g.clone()
        ours.apply_(flat, g, state, ours.lr)
        assert torch.equal(g, kept), "the gradient is read only"
    return flat, p.detach()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("clip", [None, 5.0])
@pytest.mark.parametrize("size", [100, 128, 6400])
def test_sgd_equals_torch_bit_for_bit(
    momentum: float, nesterov: bool, decay: float, clip: float | None, size: int
) -> None:
    if nesterov and not momentum:
        pytest.skip("refused")
    ours = SGD(lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=decay, clip_norm=clip)
    a, b = both(
        ours, torch.optim.SGD, size, momentum=momentum, nesterov=nesterov, weight_decay=decay
    )
    assert torch.equal(a, b)


@pytest.mark.parametrize(
    "rule",
    [SGD(), SGD(momentum=0.9), SGD(momentum=0.9, weight_decay=0.01), SGD(clip_norm=0.1), AdamW()],
    ids=repr,
)
def test_a_gradient_in_parts_gives_the_same_bits_as_the_whole(rule: Optimizer) -> None:
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 3))
    layout = Layout.of(model)
    whole, parted = layout.flatten(model), layout.flatten(model)
    states = rule.init(whole), rule.init(parted)
    for step in range(5):
        grads = [torch.randn(e.shape) if step or i else None for i, e in enumerate(layout.entries)]
        rule.apply_(whole, layout.pack(grads), states[0], rule.lr)
        rule.apply_(parted, layout.parts(grads), states[1], rule.lr)
        assert torch.equal(whole, parted)
    dirty = torch.full((layout.size,), 7.0)
    assert torch.equal(layout.parts(grads).write_(dirty), layout.pack(grads))


def test_adamw_equals_torch() -> None:
    a, b = both(AdamW(lr=0.01, weight_decay=0.1), torch.optim.AdamW, weight_decay=0.1)
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("initial", [0.0, 0.1])
def test_adagrad_equals_torch(initial: float) -> None:
    ours = AdaGrad(lr=0.1, weight_decay=0.01, initial=initial)
    more: dict[str, Any] = {"weight_decay": 0.01, "initial_accumulator_value": initial}
    a, b = both(ours, torch.optim.Adagrad, **more)
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)  # torch divides in one fused operation


def test_schedules_by_epochs_done() -> None:
    s = ScheduleState()
    assert Constant().factor(3.3, s) == 1
    e = Exponential(epochs=2, final_factor=0.01)
    assert [e.factor(x, s) for x in (0, 1, 2, 9)] == pytest.approx([1, 0.1, 0.01, 0.01])
    w = Warmup(epochs=9, warmup_epochs=2, warmup_from=0.2, hold_epochs=1, step_factor=0.5)
    assert [w.factor(x, s) for x in (0, 1, 2, 2.9, 3, 4.5, 5)] == pytest.approx(
        [0.2, 0.6, 1, 1, 1, 0.5, 0.25]
    )


def test_newbob_keeps_then_halves_then_stops() -> None:
    rule, s = Newbob(epochs=9), ScheduleState()
    seen = []
    for loss in (2.0, 1.5, 1.499, 1.4, 1.3995):
        rule.evaluated(loss, s)
        seen.append((rule.factor(0, s), s.stop))
    # 25 % better: keep; 0.07 %: begin to halve; halve again; 0.04 %: stop
    assert seen == [(1, False), (1, False), (0.5, False), (0.25, False), (0.25, True)]


def test_compensation_undoes_the_gain() -> None:
    sgd = SGD()
    assert target_factor(Constant(), sgd, 1 / 8) == 8
    assert target_factor(Constant(lr_compensation="sqrt"), sgd, 1 / 16) == 4
    assert target_factor(Constant(lr_compensation="none"), sgd, 1 / 8) == 1
    assert target_factor(Constant(), AdamW(), 1 / 8) == 1
    assert target_factor(Constant(lr_limit=3.0), sgd, 1 / 8) == 3
    assert [ramp(5.0, x, 10) for x in (0, 5, 10, 20)] == [1, 3, 5, 5]
    assert ramp(5.0, 0, 0) == 5


def test_compensation_that_cannot_take_effect_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lr_compensation = 'full' has no effect.*adamw"):
        target_factor(Constant(lr_compensation="full"), AdamW(), 0.5)
    with pytest.raises(ConfigError, match=r"lr_limit has no effect.*adamw"):
        target_factor(Constant(lr_limit=2.0), AdamW(), 0.5)
    with pytest.raises(ConfigError, match="lr_ramp_frames has no effect"):
        target_factor(Constant(lr_ramp_frames=2, lr_compensation="none"), SGD(), 0.5)
    with pytest.raises(ConfigError, match="lr_limit must be at least 1"):
        Constant(lr_limit=0.5)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: SGD(lr=0), "optimizer.lr"),
        (lambda: SGD(momentum=1.0), "momentum"),
        (lambda: SGD(nesterov=True), "no effect without momentum"),
        (lambda: SGD(clip_norm=0.0), "clip_norm"),
        (lambda: SGD(weight_decay=-1), "weight_decay"),
        (lambda: AdamW(beta1=1.0), "beta1"),
        (lambda: Constant(epochs=0), "epochs"),
        (lambda: Exponential(final_factor=0), "final_factor"),
        (lambda: Warmup(warmup_from=2), "warmup_from"),
        (lambda: Warmup(epochs=10, warmup_epochs=10), "outlast the training"),
        (lambda: Newbob(halving_factor=1), "halving_factor"),
    ],
)
def test_bad_values_are_named(make: Any, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        make()
