"""DiLoCo: many local AdamW steps, then an outer Nesterov step on the mean of their models.

    delta(t) = theta(t-1) - mean_i theta_i(t)                                           (1)
    v(t) = mu v(t-1) + delta(t),   theta(t) = theta(t-1) - lr (delta(t) + mu v(t))       (2)

Reference: A. Douillard et al., "DiLoCo: Distributed low-communication training of language models",
arXiv:2311.08105 (2023).

| symbol | here             |                                                              |
|--------|------------------|--------------------------------------------------------------|
| H      | `sync_every`     | local steps, default 500                                     |
| theta  | `state.start`    | the common model, where learners start; what is evaluated    |
| lr     | `outer_lr`       | default 0.7                                                  |
| mu     | `outer_momentum` | default 0.9                                                  |
| v      | -`state.delta` / lr | the outer velocity                                        |

It is the code of `bmuf` with other numbers: theta = W_g, zeta = lr, eta = mu (tested). `outer_lr=1`
with `outer_optimizer="sgd"` is model averaging (tested); "momentum" is the classical form.

The inner optimizer is AdamW unless another is configured; its moments stay with each learner. The
given rate is used as it is on every learner: no compensation. (In the steady state the outer step
multiplies the mean's movement by 0.7 / (1 - 0.9) = 7, whatever the number of learners: a gain of
7/P.)

Differences from the paper: the mean is weighted by frames. The paper evaluates theta, as here; the
Nesterov look-ahead is part of it, as in torch's SGD (`bmuf` evaluates the point behind it).
Limits: the outer momentum needs many rounds; H = 500 is for long runs. A run with fewer than 40
outer steps begins with a remark that names a better H.

When to use it: when learners are joined by a very slow network (sites far apart), the run is long,
and AdamW is the optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias, get_args

from hocket.core.flat import Flat
from hocket.core.strategy import Extent
from hocket.errors import require
from hocket.strategies.periodic import BlockFilter, BlockState

Outer: TypeAlias = Literal["nesterov", "momentum", "sgd"]
ROUNDS: Final = 40  # outer steps, at least: four times what a momentum of 0.9 takes to arrive


@dataclass(frozen=True)
class DiLoCo(BlockFilter):
    """Local AdamW, outer Nesterov SGD."""

    sync_every: int = 500  # H: local steps between two outer steps
    outer_optimizer: Outer = "nesterov"  # or momentum, or sgd
    outer_lr: float = 0.7  # rate of the outer step
    outer_momentum: float | None = None  # mu. None: 0.9, or 0 with "sgd"

    name: ClassVar[str] = "diloco"
    paper: ClassVar[str] = "Douillard et al. 2023 (arXiv:2311.08105)"
    summary: ClassVar[str] = "many local AdamW steps, then an outer Nesterov step"
    compensates: ClassVar[bool] = False
    usual_optimizer: ClassVar[str] = "adamw"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.outer_optimizer in get_args(Outer),
            f"strategy.outer_optimizer must be one of {', '.join(get_args(Outer))}, not "
            f"{self.outer_optimizer!r}: it steps on the mean of the models",
        )
        require(self.outer_lr > 0, f"strategy.outer_lr must be above 0, not {self.outer_lr}")
        mu = self.outer_momentum
        require(mu is None or 0 <= mu < 1, f"strategy.outer_momentum must be in [0, 1), not {mu}")
        require(
            not mu or self.outer_optimizer != "sgd",
            "strategy.outer_momentum has no effect with outer_optimizer = 'sgd': choose "
            "'momentum' or 'nesterov'",
        )

    def gain(self, num_learners: int) -> float:
        """lr / (P (1 - mu)): 7/P by default; no rate is derived from it."""
        mu, lr, _ = self.filter_of(num_learners)
        return lr / (num_learners * (1.0 - mu))

    def filter_of(self, num_learners: int) -> tuple[float, float, bool]:
        """Return mu, lr and the form."""
        usual = 0.0 if self.outer_optimizer == "sgd" else 0.9
        mu = usual if self.outer_momentum is None else self.outer_momentum
        return mu, self.outer_lr, self.outer_optimizer == "nesterov"

    def remarks(self, extent: Extent) -> list[str]:
        """Warn of an H too large for the length of the run."""
        rounds = extent.steps // self.sync_every
        if rounds >= ROUNDS:
            return []
        return [
            f"diloco: {self.sync_every} local steps between two outer steps leave {rounds} of "
            f"them in this run of {extent.steps} steps a learner: set strategy.sync_every to "
            f"{max(1, extent.steps // ROUNDS)} or less, or train longer"
        ]

    def model(self, state: BlockState) -> Flat:
        """theta, where learners start."""
        return state.params
