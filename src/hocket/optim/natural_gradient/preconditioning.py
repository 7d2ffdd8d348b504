"""Natural gradients from `backward`: preconditions the linear layers of any model in place.

A *tapped* layer computes what `nn.Linear` does. But in the backward pass it returns, instead of Y'X
and Y'1, the natural gradient of `hocket.optim.natural_gradient.online`:

    weight:  s_x s_y Y^' X^                                                               (1)
    bias:    s_x s_y Y^' o^       (o^: the transformed column of ones, not ones)          (2)

so that everything that reads `.grad` (an optimizer, a strategy that averages gradients, clipping)
gets the natural gradient without a change. This costs no second product of the size of (1), which
correcting the gradient afterwards would.

Y are the derivatives of a *mean* over rows; the estimate of F sees N times them, the derivatives of
one row's loss, as in Kaldi. Otherwise its absolute floor would act on well-trained models.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from hocket.errors import require
from hocket.optim.natural_gradient.online import Fisher, OnlineNaturalGradient, Turned, as_rows
from hocket.optim.natural_gradient.simple import simple_natural_gradient

Form: TypeAlias = Literal["online", "simple", "none"]
Sides: TypeAlias = dict[str, Fisher | None]  # "layer.in" and "layer.out"


@dataclass(frozen=True)
class NaturalGradientOptions:
    """Options of the preconditioner; the defaults are those of Kaldi's nnet3."""

    form: Form = "online"
    rank_in: int = 20  # and at most half of the layer's inputs
    rank_out: int = 80
    update_period: int = 4
    num_samples_history: float = 2000.0
    alpha: float = 4.0

    def __post_init__(self) -> None:
        for rank in (self.rank_in, self.rank_out):
            OnlineNaturalGradient(rank, self.update_period, self.num_samples_history, self.alpha)

    def tap(self, model: nn.Module) -> Preconditioner:
        """Precondition the gradients of this model from now on."""
        return Preconditioner(model, self)

    def side(self, rank: int, dim: int) -> OnlineNaturalGradient:
        """Return the preconditioner of one side of a layer."""
        rank = max(1, min(rank, (dim + 1) // 2))  # nnet3's limit
        return OnlineNaturalGradient(rank, self.update_period, self.num_samples_history, self.alpha)


class Scratch(threading.local):
    """Memory for X^ and Y^ that all layers of a model use, one after the other.

    Both are needed only until their product is formed; the next layer then finds the memory in the
    caches. Each thread has its own, and a copy of a model starts without any.
    """

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor] = {}

    def __reduce__(self) -> tuple[type[Scratch], tuple[()]]:
        """Leave the memory out of copies and files."""
        return Scratch, ()

    def like(self, x: torch.Tensor, side: str) -> torch.Tensor | None:
        """Return memory for a matrix like x; None on a device, whose allocator does the same."""
        if x.device.type != "cpu":
            return None
        held = self._held.get(side)
        if held is None or held.dtype != x.dtype or held.numel() < x.numel():
            held = self._held[side] = torch.empty(x.numel(), dtype=x.dtype)
        return held[: x.numel()].view(x.shape)


class Taker(Protocol):
    """Uses both sides of a layer in the backward pass, so that no gradient is returned.

    `hocket.optim.natural_gradient.in_backward.LayerStep` is one.
    """

    def wants(self, weight: torch.Tensor) -> bool:
        """Return whether to use this backward pass of a layer with this weight."""

    def __call__(self, inputs: Turned, outputs: Turned) -> None:
        """Use the two sides; their memory is valid until this returns."""


class Layer:
    """The preconditioners of both sides of one linear layer."""

    take: Taker | None = None

    def __init__(
        self,
        linear: nn.Linear,
        options: NaturalGradientOptions,
        scratch: Scratch,
        take: Taker | None = None,
    ) -> None:
        self.take = take
        self.options = options
        self._scratch = scratch
        self.has_bias = linear.bias is not None
        self.inputs = options.side(options.rank_in, linear.in_features)
        self.outputs = options.side(options.rank_out, linear.out_features)

    def __getstate__(self) -> dict[str, Any]:
        """Leave `take` out of copies: it belongs to this model, so copies return gradients."""
        return {key: value for key, value in vars(self).items() if key != "take"}

    @torch.no_grad()
    def gradient(
        self, x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the natural gradient of weight and bias, eqs. 1 and 2; None if `take` uses it."""
        x_ND, y_NO = as_rows(x), as_rows(y)
        if self.options.form == "online":
            room = self._scratch
            inputs = self.inputs.turn(x_ND, ones=self.has_bias, out=room.like(x_ND, "in"))
            outputs = self.outputs.turn(y_NO, unit=float(len(y_NO)), out=room.like(y_NO, "out"))
        else:
            inputs = _simply(x_ND, self.options.alpha, ones=self.has_bias)
            outputs = _simply(y_NO, self.options.alpha)
        if self.take is None:
            return product(inputs, outputs)
        self.take(inputs, outputs)
        return None, None  # the next layer uses the memory of X^ and Y^


def _simply(x_ND: torch.Tensor, alpha: float, *, ones: bool = False) -> Turned:
    whole = torch.cat([x_ND, x_ND.new_ones(len(x_ND), 1)], 1) if ones else x_ND
    x_hat, scale = simple_natural_gradient(whole, alpha)
    before, after = scale * scale, torch.ones_like(scale)
    if ones:
        return Turned(x_hat[:, :-1], x_hat[:, -1], before, after)
    return Turned(x_hat, None, before, after)


def product(
    inputs: Turned, outputs: Turned, *, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return eqs. 1 and 2. On the CPU the scalar is a factor in the product and costs nothing.

    `out` is memory for (1), on the CPU.
    """
    x_hat, y_hat = inputs.x_hat, outputs.x_hat
    if x_hat.is_cuda:  # a Python number would have to wait for the device
        y_hat = y_hat * (inputs.scale() * outputs.scale())
        bias = None if inputs.ones_hat is None else y_hat.T @ inputs.ones_hat
        return y_hat.T @ x_hat, bias
    scale = inputs.scale_here() * outputs.scale_here()
    nothing = x_hat.new_empty(())
    weight = torch.addmm(nothing, y_hat.T, x_hat, beta=0, alpha=scale, out=out)
    if inputs.ones_hat is None:
        return weight, None
    return weight, torch.addmv(nothing, y_hat.T, inputs.ones_hat, beta=0, alpha=scale)


class _NaturalLinear(torch.autograd.Function):
    """y = x W' + b, whose backward gives the natural gradient of W and b."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, layer: Layer
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.own = layer, weight
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (y,) = grads
        wanted, take = ctx.needs_input_grad[1], ctx.layer.take
        if take is not None and wanted:
            wanted = take.wants(ctx.own)
        x, weight = ctx.saved_tensors
        grad_x = (y @ weight.to(y.dtype)).to(x.dtype) if ctx.needs_input_grad[0] else None
        if not wanted:  # frozen meanwhile, or not needed: nothing to add to F
            return grad_x, None, None, None
        grad_weight, grad_bias = ctx.layer.gradient(x, y)
        return grad_x, grad_weight, grad_bias, None


class TappedLinear(nn.Linear):
    """An `nn.Linear` whose class a `Preconditioner` has replaced; its parameters are the same."""

    tap: Layer

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Compute what `nn.Linear` does."""
        if not torch.is_grad_enabled():
            return super().forward(input)
        result: torch.Tensor = _NaturalLinear.apply(input, self.weight, self.bias, self.tap)  # type: ignore[no-untyped-call]
        return result


class Preconditioner:
    """Taps the linear layers of a model; `state` holds its estimates, and may be replaced."""

    def __init__(
        self,
        model: nn.Module,
        options: NaturalGradientOptions,
        takers: Mapping[str, Taker] | None = None,  # by layer; None: gradients are kept
    ) -> None:
        self._model = model
        self.layers: dict[str, Layer] = {}
        scratch = Scratch()
        for name, linear in linear_layers(model):
            require(
                not isinstance(linear, TappedLinear),
                f"layer {name!r} has a natural-gradient preconditioner already: remove() it first",
            )
            self.layers[name] = Layer(linear, options, scratch, (takers or {}).get(name))
            linear.__class__ = TappedLinear
            assert isinstance(linear, TappedLinear)
            linear.tap = self.layers[name]
        require(
            bool(self.layers),
            f"natural gradient has no effect: {type(model).__name__} has no trained nn.Linear "
            "layer; use plain SGD",
        )

    @property
    def covered(self) -> list[str]:
        """Names of the parameters whose gradient is natural."""
        ends = (".weight", ".bias")
        names = {(name + end).lstrip(".") for name in self.layers for end in ends}
        return [n for n, p in self._model.named_parameters() if n in names and p.requires_grad]

    @property
    def plain(self) -> list[str]:
        """Names of the trained parameters whose gradient is not changed."""
        covered = set(self.covered)
        trained = [n for n, p in self._model.named_parameters() if p.requires_grad]
        return [name for name in trained if name not in covered]

    def note(self) -> str:
        """Return a line for the log: what is preconditioned and what is not."""
        plain = self.plain
        text = f"natural gradient for {len(self.layers)} linear layers"
        if not plain:
            return f"{text}, all parameters"
        shown = ", ".join(plain[:8]) + (f" and {len(plain) - 8} more" if len(plain) > 8 else "")
        return f"{text}; plain SGD for {len(plain)} parameters: {shown}"

    @property
    def state(self) -> Sides:
        """The estimate of every side; None before its first minibatch."""
        return {key: side.state for key, side in self._sides()}

    @state.setter
    def state(self, sides: Sides) -> None:
        for key, side in self._sides():
            side.state = sides.get(key)

    def settle(self) -> None:
        """Add the last minibatch to the estimates; to be called after `backward`, before a step."""
        for _, side in self._sides():
            side.settle()

    def _sides(self) -> Iterator[tuple[str, OnlineNaturalGradient]]:
        for name, layer in self.layers.items():
            yield f"{name}.in", layer.inputs
            yield f"{name}.out", layer.outputs

    def remove(self) -> None:
        """Make the layers plain `nn.Linear` again."""
        for name in self.layers:
            linear = self._model.get_submodule(name)
            linear.__class__ = nn.Linear
            del linear.tap
            self.layers[name].take = None  # graphs made before are alive: they return gradients


def uses_of(model: nn.Module) -> Counter[int]:
    """Count, by identity, how many modules hold each parameter."""
    return Counter(id(p) for module in model.modules() for p in module._parameters.values())


def linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yield layers that are exactly `nn.Linear`; subclasses may compute anything.

    A weight that several modules share is left out: its gradient is a sum over all its uses.
    """
    uses = uses_of(model)
    for name, module in model.named_modules():
        exact = type(module) in (nn.Linear, TappedLinear)
        if not (exact and isinstance(module, nn.Linear)):
            continue
        if module.weight.requires_grad and uses[id(module.weight)] == 1:
            yield name, module


def saved_sides(sides: Sides) -> dict[str, Any]:
    """Return the estimates as plain values, for a checkpoint."""
    return {key: fisher.state_dict() for key, fisher in sides.items() if fisher is not None}


def restored_sides(saved: dict[str, Any]) -> Sides:
    """Return the estimates that `saved_sides` gave as plain values."""
    return {key: Fisher.from_state_dict(values) for key, values in saved.items()}
