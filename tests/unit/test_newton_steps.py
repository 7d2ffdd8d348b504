"""How hessian-free chooses its step, with losses that are made up."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from hocket import HessianFree
from hocket.core.effects import Scores
from hocket.strategies.conjugate_gradients import ConjugateGradients, Iterate, adjusted
from hocket.strategies.hessian_free import HessianFreeState


@dataclass(frozen=True)
class Told(HessianFree):
    """Its held-out loss is a function of how far it goes."""

    name = "told"
    losses: Any = None

    async def held_out(self, me: Any, state: Any, params: Any) -> float:
        return float(self.losses(float(params[0])))


class Silent:
    """A learner that only listens."""

    def __init__(self) -> None:
        self.said: dict[str, float] = {}

    def measure(self, name: str, value: float) -> None:
        self.said[name] = value


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    with pytest.raises(StopIteration) as caught:
        coroutine.send(None)
    return caught.value.value


def tried(losses: Any, iterates: list[tuple[float, float]]) -> tuple[bool, Any, Silent]:
    """Offer directions of these lengths, with their q; the loss before is 1."""
    state = HessianFreeState(torch.zeros(1), None, torch.zeros(1), 1.0)
    offered = [Iterate(i, torch.tensor([d]), q) for i, (d, q) in enumerate(iterates)]
    me = Silent()
    strategy: Any = Told(losses=losses)
    taken = finished(strategy.try_out(me, state, torch.tensor([-1.0]), offered, 1.0))
    return taken, state, me


def test_it_goes_back_while_the_loss_improves() -> None:
    losses = {1.0: 0.9, 2.0: 0.5, 3.0: 0.4, 4.0: 0.6, 5.0: 0.7}
    taken, state, _ = tried(losses.get, [(d, -1.0) for d in losses])
    assert taken
    assert state.params.item() == 3.0
    assert state.start.item() == pytest.approx(0.95 * 5.0)  # of the last iterate


def test_it_stops_going_back_at_the_first_that_is_worse() -> None:
    losses = {1.0: 0.1, 2.0: 0.9, 3.0: 0.4, 4.0: 0.6}
    assert tried(losses.get, [(d, -1.0) for d in losses])[1].params.item() == 3.0


def test_it_goes_on_past_worse_ones_as_long_as_none_is_better_than_the_model() -> None:
    """The loss before is 1: d_3 is worse than d_4, and d_1 is better than both and the model."""
    losses = {1.0: 0.3, 2.0: 0.9, 3.0: 1.6, 4.0: 1.5}
    taken, state, _ = tried(losses.get, [(d, -1.0) for d in losses])
    assert taken
    assert state.params.item() == 1.0
    assert state.damping == 1.5  # by the last one, which made things worse


def test_it_goes_back_from_where_the_loss_is_infinite() -> None:
    losses = {1.0: 0.5, 2.0: 0.7, 3.0: float("inf"), 4.0: float("inf")}
    taken, state, _ = tried(losses.get, [(d, -1.0) for d in losses])
    assert taken
    assert state.params.item() == 1.0
    assert state.damping == 1.5


@pytest.mark.parametrize(
    ("q", "factor"), [(-1.0, 1.5), (-0.39, 1.5), (-0.2, 1.0), (-0.11, 1 / 1.5)]
)
def test_damping_goes_by_the_last_iterate_not_by_the_one_chosen(q: float, factor: float) -> None:
    """The last one lowers the loss by 0.095; the one chosen by 0.8, which would lower lambda."""
    losses = {1.0: 0.2, 2.0: 0.905}
    _, state, me = tried(losses.get, [(1.0, -1.0), (2.0, q)])
    assert state.params.item() == 1.0
    assert state.damping == pytest.approx(factor)
    assert me.said["ratio"] == pytest.approx(-0.095 / q)
    assert [adjusted(2.0, r) for r in (0.2, 0.5, 0.8)] == [3.0, 2.0, 2 / 1.5]


def test_nothing_is_done_if_nothing_is_better() -> None:
    taken, state, _ = tried(lambda d: 1.0 + d, [(1.0, -1.0), (2.0, -1.0)])
    assert not taken
    assert state.params.item() == 0.0
    assert state.damping == 1.0  # raised by whoever asked


def test_the_step_is_shortened_until_the_loss_has_fallen_enough() -> None:
    """At a = 1 it is below the loss before, but by less than 0.01 of the slope promises."""
    losses = {1.0: 0.995, 0.8: 0.993, 0.64: 0.9}
    _, state, me = tried(lambda d: losses[round(d, 6)], [(1.0, -1.0)])
    assert me.said["step"] == pytest.approx(0.64)
    assert state.params.item() == pytest.approx(0.64)


def test_damping_is_raised_and_the_start_forgotten_until_a_step_is_better() -> None:
    """Three tries with the same gradient: 1, then 3/2, then 9/4 of the damping."""
    seen: list[tuple[float, float]] = []

    class Stubborn(Told):
        async def solve(self, me: Any, state: Any, evidence: Any) -> ConjugateGradients:
            seen.append((state.damping, state.start.item()))
            run = ConjugateGradients(torch.tensor([1.0]), state.damping, lambda r: r.clone())
            run.step_(torch.tensor([0.0]))  # no curvature but the damping: d = -1 / lambda
            return run

    state = HessianFreeState(torch.zeros(1), None, torch.full((1,), 0.7), 1.0)
    strategy: Any = Stubborn(losses=lambda d: 1.0 if d == 0.0 else 3.0)
    me = Silent()
    finished(strategy.improve(me, state, None))
    assert seen == [(1.0, pytest.approx(0.7)), (1.5, 0.0), (2.25, 0.0)]
    assert state.damping == 1.5 * 2.25
    assert state.params.item() == 0.0
    assert me.said["rejected"] == 1.0


class Diminished(Silent):
    """One of three learners is lost during the first evaluation, and with it its slice."""

    rank, size = 0, 3

    def __init__(self) -> None:
        super().__init__()
        self.alive: tuple[int, ...] = (0, 1, 2)
        self.calls = 0

    async def evaluate(self, params: Any, which: str, items: int) -> Scores:
        self.calls += 1
        lost = self.alive == (0, 1, 2)
        self.alive = (0, 1)
        return Scores(loss=0.1 if lost else 0.7, accuracy=0.5, frames=20 if lost else 30)


def test_a_held_out_loss_without_a_lost_learners_slice_is_taken_again() -> None:
    """Losses on different frames cannot be compared; what it cost is counted nevertheless."""
    state, me = HessianFreeState(torch.zeros(1), None, torch.zeros(1), 1.0), Diminished()
    strategy: Any = HessianFree(held_out_items=3)
    assert finished(strategy.held_out(me, state, state.params)) == 0.7
    assert me.calls == 2
    assert state.work == pytest.approx((20 + 30) / 3)
