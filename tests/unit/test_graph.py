"""Graphs, decoding and forced alignment against brute force."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.speech.decode.decoding import Decoder, Search, Setting, decode_one
from hocket.speech.decode.tuning import Tuning
from hocket.speech.errors import SpeechError
from hocket.speech.gmm.alignment import best_path, phone_spans
from hocket.speech.graph.graph import (
    Graph,
    alignment_graph,
    decoding_graph,
    disambiguated,
    phone_arcs,
)
from hocket.speech.graph.lexicon import Lexicon
from hocket.speech.graph.lm import estimate
from hocket.speech.graph.senones import Senones, Split

LEXICON = Lexicon(
    {
        "to": (("T", "UW"),),
        "two": (("T", "UW"),),  # a homophone
        "tool": (("T", "UW", "L"),),  # begins like another
        "a": (("AH",), ("EY",)),
    }
)
PHONES = LEXICON.phones


def monophone() -> tuple[Senones, Any]:
    senones = Senones.monophone(PHONES)
    return senones, np.full(senones.num_pdfs, 0.5)


def contextual() -> tuple[Senones, Any]:
    """UW's middle state depends on the right neighbour, T's last on the left one."""
    senones = Senones.monophone(PHONES)
    trees = dict(senones.trees)
    uw, t = LEXICON.phone_id["UW"], LEXICON.phone_id["T"]
    n = senones.num_pdfs
    trees[uw, 1] = Split("right", frozenset([LEXICON.phone_id["L"]]), n, trees[uw, 1])
    trees[t, 2] = Split("left", frozenset([1]), n + 1, trees[t, 2])
    made = Senones(PHONES, trees)
    return made, np.full(made.num_pdfs, 0.5)


def path_of(senones: Senones, phones: list[str], frames: int = 2) -> Any:
    """The pdfs of a phone sequence, each state lasting so many frames."""
    ids = [0, *(LEXICON.phone_id[p] for p in phones), 0]
    pdfs = [
        pdf
        for left, centre, right in zip(ids, ids[1:], ids[2:], strict=False)
        for pdf in senones.pdfs(left, centre, right)
    ]
    return np.repeat(pdfs, frames)


def perfect(pdfs: Any, num_pdfs: int) -> Any:
    scores = np.full((len(pdfs), num_pdfs), -30.0, np.float32)
    scores[np.arange(len(pdfs)), pdfs] = 0.0
    return scores


@pytest.mark.parametrize("make", [monophone, contextual])
def test_perfect_scores_give_the_words(make: Any) -> None:
    senones, loop = make()
    lm = estimate([["two", "tool"], ["a", "two", "a"], ["to", "a"]] * 3, LEXICON.words, 3)
    graph = decoding_graph(LEXICON, lm, senones, loop)
    cases: list[tuple[list[str], set[tuple[str, ...]]]] = [
        (["SIL", "T", "UW", "L", "SIL"], {("tool",)}),
        (["T", "UW", "T", "UW", "L"], {("two", "tool"), ("to", "tool")}),
        (["EY", "SIL", "T", "UW", "AH"], {("a", "two", "a"), ("a", "to", "a")}),
    ]
    for phones, words in cases:
        scores = perfect(path_of(senones, phones), senones.num_pdfs)
        found = decode_one(graph, scores, Search(beam=200.0))
        assert tuple(graph.words[w - 1] for w in found) in words


def test_the_language_model_chooses_between_homophones() -> None:
    senones, loop = contextual()
    scores = perfect(path_of(senones, ["AH", "T", "UW"]), senones.num_pdfs)
    for favourite in ("to", "two"):
        lm = estimate([["a", favourite]] * 9 + [["to"], ["two"]], LEXICON.words, 2)
        graph = decoding_graph(LEXICON, lm, senones, loop)
        found = decode_one(graph, scores, Search(beam=200.0))
        assert [graph.words[w - 1] for w in found] == ["a", favourite]


def test_a_word_penalty_makes_fewer_words() -> None:
    senones, loop = monophone()
    lm = estimate([["a"], ["a", "a"]], LEXICON.words, 2)
    graph = decoding_graph(LEXICON, lm, senones, loop)
    scores = np.zeros((40, senones.num_pdfs), np.float32)
    counts = [
        len(decode_one(graph.with_word_penalty(p), scores, Search(beam=300.0)))
        for p in (-20.0, 0.0, 20.0)
    ]
    assert counts[0] > counts[1] >= counts[2]
    assert counts[2] <= 1


def test_graphs_are_written_and_read(tmp_path: Path) -> None:
    folder = tmp_path
    senones, loop = monophone()
    graph = decoding_graph(LEXICON, estimate([["a"]], LEXICON.words, 2), senones, loop)
    graph.write(folder)
    again = Graph.read(folder)
    assert again.words == graph.words
    assert again.fst.num_states == graph.fst.num_states
    with pytest.raises(SpeechError, match="no decoding graph"):
        Graph.read(folder / "nowhere")


def test_homophones_and_prefixes_are_told_apart() -> None:
    rows, most = disambiguated(LEXICON)
    numbers = {(w, p): n for w, p, n in rows}
    assert numbers["to", ("T", "UW")] != numbers["two", ("T", "UW")]
    assert min(numbers["to", ("T", "UW")], numbers["two", ("T", "UW")]) == 1
    assert numbers["tool", ("T", "UW", "L")] == 0
    assert most == 2


def test_phones_without_senones_are_named() -> None:
    senones, loop = monophone()
    strange = Lexicon({"x": (("XX",),)})
    with pytest.raises(SpeechError, match="XX"):
        decoding_graph(strange, estimate([["x"]], ["x"], 1), senones, loop)


# ---------------------------------------------------------------------------- alignment


def words_of(*words: str) -> list[list[list[int]]]:
    return [[[LEXICON.phone_id[p] for p in said] for said in LEXICON.entries[w]] for w in words]


def all_phone_sequences(words: list[str]) -> set[tuple[str, ...]]:
    """Every way to say the words, with or without silence between them and at the ends."""
    found = set()
    for said in product(*(LEXICON.entries[w] for w in words)):
        for pauses in product((False, True), repeat=len(words) + 1):
            phones: list[str] = ["SIL"] if pauses[0] else []
            for phones_of_word, pause in zip(said, pauses[1:], strict=True):
                phones += [*phones_of_word, *(["SIL"] if pause else [])]
            found.add(tuple(phones))
    return found


def test_the_phone_network_holds_every_way_to_say_it() -> None:
    arcs, final = phone_arcs(words_of("a", "two"))
    found: set[tuple[str, ...]] = set()
    todo: list[tuple[int, tuple[str, ...]]] = [(0, ())]
    while todo:
        node, phones = todo.pop()
        if node in final:
            found.add(phones)
        todo += [(there, (*phones, PHONES[p - 1])) for p, there in arcs[node]]
    assert found == all_phone_sequences(["a", "two"])


@pytest.mark.parametrize("make", [monophone, contextual])
def test_forced_alignment_equals_brute_force(make: Any) -> None:
    senones, loop = make()
    rng = np.random.default_rng(2)
    words = ["a", "two"]
    for frames in (9, 12):
        scores = rng.normal(size=(frames, senones.num_pdfs)).astype(np.float32)
        best = -np.inf
        for phones in all_phone_sequences(words):
            states = path_of(senones, list(phones), 1)
            if len(states) <= frames:
                best = max(best, viterbi(scores, states))
        graph, pdfs = alignment_graph(words_of(*words), senones, loop)
        found = best_path(graph, np.ascontiguousarray(scores[:, pdfs]), 1000.0)
        assert found is not None
        path = pdfs[found[0]]
        total = scores[np.arange(frames), path].sum() + frames * np.log(0.5)  # loop = leave = 1/2
        assert total == pytest.approx(best + frames * np.log(0.5), abs=1e-3)


def viterbi(scores: Any, states: Any) -> float:
    """The best score of passing the states in order, at least one frame each."""
    best = np.full(len(states), -np.inf)
    best[0] = scores[0, states[0]]
    for row in scores[1:]:
        best = np.maximum(best, np.r_[-np.inf, best[:-1]]) + row[states]
    return float(best[-1])


def test_too_short_an_utterance_has_no_path() -> None:
    senones, loop = monophone()
    graph, pdfs = alignment_graph(words_of("tool"), senones, loop)
    assert best_path(graph, np.zeros((8, len(pdfs)), np.float32), 1000.0) is None


def test_phones_are_read_off_an_alignment() -> None:
    senones, _ = contextual()
    pdfs = path_of(senones, ["SIL", "T", "UW", "UW", "SIL"], 2).astype(np.int32)
    spans = phone_spans(pdfs, senones.owners)
    assert [PHONES[p - 1] for p in spans[:, 0]] == ["SIL", "T", "UW", "UW", "SIL"]
    assert spans[:, 1].tolist() == [0, 6, 12, 18, 24]
    assert spans[:, 2].tolist() == [6] * 5


# ---------------------------------------------------------------------------- tuning


class FakeDecoder(Decoder):
    """Errors as a function of the setting; one word per error."""

    def __init__(self, errors: Any, size: int = 1) -> None:
        self.errors_of = errors
        self.size = size
        self.asked: list[Setting] = []

    def decode(
        self,
        split: str,
        settings: Sequence[Setting],
        title: str | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[dict[str, list[str]]]:
        self.asked += settings
        names = [f"u{n}" for n in numbers or range(self.size)]
        return [{name: ["x"] * round(self.errors_of(s)) for name in names} for s in settings]

    def references(self, split: str) -> dict[str, list[str]]:
        return {f"u{n}": ["x"] for n in range(self.size)}


@pytest.mark.parametrize(("scale", "penalty"), [(0.1, 0.0), (0.02, -5.0), (0.9, 4.0)])
def test_the_grid_is_widened_until_the_best_lies_inside(scale: float, penalty: float) -> None:
    decoder = FakeDecoder(
        lambda s: 1000 + 400 * abs(np.log(s.scale / scale)) + 50 * abs(s.penalty - penalty)
    )
    tuning = Tuning(decoder, "dev").run()
    assert tuning.inside
    assert tuning.best.scale == pytest.approx(scale, rel=0.2)
    assert tuning.best.penalty == pytest.approx(penalty, abs=1.0)
    scales = sorted({s.scale for s in tuning.errors})
    assert scales[0] < tuning.best.scale < scales[-1]
    assert len(decoder.asked) == len(set(decoder.asked))  # nothing is decoded twice


def test_a_large_dev_set_is_tuned_on_for_the_price_of_two_and_a_half_decodings() -> None:
    def errors(s: Setting) -> float:
        return float(20 + 40 * np.log(s.scale / 0.06) ** 2 + 0.5 * (s.penalty - 1.3) ** 2)

    large = FakeDecoder(errors, size=8000)
    tuning = Tuning(large).run()
    assert tuning.inside
    assert len(tuning.numbers) == 2000
    assert len(large.asked) == len(tuning.errors)
    assert tuning.decodings == len(large.asked) / 4 <= 2.5
    assert tuning.best.scale == pytest.approx(0.06, rel=0.1)
    assert tuning.best.penalty == pytest.approx(1.3, abs=0.4)
    assert len(Tuning(FakeDecoder(errors, size=1000)).numbers) == 1000  # too few to leave any out
    assert len(Tuning(FakeDecoder(errors, size=2500)).numbers) == 1250
    runaway = Tuning(FakeDecoder(lambda s: 1000 - 100 * np.log(s.scale), size=8000)).run()
    assert runaway.decodings <= 2.5
    assert not runaway.inside


def test_an_optimum_that_runs_away_is_reported() -> None:
    tuning = Tuning(FakeDecoder(lambda s: 1000 - 100 * np.log(s.scale)), "dev").run()
    assert not tuning.inside
