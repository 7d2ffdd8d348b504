"""An LSTM layer: what the gates read is one affine layer of [x_t, h_{t-1}], as in Kaldi.

    z_t = W [x_t, h_{t-1}] + b,          i, f, o = sigmoid(z_t), g = tanh(z_t)            (1)
    c_t = f c_{t-1} + i g,               m_t = o tanh(c_t)                                (2)
    h_t = P m_t                          (or m_t, without a projection)                   (3)

torch's fused kernel computes (1) and (2), forward and backward. It reads m_{t-1} with the weights
R P, where R is the part of W that reads h: with its own projection it has no fused form on the CPU,
and cannot be exported to ONNX.

The kernel keeps the derivatives of z to itself, and natural gradient needs them. So as soon as
somebody has changed the class of `gates` (`hocket.optim.natural_gradient` does), the kernel is
asked for m alone. All z then come from one call of `gates`, with h_{t-1} as constants, and all h
from one of `project`. The way back through time, which those constants cut off, is walked in
`_ThroughTime`:

    dh_t = dy_t + R' dz_{t+1},           dm_t = P' dh_t                                   (4)
    dc_t = dm_t o (1 - tanh(c_t)^2) + f_{t+1} dc_{t+1},  and dz_t by (1) and (2)          (5)

It gives dh to `project` and dz to `gates`, of all frames at once; they take
their gradients from that as any linear layer does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.autograd.function import once_differentiable

State: TypeAlias = tuple[torch.Tensor, torch.Tensor] | None  # m and c; None: zero


class InKernel(nn.Linear):
    """An affine layer whose weight is thinned out: only the kernel computes with it.

    Natural gradient covers exact `nn.Linear` layers, so it leaves this to plain SGD, and says so.
    """


class Direction(nn.Module):
    """An LSTM layer that reads from the first frame to the last."""

    uses_lstm_kernel = True  # a Gauss-Newton product costs more then

    def __init__(self, num_inputs: int, cells: int, projection: int, dropout: float) -> None:
        """`dropout`: the share of R's elements that are zero while training."""
        super().__init__()
        self.sizes = num_inputs, projection or cells
        self.cells, self.dropout = cells, dropout
        affine = InKernel if dropout else nn.Linear
        self.gates = affine(sum(self.sizes), 4 * cells)  # in torch's order: i, f, g, o
        self.project = affine(cells, projection, bias=False) if projection else None
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(cells**-0.5), cells**-0.5)  # as torch's LSTM begins
        with torch.no_grad():
            self.gates.bias.zero_()
            self.gates.bias[cells : 2 * cells] = 1.0  # forget gates begin open

    def weights(self) -> list[torch.Tensor]:
        """Return what the kernel wants: the inputs' weights, those of m (R P), and two biases."""
        inputs, recurrent = torch.split(self.gates.weight, list(self.sizes), dim=1)
        if self.training and self.dropout:
            recurrent = nn.functional.dropout(recurrent, self.dropout)
        if self.project is not None:
            recurrent = recurrent @ self.project.weight
        bias = self.gates.bias
        return [inputs, recurrent, bias, torch.zeros_like(bias)]

    def projected(self, m: torch.Tensor) -> torch.Tensor:
        """Return h for m; eq. 3."""
        return m if self.project is None else nn.functional.linear(m, self.project.weight)

    @property
    def apart(self) -> bool:
        """True if the gates' derivatives are wanted in this pass."""
        return torch.is_grad_enabled() and type(self.gates) not in (nn.Linear, InKernel)

    def forward(self, x: torch.Tensor, state: State = None) -> tuple[torch.Tensor, State]:
        """Return h of all frames of (N, T, D), and the state after the last."""
        if not self.apart:
            y, after = kernel(x, self.weights(), state)
            return self.projected(y), after
        with torch.no_grad():
            weights = self.weights()
            known, after = kernel(x, weights, state)
            m, c = _initial(x, weights) if state is None else state
            before = self.projected(torch.cat([m[0][:, None], known[:, :-1]], dim=1))
        project = self.project
        recurrent = self.gates.weight.detach()[:, self.sizes[0] :]
        walk = _Walk(c[0], recurrent, None if project is None else project.weight.detach())
        made = _Cells.apply(self.gates(torch.cat([x, before], dim=2)), walk)  # type: ignore[no-untyped-call]
        y = _ThroughTime.apply(made if project is None else project(made), walk)  # type: ignore[no-untyped-call]
        return y, after


