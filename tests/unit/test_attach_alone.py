"""`hocket.attach` in one process: the user's loop as it was, what is refused, and the rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from conformance.cases import CASES, Case
from torch import nn

import hocket
from hocket import ASGD, EASGD, AdaptiveKStep, AllReduceSGD, KStep
from hocket.core.codec import FLOAT32
from hocket.core.learner import Learner
from hocket.core.strategy import State
from hocket.errors import ConfigError
from hocket.optim.users_optimizer import UsersOptimizer


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))


def batches(count: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = torch.Generator().manual_seed(2)
    return [
        (torch.randn(5, 6, generator=rng), torch.randint(3, (5,), generator=rng))
        for _ in range(count)
    ]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


def loop(kind: str, strategy: Any = None, accumulate: int = 1) -> dict[str, torch.Tensor]:
    """A loop with dropout, batch-norm, accumulation, clipping and a scheduler."""
    model = network()
    optimizer = OPTIMIZERS[kind](model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    torch.manual_seed(7)

    def run(step: Any) -> None:
        for number, (x, y) in enumerate(batches()):
            (nn.functional.cross_entropy(model(x), y) / accumulate).backward()  # type: ignore[no-untyped-call]
            if (number + 1) % accumulate:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            step()
            optimizer.zero_grad()
            scheduler.step()

    if strategy is None:
        run(optimizer.step)
    else:
        with hocket.attach(model, optimizer, strategy=strategy) as dist:
            run(dist.step)
    return {k: v.clone() for k, v in model.state_dict().items()}


ALONE = [
    c
    for c in CASES
    if c.one_learner_is_sgd and c.codec is FLOAT32 and not c.strategy.needs_attendance
]


@pytest.mark.parametrize("case", ALONE, ids=lambda c: c.id)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_alone_it_is_the_plain_loop_bit_for_bit(case: Case, kind: str, accumulate: int) -> None:
    plain = loop(kind, accumulate=accumulate)
    ours = loop(kind, case.strategy, accumulate)
    assert plain.keys() == ours.keys()
    for key in plain:
        assert torch.equal(plain[key], ours[key]), key


def test_the_model_keeps_its_own_memory_and_unused_parameters_stay_unused() -> None:
    model = network()
    spare = nn.Parameter(torch.ones(3))
    model.register_parameter("spare", spare)
    memory = [p.data_ptr() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    with hocket.attach(model, optimizer, strategy="allreduce") as dist:
        for x, y in batches(3):
            nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            dist.step()
    assert [p.data_ptr() for p in model.parameters()] == memory
    assert torch.equal(spare, torch.ones(3)), "without a gradient there is no decay either"


# ------------------------------------------------------------------ what is refused


def test_misuse_is_named() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dist = hocket.attach(model, optimizer)
    with pytest.raises(ConfigError, match="only inside `with"):
        dist.step()
    with dist, pytest.raises(ConfigError, match=r"no gradients: call loss.backward\(\)"):
        dist.step()
    with pytest.raises(ConfigError, match="has no effect with optimizer"):
        hocket.attach(model, torch.optim.Adam(model.parameters()), lr="sequential")
    with pytest.raises(ConfigError, match=r"\['epochs'\] has no effect"):
        hocket.attach(model, optimizer, epochs=3)
    with pytest.raises(ConfigError, match="follows the held-out loss"):
        hocket.attach(model, optimizer, strategy=AdaptiveKStep())
    with pytest.raises(ConfigError, match="the velocity is the strategy's"):
        hocket.attach(
            model,
            torch.optim.SGD(model.parameters(), weight_decay=0.1),
            strategy=EASGD(momentum=0.9),
        )
    with pytest.raises(ConfigError, match="MASTER_ADDR"):
        hocket.attach(model, optimizer, rank=0, world_size=2)


@pytest.mark.parametrize(
    "options",
    [
        {"servers": 1},
        {"servers": 0, "warm_start_frames": 10},
        {"servers": 0, "barrier_frames": 10},
    ],
    ids=["servers", "warm start", "barrier"],
)
def test_asgd_in_a_loop_of_ones_own_lets_learners_serve_and_nobody_wait(
    options: dict[str, Any],
) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"lets ranks wait for others.*\(servers = 0\)"):
        hocket.attach(model, optimizer, strategy=ASGD(**options))
    assert hocket.attach(model, optimizer, strategy=ASGD(servers=0))


def test_a_state_in_the_middle_of_a_block_is_refused() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hocket.attach(model, optimizer, strategy=KStep(sync_every=2)) as dist:
        for number, (x, y) in enumerate(batches(5)):
            assert dist.at_boundary == (number % 2 == 0)
            if not dist.at_boundary:
                with pytest.raises(ConfigError, match="at_boundary"):
                    dist.state_dict()
            nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            dist.step()


# ------------------------------------------------------------------ the rate


@dataclass(frozen=True)
class Rates(AllReduceSGD):
    """Synchronous SGD that notes the rate which a strategy sees."""

    seen: list[float] = field(default_factory=list)

    name: ClassVar[str] = "rates"

    async def run(self, me: Learner, state: State) -> State:
        while (await me.boundary(state)).go_on:
            grad = await me.mean_gradient(state.params)
            self.seen.append(me.lr)
            me.step_(state.params, grad, state.optimizer)
            await me.commit()
        return state


def test_a_strategy_sees_the_rate_of_the_users_scheduler() -> None:
    strategy = Rates()
    loop("sgd", strategy)
    assert strategy.seen[:8] == pytest.approx([0.1 * 0.9**n for n in range(8)])


def test_groups_keep_their_proportion_at_another_rate() -> None:
    weight, bias = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    groups = [{"params": [weight], "lr": 0.1}, {"params": [bias], "lr": 0.025}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    rule = UsersOptimizer(torch_optimizer=optimizer)
    weight.grad, bias.grad = torch.ones(3), torch.ones(3)
    rule._step_at(0.4)
    assert torch.allclose(weight, torch.full((3,), 0.6))
    assert torch.allclose(bias, torch.full((3,), 0.9))
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.025]
