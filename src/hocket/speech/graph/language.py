"""Where the language model comes from: the transcripts, more text, or a finished model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hocket.speech.graph import lm
from hocket.speech.graph.arpa import arpa_words, read_arpa
from hocket.speech.graph.lexicon import UNKNOWN, Lexicon, lexicon_for
from hocket.speech.graph.lm import NGram
from hocket.speech.input.datadir import numbered_lines
from hocket.speech.units import Unit, characters


@dataclass(frozen=True)
class LanguageSource:
    """The source of the language model; at most one of the two files is given."""

    order: int
    text: str = ""  # a file of sentences, one per line, without keys
    arpa: str = ""
    unit: Unit = "word"

    def model(
        self,
        transcripts: Sequence[Sequence[str]],
        acoustic: Lexicon,
        phones: Sequence[str],
        pronunciations: str,
    ) -> tuple[NGram, Lexicon]:
        """Return the model, and the pronunciations of its words.

        A word that training did not have gets its pronunciation from the source `pronunciations`,
        if training had all of its phones. If training had words without a pronunciation, all such
        words are one, `<unk>`, which the model can predict as any other.
        """
        sentences = self._sentences(transcripts)
        wanted = (
            set(arpa_words(Path(self.arpa))) if self.arpa else {w for s in sentences for w in s}
        )
        lexicon = extended(acoustic, wanted, frozenset(phones), pronunciations)
        if UNKNOWN in acoustic.entries:
            sentences = [[w if w in lexicon.entries else UNKNOWN for w in s] for s in sentences]
            wanted.add(UNKNOWN)
        vocabulary = [w for w in lexicon.words if w in wanted]
        if self.arpa:
            return read_arpa(Path(self.arpa), vocabulary), lexicon
        return lm.estimate(sentences, vocabulary, self.order), lexicon

    def _sentences(self, transcripts: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
        """Return the transcripts and the lines of the text: both are examples of the language."""
        if not self.text:
            return transcripts
        lines = [line.split() for _, line in numbered_lines(Path(self.text))]
        if self.unit == "character":
            lines = [characters(line) for line in lines]
        return [*transcripts, *lines]


def extended(acoustic: Lexicon, wanted: set[str], phones: frozenset[str], source: str) -> Lexicon:
    """Return the lexicon with those of the `wanted` words whose phones are all known."""
    new = sorted(wanted - acoustic.entries.keys())
    if not new:
        return acoustic
    found, _ = lexicon_for(new, source)
    entries = dict(acoustic.entries)
    for word, said in found.entries.items():
        known = tuple(one for one in said if phones.issuperset(one))
        if known:
            entries[word] = known
    return Lexicon(entries)
