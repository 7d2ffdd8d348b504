"""Context-dependent HMM states, tied by a decision tree.

Every phone is an HMM of three states, passed from left to right without skips, so a phone lasts at
least three frames (30 ms). The state of a phone between its neighbours, (left, centre, right,
state), has one of a limited number of output distributions: a *senone*, or pdf. A decision tree
chooses it by questions such as "is the left neighbour one of {S, Z, SH}?"; there is one tree for
each (centre, state).

Splitting (Young, Odell and Woodland 1994). With the frames of a node modelled by one Gaussian with
diagonal covariance, their log-likelihood is, up to a constant,

    L(node) = -n/2 * sum_d log var_d                                                    (1)

and the question that wins is the one with the largest

    gain = L(yes) + L(no) - L(node)                                                     (2)

The leaf with the largest gain of all trees is split next, until there are as many leaves as asked
for, or no split leaves `min_frames` on both sides.

Questions come from the data, as in Kaldi: phones are merged bottom-up, always the two groups whose
union loses least by eq. 1, and every group that appears is a question. Any phone set will do.

Silence is not split. A tree never mixes phones, so a pdf determines its phone and its state.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hocket.speech.errors import SpeechError
from hocket.support.inputs import TABLE_LIMIT, read_table, well_formed

NUM_STATES: Final = 3
SILENCE_ID: Final = 1
MIN_FRAMES: Final = 80  # on each side of a split: a Gaussian needs that many
VARIANCE_FLOOR: Final = 0.01  # of normalised features

Doubles: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Side: TypeAlias = Literal["left", "right"]


@dataclass(frozen=True)
class Split:
    """A question about one neighbour, and the nodes that its two answers lead to."""

    side: Side
    phones: frozenset[int]
    yes: Node
    no: Node


Node: TypeAlias = Split | int  # a leaf is its pdf


@dataclass(frozen=True)
class Senones:
    """Maps a phone between its neighbours to the pdfs of its states."""

    phones: list[str]  # number i has the id i + 1
    trees: dict[tuple[int, int], Node]  # (phone, state)
    _memo: dict[tuple[int, int, int], tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def monophone(cls, phones: Sequence[str]) -> Senones:
        """Return senones without context: one pdf for each state of each phone."""
        trees: dict[tuple[int, int], Node] = {
            (phone, state): (phone - 1) * NUM_STATES + state
            for phone in range(1, len(phones) + 1)
            for state in range(NUM_STATES)
        }
        return cls(list(phones), trees)

    @property
    def depends_on_context(self) -> bool:
        """False if every tree is a single leaf."""
        return any(isinstance(tree, Split) for tree in self.trees.values())

    @property
    def num_pdfs(self) -> int:
        """How many senones there are."""
        return len(self.owners)

    @property
    def owners(self) -> Ints:
        """(pdfs, 2): the phone and the state each pdf belongs to."""
        found = {pdf: owner for owner, tree in self.trees.items() for pdf in _leaves(tree)}
        return np.array([found[pdf] for pdf in range(len(found))], dtype=np.int64)

    def pdfs(self, left: int, centre: int, right: int) -> tuple[int, ...]:
        """Return the pdfs of a phone's states; neighbour 0 is the edge and counts as silence."""
        key = (left or SILENCE_ID, centre, right or SILENCE_ID)
        if key not in self._memo:
            self._memo[key] = tuple(
                _find(self.trees[centre, state], key[0], key[2]) for state in range(NUM_STATES)
            )
        return self._memo[key]

    def write(self, path: Path) -> None:
        """Write the trees as JSON, with phone names, so that people can read them too."""
        named = {
            f"{self.phones[phone - 1]}.{state}": _to_json(tree, self.phones)
            for (phone, state), tree in self.trees.items()
        }
        path.write_text(json.dumps({"phones": self.phones, "trees": named}, indent=1))

    @classmethod
    def read(cls, path: Path) -> Senones:
        """Read what `write` wrote."""
        facts = read_table(path, TABLE_LIMIT)
        with well_formed(path):
            ids = {phone: number for number, phone in enumerate(facts["phones"], 1)}
            trees = {}
            for name, tree in facts["trees"].items():
                phone, _, state = name.rpartition(".")
                trees[ids[phone], int(state)] = _from_json(tree, ids)
            made = cls([str(phone) for phone in facts["phones"]], trees)
            states = {(phone, state) for phone in ids.values() for state in range(NUM_STATES)}
            if trees.keys() != states or made.num_pdfs < 1:  # counting asks for every leaf
                raise ValueError("a phone has no tree for each of its states")
            return made


