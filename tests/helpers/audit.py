"""The ledger's auditor: who computed what, how often, and was it there when it was settled?

The auditor does not ask the ledger. It looks over the worker's shoulder (which gradients were made,
of which item, of how many frames), takes an item as computed when a learner that was alive has got
the whole of it, and compares that with every single settlement at the moment it is made.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.tasks import Witness
from hocket import Result
from hocket.core.accounts import DRY, Ticket
from hocket.core.effects import (
    Grad,
    Gradient,
)
from hocket.core.stage_effects import (
    Backward,
    Returned,
)
from hocket.data.shared_ledger import SharedLedger
from hocket.runtime.shared.stages.worker import StageWorker
from hocket.runtime.sim.simulator import Simulator

Place = tuple[int, int]  # epoch, item


class Auditor:
    """Watches a simulator from before its first step."""

    def __init__(self, sim: Simulator) -> None:
        self._sim = sim
        self._items = [item.frames for item in sim._pool.items("train")]
        self.before: set[Place] = set()  # computed before the run was resumed
        self._made: dict[int, Grad] = {}  # what the worker has made, by identity
        self._frames: dict[Place, Counter[int]] = defaultdict(Counter)  # finished, by learner
        self.settled: dict[int, Counter[Place]] = defaultdict(Counter)  # by the learner that did it
        self.returned: set[Place] = set()
        self.uncomputed: list[Place] = []  # settled, though nobody had computed the whole of it
        self._watch_the_worker()
        for rank in range(len(sim.learners)):
            self._watch_the_learner(rank)

    # ------------------------------------------------------------------ watching

    def _watch_the_worker(self) -> None:
        worker = self._sim._worker
        gradient = worker.gradient

        def watched(*args: Any, **more: Any) -> Grad:
            grad = gradient(*args, **more)
            self._made[id(grad)] = grad
            return grad

        worker.gradient = watched  # type: ignore[method-assign]
        if isinstance(worker, StageWorker):  # the lowest stage is the last one on the way back
            backward = worker.backward

            def came_back(*args: Any) -> Returned:
                back = backward(*args)
                self._made[id(back.grad)] = back.grad
                return back

            worker.backward = came_back  # type: ignore[method-assign, assignment]

    def _watch_the_learner(self, rank: int) -> None:
        context = self._sim.context(rank)
        computed = context.computed

        def watched(effect: Gradient | Backward, ticket: Ticket, grad: Grad) -> None:
            if self._made.pop(id(grad), None) is not None and rank in self._sim.alive:
                self._frames[ticket.epoch, ticket.index][rank] += grad.frames
            computed(effect, ticket, grad)

        context.computed = watched  # type: ignore[method-assign]
        self._watch_the_ledger(rank, context.account.ledger)

    def _watch_the_ledger(self, rank: int, ledger: Any) -> None:
        count, settle = ledger._count, ledger.settle

        def counted(outcome: str, what: Any, *frames: int) -> None:
            if frames:
                try:
                    count(outcome, what, *frames)
                finally:  # it may have died after its mark was made
                    if self._counts(ledger, what):
                        self._enter(rank, [what])
                return
            count(outcome, what)
            if outcome != "return" and rank in self._sim.alive:
                self._enter(rank, [(ledger.epoch, int(i)) for i in what.ravel() if i != DRY])

        def settled(outcome: str, tickets: Any, alive: Any) -> None:
            if outcome == "return":
                self.returned.update((t.epoch, t.index) for t in tickets or ())
            settle(outcome, tickets, alive)

        ledger._count, ledger.settle = counted, settled

    def _counts(self, ledger: SharedLedger, place: Place) -> bool:
        """True if an item is marked where the survivors look: not by one that is fenced."""
        current = self._sim.context(self._sim.alive[0]).account.ledger
        assert isinstance(current, SharedLedger)
        prefix = current._counters._prefix
        marks = self._sim._counters.numbers
        return ledger._counters._prefix == prefix and f"{prefix}item/{place[0]}/{place[1]}" in marks

    def _enter(self, rank: int, places: Sequence[Place]) -> None:
        self.settled[rank].update(places)
        known = self.before
        self.uncomputed += [p for p in places if not self.whole(p) and p not in known]

    # ------------------------------------------------------------------ what is asked of it

    def whole(self, place: Place) -> list[int]:
        """Who computed an item, as often as it was computed."""
        need = self._items[place[1]]
        return [rank for rank, n in self._frames[place].items() for _ in range(n // need)]

    def computed(self) -> set[Place]:
        """What has been computed by now."""
        return self.before | {place for place in list(self._frames) if self.whole(place)}

    def check(self) -> None:
        """Every item of every epoch was settled once, after it was computed, and none in vain."""
        sim = self._sim
        everything = {(e, i): 1 for e in range(sim._pool.epochs) for i in range(len(self._items))}
        assert not self.uncomputed, f"settled and never computed: {self.uncomputed}"
        for rank in sim._living_learners:
            book = self.book(rank)
            wrong = {p: book[p] for p in book.keys() | everything if book[p] != 1}
            assert not wrong, f"settled so many times instead of once: {wrong}"
        self.check_repeats()

    def book(self, rank: int | None = None) -> Counter[Place]:
        """How often each item was settled: by all if they share a ledger, else as one counts."""
        rank = self._sim.alive[0] if rank is None else rank
        if isinstance(self._sim.context(rank).account.ledger, SharedLedger):
            return sum(self.settled.values(), Counter())
        return Counter(self.settled[rank])

    def check_repeats(self) -> None:
        """An item is computed twice only if one that had computed it was lost, or gave it back."""
        sim = self._sim
        lost = {r for r, one in enumerate(sim.learners) if one.lost_s is not None}
        for place in self._frames:
            ranks = self.whole(place)
            excused = place in self.returned or lost & set(ranks)
            assert len(ranks) <= 1 or excused, f"{place} was computed by {ranks}"


# ---------------------------------------------------------------------------- in real processes


def witnessed(task: Witness) -> dict[Place, list[int]]:
    """Return which learners computed an item, as often as they did, as they wrote it down."""
    frames: dict[Place, Counter[int]] = defaultdict(Counter)
    for line in Path(task.path).read_text().splitlines():
        who, epoch, item, count = line.split("\t")
        frames[int(epoch), int(item)][int(who.removeprefix("hocket learner "))] += int(count)
    return {
        place: [rank for rank, n in by.items() for _ in range(n // task.frames_of(place[1]))]
        for place, by in frames.items()
    }


def check_witnessed(task: Witness, result: Result, epochs: int) -> None:
    """All was settled, so all was computed: once, or again after one was lost that had had it."""
    everything = [(e, i) for e in range(epochs) for i in range(task.num_items)]
    settled = result.frames + result.discarded_frames
    assert settled == epochs * sum(task.frames_of(i) for i in range(task.num_items))
    lost = {one.rank for one in result.learners if one.lost}
    computed = witnessed(task)
    assert computed.keys() <= set(everything)
    for place in everything:
        ranks = computed.get(place, [])
        assert ranks, f"{place} was settled, and nobody computed it"
        assert len(ranks) == 1 or lost & set(ranks), f"{place} was computed by {ranks}"
