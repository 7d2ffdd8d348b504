"""Natural-gradient SGD: the preconditioner's gradients, Kaldi's momentum, and its limits on a step.

    v <- mu v + lr g                         g: natural, a mean over frames               (1)
    delta = (1 - mu) v                       so momentum does not change the rate         (2)
    c_l = min(1, M_l / |delta_l|)            each layer's change is at most M_l           (3)
    c = min(1, M / |c_l delta_l, all l|)     and that of the whole model at most M        (4)
    w_l <- w_l - c c_l delta_l                                                            (5)

Reference: Kaldi's nnet3 (`max-change` per component and per model, `momentum`), after D. Povey, X.
Zhang, S. Khudanpur, arXiv:1410.7455. Where the gradient becomes natural: `preconditioning`.

| symbol | here                | Kaldi's default                                            |
|--------|---------------------|------------------------------------------------------------|
| M_l    | `max_change`        | 0.75, of a layer (its weight and bias together)            |
| M_l    | `max_change_output` | 1.5, of the last layer with a matrix, as the model names it |
| M      | `max_change_global` | 2.0                                                        |
| mu     | `momentum`          | 0 for feed-forward networks, 0.5 for recurrent ones        |

0 means no limit. Rates: Kaldi sums the gradient over the frames of a minibatch, here it is their
mean; so Kaldi's 3e-4 at 512 frames is 0.15 here. Weight decay is added to the natural gradient, not
preconditioned with it. A change that is not finite is not made, and the velocity is set to zero.
(Without any limit, norms are not computed, so this is not noticed.)

Two forms of the same rule: `NGSGD` is a torch optimizer for any training loop; `NaturalSGD`
(`[optimizer] name = "ngsgd"`) is for Hocket's learners, where the worker preconditions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import nn

from hocket.core.flat import Flat, Layout, Parts
from hocket.errors import ContractError, require
from hocket.optim.momentum import MomentumState, WithMomentum
from hocket.optim.natural_gradient import in_backward as early
from hocket.optim.natural_gradient.limits import Limits, layers_of, limited_step_
from hocket.optim.natural_gradient.preconditioning import (
    Form,
    NaturalGradientOptions,
    Preconditioner,
    restored_sides,
    saved_sides,
)

log = logging.getLogger("hocket")
_ONLINE = (
    "rank_in",
    "rank_out",
    "update_period",
    "num_samples_history",
)  # used by the online form only


# ---------------------------------------------------------------------------- for Hocket's learners


@dataclass(frozen=True)
class NaturalSGD(WithMomentum):
    """The `[optimizer]` table of natural-gradient SGD."""

    form: Form = "online"  # simple: from each minibatch alone; none: plain SGD with these limits
    rank_in: int = 20
    rank_out: int = 80
    update_period: int = 4
    num_samples_history: float = 2000.0
    alpha: float = 4.0
    max_change: float = 0.75
    max_change_output: float = 1.5
    max_change_global: float = 2.0

    name: ClassVar[str] = "ngsgd"
    scales_with_gain: ClassVar[bool] = True
    _layout: ClassVar[Layout | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.natural_gradient, self._limits  # each checks itself
        unused = {"online": (), "simple": _ONLINE, "none": (*_ONLINE, "alpha")}[self.form]
        for key in unused:
            require(
                getattr(self, key) == getattr(type(self), key),
                f"optimizer.{key} has no effect with optimizer.form = {self.form!r}: leave it out",
            )

    @property
    def natural_gradient(self) -> NaturalGradientOptions | None:
        """Return the options of the worker's preconditioner; None if there is none."""
        options = NaturalGradientOptions(
            self.form,
            self.rank_in,
            self.rank_out,
            self.update_period,
            self.num_samples_history,
            self.alpha,
        )
        return None if self.form == "none" else options

    @property
    def _limits(self) -> Limits:
        return Limits(self.max_change, self.max_change_output, self.max_change_global)

    def fitted(self, layout: Layout) -> NaturalSGD:
        """Return the same rule for a layout, which says where each layer lies in a flat vector."""
        copy = replace(self)
        object.__setattr__(copy, "_layout", layout)
        return copy

    @property
    def limits_change(self) -> bool:
        """True unless all limits are 0."""
        return self._limits.any

    def tightened(self, factor: float) -> NaturalSGD:
        """Return this rule with `factor` times its limits."""
        keys = [f.name for f in fields(Limits)]
        tighter = replace(self, **{key: factor * getattr(self, key) for key in keys})
        return tighter if self._layout is None else tighter.fitted(self._layout)

    def _step_parts_(self, params: Flat, grad: Parts, state: MomentumState, lr: float) -> None:
        layout = self._layout
        offsets = [e.offset for e in layout.entries] if layout else []
        if self.momentum or self.weight_decay or [at for at, _ in grad.pieces] != offsets:
            self._step_(params, grad.join(), state, lr)
        else:
            self._limited_(params, [piece for _, piece in grad.pieces], lr)

    def _step_(self, params: Flat, grad: Flat, state: MomentumState, lr: float) -> None:
        if self.weight_decay:
            grad = grad.add(params, alpha=self.weight_decay)
        if not self.momentum:
            self._limited_(params, self._pieces(grad), lr)
            return
        if state.velocity is None:
            state.velocity = torch.zeros_like(params)
        state.velocity.mul_(self.momentum).add_(grad, alpha=lr)  # eq. 1
        if not self._limited_(params, self._pieces(state.velocity), 1 - self.momentum):
            state.velocity.zero_()

    def _pieces(self, flat: Flat) -> list[torch.Tensor]:
        if self._layout is None:
            raise ContractError(
                "ngsgd limits each layer's change and must know where layers lie: use the "
                "optimizer of the learner (`me.optimizer`), or `optimizer.fitted(layout)`"
            )
        return [flat[e.offset : e.offset + e.num_values] for e in self._layout.entries]

    def _limited_(self, params: Flat, changes: Sequence[torch.Tensor], rate: float) -> bool:
        assert self._layout is not None
        layers = layers_of({e.name: e.shape for e in self._layout.entries})
        return limited_step_(self._pieces(params), changes, layers, self._limits, rate)