def _leaves(node: Node) -> list[int]:
    return [node] if isinstance(node, int) else _leaves(node.yes) + _leaves(node.no)


def _find(node: Node, left: int, right: int) -> int:
    while isinstance(node, Split):
        neighbour = left if node.side == "left" else right
        node = node.yes if neighbour in node.phones else node.no
    return node


def _to_json(node: Node, phones: list[str]) -> Any:
    if isinstance(node, int):
        return node
    names = sorted(phones[p - 1] for p in node.phones)
    return {node.side: names, "yes": _to_json(node.yes, phones), "no": _to_json(node.no, phones)}


def _from_json(value: Any, ids: dict[str, int]) -> Node:
    if isinstance(value, int):
        return value
    side: Side = "left" if "left" in value else "right"
    members = frozenset(ids[name] for name in value[side])
    return Split(side, members, _from_json(value["yes"], ids), _from_json(value["no"], ids))


# ---------------------------------------------------------------------------- statistics


@dataclass
class ContextStats:
    """Zeroth to second moments of the frames of each (state, left, centre, right)."""

    keys: Ints  # (n, 4): centre, state, left, right
    count: Doubles  # (n,)
    first: Doubles  # (n, dims)
    second: Doubles  # (n, dims)

    @classmethod
    def of_frames(cls, keys: Ints, x: NDArray[np.float32]) -> ContextStats:
        """Add up frames by key."""
        unique, inverse = np.unique(keys, axis=0, return_inverse=True)
        wide = x.astype(np.float64)
        first = np.zeros((len(unique), x.shape[1]))
        second = np.zeros_like(first)
        np.add.at(first, inverse, wide)
        np.add.at(second, inverse, wide**2)
        return cls(unique, np.bincount(inverse, minlength=len(unique)).astype(float), first, second)

    @classmethod
    def merged(cls, parts: Sequence[ContextStats]) -> ContextStats:
        """Add up the statistics of several pieces, in their order."""
        keys = np.concatenate([p.keys for p in parts])
        unique, inverse = np.unique(keys, axis=0, return_inverse=True)
        count = np.zeros(len(unique))
        first = np.zeros((len(unique), parts[0].first.shape[1]))
        second = np.zeros_like(first)
        np.add.at(count, inverse, np.concatenate([p.count for p in parts]))
        np.add.at(first, inverse, np.concatenate([p.first for p in parts]))
        np.add.at(second, inverse, np.concatenate([p.second for p in parts]))
        return cls(unique, count, first, second)

    def select(self, rows: NDArray[np.bool_]) -> ContextStats:
        """Return the statistics of the rows that are true."""
        return ContextStats(self.keys[rows], self.count[rows], self.first[rows], self.second[rows])


def log_likelihood(count: Doubles, first: Doubles, second: Doubles) -> Doubles:
    """Eq. 1 for moments with any leading shape."""
    n = np.maximum(count, 1e-10)[..., None]
    variance = np.maximum(second / n - (first / n) ** 2, VARIANCE_FLOOR)
    likelihood: Doubles = -0.5 * count * np.log(variance).sum(-1)
    return likelihood


def questions(stats: ContextStats) -> list[frozenset[int]]:
    """Merge phones bottom-up and return every group that appears."""
    groups: list[tuple[frozenset[int], float, Doubles, Doubles]] = []
    for phone in np.unique(stats.keys[:, 0]):
        mine = stats.select(stats.keys[:, 0] == phone)
        groups.append(
            (
                frozenset([int(phone)]),
                float(mine.count.sum()),
                mine.first.sum(0),
                mine.second.sum(0),
            )
        )
    found = [g[0] for g in groups]
    while len(groups) > 2:  # the group of all phones separates nothing
        count = np.array([g[1] for g in groups])
        first = np.stack([g[2] for g in groups])
        second = np.stack([g[3] for g in groups])
        alone = log_likelihood(count, first, second)
        together = log_likelihood(
            count[:, None] + count, first[:, None] + first, second[:, None] + second
        )
        loss = alone[:, None] + alone - together
        loss[np.tril_indices(len(groups))] = np.inf
        i, j = divmod(int(loss.argmin()), len(groups))
        a, b = groups[i], groups[j]
        joined = (a[0] | b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3])
        groups = [g for k, g in enumerate(groups) if k not in (i, j)] + [joined]
        found.append(joined[0])
    return found


