"""BMUF: blockwise model-update filtering; block momentum makes up for what averaging loses.

    G(t) = mean_i W_i(t) - W_g(t-1)                                                     (1)
    Delta(t) = eta Delta(t-1) + zeta G(t),     W(t) = W(t-1) + Delta(t)                  (2)
    classical:  W_g(t) = W(t)                                                          (3a)
    Nesterov:   W_g(t) = W(t) + eta Delta(t) = W_g(t-1) + zeta G(t) + eta Delta(t)      (3b)

Reference: K. Chen and Q. Huo, "Scalable training of deep learning machines by incremental block
training with intra-block parallel optimization and blockwise model-update filtering", ICASSP 2016.

| symbol  | here             |                                                               |
|---------|------------------|---------------------------------------------------------------|
| W_g     | `state.start`    | where all learners start the block                            |
| W       | `model(state)`   | the model that is evaluated and saved: W_g - eta Delta        |
| Delta   | `state.delta`    | the filtered step                                             |
| eta     | `block_momentum` | default 1 - 1/P                                               |
| zeta    | `block_lr`       | default 1                                                     |
| (block) | `sync_every`     | minibatches of one learner; 120,000 frames is a usual block   |

The mean of P learners moves as far as one of them on the data of P; in the steady state the filter
multiplies that by zeta / (1 - eta), which is P by default. So the gain is zeta / (P (1 - eta)) = 1:
learners use the sequential rate and schedule as they are.

(3b) is torch's SGD(nesterov=True, lr=zeta, momentum=eta) on the gradient -G (tested). The Nesterov
form of CNTK and fairseq is not the paper's: it takes the look-ahead point as the next W, which is
the classical form with zeta (1 + eta) and moves twice as far (tested, too).

*Warm start*: until `warm_start_frames` frames have been learnt by all, learners average after every
minibatch and the filter rests. Such averages have gain 1/P, so the local rate is P times the
sequential one there (with the ramp and the limit of the schedule): a run that is all warm start is
`kstep` with K = 1 (tested).

Differences from the paper: the mean is weighted by frames. The paper starts from a seed model that
plain SGD trained on 24 to 120 hours; the warm start here is synchronous SGD by all learners. After
a loss eta follows the number of learners left.
Limits: eta close to 1 needs many blocks, or the last blocks' momentum is never delivered (about
1/(1 - eta) = P blocks). Local momentum is forgotten after each block, as carrying it over often
diverges; keep it at 0.9 or below. A schedule that drops the rate leaves Delta at its old scale.

When to use it: when the network is too slow for an exchange per minibatch, and you want to keep the
rate and the schedule of the sequential run. The run must be long: about P^2 blocks or more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from hocket.core.effects import Mean
from hocket.core.learner import Learner
from hocket.core.strategy import Extent
from hocket.errors import require
from hocket.strategies.periodic import BlockFilter, BlockState, LocalMomentum

BLOCKS: Final = 4  # time constants of the filter in a run, at least: 2 % of a step are lost then


@dataclass(frozen=True)
class BMUF(BlockFilter):
    """K local steps, then a filtered average."""

    block_momentum: float | None = None  # eta of the filter. None: 1 - 1/P
    block_lr: float = 1.0  # zeta: the share of the mean's step that is taken
    nesterov: bool = True  # false: the classical form
    warm_start_frames: int = 0  # until so many frames: average every minibatch, without the filter

    name: ClassVar[str] = "bmuf"
    paper: ClassVar[str] = "Chen and Huo, ICASSP 2016"
    summary: ClassVar[str] = "K local steps, then the average, filtered with block momentum"
    usual_momentum: ClassVar[LocalMomentum] = "reset"

    def __post_init__(self) -> None:
        super().__post_init__()
        eta = self.block_momentum
        require(
            eta is None or 0 <= eta < 1,
            f"strategy.block_momentum must be in [0, 1), not {eta}: at 1 a step is never forgotten "
            "and the model diverges; leave it out for 1 - 1/P",
        )
        require(self.block_lr > 0, f"strategy.block_lr must be above 0, not {self.block_lr}")
        require(
            self.warm_start_frames >= 0,
            f"strategy.warm_start_frames must be at least 0, not {self.warm_start_frames}",
        )

    def gain(self, num_learners: int) -> float:
        """zeta / (P (1 - eta)): 1 by default."""
        eta, zeta, _ = self.filter_of(num_learners)
        return zeta / (num_learners * (1.0 - eta))

    def filter_of(self, num_learners: int) -> tuple[float, float, bool]:
        """Return eta, zeta and the form."""
        eta = self.block_momentum
        return 1.0 - 1.0 / num_learners if eta is None else eta, self.block_lr, self.nesterov

    def _warming(self, state: BlockState) -> bool:
        return state.frames < self.warm_start_frames

    def block(self, state: BlockState) -> int:
        """One step while warming up, `sync_every` after."""
        return 1 if self._warming(state) else self.sync_every

    def scale(self, me: Learner, state: BlockState) -> float:
        """While warming up, make up for the gain of plain averages."""
        return me.lr_at(1.0 / len(me.alive)) / me.lr if self._warming(state) else 1.0

    def remarks(self, extent: Extent) -> list[str]:
        """Warn of a run too short for the momentum to arrive."""
        blocks = extent.steps // self.sync_every
        needed = round(BLOCKS / (1.0 - self.filter_of(extent.num_learners)[0]))
        if self.block_momentum == 0 or extent.num_learners == 1 or blocks >= needed:
            return []
        return [
            f"bmuf: {blocks} blocks of {self.sync_every} minibatches are few for this block "
            f"momentum, which delivers a step over {needed // BLOCKS} blocks: set "
            f"strategy.sync_every to {max(1, extent.steps // needed)} or less, or train longer"
        ]

    def outer_(self, me: Learner, state: BlockState, mean: Mean) -> None:
        """Filter, or just average while warming up."""
        if not self._warming(state):
            super().outer_(me, state, mean)
            return
        state.frames += mean.weight
        state.start.copy_(mean.value)
        state.params.copy_(mean.value)
