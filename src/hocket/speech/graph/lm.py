"""An n-gram language model from transcripts, with interpolated Witten-Bell smoothing.

    p(w | h) = (c(h, w) + T(h) p(w | h')) / (c(h) + T(h))                               (1)

c(h) counts how often the history h was seen, T(h) how many different words followed it, and h' is h
without its oldest word. Unigrams are smoothed with the uniform distribution over the vocabulary and
the end of the sentence. A word never seen after h has p(w | h) = b(h) p(w | h') with

    b(h) = T(h) / (c(h) + T(h))                                                         (2)

so the model is a backoff model that sums to one exactly, for any counts (Witten and Bell 1991). It
needs no counts of counts, which a small corpus does not have.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hocket.errors import require
from hocket.speech.errors import SpeechError

START: Final = "<s>"
END: Final = "</s>"
History = tuple[str, ...]


@dataclass(frozen=True)
class NGram:
    """Probabilities of the n-grams that were seen, and backoff weights for the others."""

    order: int
    vocabulary: tuple[str, ...]
    seen: dict[History, dict[str, float]]  # history -> word -> probability (eq. 1)
    backoff: dict[History, float]  # eq. 2

    def probability(self, word: str, history: Sequence[str]) -> float:
        """Return p(word | history), from the longest part of the history that was seen."""
        h = tuple(history)[max(0, len(history) - self.order + 1) :]
        factor = 1.0
        while h:
            if word in self.seen.get(h, {}):
                return factor * self.seen[h][word]
            factor *= self.backoff.get(h, 1.0)
            h = h[1:]
        return factor * self.seen[()][word]

    def longest_seen(self, history: Sequence[str]) -> History:
        """Return the longest end of a history that the model has seen."""
        h = tuple(history)[max(0, len(history) - self.order + 1) :]
        while h and h not in self.seen:
            h = h[1:]
        return h


def estimate(
    sentences: Iterable[Sequence[str]], vocabulary: Iterable[str], order: int = 3
) -> NGram:
    """Count and smooth; a word outside the vocabulary is not counted, nor are histories with it."""
    require(order >= 1, f"the order of the language model must be at least 1, not {order}")
    known = set(vocabulary)
    if not known:
        raise SpeechError("the language model's vocabulary is empty")
    counts: dict[History, Counter[str]] = defaultdict(Counter)
    for words in sentences:
        sentence = [START, *words, END]
        for at in range(1, len(sentence)):
            if sentence[at] != END and sentence[at] not in known:
                continue
            for length in range(min(order, at + 1)):
                history = tuple(sentence[at - length : at])
                if all(w == START or w in known for w in history):
                    counts[history][sentence[at]] += 1
    outcomes = [*sorted(known), END]
    uniform = 1 / len(outcomes)
    seen: dict[History, dict[str, float]] = {}
    backoff: dict[History, float] = {}
    unigrams = counts[()]
    total, kinds = sum(unigrams.values()), max(1, len(unigrams))
    seen[()] = {w: (unigrams[w] + kinds * uniform) / (total + kinds) for w in outcomes}  # eq. 1
    model = NGram(order, tuple(sorted(known)), seen, backoff)
    for history in sorted(counts, key=lambda h: (len(h), h)):
        if not history:
            continue
        followers = counts[history]
        total, kinds = sum(followers.values()), len(followers)
        seen[history] = {
            w: (n + kinds * model.probability(w, history[1:])) / (total + kinds)  # eq. 1
            for w, n in sorted(followers.items())
        }
        backoff[history] = kinds / (total + kinds)  # eq. 2
    return model