# ---------------------------------------------------------------------------- growing


@dataclass
class _Growing:
    """A leaf that may be split: its frames' statistics and its best question."""

    stats: ContextStats
    gain: float = 0.0
    side: Side = "left"
    phones: frozenset[int] = frozenset()
    answer: NDArray[np.bool_] | None = None
    children: tuple[_Growing, _Growing] | None = None


def grow(
    phones: Sequence[str],
    stats: ContextStats,
    num_senones: int,
    *,
    min_frames: float = MIN_FRAMES,
) -> Senones:
    """Build the trees; there are fewer senones than asked for if the data allows no more splits."""
    num_roots = len(phones) * NUM_STATES
    if num_senones < num_roots:
        raise SpeechError(
            f"{num_senones} senones are fewer than the {num_roots} states of {len(phones)} phones: "
            f"ask for at least {num_roots}"
        )
    asked = questions(stats)
    masks = np.zeros((len(asked), len(phones) + 1), dtype=bool)
    for row, group in enumerate(asked):
        masks[row, list(group)] = True
    roots = {}
    heap: list[tuple[float, int, _Growing]] = []
    for phone in range(1, len(phones) + 1):
        for state in range(NUM_STATES):
            mine = (stats.keys[:, 0] == phone) & (stats.keys[:, 1] == state)
            root = roots[phone, state] = _Growing(stats.select(mine))
            if phone != SILENCE_ID:
                _consider(root, asked, masks, min_frames)
                heapq.heappush(heap, (-root.gain, len(heap), root))
    leaves, pushed = num_roots, len(heap)
    while heap and leaves < num_senones:
        negative_gain, _, leaf = heapq.heappop(heap)
        if negative_gain >= 0 or leaf.answer is None:
            break
        yes = _Growing(leaf.stats.select(leaf.answer))
        leaf.children = (yes, _Growing(leaf.stats.select(~leaf.answer)))
        for child in leaf.children:
            _consider(child, asked, masks, min_frames)
            heapq.heappush(heap, (-child.gain, pushed := pushed + 1, child))
        leaves += 1
    numbers = iter(range(leaves))
    return Senones(list(phones), {key: _frozen(root, numbers) for key, root in roots.items()})


def _consider(
    leaf: _Growing, asked: list[frozenset[int]], masks: NDArray[np.bool_], min_frames: float
) -> None:
    """Find the best question for a leaf (eq. 2)."""
    s = leaf.stats
    if s.count.sum() < 2 * min_frames:
        return
    whole = log_likelihood(s.count.sum(), s.first.sum(0), s.second.sum(0))
    for column, side in ((2, "left"), (3, "right")):
        yes = masks[:, s.keys[:, column]]  # (questions, contexts)
        weight = yes.astype(np.float64)
        count, first, second = weight @ s.count, weight @ s.first, weight @ s.second
        rest = s.count.sum() - count
        gain = (
            log_likelihood(count, first, second)
            + log_likelihood(rest, s.first.sum(0) - first, s.second.sum(0) - second)
            - whole
        )
        gain[(count < min_frames) | (rest < min_frames)] = -np.inf
        best = int(gain.argmax())
        if gain[best] > leaf.gain:
            leaf.gain, leaf.phones, leaf.answer = float(gain[best]), asked[best], yes[best]
            leaf.side = "left" if side == "left" else "right"


def _frozen(leaf: _Growing, numbers: Any) -> Node:
    if leaf.children is None:
        return int(next(numbers))
    yes, no = leaf.children
    return Split(leaf.side, leaf.phones, _frozen(yes, numbers), _frozen(no, numbers))
