"""Natural-gradient SGD that steps during the backward pass, so that no gradient is stored.

As soon as both sides of a layer are known,

    w_l <- w_l - c_l lr s_x s_y Y^' X^                                                     (1)

is added to the weight as one product, while that weight is in the caches (the derivative for the
layer below has just been multiplied by it). The model's gradient is not written, not read for its
norm and not read again for the step, and needs no memory.

The limits on a step (`ngsgd`, eqs. 3 and 4) hold without measuring the change first. Because s
gives each side back the length that its preconditioner took away,

    |lr s_x s_y Y^' X^|  <=  lr s_x |X^| s_y |Y^|  =  lr |X| |Y|                           (2)

and both norms are known. The product is formed separately and measured only if (2) is above a
layer's limit. The factor for the limit M of the whole model would be known only after the last
layer. Instead, each layer's limit is tightened, so that all layers together cannot exceed M:

    M_l <- M_l min(1, M / |M_1, M_2, ...|)                                                 (3)

Differences from stepping afterwards: (3) replaces the common factor, so steps near the limits are
shorter. A layer whose change is not finite keeps its weight; the other layers still change. Limits:
everything that needs gradients before a step (clipping, accumulation, loss scaling, averaging over
learners, momentum, weight decay) needs them stored; a layer may be used only once in a forward
pass. On a GPU, every layer waits for its norms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from hocket.errors import ContractError, require
from hocket.optim.natural_gradient.limits import length_of, within
from hocket.optim.natural_gradient.online import Turned
from hocket.optim.natural_gradient.preconditioning import (
    Scratch,
    linear_layers,
    product,
    uses_of,
)
from hocket.support.distributed import num_processes


class LayerStep:
    """Applies eq. 1 to one layer, once in every step of the model."""

    def __init__(
        self,
        name: str,
        linear: nn.Linear,
        limit: float,
        rate: Callable[[], float],
        room: Scratch,
    ) -> None:
        self._name = name
        self._room = room
        self._linear = linear
        self._limit = limit
        self._rate = rate
        self.done = False

    def wants(self, weight: torch.Tensor) -> bool:
        """Return whether the pass needs this gradient; refuse uses that break an early step."""
        own = self._linear.weight
        if weight is not own:
            raise ContractError(
                f"in_backward: layer {self._name!r} was used with another weight than its own "
                "(torch.func.functional_call?); that needs NGSGD(..., in_backward=False)"
            )
        if not (own.requires_grad and self._is_asked_for(own)):
            return False
        if self.done:
            raise ContractError(
                f"in_backward: backward() reached layer {self._name!r} twice before step(), and "
                "the first time has changed it already. Either backward() was called twice, "
                "perhaps for another model's loss, or the model uses the layer twice. To add up "
                "gradients, use NGSGD(..., in_backward=False); if gradients only pass through this "
                "model, freeze it meanwhile (requires_grad_(False))"
            )
        self.done = True
        return True

    def _is_asked_for(self, weight: torch.Tensor) -> bool:
        """Return whether this pass computes the weight's gradient, not only that of the inputs."""
        will_run = getattr(torch._C, "_will_engine_execute_node", None)
        if will_run is None:
            return True
        try:
            return bool(will_run(get_gradient_edge(weight).node))
        except RuntimeError as error:
            raise ContractError(
                f"in_backward: torch.autograd.grad asks for a gradient of layer {self._name!r}, "
                "but none is stored: use loss.backward(), or NGSGD(..., in_backward=False)"
            ) from error

    def __call__(self, inputs: Turned, outputs: Turned) -> None:
        """Change weight and bias by eq. 1, within the limit."""
        weight, rate = self._linear.weight, self._rate()
        bound = rate * math.sqrt(float(inputs.before) * float(outputs.before))  # eq. 2
        step = -rate * inputs.scale_here() * outputs.scale_here()
        if not math.isfinite(bound) or not math.isfinite(step):
            return
        if (self._limit and bound > self._limit) or weight.dtype != inputs.x_hat.dtype:
            self._step_apart(inputs, outputs, rate)
            return
        weight.addmm_(outputs.x_hat.T, inputs.x_hat, alpha=step)  # eq. 1
        if inputs.ones_hat is not None and self._linear.bias.requires_grad:
            self._linear.bias.addmv_(outputs.x_hat.T, inputs.ones_hat, alpha=step)

    def end(self) -> None:
        """End the model's step; refuse a gradient left by another use (a second step)."""
        left = [p for p in self._linear.parameters() if p.grad is not None]
        if left:
            raise ContractError(
                f"in_backward: layer {self._name!r} has a .grad at step(), from before or from a "
                "use of its parameters outside the layer (a penalty in the loss?), but backward() "
                "has changed the layer already: clear .grad, or use NGSGD(..., in_backward=False)"
            )
        self.done = False

    def _step_apart(self, inputs: Turned, outputs: Turned, rate: float) -> None:
        """Apply eq. 1 with the change in memory, to measure its length or to round it."""
        params = [self._linear.weight, self._linear.bias]
        same = params[0].dtype == inputs.x_hat.dtype
        room = self._room.like(params[0], "change") if same else None
        pairs = zip(params, product(inputs, outputs, out=room), strict=True)
        changes = [(p, piece) for p, piece in pairs if piece is not None and p.requires_grad]
        length = rate * length_of([piece for _, piece in changes])
        if not math.isfinite(length):
            return
        step = -rate * within(length, self._limit)
        for p, piece in changes:
            p.add_(piece, alpha=step)


def refuse(rule: Mapping[str, Any]) -> None:
    """Refuse options that need a stored gradient."""
    for key, needed in (("form", "online"), ("momentum", 0.0), ("weight_decay", 0.0)):
        require(
            rule[key] == needed,
            f"in_backward needs {key} = {needed!r}, not {rule[key]!r}: anything else needs a "
            "stored gradient",
        )
    require(
        num_processes() == 1,
        "in_backward leaves no gradients to average over the processes of torch.distributed: use "
        "in_backward=False with DistributedDataParallel and the like",
    )


def refuse_shared(model: nn.Module) -> None:
    """Refuse layers that share parameters: other modules would change them too, beyond limits."""
    uses = uses_of(model)
    for name, linear in linear_layers(model):
        own = linear._parameters
        require(
            set(own) <= {"weight", "bias"}
            and all(p is None or uses[id(p)] == 1 for p in own.values()),
            f"in_backward: layer {name!r} shares a parameter with another module or has more than "
            "weight and bias: use in_backward=False",
        )


def tightened(limits: Sequence[float], whole: float) -> list[float]:
    """Return layer limits that together cannot exceed the limit of the whole model, eq. 3."""
    if not whole:
        return list(limits)
    require(
        all(limits),
        "in_backward: max_change_global works by limiting every layer, so max_change and "
        "max_change_output cannot be 0 unless max_change_global is 0 too",
    )
    factor = min(1.0, whole / math.hypot(*limits))
    return [factor * limit for limit in limits]


def layer_steps(
    model: nn.Module, limits: Mapping[str, float], rate: Callable[[], float]
) -> dict[str, LayerStep]:
    """Return what changes each preconditioned layer as soon as its change is known."""
    refuse_shared(model)
    room = Scratch()
    return {
        name: LayerStep(name, linear, limits[name], rate, room)
        for name, linear in linear_layers(model)
    }
