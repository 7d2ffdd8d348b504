"""Word error rates: errors by kind and by speaker, and a confidence interval.

Alignments and the bootstrap are kaldialign's. The interval is the 95 % bootstrap interval over
utterances (Bisani and Ney 2004).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import kaldialign

from hocket.speech.errors import SpeechError
from hocket.speech.units import Unit, Words, characters

REPLICATIONS = 2000
RATES: Final[dict[Unit, str]] = {"word": "WER", "character": "CER"}


@dataclass(frozen=True)
class Errors:
    """Error counts over a set of utterances."""

    words: int  # in the reference
    substitutions: int
    deletions: int
    insertions: int

    @property
    def total(self) -> int:
        """Number of errors of all three kinds."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per word of the reference."""
        return self.total / self.words if self.words else float("nan")


@dataclass(frozen=True)
class Score:
    """An error rate with its interval, and the errors of each speaker."""

    errors: Errors
    low: float
    high: float
    speakers: dict[str, Errors]
    utterances: int
    wrong_utterances: int
    unit: Unit = "word"

    def __str__(self) -> str:
        e = self.errors
        return (
            f"{RATES[self.unit]} {e.rate:.2%} [{self.low:.2%}, {self.high:.2%}], {e.total} errors "
            f"in {e.words:,} {self.unit}s ({e.substitutions} sub, {e.deletions} del, "
            f"{e.insertions} ins)"
        )


def count(refs: Sequence[Words], hyps: Sequence[Words]) -> Errors:
    """Count the errors in some utterances."""
    found = kaldialign.batch_error_rate([list(r) for r in refs], [list(h) for h in hyps])
    return Errors(found["ref_len"], found["sub"], found["del"], found["ins"])


def in_units(texts: Mapping[str, Words], unit: Unit) -> Mapping[str, Words]:
    """Return the texts as sequences of the unit in which errors are counted."""
    if unit == "word":
        return texts
    return {name: characters(words) for name, words in texts.items()}


def check_same(refs: Mapping[str, Words], hyps: Mapping[str, Words]) -> None:
    """Raise unless hypotheses and references cover the same utterances."""
    if not refs:
        raise SpeechError("nothing to score: the reference is empty")
    missing = refs.keys() - hyps.keys()
    if missing:
        raise SpeechError(
            f"{len(missing)} utterances of the reference have no hypothesis, for example "
            f"{min(missing)!r}: decode them, or score with a reference of the others only"
        )
    strange = hyps.keys() - refs.keys()
    if strange:
        raise SpeechError(
            f"{len(strange)} hypotheses are of utterances that are not in the reference, for "
            f"example {min(strange)!r}: is it the reference of another set?"
        )


def score(
    refs: Mapping[str, Words],
    hyps: Mapping[str, Words],
    speakers: Mapping[str, str] | None = None,
    unit: Unit = "word",
) -> Score:
    """Compare hypotheses with references, utterance by utterance; both must hold the same ones."""
    check_same(refs, hyps)
    refs, hyps = in_units(refs, unit), in_units(hyps, unit)
    ids = sorted(refs)
    pairs = [(list(refs[i]), list(hyps[i])) for i in ids]
    all_refs, all_hyps = [r for r, _ in pairs], [h for _, h in pairs]
    interval = kaldialign.bootstrap_wer_ci(all_refs, all_hyps, replications=REPLICATIONS)
    groups: dict[str, list[int]] = {}
    for number, name in enumerate(ids):
        groups.setdefault((speakers or {}).get(name, "all"), []).append(number)
    return Score(
        count(all_refs, all_hyps),
        max(0.0, float(interval["ci95min"])),
        float(interval["ci95max"]),
        {
            who: count([all_refs[n] for n in numbers], [all_hyps[n] for n in numbers])
            for who, numbers in sorted(groups.items())
        },
        len(ids),
        sum(r != h for r, h in pairs),
        unit,
    )
