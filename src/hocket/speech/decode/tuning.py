"""Acoustic scale and word penalty with the fewest errors on dev, for the price of a few decodings.

The number of errors is nearly a parabola in the logarithm of the scale, and in the penalty. So a
few settings tell where its lowest point is: a line of scales is made longer until its best lies
inside, the parabola through the best and its two neighbours gives the scale; a line of penalties at
that scale gives the penalty. The settings are tried on every fourth utterance of dev (or on more,
if these have too few words): 10 settings cost 2.5 decodings. What differs between two settings is
decided on the same utterances, so such a sample chooses well, though its error rate alone would be
a poor estimate of dev's; `uncertainty` says how poor.

A small scale prunes little and is slow, so smaller scales are tried only while they reduce errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, log
from typing import Final

from hocket.speech.decode.decoding import Decoder, Setting
from hocket.speech.decode.scoring import Score, count, score

SCALE: Final = 0.1  # where tuning begins
RATIO, STEP = 1.5, 1.0  # of neighbouring scales; difference of neighbouring penalties
EVERY: Final = 4  # utterance of dev is tried
MIN_WORDS: Final = 1200  # in the utterances that are tried, if dev has as many
MAX_SETTINGS: Final = 10  # on a part of dev: EVERY of them cost one decoding
MAX_WIDENING: Final = 10  # how often a line of settings is made longer


@dataclass
class Tuning:
    """A search along one axis after the other."""

    decoder: Decoder
    split: str = "dev"
    errors: dict[Setting, int] = field(default_factory=dict)
    inside: bool = True  # on both lines the best lay between others
    best: Setting = field(default_factory=lambda: Setting(SCALE, 0.0))

    def run(self) -> Tuning:
        """Tune the scale, then the penalty."""
        scale = exp(self._line(log(SCALE), log(RATIO), lambda x: Setting(exp(x), 0.0), spare=3))
        penalty = self._line(0.0, STEP, lambda x: Setting(scale, x))
        self.best = Setting(float(f"{scale:.3g}"), round(penalty, 2))
        return self

    @property
    def decodings(self) -> float:
        """How many decodings of the whole split the search has cost, by utterances."""
        return len(self.errors) * len(self.numbers) / len(self._refs)

    @property
    def uncertainty(self) -> Score:
        """The error rate on the utterances tried, and its interval, at the best setting tried."""
        best = min(self.errors, key=lambda setting: self.errors[setting])
        return score(self._sample, self._heard[best], unit=self.decoder.unit)

    @cached_property
    def numbers(self) -> Sequence[int]:
        """The utterances that are tried: evenly spaced, so that every speaker is among them."""
        words = sum(len(words) for words in self._refs.values())
        return range(0, len(self._refs), max(1, min(EVERY, words // MIN_WORDS)))

    @cached_property
    def _refs(self) -> dict[str, list[str]]:
        return self.decoder.references(self.split)

    @cached_property
    def _sample(self) -> dict[str, list[str]]:
        names = list(self._refs)
        return {names[number]: self._refs[names[number]] for number in self.numbers}

    @cached_property
    def _heard(self) -> dict[Setting, Mapping[str, Sequence[str]]]:
        return {}

    def _line(
        self, start: float, step: float, setting: Callable[[float], Setting], spare: int = 0
    ) -> float:
        """Add neighbours until the best is not at an end; return the parabola's lowest point.

        `spare`: how many settings to leave for what comes after.
        """
        first, last = -1, 1
        for _ in range(MAX_WIDENING):
            line = [setting(start + n * step) for n in range(first, last + 1)]
            self._evaluate(line)
            errors = [self.errors[one] for one in line]
            fewest = min(errors)
            equals = [n for n, found in enumerate(errors) if found == fewest]
            best = equals[len(equals) // 2]
            if 0 < best < len(line) - 1:
                return start + (first + best + _vertex(*errors[best - 1 : best + 2])) * step
            if self._used_up(spare):
                break
            first, last = (first - 1, last) if best == 0 else (first, last + 1)
        self.inside = False
        return start + (first + best) * step

    def _used_up(self, spare: int) -> bool:
        on_a_part = len(self.numbers) < len(self._refs)
        return on_a_part and len(self.errors) + spare >= MAX_SETTINGS

    def _evaluate(self, settings: Sequence[Setting]) -> None:
        new = [s for s in settings if s not in self.errors]
        if not new:
            return
        title = f"tuning on {self.split}"
        found = self.decoder.decode(self.split, new, title, self.numbers)
        for one, hyps in zip(new, found, strict=True):
            self._heard[one] = hyps
            refs = list(self._sample.values())
            self.errors[one] = count(refs, [hyps[name] for name in self._sample]).total


def _vertex(before: int, least: int, after: int) -> float:
    """Return where the parabola through three neighbours is lowest, in steps from the middle."""
    bend = before - 2 * least + after
    return 0.5 * (before - after) / bend if bend > 0 else 0.0
