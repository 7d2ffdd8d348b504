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
| T_k    | (eq. 1, eq. 3)          | one exchange; doubly stochastic                         |

An exchange is a *pair*: an active learner offers its model x_a; the passive one answers at once,
from a service that runs beside its gradient, with h = (x_p - x_a) / 2. The one adds h, the other
subtracts it. Both have then taken the mean of the same two snapshots, the sum of all models is what
it was, and whatever either applied between snapshot and answer is kept. An active learner begins an
exchange with each minibatch, unless the last is still under way. One that is done within the
minibatch, as on any network that suits the method, is mixed before the gradient is applied.

With `mixes_with = "both"` an exchange is a *triple*: an active learner a looks at the models of two
passive ones, p and q, and all three take their mean, the weights 1/3 of the papers' rings:

    m = (x_a + x_p + x_q) / 3;      each adds m - its own snapshot                        (3)

The three corrections add up to zero, so here, too, the sum of all models stays what it was, and
what is applied in between is kept. It costs twice the traffic and mixes better. A passive learner
is in one triple at a time: corrections of two that overlap would add up and throw it beyond both
means (the first version did, and diverged). The active one asks the lower rank first and then the
higher, so no two of them can each hold what the other waits for.

Deadlock is impossible: an answer waits for nothing but the loop between two awaits. Nobody ever
waits for a partner, so a slow learner slows only itself.

Our reading of the paper. Without a common clock there is no round for which all could share a
matrix: that is the synchronous form (`dpsgd`). Here the `fixed` ring draws the left or the right
neighbour (or takes both), the `random` ring one partner, or two, from all passive learners, each
from the learner's own generator, keyed by (seed, rank, number of the exchange).

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

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch

from hocket.core import topology
from hocket.core.effects import Grad
from hocket.core.flat import Flat
from hocket.core.learner import Learner
from hocket.core.optimizer import Optimizer
from hocket.core.strategy import MIXES_MODELS, State, Strategy
from hocket.errors import PeerLostError, WaitTimeoutError, require


@dataclass
class RingState(State):
    """The model and how often it was mixed."""

    exchanges: int = 0  # begun by this learner
    mixes: int = 0  # with anybody


@dataclass
class Known:
    """What a learner knows of the others right now; a resumed run begins with none of it."""

    lost: set[int] = field(default_factory=set)
    busy: bool = False  # an exchange of our own is under way
    left_out: bool = False  # a partner gave up waiting for this learner
    spare: Flat | None = None  # an answer that has been taken in: its memory carries the next offer

    def living(self, me: Learner) -> list[int]:
        """Return who lives, as far as this learner knows."""
        return [rank for rank in me.alive if rank not in self.lost]


