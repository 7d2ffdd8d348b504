"""D-PSGD: synchronous rounds in which each learner averages with its neighbours only.

    w_i(k+1) = sum_j T(k)_ji w_j(k) - gamma * g_i(w_i(k))                                  (1)

References: X. Lian, C. Zhang, H. Zhang, C.-J. Hsieh, W. Zhang, J. Liu, "Can decentralized
algorithms outperform centralized algorithms?", NIPS 2017 (arXiv:1705.09056); the ring drawn afresh
every round: W. Zhang, X. Cui, et al., ICASSP 2020; one-peer exponential graphs: B. Ying et al.,
NeurIPS 2021.

| symbol | here                | `mixing`                                              |
|--------|---------------------|-------------------------------------------------------|
| T(k)   | `topology.of_round` | `ring`: 1/3 self and each neighbour, the same for ever |
|        |                     | `random_ring`: that ring in an order all draw alike    |
|        |                     | `exponential`: half from 1, 2, 4, ... places before    |
|        |                     | `complete`: the mean of all (delay-by-one)             |
| w_i    | `state.params`      | this learner's model                                  |
| gamma  | `me.lr`             | derived from the sequential rate, gain 1/P            |

It stands between `allreduce` (everybody waits for everybody, every model is the same) and `adpsgd`
(nobody waits, models differ): a learner waits for its neighbours of the round, models differ by
what has not been mixed yet. Models travel while gradients are computed. With `complete` it is
delay-by-one.

Differences from the paper: one number is added up over all learners at the end of a round, so that
all know who lives and the account of the data stays common. It costs latency, not bandwidth, and
makes a round wait for the slowest learner, where the paper's waits for the slowest neighbour.
A lost learner's weight falls to whoever waited for it; from the next round on the topology is
drawn up among the living.

Limits: the fixed ring mixes the more slowly the longer it is (`hocket.core.topology`).

When to use it: to study which neighbours should be averaged, or as the synchronous counterpart of
`adpsgd`. For speed alone use `allreduce` or `adpsgd`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from hocket.core import topology
from hocket.core.flat import Flat
from hocket.core.learner import Learner
from hocket.core.optimizer import Optimizer
from hocket.core.strategy import MIXES_MODELS, State, Strategy
from hocket.errors import PeerLostError, require


@dataclass
class RoundState(State):
    """The model and the number of the round."""

    rounds: int = 0


@dataclass(frozen=True)
class DPSGD(Strategy[RoundState]):
    """Synchronous decentralised SGD."""

    mixing: topology.Rounds = "ring"  # who averages with whom: see the table above
    mixing_seed: int = 0  # of the random ring; the same on all learners

    name: ClassVar[str] = "dpsgd"
    paper: ClassVar[str] = "Lian et al., NIPS 2017 (arXiv:1705.09056); Zhang et al., ICASSP 2020"
    summary: ClassVar[str] = "rounds in which each learner averages with its neighbours"
    uncoded_because: ClassVar[str] = MIXES_MODELS
    commits_when: ClassVar[str] = "the round is over"
    synchronous: ClassVar[bool] = True
    uses_messages: ClassVar[bool] = True
    evaluates: ClassVar = "average"

    def __post_init__(self) -> None:
        require(
            self.mixing in topology.ROUNDS,
            f"strategy.mixing must be one of {', '.join(topology.ROUNDS)}, not {self.mixing!r}",
        )

    def gain(self, num_learners: int) -> float:
        """A step of one learner moves the mean of P models by a P-th of it."""
        return 1.0 / num_learners

    def init(self, params: Flat, optimizer: Optimizer) -> RoundState:
        """No round yet."""
        return RoundState(params, optimizer.init(params))

    async def run(self, me: Learner, state: RoundState) -> RoundState:
        """Send, take the gradient, mix what has come, step."""
        present = torch.zeros(1, device=state.params.device)
        while (await me.boundary(state)).go_on:
            given, taken = self.weights(me, state.rounds)
            for other in given:
                await me.send(other, "model", state.params.clone())
            grad = await me.gradient(state.params)
            await self.mix_(me, state, taken)
            me.step_(state.params, grad, state.optimizer)  # eq. 1
            await me.allreduce(present, weight=1.0)
            state.rounds += 1
            await me.commit()
        return state

    def weights(self, me: Learner, round_number: int) -> tuple[list[int], dict[int, float]]:
        """Return to whom this learner gives its model, and the weights of those it takes."""
        alive, place = me.alive, me.alive.index(me.rank)
        mixing = topology.of_round(self.mixing, len(alive), round_number, self.mixing_seed)
        given = [alive[k] for k in mixing[place].nonzero()[0] if k != place]
        taken = {alive[j]: float(mixing[j, place]) for j in mixing[:, place].nonzero()[0]}
        return given, taken

    async def mix_(self, me: Learner, state: State, taken: dict[int, float]) -> None:
        """Form the weighted mean, in rank order; a lost learner's weight is added to its own."""
        mixed, own = torch.zeros_like(state.params), state.params
        for rank, weight in taken.items():
            model = own
            if rank != me.rank:
                try:
                    model = (await me.recv("model", source=rank)).payload
                except PeerLostError:
                    model = own
            mixed.add_(model, alpha=weight)
        state.params.copy_(mixed)