def kernel(
    x: torch.Tensor, weights: list[torch.Tensor], state: State, *, both: bool = False
) -> tuple[torch.Tensor, State]:
    """Run torch's kernel of one layer over the frames."""
    given = _initial(x, weights, 2 if both else 1) if state is None else state
    y, m, c = torch.lstm(x, given, weights, True, 1, 0.0, torch.is_grad_enabled(), both, True)
    return y, (m, c)


def _initial(
    x: torch.Tensor, weights: list[torch.Tensor], directions: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    size = (directions, x.shape[0])  # not len(x): an exported graph keeps it open
    cells = weights[1].shape[0] // 4
    return x.new_zeros(*size, cells), x.new_zeros(*size, cells)


@dataclass
class _Walk:
    """What one pass of `Direction` leaves for its way back; frames come first."""

    c: torch.Tensor  # (N, C), before the first frame
    recurrent: torch.Tensor  # R
    projection: torch.Tensor | None  # P
    to_z: torch.Tensor | None = None  # (T, N, 4, C): dz of i, f, g for dc, of o for dm
    to_c: torch.Tensor | None = None  # (T, N, C): dc for dm
    forget: torch.Tensor | None = None  # (T, N, C)
    dz: torch.Tensor | None = None  # (T, N, 4 C)


class _Cells(torch.autograd.Function):
    """(1) and (2), m for z; its backward gives what `_ThroughTime` has found for z."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, walk: _Walk) -> torch.Tensor:
        frames = z.transpose(0, 1)
        i, f, g, o = frames.chunk(4, dim=2)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        new = i * g
        c = torch.empty(len(frames) + 1, *walk.c.shape, dtype=z.dtype, device=z.device)
        c[0] = walk.c
        for t in range(len(frames)):
            torch.addcmul(new[t], f[t], c[t], out=c[t + 1])
        bent = c[1:].tanh()
        walk.to_z = torch.stack(
            [g * i * (1 - i), c[:-1] * f * (1 - f), i * (1 - g * g), bent * o * (1 - o)], dim=2
        )
        walk.to_c, walk.forget = o * (1 - bent * bent), f
        ctx.walk = walk
        m: torch.Tensor = o * bent
        return m.transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.walk.dz.transpose(0, 1), None


class _ThroughTime(torch.autograd.Function):
    """h unchanged; its backward is (4) and (5)."""

    @staticmethod
    def forward(ctx: Any, h: torch.Tensor, walk: _Walk) -> torch.Tensor:
        ctx.walk = walk
        return h.view_as(h)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        walk: _Walk = ctx.walk
        assert walk.to_z is not None
        assert walk.to_c is not None
        assert walk.forget is not None
        dh = grads[0].transpose(0, 1).clone(memory_format=torch.contiguous_format)
        dz, dc = torch.empty_like(walk.to_z), torch.zeros_like(walk.c)
        for t in reversed(range(len(dh))):
            if t + 1 < len(dh):
                dh[t].addmm_(dz[t + 1].flatten(1), walk.recurrent)
                dc *= walk.forget[t + 1]
            dm = dh[t] if walk.projection is None else dh[t] @ walk.projection
            dc.addcmul_(dm, walk.to_c[t])
            torch.mul(walk.to_z[t, :, :3], dc[:, None], out=dz[t, :, :3])
            torch.mul(walk.to_z[t, :, 3], dm, out=dz[t, :, 3])
        walk.dz = dz.flatten(2)
        return dh.transpose(0, 1), None