@dataclass(frozen=True)
class ADPSGD(Strategy[RingState]):
    """Asynchronous decentralised SGD on a fixed or random ring."""

    ring: Literal["fixed", "random"] = "random"  # partners: the two neighbours, or any
    mixes_with: Literal["one", "both"] = "one"  # partners in an exchange: weights 1/2, or 1/3
    partner_timeout_s: float = 5.0  # an exchange that takes longer is left out

    name: ClassVar[str] = "adpsgd"
    paper: ClassVar[str] = "Lian et al., ICML 2018 (arXiv:1710.06952); Cui et al., TASLP 2021"
    summary: ClassVar[str] = "each learner averages with neighbours on a ring while it computes"
    uncoded_because: ClassVar[str] = MIXES_MODELS
    commits_when: ClassVar[str] = "the local step is applied"
    synchronous: ClassVar[bool] = False
    evaluates: ClassVar = "average"

    def __post_init__(self) -> None:
        require(
            self.ring in ("fixed", "random"),
            f"strategy.ring must be 'fixed' or 'random', not {self.ring!r}",
        )
        require(
            self.mixes_with in ("one", "both"),
            f"strategy.mixes_with must be 'one' or 'both', not {self.mixes_with!r}",
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

    def welcome(self, old: Sequence[RingState], model: Flat, rank: int, staying: int) -> RingState:
        """Whoever is there keeps its model; a newcomer begins from its neighbours' average."""
        if rank < staying:
            return old[rank]
        near = torch.stack([old[staying - 1].params, old[0].params]).mean(0)
        return replace(old[rank % len(old)], params=near, exchanges=0, mixes=0)

    async def run(self, me: Learner, state: RingState) -> RingState:
        """Compute, step, commit; mixing goes on beside it."""
        known = Known()
        for service in self.services:
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

    @property
    def services(self) -> tuple[Callable[..., Coroutine[Any, Any, None]], ...]:
        """What goes on beside the gradients."""
        passive = self.answer if self.mixes_with == "one" else self.show
        return (self.exchange, passive, self.hear, self.lend)

    def members(self, me: Learner, known: Known) -> list[int]:
        """Return the living learners in the order of the ring."""
        return known.living(me)

    # ------------------------------------------------------------------ the active side

    async def begin_exchange(self, me: Learner, known: Known) -> None:
        """Let the service begin one, unless the last is still under way."""
        if not known.busy and topology.is_active(me.rank, self.members(me, known)):
            known.busy = True
            await me.send(me.rank, "go", None)

    def partners(self, me: Learner, known: Known) -> list[int]:
        """Draw one passive learner, or two; fewer if there are not so many."""
        choose = topology.ring_partners if self.ring == "fixed" else topology.all_partners
        found = choose(me.rank, self.members(me, known))
        if self.mixes_with == "one":
            return [me.rng.choice(found)] if found else []
        return found if len(found) <= 2 else sorted(me.rng.sample(found, 2))

    async def exchange(self, me: Learner, state: RingState, known: Known) -> None:
        """Mix with those that were drawn; one exchange at a time."""
        while True:
            await me.recv("go", source=me.rank)
            partners = self.partners(me, known)
            if self.mixes_with == "both":
                await self._exchange_among(partners, me, state, known)
            elif partners:
                await self._exchange_with(partners[0], me, state, known)
            known.busy = False

    async def _answer_to(
        self,
        number: int,
        tag: str,
        partner: int,
        me: Learner,
        known: Known,
        patience: float = 1.0,
    ) -> Flat | None:
        """Wait for a partner's part in an exchange; None if it has none to give."""
        limit_s = patience * self.partner_timeout_s
        try:
            answered = None
            while answered != number:  # an older answer is to one that was given up
                reply = await me.recv(tag, partner, limit_s)
                answered, given = reply.payload
        except PeerLostError:
            known.lost.add(partner)
        except WaitTimeoutError:
            await me.send(partner, "left out", number)
        else:
            found: Flat | None = given  # None: the partner is about to start again
            return found
        return None

    async def _exchange_with(
        self, partner: int, me: Learner, state: RingState, known: Known
    ) -> None:
        state.exchanges += 1
        number = state.exchanges
        spare, known.spare = known.spare, None
        offer = state.params.clone() if spare is None else spare.copy_(state.params)
        await me.send(partner, "offer", (number, offer))
        half = await self._answer_to(number, "half", partner, me, known)
        if half is not None:
            state.params.add_(half)  # eq. 1
            state.mixes += 1
            known.spare = half

    async def _exchange_among(
        self, partners: list[int], me: Learner, state: RingState, known: Known
    ) -> None:
        """Look at the partners' models, and let everybody take the mean of all (eq. 3)."""
        state.exchanges += 1
        number = state.exchanges
        seen: dict[int, Flat] = {}
        for partner in partners:  # in ascending order: nobody waits in a circle
            await me.send(partner, "look", number)
            model = await self._answer_to(number, "seen", partner, me, known)
            if model is not None:
                seen[partner] = model
        if not seen:
            return
        own = state.params.clone()
        mean = torch.stack([own, *seen.values()]).mean(0)
        for partner, model in seen.items():
            await me.send(partner, "correct", (number, torch.sub(mean, model, out=model)))
        state.params.add_(mean.sub_(own))
        state.mixes += 1

    # ------------------------------------------------------------------ the passive side

    async def answer(self, me: Learner, state: RingState, known: Known) -> None:
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

    async def show(self, me: Learner, state: RingState, known: Known) -> None:
        """Show the model to one that wants to mix with it, then go to the mean; one at a time."""
        while True:
            asked = await me.recv("look")
            number, active = asked.payload, asked.source
            own = None if known.left_out else state.params.clone()
            await me.send(active, "seen", (number, own))
            if own is None:
                continue
            # Twice as patient: the active one may be waiting for its other partner.
            correction = await self._answer_to(number, "correct", active, me, known, 2.0)
            if correction is not None:
                state.params.add_(correction)  # eq. 3
                state.mixes += 1

    # ------------------------------------------------------------------ after a silence

    async def hear(self, me: Learner, state: RingState, known: Known) -> None:
        """Take note that somebody has given up waiting for us."""
        while True:
            await me.recv("left out")
            known.left_out = True

    async def lend(self, me: Learner, state: RingState, known: Known) -> None:
        """Give a copy of the model to one that rejoins."""
        while True:
            asked = await me.recv("ask")
            await me.send(asked.source, "model", state.params.clone())

    async def rejoin(self, me: Learner, state: RingState, known: Known, grad: Grad) -> None:
        """Throw away a gradient from before the silence; begin from the neighbours' average."""
        await me.give_back(grad.tickets)
        await self.take_neighbours_mean(me, state, known)

    async def take_neighbours_mean(self, me: Learner, state: RingState, known: Known) -> None:
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
