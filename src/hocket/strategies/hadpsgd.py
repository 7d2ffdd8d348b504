"""H-ADPSGD: learners of a node act as one, nodes form a ring.

    g <- sum_j n_j g_j / sum_j n_j       an allreduce among the learners of a node        (1)
    AD-PSGD between the nodes, each a *super-learner* with a minibatch that is the sum     (2)

Reference: W. Zhang, X. Cui, U. Finkler, G. Saon, A. Kayi, A. Buyuktosunoglu, B. Kingsbury, D. Kung,
M. Picheny, "A highly efficient distributed deep learning system for automatic speech recognition",
Interspeech 2019 (arXiv:1907.05701). See `adpsgd` for (2).

| symbol | here           |                                                          |
|--------|----------------|----------------------------------------------------------|
| node   | `node_size`    | so many consecutive ranks, usually the GPUs of one host  |
| g      | `mean.value`   | the super-learner's gradient                             |

The first living learner of a node *leads* it: it holds the model that is mixed with other nodes',
and hands it to the node after every step. The ring is shorter by the size of a node, so it mixes
better; the fast links inside a node carry the gradients, the slow ones between nodes a model now
and then. A slow learner slows its node, not the others.

Differences from the paper: the model travels within the node at every step (a broadcast), because
it may have been mixed meanwhile. When a leader is lost, the next learner leads, with its own copy
of momentum. A node that was left out of an exchange starts again from its neighbours' mean; the
gradient it had in hand is counted as learnt, though its effect is gone.

Limits: nodes are equally large; the last may be smaller.

When to use it: when there are several hosts with several learners each, with fast links inside a
host and slow links between hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hocket.core.effects import Grad, Mean
from hocket.core.flat import Flat
from hocket.core.learner import Learner
from hocket.errors import PeerLostError, require
from hocket.strategies.adpsgd import ADPSGD, Known, RingState


@dataclass(frozen=True)
class HADPSGD(ADPSGD):
    """Allreduce inside nodes, AD-PSGD between them."""

    node_size: int = 2  # so many consecutive ranks act as one learner

    name: ClassVar[str] = "hadpsgd"
    paper: ClassVar[str] = "Zhang et al., Interspeech 2019 (arXiv:1907.05701)"
    summary: ClassVar[str] = "allreduce inside a node, AD-PSGD between nodes"
    commits_when: ClassVar[str] = "the node's step is applied"
    moves_in_groups: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.node_size >= 1, f"strategy.node_size must be at least 1, not {self.node_size}")

    def node_of(self, rank: int, me: Learner) -> tuple[int, ...]:
        """Return the ranks of a node, the lost among them."""
        first = rank // self.node_size * self.node_size
        return tuple(range(first, min(first + self.node_size, me.size)))

    def leader_of(self, rank: int, me: Learner, known: Known) -> int | None:
        """Return who leads a node; None if all of it are lost."""
        living = set(known.living(me))
        return next((r for r in self.node_of(rank, me) if r in living), None)

    def members(self, me: Learner, known: Known) -> list[int]:
        """Return the ring: one learner of each node."""
        leaders = (self.leader_of(r, me, known) for r in range(0, me.size, self.node_size))
        return [leader for leader in leaders if leader is not None]

    def welcome(self, old: Sequence[RingState], model: Flat, rank: int, staying: int) -> RingState:
        """All begin from the average: ranks move up, and the learners of a node have one model."""
        return self.adopt(old, model, rank)

    async def run(self, me: Learner, state: RingState) -> RingState:
        """One step of the node after the other; its leader mixes beside it."""
        known, node = Known(), self.node_of(me.rank, me)
        for service in self.services:
            await me.start(service(me, state, known))
        while (await me.boundary(state)).go_on:
            if self.leader_of(me.rank, me, known) == me.rank:
                await self.begin_exchange(me, known)
            before = state.mixes
            grad = await me.gradient(state.params.clone())
            mean = await me.allreduce(grad.vector, float(grad.frames), node)  # eq. 1
            me.measure("staleness", state.mixes - before)
            me.step_(state.params, _super_gradient(grad, mean), state.optimizer)
            if known.left_out:
                await self.take_neighbours_mean(me, state, known)
            await self.share(me, state, known, node)
            await me.commit()
        return state

    async def share(
        self, me: Learner, state: RingState, known: Known, node: tuple[int, ...]
    ) -> None:
        """Take over the leader's model; if it is lost, all of the node hear of it alike."""
        while True:
            leader = self.leader_of(me.rank, me, known)
            assert leader is not None
            leads = leader == me.rank
            given = state.params.clone() if leads else state.params  # it is mixed meanwhile
            try:
                model = await me.broadcast(given, leader, node)
            except PeerLostError:
                known.lost.add(leader)
                continue
            if not leads:
                state.params.copy_(model)
            return


def _super_gradient(grad: Grad, mean: Mean) -> Grad:
    """Return the super-learner's gradient."""
    return Grad(mean.value, int(mean.weight), grad.loss_sum, grad.correct, grad.tickets)
