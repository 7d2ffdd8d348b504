r"""Language models from ARPA files, as SRILM, KenLM and Kaldi's tools write them.

    \data\              then  ngram N=COUNT  for each order
    \N-grams:           then  log10(p)  w1 ... wN  [log10(backoff)]
    \end\

Words without a pronunciation are left out, with every n-gram that contains them. What remains is
the model of the sentences without these words; it sums to less than one, which does not matter to
the decoder. The unknown word is kept if training had one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NoReturn

from hocket.speech.errors import SpeechError
from hocket.speech.graph.lexicon import UNKNOWN
from hocket.speech.graph.lm import END, START, History, NGram
from hocket.speech.input.datadir import numbered_lines

_COUNT: Final = re.compile(r"ngram\s+(\d+)\s*=\s*(\d+)$")
_SECTION: Final = re.compile(r"\\(\d+)-grams:$")
_NOTHING: Final = -90.0  # log10; ARPA files write -99 for "never", as for <s> itself
_UNKNOWN_MARKS: Final = frozenset(["<unk>", "<UNK>", "<oov>"])


def arpa_words(path: Path) -> list[str]:
    """Return the words of an ARPA file, without the marks of sentences and unknown words."""
    marks = {START, END} | _UNKNOWN_MARKS
    return [words[0] for _, words, _ in _rows(path, 1) if words[0] not in marks]


def check_arpa(path: Path) -> None:
    """Raise unless a model can be built from the file."""
    read_arpa(path, arpa_words(path))


def read_arpa(path: Path, words: Collection[str]) -> NGram:
    """Read the model in a file, restricted to the given words."""
    known = {*words, START, END}
    seen: dict[History, dict[str, float]] = {(): {}}
    backoff: dict[History, float] = {}
    order = 1
    for log_p, marked, log_backoff in _rows(path):
        ngram = tuple(UNKNOWN if word in _UNKNOWN_MARKS else word for word in marked)
        order = max(order, len(ngram))
        if not known.issuperset(ngram):
            continue
        history, word = ngram[:-1], ngram[-1]
        if log_p > _NOTHING and word != START:
            seen.setdefault(history, {})[word] = 10.0**log_p
        if log_backoff != 0.0:  # such a history counts as seen, even if no word follows it
            backoff[ngram] = 10.0**log_backoff
            seen.setdefault(ngram, {})
    if END not in seen[()]:
        raise SpeechError(f"{path}: no unigram {END}: no sentence could end. Estimate it again")
    vocabulary = tuple(sorted(w for w in seen[()] if w != END))
    if not vocabulary:
        raise SpeechError(f"{path}: none of its words has a pronunciation: is it another language?")
    for history in seen.keys() - backoff.keys():
        backoff[history] = 1.0
    return NGram(order, vocabulary, seen, backoff)


def _rows(path: Path, up_to: int | None = None) -> Iterator[tuple[float, History, float]]:
    """Yield (log10 p, words, log10 backoff); check the counts of the header."""
    promised: dict[int, int] = {}
    order, found = 0, 0

    def check() -> None:
        if order and found != promised[order]:
            raise SpeechError(
                f"{path}: {found:,} {order}-grams, but its header promises {promised[order]:,}: "
                "the file is damaged or was cut off"
            )

    for number, line in numbered_lines(path):
        text = line.strip()
        if text == "\\data\\":
            continue
        if text == "\\end\\":
            check()
            return
        counted, section = _COUNT.match(text), _SECTION.match(text)
        if counted and not order:
            promised[int(counted[1])] = int(counted[2])
        elif section:
            check()
            order, found = int(section[1]), 0
            if order not in promised:
                _bad(path, number, f"{order}-grams that the header does not promise")
            if up_to is not None and order > up_to:
                return
        elif not order:
            _bad(path, number, f"not an ARPA file: {text[:40]!r} instead of '\\data\\'")
        else:
            found += 1
            yield _row(path, number, text, order)
    raise SpeechError(f"{path}: it has no \\end\\: the file was cut off. Copy it again")


def _row(path: Path, number: int, text: str, order: int) -> tuple[float, History, float]:
    fields = text.split()
    if len(fields) not in (order + 1, order + 2):
        _bad(path, number, f"{len(fields)} fields, but a {order}-gram has {order + 1} or one more")
    try:
        log_p = float(fields[0])
        log_backoff = float(fields[-1]) if len(fields) == order + 2 else 0.0
    except ValueError:
        _bad(path, number, f"no number in {text[:40]!r}")
    if not log_p <= 0.0:
        _bad(path, number, f"log probability {log_p:g} is above 0: a probability would exceed 1")
    return log_p, tuple(fields[1 : order + 1]), log_backoff


def _bad(path: Path, number: int, what: str) -> NoReturn:
    raise SpeechError(f"{path}:{number}: {what}")
