"""Which of two systems is better, and where one of them goes wrong.

Two systems are compared on the same utterances by the paired bootstrap (Bisani and Ney 2004): draw
as many utterances with replacement as there are, compute the difference of the two error rates on
them, and repeat. What is hard for both systems cancels, so this finds differences that two separate
intervals would hide. Utterances of one speaker are not independent; with few speakers the interval
is too narrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import kaldialign
import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from hocket.speech.decode.scoring import check_same, in_units
from hocket.speech.units import Unit, Words

REPLICATIONS: Final = 10_000
PIECE: Final = 500  # replications at a time
GAP: Final = "*"


@dataclass(frozen=True)
class Difference:
    """How much higher the second system's error rate is than the first one's."""

    first: float
    second: float
    low: float  # 95 % of the replications lie between low and high
    high: float
    better_share: float  # of the replications in which the second has fewer errors

    @property
    def difference(self) -> float:
        """Second error rate minus the first; below 0, the second system is better."""
        return self.second - self.first

    @property
    def significant(self) -> bool:
        """True if the interval does not contain 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        verdict = "no significant difference"
        if self.significant:
            verdict = "the second is better" if self.difference < 0 else "the first is better"
        return (
            f"difference {self.difference:+.2%} [{self.low:+.2%}, {self.high:+.2%}]: {verdict} "
            f"(the second has fewer errors in {self.better_share:.1%} of {REPLICATIONS:,} draws)"
        )


def utterance_errors(refs: Mapping[str, Words], hyps: Mapping[str, Words]) -> NDArray[np.int64]:
    """Return the errors of each utterance, in the order of sorted names."""
    found = [
        kaldialign.edit_distance(list(refs[name]), list(hyps[name]))["total"]
        for name in sorted(refs)
    ]
    return np.array(found, dtype=np.int64)


def compare(
    refs: Mapping[str, Words],
    first: Mapping[str, Words],
    second: Mapping[str, Words],
    unit: Unit = "word",
) -> Difference:
    """Compare two systems on the same reference."""
    check_same(refs, first)
    check_same(refs, second)
    refs, first, second = (in_units(texts, unit) for texts in (refs, first, second))
    words = np.array([len(refs[name]) for name in sorted(refs)])
    errors = [utterance_errors(refs, hyps) for hyps in (first, second)]
    draws = _differences(words, errors[1] - errors[0])
    low, high = np.quantile(draws, [0.025, 0.975])
    one, two = (float(e.sum() / words.sum()) for e in errors)
    return Difference(one, two, float(low), float(high), float((draws < 0).mean()))


def _differences(words: NDArray[np.int64], more_errors: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the difference of the rates in each replication."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(REPLICATIONS // PIECE):
        drawn = rng.integers(len(words), size=(PIECE, len(words)))
        found.append(more_errors[drawn].sum(1) / words[drawn].sum(1))
    return np.concatenate(found)


# ---------------------------------------------------------------------------- worst utterances


@dataclass(frozen=True)
class Mistake:
    """An utterance with errors, reference and hypothesis side by side."""

    name: str
    errors: int
    words: int
    pairs: tuple[tuple[str, str], ...]  # (reference, hypothesis); GAP where one has nothing

    def lines(self) -> list[str]:
        """Return three lines: reference, hypothesis, and the kind of error in each column."""
        rows = ["REF:", "HYP:", "    "]
        for ref, hyp in self.pairs:
            wide = max(cell_len(ref), cell_len(hyp))  # a Chinese character takes two columns
            for row, text in enumerate((ref, hyp, kind_of(ref, hyp))):
                rows[row] += " " + text + " " * (wide - cell_len(text))
        return [row.rstrip() for row in rows]


def kind_of(ref: str, hyp: str) -> str:
    """Return S, D or I (substitution, deletion, insertion), or nothing if both are equal."""
    if ref == hyp:
        return ""
    return "I" if ref == GAP else "D" if hyp == GAP else "S"


def worst(
    refs: Mapping[str, Words], hyps: Mapping[str, Words], how_many: int, unit: Unit = "word"
) -> list[Mistake]:
    """Return the utterances with the most errors; of equals, the higher error rate comes first."""
    check_same(refs, hyps)
    refs, hyps = in_units(refs, unit), in_units(hyps, unit)
    errors = utterance_errors(refs, hyps)
    rows = [(int(n), name) for n, name in zip(errors, sorted(refs), strict=True) if n]
    rows.sort(key=lambda row: (-row[0], len(refs[row[1]]), row[1]))
    return [
        Mistake(
            name,
            errors,
            len(refs[name]),
            tuple(kaldialign.align(list(refs[name]), list(hyps[name]), GAP)),
        )
        for errors, name in rows[:how_many]
    ]
