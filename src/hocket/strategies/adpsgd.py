"""AD-PSGD: learners average in pairs while they compute. No server, no barrier.

    w_i, w_j <- (w_i + w_j) / 2          two learners mix, while both compute              (1)
    w_i <- w_i - gamma * g_i(phi_i)      phi_i: w_i as it was when the minibatch began     (2)

References: X. Lian, W. Zhang, C. Zhang, J. Liu, "Asynchronous decentralized parallel stochastic
gradient descent", ICML 2018 (arXiv:1710.06952); for acoustic models W. Zhang, X. Cui, et al.,
ICASSP 2019, ICASSP 2020, and X. Cui et al., IEEE TASLP 2021.

| symbol | here                    |                                                         |
|--------|-------------------------|---------------------------------------------------------|
| w_i    | `state.params`          | this learner's model; mixed at any time by its services |
| phi_i  | a copy of `params`      | where the gradient is taken                             |
| gamma  | `me.lr`                 | derived from the sequential rate, gain 1/P              |
| T_k    | `hocket.core.topology.pair`  | one exchange; doubly stochastic                         |

An exchange is a *pair*: an active learner offers its model x_a; the passive one answers at once,
from a service that runs beside its gradient, with h = (x_p - x_a) / 2. The one adds h, the other
subtracts it. Both have then taken the mean of the same two snapshots, the sum of all models is what
it was, and whatever either applied between snapshot and answer is kept. An active learner begins an
exchange with each minibatch, unless the last is still under way. One that is done within the
minibatch, as on any network that suits the method, is mixed before the gradient is applied.

Deadlock is impossible: an answer waits for nothing but the loop between two awaits. Nobody ever
waits for a partner, so a slow learner slows only itself.

Our reading of the paper. Without a common clock there is no round for which all could share a
matrix, so the 1/3-weights of the papers' rings belong to the synchronous form (`dpsgd`). Here the
`fixed` ring draws the left or the right neighbour, the `random` ring a partner from all passive
learners, each from the learner's own generator, keyed by (seed, rank, number of the exchange).

Differences from the paper: the item drawn belongs to one shared pool, not to a shard.

Faults. A lost learner drops out of the ring: its neighbours become neighbours. A partner that
gives no answer for `partner_timeout_s` is left out of that exchange and told so; when it wakes it
throws its gradient away (its items return to the pool) and starts again from its neighbours' mean.

Limits: one's own momentum is never mixed; evaluation averages all models, which is the one time all
learners meet. Two active learners never mix directly.

When to use it: when learners differ in speed or are slowed down at times, or the network is slow:
no learner waits for another. With equal learners and a fast network, `allreduce` reached a lower
loss on the same data in our runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch

from hocket.core import topology
from hocket.core.effects import Grad
from hocket.core.flat import Flat
from hocket.core.learner import Learner
from hocket.core.optimizer import Optimizer
from hocket.core.strategy import State, Strategy
from hocket.errors import PeerLostError, WaitTimeoutError, require


@dataclass
class RingState(State):
    """The model and how often it was mixed."""

    exchanges: int = 0  # begun by this learner
    mixes: int = 0  # with anybody


@dataclass
class Hearsay:
    """What a learner knows of the others right now; a resumed run begins with none of it."""

    lost: set[int] = field(default_factory=set)
    busy: bool = False  # an exchange of our own is under way
    left_out: bool = False  # somebody waited for us in vain
    spare: Flat | None = None  # an answer that has been taken in: its memory carries the next offer

    def living(self, me: Learner) -> list[int]:
        """Return who lives, as far as this learner knows."""
        return [rank for rank in me.alive if rank not in self.lost]


@dataclass(frozen=True)
class ADPSGD(Strategy[RingState]):
    """Asynchronous decentralised SGD on a fixed or random ring."""

    ring: Literal["fixed", "random"] = "random"  # partners: the two neighbours, or any
    partner_timeout_s: float = 5.0  # an exchange that takes longer is left out

    name: ClassVar[str] = "adpsgd"
    paper: ClassVar[str] = "Lian et al., ICML 2018 (arXiv:1710.06952); Cui et al., TASLP 2021"
    summary: ClassVar[str] = "each learner averages with neighbours on a ring while it computes"
    commits_when: ClassVar[str] = "the local step is applied"
    synchronous: ClassVar[bool] = False
    evaluates: ClassVar = "average"

    def __post_init__(self) -> None:
        require(
            self.ring in ("fixed", "random"),
            f"strategy.ring must be 'fixed' or 'random', not {self.ring!r}",
        )
        require(
            self.partner_timeout_s > 0,
            f"strategy.partner_timeout_s must be above 0, not {self.partner_timeout_s}",
        )

    def gain(self, num_learners: int) -> float:
        """A step of one learner moves the mean of P models by a P-th of it."""
        return 1.0 / num_learners

    def init(self, params: Flat, optimizer: Optimizer) -> RingState:
        """Nothing has been mixed yet."""
        return RingState(params, optimizer.init(params))

    async def run(self, me: Learner, state: RingState) -> RingState:
        """Compute, step, commit; mixing goes on beside it."""
        known = Hearsay()
        for service in (self.exchange, self.answer, self.hear, self.lend):
            await me.start(service(me, state, known))
        phi = torch.empty_like(state.params)
        while (await me.boundary(state)).go_on:
            await self.begin_exchange(me, known)
            before = state.mixes
            grad = await me.gradient(phi.copy_(state.params))
            if known.left_out:
                await self.rejoin(me, state, known, grad)
                continue
            me.measure("staleness", state.mixes - before)
            me.step_(state.params, grad, state.optimizer)  # eq. 2
            await me.commit()
        return state

    def members(self, me: Learner, known: Hearsay) -> list[int]:
        """Return the ring."""
        return known.living(me)

    # ------------------------------------------------------------------ the active side

    async def begin_exchange(self, me: Learner, known: Hearsay) -> None:
        """Let the service begin one, unless the last is still under way."""
        if not known.busy and topology.is_active(me.rank, self.members(me, known)):
            known.busy = True
            await me.send(me.rank, "go", None)

    def partner(self, me: Learner, known: Hearsay) -> int | None:
        """Draw a passive learner; None if there is none."""
        choose = topology.ring_partners if self.ring == "fixed" else topology.all_partners
        partners = choose(me.rank, self.members(me, known))
        return me.rng.choice(partners) if partners else None

    async def exchange(self, me: Learner, state: RingState, known: Hearsay) -> None:
        """Offer the model, take in the answer; one exchange at a time."""
        while True:
            await me.recv("go", source=me.rank)
            partner = self.partner(me, known)
            if partner is not None:
                await self._exchange_with(partner, me, state, known)
            known.busy = False

    async def _exchange_with(
        self, partner: int, me: Learner, state: RingState, known: Hearsay
    ) -> None:
        state.exchanges += 1
        number = state.exchanges
        spare, known.spare = known.spare, None
        offer = state.params.clone() if spare is None else spare.copy_(state.params)
        await me.send(partner, "offer", (number, offer))
        try:
            answered = None
            while answered != number:  # an older answer is to one that was given up
                reply = await me.recv("half", partner, self.partner_timeout_s)
                answered, half = reply.payload
        except PeerLostError:
            known.lost.add(partner)
        except WaitTimeoutError:
            await me.send(partner, "left out", number)
        else:
            if half is not None:  # else the partner is about to start again
                state.params.add_(half)  # eq. 1
                state.mixes += 1
                known.spare = half

    # ------------------------------------------------------------------ the passive side

    async def answer(self, me: Learner, state: RingState, known: Hearsay) -> None:
        """Mix with whoever offers, at once."""
        while True:
            offer = await me.recv("offer")
            number, theirs = offer.payload
            if known.left_out:  # our model is from another time, and about to be replaced
                await me.send(offer.source, "half", (number, None))
                continue
            half = torch.sub(state.params, theirs, out=theirs).mul_(0.5)
            state.params.sub_(half)  # eq. 1
            state.mixes += 1
            await me.send(offer.source, "half", (number, half))

    # ------------------------------------------------------------------ after a silence

    async def hear(self, me: Learner, state: RingState, known: Hearsay) -> None:
        """Take note that somebody has given up waiting for us."""
        while True:
            await me.recv("left out")
            known.left_out = True

    async def lend(self, me: Learner, state: RingState, known: Hearsay) -> None:
        """Give a copy of the model to one that rejoins."""
        while True:
            asked = await me.recv("ask")
            await me.send(asked.source, "model", state.params.clone())

    async def rejoin(self, me: Learner, state: RingState, known: Hearsay, grad: Grad) -> None:
        """Throw away a gradient from before the silence; begin from the neighbours' average."""
        await me.give_back(grad.tickets)
        await self.take_neighbours_mean(me, state, known)

    async def take_neighbours_mean(self, me: Learner, state: RingState, known: Hearsay) -> None:
        """Replace the model by the mean of those to the left and right."""
        me.measure("left_out", 1.0)
        ring = self.members(me, known)
        place = ring.index(me.rank)
        models = []
        for neighbour in sorted({ring[place - 1], ring[(place + 1) % len(ring)]} - {me.rank}):
            await me.send(neighbour, "ask", None)
            try:
                models.append((await me.recv("model", neighbour, self.partner_timeout_s)).payload)
            except PeerLostError:
                known.lost.add(neighbour)
            except WaitTimeoutError:
                continue  # silent itself
        if models:
            state.params.copy_(torch.stack(models).mean(0))
            state.optimizer = me.optimizer.init(state.params)  # momentum of another time
        known.left_out = False