# ---------------------------------------------------------------------------- for any training loop


class NGSGD(torch.optim.Optimizer):
    """Natural-gradient SGD as a torch optimizer.

    >>> optimizer = NGSGD(model, lr=0.1)
    >>> optimizer.zero_grad(); loss.backward(); optimizer.step()

    The loss is a mean over frames. Linear layers are preconditioned from now on: `backward` puts
    the natural gradient into their `.grad`. `remove()` ends that. All other parameters take plain
    SGD; `plain` and the log name them.

    With `in_backward=True` these layers are changed while `backward` runs, and have no `.grad`.
    That saves time and memory in loops that do nothing between `backward` and `step` (see module
    `in_backward`).
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.1,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        form: Form = "online",
        rank_in: int = 20,
        rank_out: int = 80,
        update_period: int = 4,
        num_samples_history: float = 2000.0,
        alpha: float = 4.0,
        max_change: float = 0.75,
        max_change_output: float = 1.5,
        max_change_global: float = 2.0,
        in_backward: bool = False,
    ) -> None:
        self.rule = NaturalSGD(
            lr=lr,
            weight_decay=weight_decay,
            momentum=momentum,
            form=form,
            rank_in=rank_in,
            rank_out=rank_out,
            update_period=update_period,
            num_samples_history=num_samples_history,
            alpha=alpha,
            max_change=max_change,
            max_change_output=max_change_output,
            max_change_global=max_change_global,
        )
        trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        require(bool(trained), "NGSGD: the model has no parameters that are trained")
        self._layers = layers_of({name: p.shape for name, p in trained})
        layer_limits = self._limits_in_backward() if in_backward else []
        super().__init__([p for _, p in trained], {"lr": lr, "momentum": momentum})
        options = self.rule.natural_gradient
        names = [trained[layer[0]][0].rpartition(".")[0] for layer in self._layers]
        takers = {}
        if in_backward:
            each = dict(zip(names, layer_limits, strict=True))
            takers = early.layer_steps(model, each, self._rate)
            self._step_supports_amp_scaling = True  # so that step() can see a GradScaler
        self.preconditioner = None if options is None else Preconditioner(model, options, takers)
        self.plain = self.preconditioner.plain if self.preconditioner else [n for n, _ in trained]
        if self.preconditioner is not None:
            log.info("%s", self.preconditioner.note())
        self._early = list(takers.values())
        self._limits = self.rule._limits
        if in_backward:
            self._limits = Limits(layer_limits[0], layer_limits[-1], 0.0)

    def _limits_in_backward(self) -> list[float]:
        early.refuse(asdict(self.rule))
        given = [self.rule.max_change] * (len(self._layers) - 1) + [self.rule.max_change_output]
        return early.tightened(given, self.rule.max_change_global)

    def _rate(self) -> float:
        return float(self.param_groups[0]["lr"])

    @property
    def in_backward(self) -> bool:
        """True if `backward` makes the steps of the preconditioned layers."""
        return bool(self._early)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Make one step with the gradients that `backward` left."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.preconditioner is not None:
            self.preconditioner.settle()
        (group,) = self.param_groups
        self._end_early_steps(group)
        params, lr, momentum = group["params"], group["lr"], group["momentum"]
        used = [i for i, p in enumerate(params) if p.grad is not None]
        place = {index: at for at, index in enumerate(used)}
        layers = [[place[i] for i in layer if i in place] for layer in self._layers]
        changes = [self._change(params[i], lr, momentum) for i in used]
        rate = 1 - momentum if momentum else lr
        chosen = [params[i] for i in used]
        if not limited_step_(chosen, changes, layers, self._limits, rate) and momentum:
            for change in changes:
                change.zero_()
        return loss

    def _end_early_steps(self, group: Mapping[str, Any]) -> None:
        """Refuse what happened between backward() and step(); then make all layers ready again."""
        if not self._early:
            return
        early.refuse(asdict(self.rule) | {"momentum": group["momentum"]})
        require(
            getattr(self, "grad_scale", None) is None,
            "in_backward: the steps that backward() has made already contain a GradScaler's "
            "factor: train without a GradScaler, or with in_backward=False",
        )
        for made in self._early:
            made.end()

    def _change(self, p: torch.Tensor, lr: float, momentum: float) -> torch.Tensor:
        """Return the gradient, or the velocity of eq. 1."""
        assert p.grad is not None
        grad = p.grad
        if self.rule.weight_decay:
            grad = grad.add(p, alpha=self.rule.weight_decay)
        if not momentum:
            return grad
        held = self.state[p]
        if "momentum_buffer" not in held:
            held["momentum_buffer"] = torch.zeros_like(p)
        velocity: torch.Tensor = held["momentum_buffer"].mul_(momentum).add_(grad, alpha=lr)
        return velocity

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, with the estimates of the Fisher matrices."""
        sides = self.preconditioner.state if self.preconditioner else {}
        return super().state_dict() | {"natural_gradient": saved_sides(sides)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state."""
        require(
            "natural_gradient" in state_dict,
            "this is not the state of an NGSGD: it has no 'natural_gradient'. To continue from a "
            "model that another optimizer trained, load only the model",
        )
        rest = {k: v for k, v in state_dict.items() if k != "natural_gradient"}
        super().load_state_dict(rest)
        if self.preconditioner is not None:
            self.preconditioner.state = restored_sides(state_dict["natural_gradient"])
        for made in self._early:
            made.done = False

    def remove(self) -> None:
        """Let the model's layers compute plain gradients again."""
        if self.preconditioner is not None:
            self.preconditioner.remove()
            self.preconditioner, self._early, self._limits = None, [], self.rule._limits
