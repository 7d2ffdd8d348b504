"""The user's torch optimizer as one of Hocket's: what `hocket.attach` lets a strategy step with.

A strategy steps on flat vectors, a torch optimizer on parameters: before a step the parameters
become views of the vector. What the optimizer remembers stays in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import nn

from hocket.core.flat import Flat, Layout, Parts
from hocket.core.optimizer import Optimizer
from hocket.optim.natural_gradient import NGSGD


@dataclass(frozen=True)
class UsersOptimizer(Optimizer):
    """The user's torch optimizer, as a rule for one step. Its state stays in it."""

    torch_optimizer: Any = None
    model: Any = None
    scales: bool = True
    names: tuple[str, ...] | None = None  # of the parameters in its vectors; None: all trained

    name: ClassVar[str] = "the user's"

    def rate(self) -> float:
        """Return the rate now, as the user's scheduler left it; of several groups the largest."""
        return float(max(group["lr"] for group in self.torch_optimizer.param_groups))

    def fitted(self, layout: Layout) -> UsersOptimizer:
        """Return it for vectors of a layout: those of the whole model, or of some parameters."""
        return replace(self, names=tuple(entry.name for entry in layout.entries))

    def _trained(self) -> list[nn.Parameter]:
        """Return the parameters that its vectors hold, in their order."""
        named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        return [p for n, p in named if self.names is None or n in self.names]

    def _layout(self) -> Layout:
        whole = Layout.of(self.model)
        if self.names is None or len(self.names) == len(whole.entries):
            return whole
        mine = [e for e in whole.entries if e.name in self.names]
        after = [e.offset for e in whole.entries if e.offset > mine[-1].offset]
        return whole.part(range(mine[0].offset, min(after, default=whole.size)))

    @property
    def has_moments(self) -> bool:
        """Whether it remembers anything that is known to us."""
        return bool(_moments_of(self.torch_optimizer))

    def moments(self, params: Flat, state: Any) -> list[Flat]:
        """Gather what the torch optimizer remembers of each parameter."""
        kept = self.torch_optimizer.state
        return [
            self._layout().pack(
                torch.zeros_like(p) if kept[p].get(key) is None else kept[p][key]
                for p in self._trained()
            )
            for key in _moments_of(self.torch_optimizer)
        ]

    def remember_(self, state: Any, moments: Sequence[Flat]) -> None:
        """Replace what it remembers; a parameter that never had a step has none."""
        layout = self._layout()
        for key, moment in zip(_moments_of(self.torch_optimizer), moments, strict=True):
            for p, view in zip(self._trained(), layout.views(moment), strict=True):
                if self.torch_optimizer.state[p].get(key) is not None:
                    self.torch_optimizer.state[p][key].copy_(view)

    def forget_(self, state: Any) -> None:
        """Let the torch optimizer forget what it remembers."""
        self.torch_optimizer.state.clear()

    @property
    def scales_with_gain(self) -> bool:  # type: ignore[override]
        """Whether a step grows with the rate times the gradient."""
        return self.scales

    def init(self, params: Flat) -> None:
        """Nothing: what it remembers is in the torch optimizer."""

    def apply_(self, params: Flat, grad: Flat | Parts, state: Any, lr: float) -> None:
        """Let the user's optimizer step on `params` with `grad`."""
        trained, layout = self._trained(), self._layout()
        for p, view in zip(trained, layout.views(params), strict=True):
            p.data = view
        if not _is_own(grad, trained):
            whole = grad.join() if isinstance(grad, Parts) else grad
            for p, view in zip(trained, layout.views(whole), strict=True):
                p.grad = view.clone() if p.grad is None else p.grad.copy_(view)
        with self._others_left_alone(trained):
            self._step_at(lr)

    @contextmanager
    def _others_left_alone(self, trained: list[nn.Parameter]) -> Iterator[None]:
        """Hide the gradients of parameters that are not in the vectors: they take no step."""
        mine = {id(p) for p in trained}
        others = [(p, p.grad) for p in self.model.parameters() if id(p) not in mine]
        for p, _ in others:
            p.grad = None
        try:
            yield
        finally:
            for p, gradient in others:
                p.grad = gradient

    def _step_at(self, lr: float) -> None:
        """Step at another rate: groups that have lower ones keep their proportion to it."""
        groups, own = self.torch_optimizer.param_groups, self.rate()
        rates = [group["lr"] for group in groups]
        try:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = lr if rate == own else rate * (lr / own)
            self.torch_optimizer.step()
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def _step_(self, params: Flat, grad: Flat, state: Any, lr: float) -> None:
        raise NotImplementedError("apply_ does it all")


def _moments_of(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """Name what a torch optimizer remembers of a parameter, where we know it."""
    if isinstance(optimizer, torch.optim.SGD | NGSGD):
        momentum = any(group["momentum"] for group in optimizer.param_groups)
        return ("momentum_buffer",) if momentum else ()
    known = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam)
    return ("exp_avg", "exp_avg_sq") if isinstance(optimizer, known) else ()


def _is_own(grad: Flat | Parts, trained: list[nn.Parameter]) -> bool:
    """True if these are the very gradients that `backward` left, so nothing need be copied.

    A learner that has left its loop may have none at all, while a mean gradient has, by chance, as
    many pieces as the model has parameters.
    """
    if not isinstance(grad, Parts) or len(grad.pieces) != len(trained):
        return False
    if all(p.grad is None for p in trained):
        return False
    return all(
        p.grad is None or p.grad.data_ptr() == piece.data_ptr()
        for p, (_, piece) in zip(trained, grad.pieces, strict=True)
    )
