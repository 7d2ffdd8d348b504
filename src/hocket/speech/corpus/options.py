"""The options of a synthetic corpus, and the kinds of corpora there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from hocket.core.limits import check_numbers
from hocket.errors import nearest, require
from hocket.speech.corpus import assistant, digits, mandarin

SPLITS: Final = ("train", "dev", "test")
NUM_NOISES: Final = {"train": 24, "dev": 8, "test": 8}
NUM_ROOMS: Final = {"train": 40, "dev": 12, "test": 12}

Sentence = Callable[[np.random.Generator], list[str]]

ENGLISH: Final = (
    "gmw/en",  # British, under the name that selects it
    "gmw/en-US",
    "gmw/en-US-nyc",
    "gmw/en-GB-scotland",
    "gmw/en-GB-x-gbclan",
    "gmw/en-GB-x-gbcwmd",
    "gmw/en-GB-x-rp",
    "gmw/en-029",
)


@dataclass(frozen=True)
class Kind:
    """What the speakers say, in which accents, and how the transcript is written."""

    sentence: Sentence
    accents: tuple[str, ...] = ENGLISH
    comma_share: float = 0.15  # of the words: a comma follows, spoken as a pause
    space: str = " "  # between two words of a transcript
    lm_sentences: int = 0  # further sentences, as text only, for a language model


KINDS: Final[dict[str, Kind]] = {
    "digits": Kind(digits.sentence),
    "assistant": Kind(assistant.GRAMMAR.sentence, comma_share=0.03, lm_sentences=20_000),
    "mandarin": Kind(mandarin.sentence, accents=("sit/cmn",), space=""),
}


@dataclass(frozen=True)
class CorpusOptions:
    """Everything that determines a corpus; corpus.json records all of it."""

    kind: str
    hours: float  # of training speech
    held_out_hours: float | None = None  # of dev and of test; unset: a tenth, at least 0.1
    snr_db: tuple[float, float] | None = (5.0, 20.0)  # None: neither noise nor rooms
    sample_rate: int = 16000
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            self.kind in KINDS,
            f"no corpus {self.kind!r}: there are {', '.join(KINDS)}.{nearest(self.kind, KINDS)}",
        )
        require(0 < self.hours <= 1000, f"--hours must be above 0 and at most 1000: {self.hours:g}")
        require(
            self.held_out_hours is None or 0 < self.held_out_hours <= 1000,
            "--held-out-hours must be above 0 and at most 1000",
        )
        require(
            self.sample_rate in (8000, 16000),
            f"--sample-rate must be 8000 or 16000, not {self.sample_rate}",
        )
        check_numbers(self, "corpus")
        require(self.seed >= 0, f"--seed must be at least 0, not {self.seed}")
        if self.snr_db is not None:
            low, high = self.snr_db
            require(low <= high, f"--snr {low:g}:{high:g} runs backwards: give {high:g}:{low:g}")
            require(low >= -30 and high <= 100, "--snr is in dB and lies between -30 and 100")

    def split_s(self, split: str) -> float:
        """Return how many seconds of speech a split has."""
        if split == "train":
            return 3600 * self.hours
        return 3600 * (self.held_out_hours or max(0.1 * self.hours, 0.1))
