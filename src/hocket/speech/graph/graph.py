"""Graphs for the decoder: all sentences that can be recognised, as a network of senones.

    HCLG = H o C o det(L o G)

G is the language model, L the lexicon with optional silence between words, C maps phones to phones
between their neighbours, and H maps those to three states with loops. The input label of an arc is
pdf + 1, by which the decoder finds its column in a matrix of log-likelihoods; the output label is a
word. L o G is determinised with disambiguation symbols, as in Kaldi; C is kaldifst's; H is in
`states.py`.

For forced alignment, the graph of one transcript is small, so it is built directly, without
composition: its states between phones are (position, previous phone, next phone).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import kaldifst
import numpy as np
from numpy.typing import NDArray

from hocket.errors import UnreadableError
from hocket.speech.errors import SpeechError
from hocket.speech.graph.arcs import EPSILON, Arcs
from hocket.speech.graph.lexicon import Lexicon, Phones
from hocket.speech.graph.lm import END, START, NGram
from hocket.speech.graph.senones import SILENCE_ID, Senones
from hocket.speech.graph.states import with_states
from hocket.support.files import write_lines
from hocket.support.inputs import lines

SILENCE_PROBABILITY: Final = 0.5  # of a pause between two words


@dataclass
class Graph:
    """A decoding graph, and the words that its output labels stand for."""

    fst: Any  # kaldifst.StdVectorFst
    words: list[str]  # number i has the label i + 1
    num_pdfs: int = 0  # the highest input label, of one that was read

    def write(self, folder: Path) -> None:
        """Write HCLG.fst (OpenFst's format) and words.txt."""
        self.fst.write(str(folder / "HCLG.fst"))
        rows = ["<eps> 0\n"] + [f"{w} {n}\n" for n, w in enumerate(self.words, 1)]
        write_lines(folder / "words.txt", rows)

    @classmethod
    def read(cls, folder: Path) -> Graph:
        """Read what `write` wrote."""
        try:
            words = [row.split()[0] for row in lines(folder / "words.txt") if row.strip()][1:]
            path = folder / "HCLG.fst"
            arcs = Arcs.parse(path).checked(path, len(words))
            fst = kaldifst.StdVectorFst.read(str(path))
            return cls(fst, words, int(arcs.ilabel.max(initial=0)))
        except (UnreadableError, MemoryError) as error:  # a spoilt count asks for all memory
            raise SpeechError(
                f"no decoding graph can be read ({error}): delete {folder} and prepare it again"
            ) from error

    def with_word_penalty(self, penalty: float) -> Graph:
        """Return the graph in which every word costs `penalty` more."""
        if penalty == 0.0:
            return self
        arcs = Arcs.of(self.fst)
        costs = arcs.cost + penalty * (arcs.olabel != EPSILON)
        return Graph(replace(arcs, cost=costs).fst(), self.words, self.num_pdfs)


class _Builder:
    """An FST under construction; costs are -log probabilities."""

    def __init__(self) -> None:
        self.fst = kaldifst.StdVectorFst()
        self._named: dict[Any, int] = {}

    def state(self) -> int:
        return int(self.fst.add_state())

    def named(self, key: Any) -> int:
        """Return the state of a name; make it if the name is new."""
        if key not in self._named:
            self._named[key] = self.state()
        return self._named[key]

    def __contains__(self, key: Any) -> bool:
        return key in self._named

    def arc(self, start: int, ilabel: int, olabel: int, cost: float, end: int) -> None:
        self.fst.add_arc(start, kaldifst.StdArc(ilabel, olabel, cost, end))


# ---------------------------------------------------------------------------- G and L


def grammar(lm: NGram, word_id: dict[str, int], backoff_label: int) -> Any:
    """Return G: its states are histories, and its backoff arcs read `backoff_label`."""
    g = _Builder()
    start = lm.longest_seen([START])
    g.fst.start = g.named(start)
    todo = [start]
    done = {start}

    def visit(history: tuple[str, ...]) -> int:
        if history not in done:
            done.add(history)
            todo.append(history)
        return g.named(history)

    while todo:
        history = todo.pop()
        here = g.named(history)
        for word, p in lm.seen[history].items():
            cost = -math.log(p)
            if word == END:
                g.fst.set_final(here, cost)
            else:
                label = word_id[word]
                g.arc(here, label, label, cost, visit(lm.longest_seen([*history, word])))
        if history:
            shorter = lm.longest_seen(history[1:])
            g.arc(here, backoff_label, EPSILON, -math.log(lm.backoff[history]), visit(shorter))
    return g.fst


def disambiguated(lexicon: Lexicon) -> tuple[list[tuple[str, Phones, int]], int]:
    """Number homophones and words that begin others: (word, phones, n); 0: no symbol needed."""
    rows = [(w, phones) for w in lexicon.words for phones in lexicon.entries[w]]
    same: dict[Phones, int] = {}
    prefixes = set()
    for _, phones in rows:
        same[phones] = same.get(phones, 0) + 1
        prefixes |= {phones[:n] for n in range(1, len(phones))}
    used: dict[Phones, int] = {}
    numbered = []
    for word, phones in rows:
        number = 0
        if same[phones] > 1 or phones in prefixes:
            number = used[phones] = used.get(phones, 0) + 1
        numbered.append((word, phones, number))
    return numbered, max(used.values(), default=0)


def lexicon_fst(
    lexicon: Lexicon, phones: Sequence[str], word_id: dict[str, int], backoff_word: int
) -> tuple[Any, list[int]]:
    """Return L with optional silence, and the labels of its disambiguation symbols."""
    rows, most = disambiguated(lexicon)
    phone_id = {phone: number for number, phone in enumerate(phones, 1)}
    first = len(phones) + 1  # '#0', which stands for a backoff of the language model
    silence_symbol = first + most + 1
    cost_silence = -math.log(SILENCE_PROBABILITY)
    cost_none = -math.log(1 - SILENCE_PROBABILITY)
    b = _Builder()
    start, loop, pause, after_pause = (b.state() for _ in range(4))
    b.fst.start = start
    b.fst.set_final(loop, 0.0)
    b.arc(start, EPSILON, EPSILON, cost_none, loop)
    b.arc(start, EPSILON, EPSILON, cost_silence, pause)
    b.arc(pause, SILENCE_ID, EPSILON, 0.0, after_pause)
    b.arc(after_pause, silence_symbol, EPSILON, 0.0, loop)
    for word, said, number in rows:
        labels = [phone_id[p] for p in said] + ([first + number] if number else [])
        here, word_label = loop, word_id[word]
        for label in labels[:-1]:
            there = b.state()
            b.arc(here, label, word_label, 0.0, there)
            here, word_label = there, EPSILON
        b.arc(here, labels[-1], word_label, cost_none, loop)
        b.arc(here, labels[-1], word_label, cost_silence, pause)
    b.arc(loop, first, backoff_word, 0.0, loop)  # a language model backs off between words only
    return b.fst, list(range(first, silence_symbol + 1))


# ---------------------------------------------------------------------------- HCLG


def decoding_graph(
    lexicon: Lexicon, lm: NGram, senones: Senones, loop_probability: NDArray[np.float64]
) -> Graph:
    """Build HCLG from the lexicon, the language model and the senones."""
    words = [w for w in lm.vocabulary if w in lexicon.entries]
    if not words:
        raise SpeechError("no word of the language model has a pronunciation")
    word_id = {w: n for n, w in enumerate(words, 1)}
    backoff_word = len(words) + 1
    spoken = lexicon.restricted(words)
    strange = set(spoken.phones) - set(senones.phones)
    if strange:
        raise SpeechError(f"no senones for the phones {sorted(strange)}: prepare everything again")
    left, symbols = lexicon_fst(spoken, senones.phones, word_id, backoff_word)
    right = grammar(lm, word_id, backoff_word)
    kaldifst.arcsort(left, sort_type="olabel")
    kaldifst.arcsort(right, sort_type="ilabel")
    lg = kaldifst.compose(left, right)
    kaldifst.determinize_star(lg)
    kaldifst.minimize_encoded(lg)
    width, centre = (3, 1) if senones.depends_on_context else (1, 0)
    clg, labels = kaldifst.compose_context(symbols, width, centre, lg)
    return Graph(with_states(clg, labels, senones, loop_probability), words)


# ---------------------------------------------------------------------------- alignment


def phone_arcs(
    words: Sequence[Sequence[Sequence[int]]],
) -> tuple[list[list[tuple[int, int]]], set[int]]:
    """Return the phone network of a transcript: arcs (phone, next) of each node, and final nodes.

    `words` holds each word's pronunciations as phone ids. Silence is optional at both ends and
    between words. Node 0 is the start; there are no epsilons.
    """
    arcs: list[list[tuple[int, int]]] = [[]]
    at = [0]  # nodes at which the next word may begin
    for said in words:
        arcs.append([])
        with_pause = len(arcs) - 1
        for node in at:
            arcs[node].append((SILENCE_ID, with_pause))
        arcs.append([])
        after = len(arcs) - 1
        for phones in said:
            heads = [*at, with_pause]
            for phone in phones[:-1]:
                arcs.append([])
                for node in heads:
                    arcs[node].append((phone, len(arcs) - 1))
                heads = [len(arcs) - 1]
            for node in heads:
                arcs[node].append((phones[-1], after))
        at = [after]
    arcs.append([])
    for node in at:
        arcs[node].append((SILENCE_ID, len(arcs) - 1))
    return arcs, {*at, len(arcs) - 1}


def alignment_graph(
    words: Sequence[Sequence[Sequence[int]]],
    senones: Senones,
    loop_probability: NDArray[np.float64],
) -> tuple[Any, NDArray[np.int64]]:
    """Return the graph of one transcript, and the pdf that each input label (from 1) stands for."""
    arcs, final = phone_arcs(words)
    b = _Builder()
    local: dict[int, int] = {}
    hmm = _LocalHMM(b, loop_probability, local)
    start, end = b.state(), b.state()
    b.fst.start = start
    b.fst.set_final(end, 0.0)

    def following(node: int) -> list[int]:
        phones = sorted({phone for phone, _ in arcs[node]})
        return phones + ([0] if node in final else [])

    junctions = [(0, 0, phone) for phone in following(0) if phone]
    for junction in junctions:
        b.arc(start, EPSILON, EPSILON, 0.0, b.named(junction))
    todo, seen = list(junctions), set(junctions)
    while todo:
        node, left, phone = todo.pop()
        here = b.named((node, left, phone))
        for taken, there in arcs[node]:
            if taken != phone:
                continue
            for right in following(there):
                target = end
                if right:
                    key = (there, phone, right)
                    target = b.named(key)
                    if key not in seen:
                        seen.add(key)
                        todo.append(key)
                hmm.add(here, senones.pdfs(left, phone, right), target)
    pdfs = np.fromiter(local, dtype=np.int64, count=len(local))
    return b.fst, pdfs


class _LocalHMM:
    """Adds chains of states with loops; chains with the same end share its states.

    Labels count from 1 in order of appearance, so only a few columns of scores are needed.
    """

    def __init__(
        self, builder: _Builder, loop_probability: NDArray[np.float64], local: dict[int, int]
    ) -> None:
        self._b, self._local = builder, local
        self._all_loop = (-np.log(loop_probability)).tolist()
        self._all_leave = (-np.log1p(-loop_probability)).tolist()
        self._loop: list[float] = []
        self._leave: list[float] = []

    def add(self, start: int, pdfs: Sequence[int], end: int) -> None:
        for pdf in pdfs:
            if pdf not in self._local:
                self._local[pdf] = len(self._local)
                self._loop.append(self._all_loop[pdf])
                self._leave.append(self._all_leave[pdf])
        chain = tuple(self._local[pdf] for pdf in pdfs)
        self._b.arc(start, chain[0] + 1, EPSILON, 0.0, self._rest(chain, end))

    def _rest(self, pdfs: tuple[int, ...], end: int) -> int:
        """Return the state that is inside pdfs[0], with the other pdfs to come."""
        key = (pdfs, end)
        known = key in self._b
        state = self._b.named(key)
        if not known:
            pdf = pdfs[0]
            self._b.arc(state, pdf + 1, EPSILON, self._loop[pdf], state)
            if len(pdfs) > 1:
                following = self._rest(pdfs[1:], end)
                self._b.arc(state, pdfs[1] + 1, EPSILON, self._leave[pdf], following)
            else:
                self._b.arc(state, EPSILON, EPSILON, self._leave[pdf], end)
        return state
