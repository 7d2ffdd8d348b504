"""The counters that asynchronous learners share, and how an account is carried over in them.

They are a dictionary in the simulator and the rendezvous store in real processes. Nothing here
needs more than an atomic addition. `SharedLedger` (`hocket.data.shared_ledger`) is one learner's
view of them.

A learner may die between any two of its entries. Each settlement is therefore one mark on the item
itself, made first; the sums are kept only so that nobody has to count marks. Where a sum is wrong
after a death, it is too low, so that nobody takes the run for finished, or waits for an item that
never comes: all have nothing left to draw, meet, and find out who is lost.

After a loss the survivors carry the account over into a new *volume* of the counters. The marks are
counted, and what was drawn and is neither marked nor held by a survivor returns to the pool.
Whoever was declared lost and wakes up again still draws and settles in the old volume, where nobody
looks any more: that is how it is fenced. A volume whose writer dies is left as it is; the next
survivor writes another one, from the same old volume.

| counter                        | value                                                          |
|--------------------------------|----------------------------------------------------------------|
| drawn                          | items drawn from the pool, in its order                        |
| item/EPOCH/INDEX               | 1: committed, 2: discarded                                     |
| settled, committed_frames, ... | sums over these marks, and over what was settled before        |
| returned, returned/WRITER      | items given back: by all, and by one writer, who alone counts  |
| retaken                        | of these, drawn again                                          |
| claims/WRITER/NUMBER           | the learner that counts to 1 gets this item                    |
| volumes                        | volumes begun, finished or not                                 |
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from hocket.core.accounts import Outcome
from hocket.data.pool import Pool

Place: TypeAlias = tuple[int, int]  # epoch, index of an item
COMMON = "all"  # the writer of what is returned for all: by a resumption, or after a loss


class Counters(Protocol):
    """All that learners must share: atomic counters and named values."""

    def add(self, key: str, amount: int) -> int:
        """Add and return the new value; atomic."""
        ...

    def put(self, key: str, value: str) -> None:
        """Store a value under a key, for all learners to read."""
        ...

    def get(self, key: str) -> str:
        """Return what some learner has put there."""
        ...


@dataclass
class LocalCounters:
    """Counters within one process, for the simulator."""

    numbers: dict[str, int] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    def add(self, key: str, amount: int) -> int:
        """Add and return the new value."""
        self.numbers[key] = self.numbers.get(key, 0) + amount
        return self.numbers[key]

    def put(self, key: str, value: str) -> None:
        """Keep a value; the only reader is in this process."""
        self.values[key] = value

    def get(self, key: str) -> str:
        """Return a value that `put` has kept."""
        return self.values[key]


class Volume:
    """One volume of the account; volume 0 is the first."""

    def __init__(self, counters: Counters, number: int = 0) -> None:
        self._counters = counters
        self._prefix = f"volume{number}/" if number else ""
        self._claimed: dict[str, int] = {}  # of each writer, up to which number all are claimed

    def add(self, key: str, amount: int) -> int:
        """Add and return the new value; atomic."""
        return self._counters.add(self._prefix + key, amount)

    def put(self, key: str, value: str) -> None:
        """Store a value under a key."""
        self._counters.put(self._prefix + key, value)

    def get(self, key: str) -> str:
        """Return a value of this volume."""
        return self._counters.get(self._prefix + key)

    def read(self, key: str) -> int:
        """Return a count as it is now."""
        return self.add(key, 0)

    # ------------------------------------------------------------------ settled items

    def mark(self, place: Place, outcome: Outcome) -> bool:
        """Mark an item; False if it was marked before."""
        return self.add(_mark(place), MARKS[outcome]) == MARKS[outcome]

    def marked(self, place: Place) -> int:
        """Return the mark of an item; 0: it is not settled."""
        return self.read(_mark(place))

    def count(self, outcome: Outcome, frames: int) -> None:
        """Add an item that was marked to the sums."""
        self.add(FRAMES[outcome], frames)
        self.add("settled", 1)

    # ------------------------------------------------------------------ returned items

    def give_back(self, places: Sequence[Place], writer: str) -> None:
        """Return items to the pool. Nobody else uses the name of this writer.

        They are there before they are counted: a death in between hides them until the next volume.
        """
        first = self.read(f"returned/{writer}") + 1
        for number, place in enumerate(places, first):
            self.put(f"returned/{writer}/{number}", json.dumps(place))
        self.add(f"returned/{writer}", len(places))
        self.add("returned", len(places))

    def num_waiting(self) -> int:
        """Return how many items were given back and not drawn again."""
        return self.read("returned") - self.read("retaken")

    def take_returned(self, writers: Sequence[str]) -> Place | None:
        """Draw an item that was given back, if there is one.

        First it is made sure that there is one for this learner; then it takes any. The other way
        round, a death in between would leave one to wait for that never comes.
        """
        if self.num_waiting() <= 0:
            return None
        if self.add("retaken", 1) > self.read("returned"):
            self.add("retaken", -1)  # another one was faster
            return None
        for writer, number in self._returned(writers, self._claimed):
            self._claimed[writer] = number
            if self.add(f"claims/{writer}/{number}", 1) == 1:
                return self._place(writer, number)
        return None

    def waiting(self, writers: Sequence[str]) -> Iterator[Place]:
        """Yield the returned items that nobody has claimed."""
        for writer, number in self._returned(writers):
            if not self.read(f"claims/{writer}/{number}"):
                yield self._place(writer, number)

    def _returned(
        self, writers: Sequence[str], after: Mapping[str, int] | None = None
    ) -> Iterator[tuple[str, int]]:
        """Yield the numbers of returned items, of each writer those after a given one."""
        for writer in writers:
            first = (after or {}).get(writer, 0) + 1
            for number in range(first, self.read(f"returned/{writer}") + 1):
                yield writer, number

    def _place(self, writer: str, number: int) -> Place:
        epoch, index = json.loads(self.get(f"returned/{writer}/{number}"))
        return epoch, index


FRAMES = {"commit": "committed_frames", "discard": "discarded_frames"}
MARKS = {"commit": 1, "discard": 2}
SUMS = ("settled", *FRAMES.values())
KEPT = ("drawn", *SUMS)  # what is saved, and carried over


def _mark(place: Place) -> str:
    return f"item/{place[0]}/{place[1]}"


def writers_of(num_ranks: int) -> list[str]:
    """Return the names under which items are given back; ranks that only attend may do so, too."""
    return [COMMON, *map(str, range(num_ranks))]


# ---------------------------------------------------------------------------- saving


def save_counters(volume: Volume, writers: Sequence[str]) -> dict[str, Any]:
    """Return the common part of the shared account; valid at a quiet point."""
    return {
        **{key: volume.read(key) for key in KEPT},
        "returned": [list(place) for place in volume.waiting(writers)],
    }


def load_counters(
    volume: Volume,
    state: dict[str, Any],
    orphans: Sequence[Sequence[int]],
    pending: Sequence[Sequence[int]] = (),
    lanes: Sequence[int] = (),
) -> None:
    """Begin a volume with a saved account; `orphans` were pending with learners that are gone.

    Marks are not saved: all that was drawn before is settled, except the items named here.
    `pending` is held by learners that go on; `lanes` says how far each had drawn.
    """
    for key in KEPT:
        volume.add(key, state[key] - volume.read(key))
    given_back = [_as_place(place) for place in [*state["returned"], *orphans]]
    before = {key: state[key] for key in KEPT}
    before |= {"open": [*given_back, *pending], "lanes": list(lanes)}
    volume.put("before", json.dumps(before))
    volume.add("resumed", 1)
    volume.give_back(given_back, COMMON)


# ---------------------------------------------------------------------------- after a loss


def carry_over(
    old: Volume,
    new: Volume,
    pool: Pool,
    parts: Mapping[int, dict[str, Any]],
    learners: Sequence[int],
    writers: Sequence[str],
) -> None:
    """Write the account as it is into a new volume, and return what nobody holds to the pool.

    `parts`: what each survivor has drawn (its `state_dict`), by rank; `learners`: all that there
    were at the start. One survivor calls it, while no other draws or settles.
    """
    before: dict[str, Any] = dict.fromkeys(KEPT, 0) | {"open": [], "lanes": []}
    if old.read("resumed"):
        before |= json.loads(old.get("before"))
    waiting = list(old.waiting(writers))
    pending = [(epoch, index) for part in parts.values() for epoch, index in part["pending"]]
    held = [place for place in pending if not old.marked(place)]  # else settled by one now lost
    in_hand = {*waiting, *held}
    size = len(learners)
    lanes = [_lane(pool, column, parts.get(rank), size) for column, rank in enumerate(learners)]
    drawn = _drawn_in_shards if pool.sharding == "fixed" else _drawn_from_pool
    state: dict[str, Any] = {key: before[key] for key in SUMS}
    orphans = []
    for place in {*map(_as_place, before["open"]), *drawn(old, pool, before, lanes)}:
        mark = old.marked(place)
        for outcome, code in MARKS.items():
            if mark == code:
                state[FRAMES[outcome]] += int(pool.frames[place[1]])
                state["settled"] += 1
        if not mark and place not in in_hand:
            orphans.append(place)
    state |= {"drawn": old.read("drawn"), "returned": waiting}
    load_counters(new, state, in_order(pool, orphans), sorted(held), lanes)


def in_order(pool: Pool, places: Collection[Place]) -> list[Place]:
    """Put items into the order in which they would be drawn."""
    where = {epoch: pool.order(epoch).argsort() for epoch in {epoch for epoch, _ in places}}
    return sorted(places, key=lambda place: (place[0], where[place[0]][place[1]]))


def _as_place(place: Sequence[int]) -> Place:
    return place[0], place[1]


def _lane(pool: Pool, column: int, part: dict[str, Any] | None, size: int) -> int:
    """Return how far a learner has drawn from its fixed shard; what a lost one has left is drawn.

    So it counts as drawn and not settled, and returns to the pool with the rest.
    """
    whole = pool.epochs * len(range(column, len(pool), size))
    return whole if part is None else int(part["lane"])


def _drawn_from_pool(
    volume: Volume, pool: Pool, before: dict[str, Any], lanes: Sequence[int]
) -> Iterator[Place]:
    """Yield what was drawn in this volume."""
    last = min(volume.read("drawn"), pool.epochs * len(pool))
    for draw in range(before["drawn"], last):
        epoch, place = divmod(draw, len(pool))
        yield epoch, int(pool.order(epoch)[place])


def _drawn_in_shards(
    volume: Volume, pool: Pool, before: dict[str, Any], lanes: Sequence[int]
) -> Iterator[Place]:
    """Yield what was drawn in this volume, if each learner has a shard of its own."""
    firsts = before["lanes"] or [0] * len(lanes)
    for column, (first, last) in enumerate(zip(firsts, lanes, strict=True)):
        yield from shard_of(pool, column, len(lanes))[first:last]


def shard_of(pool: Pool, column: int, size: int) -> list[Place]:
    """Return the fixed shard of one of so many learners, in the order in which it is drawn."""
    return [
        (epoch, int(index))
        for epoch in range(pool.epochs)
        for index in pool.order(epoch)
        if index % size == column
    ]
