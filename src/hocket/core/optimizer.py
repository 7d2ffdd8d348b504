"""The protocol of an optimizer: flat vectors in, flat vectors changed in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from hocket.core.flat import Flat, Layout, Parts
from hocket.core.numerics import clip_coefficient
from hocket.errors import require


class GradientTap(Protocol):
    """Changes the gradients of a model where backward makes them."""

    state: dict[str, Any]  # what it has learnt; part of the worker's state

    def note(self) -> str:
        """Say, for the run's record, which layers it covers."""
        ...


class Preconditioning(Protocol):
    """How gradients are to be preconditioned; `hocket.optim.natural_gradient` has the one."""

    def tap(self, model: nn.Module) -> GradientTap:
        """Precondition the gradients of this model from now on."""
        ...


@dataclass(frozen=True)
class Optimizer(ABC):
    """A rule for one step. Holds constants only; what it remembers is in its state."""

    lr: float = 0.1  # of the sequential run; see hocket.optim.compensation
    weight_decay: float = 0.0
    clip_norm: float | None = None  # of the whole gradient, before weight decay

    name: ClassVar[str]
    scales_with_gain: ClassVar[bool]  # does a step double when the rate doubles?

    def __post_init__(self) -> None:
        require(self.lr > 0, f"optimizer.lr must be above 0, not {self.lr}")
        require(
            self.weight_decay >= 0, f"optimizer.weight_decay must be >= 0, not {self.weight_decay}"
        )
        require(
            self.clip_norm is None or self.clip_norm > 0,
            f"optimizer.clip_norm must be above 0, not {self.clip_norm}; leave it out for none",
        )

    def rate(self) -> float:
        """Return the rate before schedule and compensation."""
        return self.lr

    @property
    def natural_gradient(self) -> Preconditioning | None:
        """Return how the worker is to precondition its gradients; None: not at all."""
        return None

    def fitted(self, layout: Layout) -> Optimizer:
        """Return this rule for vectors of a known layout; most do not care."""
        return self

    @property
    def limits_change(self) -> bool:
        """True if a step has a largest size."""
        return False

    def tightened(self, factor: float) -> Optimizer:
        """Return this rule with `factor` times the largest step, where it has one."""
        return self

    @abstractmethod
    def init(self, params: Flat) -> Any:
        """Return the state before the first step."""

    @abstractmethod
    def _step_(self, params: Flat, grad: Flat, state: Any, lr: float) -> None:
        """Change `params` and `state` by one step; `grad` is read only."""

    @property
    def has_moments(self) -> bool:
        """True if a step depends on what was remembered of the steps before."""
        return False

    def moments(self, params: Flat, state: Any) -> list[Flat]:
        """Return what is remembered, as vectors like `params`; zero where nothing is yet."""
        return []

    def remember_(self, state: Any, moments: Sequence[Flat]) -> None:  # noqa: B027
        """Put other vectors in their place."""

    def forget_(self, state: Any) -> None:  # noqa: B027
        """Forget everything, as before the first step."""

    @torch.no_grad()
    def apply_(self, params: Flat, grad: Flat | Parts, state: Any, lr: float) -> None:
        """Clip, then step; a gradient in parts is used as it lies where the rule allows."""
        if self.clip_norm is None and isinstance(grad, Parts):
            self._step_parts_(params, grad, state, lr)
            return
        grad = grad.join() if isinstance(grad, Parts) else grad
        if self.clip_norm is not None:
            coefficient = clip_coefficient(grad, self.clip_norm)
            grad = grad * coefficient if coefficient < 1.0 else grad
        self._step_(params, grad, state, lr)

    def _step_parts_(self, params: Flat, grad: Parts, state: Any, lr: float) -> None:
        """Step with a gradient in parts: bit for bit the same as with the whole."""
        self._step_(params, grad.join(), state, lr)


def memory_of(rule: Optimizer, olds: Sequence[tuple[Any, int]], params: Flat, place: range) -> Any:
    """Return what is remembered of a range of a model, given that of all its parts in their order.

    `olds`: each part's state, and its size; `params`: the range's own. Vectors are cut; numbers
    beside them (AdamW's steps) are those of the first part.
    """
    fresh = rule.init(params)
    if not olds or not is_dataclass(fresh):
        # Whoever had it died while others saved; or a torch optimizer keeps its memory itself.
        return fresh
    pieces = [rule.moments(params.new_empty(size), one) for one, size in olds]
    whole = [torch.cat(list(vectors)) for vectors in zip(*pieces, strict=True)]
    rule.remember_(fresh, [vector[place.start : place.stop] for vector in whole])
    for one in fields(fresh):
        value = getattr(olds[0][0], one.name)
        if isinstance(value, int | float):
            setattr(fresh, one.name, value)
    return fresh
