"""Language models from ARPA files and text; graphs as tables of arcs."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import kaldifst
import numpy as np
import pytest

from hocket.speech.decode.decoding import Search, decode_one
from hocket.speech.errors import SpeechError
from hocket.speech.graph.arcs import Arcs
from hocket.speech.graph.arpa import arpa_words, read_arpa
from hocket.speech.graph.graph import decoding_graph
from hocket.speech.graph.language import LanguageSource
from hocket.speech.graph.lexicon import Lexicon
from hocket.speech.graph.lm import END, START, NGram, estimate
from hocket.speech.graph.senones import Senones
from hocket.speech.graph.states import LOOP_SCALE, with_loops

SENTENCES = [["a", "b"], ["a", "b", "a"], ["b"], ["a", "c", "b"]]
WORDS = ["a", "b", "c"]


def write_arpa(path: Path, model: NGram) -> Path:
    """The model as SRILM would write it."""
    rows: dict[int, list[str]] = {n: [] for n in range(1, model.order + 1)}
    for history, followers in model.seen.items():
        for word, p in followers.items():
            ngram = (*history, word)
            row = f"{math.log10(p):.9f}\t{' '.join(ngram)}"
            if ngram in model.backoff:
                row += f"\t{math.log10(model.backoff[ngram]):.9f}"
            rows[len(ngram)].append(row)
    rows[1].append(f"-99\t{START}\t{math.log10(model.backoff[START,]):.9f}")
    head = "".join(f"ngram {n}={len(r)}\n" for n, r in rows.items())
    body = "".join(f"\n\\{n}-grams:\n" + "\n".join(r) + "\n" for n, r in rows.items())
    path.write_text(f"\\data\\\n{head}{body}\n\\end\\\n")
    return path


@pytest.mark.parametrize("order", [2, 3])
def test_what_was_written_as_arpa_is_read_back(order: int, tmp_path: Path) -> None:
    model = estimate(SENTENCES, WORDS, order)
    again = read_arpa(write_arpa(tmp_path / "lm.arpa", model), WORDS)
    assert again.vocabulary == model.vocabulary
    for history in product([START, *WORDS], WORDS):
        for word in [*WORDS, END]:
            expected = model.probability(word, history)
            assert again.probability(word, history) == pytest.approx(expected, rel=1e-6)
    assert arpa_words(tmp_path / "lm.arpa") == WORDS


def test_a_backoff_without_followers_counts(tmp_path: Path) -> None:
    (tmp_path / "lm").write_text(
        "\\data\\\nngram 1=4\nngram 2=1\n\n\\1-grams:\n-99 <s> -0.1\n-0.5 </s>\n-0.3 a -0.2\n"
        "-0.9 b -0.7\n\\2-grams:\n-0.1 <s> a\n\\end\\\n"
    )
    model = read_arpa(tmp_path / "lm", ["a", "b"])
    assert model.probability("a", ["b"]) == pytest.approx(10 ** (-0.7 - 0.3))
    assert model.probability("b", ["a"]) == pytest.approx(10 ** (-0.2 - 0.9))
    assert model.probability("a", [START]) == pytest.approx(10**-0.1)


def test_words_without_pronunciation_are_left_out_of_an_arpa(tmp_path: Path) -> None:
    model = estimate(SENTENCES, WORDS, 3)
    path = write_arpa(tmp_path / "lm.arpa", model)
    again = read_arpa(path, ["a", "b"])
    assert again.vocabulary == ("a", "b")
    assert not any("c" in history for history in again.seen)
    with pytest.raises(SpeechError, match="another language"):
        read_arpa(path, [])


def test_more_text_adds_words_whose_phones_were_trained(tmp_path: Path) -> None:
    acoustic = Lexicon({"two": (("T", "UW"),)})
    (tmp_path / "lm.txt").write_text("two tootoo\nzoo two\n")
    (tmp_path / "lex.txt").write_text("tootoo T UW T UW\nzoo Z UW\ntwo T UW\n")
    source = LanguageSource(2, str(tmp_path / "lm.txt"))
    model, lexicon = source.model([["two"]], acoustic, acoustic.phones, str(tmp_path / "lex.txt"))
    assert model.vocabulary == ("tootoo", "two")  # Z has no senones
    assert lexicon.entries["tootoo"] == (("T", "UW", "T", "UW"),)
    plain, _ = LanguageSource(2).model([["two"]], acoustic, acoustic.phones, "cmudict")
    assert plain.vocabulary == ("two",)


# ---------------------------------------------------------------------------- arcs


def small_fst() -> Any:
    fst = kaldifst.StdVectorFst()
    for _ in range(4):
        fst.add_state()
    fst.start = 1
    fst.set_final(3, 0.5)
    for start, ilabel, olabel, cost, end in (
        (1, 2, 7, 0.25, 0),
        (1, 1, 0, 1.5, 3),
        (0, 2, 0, 0, 3),
    ):
        fst.add_arc(start, kaldifst.StdArc(ilabel, olabel, cost, end))
    return fst


def test_arcs_go_out_and_in_unchanged() -> None:
    fst = small_fst()
    arcs = Arcs.of(fst)
    assert (arcs.start, arcs.num_states) == (1, 4)
    assert arcs.final.tolist() == [math.inf, math.inf, math.inf, 0.5]
    assert arcs.source.tolist() == [0, 1, 1]
    assert arcs.cost.tolist() == [0.0, 0.25, 1.5]
    assert arcs.fst().to_str() == fst.to_str()


def test_loops_cost_what_staying_costs() -> None:
    """Against the definition: a path's cost is its arcs', its stays', and its leaves'."""
    loop = np.array([0.6, 0.7])
    graph = with_loops(Arcs.of(small_fst()), loop).fst()
    labels = [2, 2, 2, 2, 2]  # senone 1 for n frames, then again, from another arc
    scores = np.full((5, 2), -50.0, np.float32)
    scores[np.arange(5), np.array(labels) - 1] = 0.0
    import kaldi_decoder

    decoder = kaldi_decoder.FasterDecoder(graph, kaldi_decoder.FasterDecoderOptions(beam=500.0))
    decoder.decode(kaldi_decoder.DecodableCtc(scores))
    found, path = decoder.get_best_path()
    assert found
    weight = kaldifst.get_linear_symbol_sequence(path)[3]
    stay, leave = -LOOP_SCALE * np.log(0.7), -LOOP_SCALE * np.log(0.3)
    expected = 0.25 + 0.5 + 3 * stay + 2 * leave
    assert weight.value1 + weight.value2 == pytest.approx(expected, abs=1e-4)


def brute_force(
    scores: Any, senones: Senones, lexicon: Lexicon, lm: NGram, loop: float, longest: int
) -> tuple[float, tuple[str, ...]]:
    """The best word sequence by enumerating words, pauses and Viterbi over their states."""
    best: tuple[float, tuple[str, ...]] = (-math.inf, ())
    for length in range(1, longest + 1):
        for words in product(lexicon.words, repeat=length):
            history = [START]
            total = 0.0
            for word in [*words, END]:
                total += math.log(lm.probability(word, history))
                history.append(word)
            for pauses in product((False, True), repeat=length + 1):
                phones = [0] + ([1] if pauses[0] else [])
                for word, pause in zip(words, pauses[1:], strict=True):
                    phones += [lexicon.phone_id[p] for p in lexicon.entries[word][0]]
                    phones += [1] if pause else []
                phones.append(0)
                states = [
                    pdf
                    for window in zip(phones, phones[1:], phones[2:], strict=False)
                    for pdf in senones.pdfs(*window)
                ]
                acoustic = _viterbi(scores, states, loop)
                here = total + acoustic + (length + 1) * math.log(0.5)
                best = max(best, (here, words))
    return best


def _viterbi(scores: Any, states: list[int], loop: float) -> float:
    stay, leave = LOOP_SCALE * math.log(loop), LOOP_SCALE * math.log(1 - loop)
    best = np.full(len(states), -np.inf)
    best[0] = scores[0, states[0]]
    for row in scores[1:]:
        best = np.maximum(best + stay, np.r_[-np.inf, best[:-1] + leave]) + row[states]
    return float(best[-1] + leave)


def test_the_whole_graph_finds_what_brute_force_finds() -> None:
    lexicon = Lexicon({"to": (("T", "UW"),), "oo": (("UW",),), "tot": (("T", "UW", "T"),)})
    senones = Senones.monophone(lexicon.phones)
    loop = np.full(senones.num_pdfs, 0.6)
    lm = estimate([["to", "oo"], ["tot"], ["oo", "to"]], lexicon.words, 2)
    graph = decoding_graph(lexicon, lm, senones, loop)
    rng = np.random.default_rng(4)
    for frames in (7, 12):
        for _ in range(3):
            scores = (3 * rng.normal(size=(frames, senones.num_pdfs))).astype(np.float32)
            _, expected = brute_force(scores, senones, lexicon, lm, 0.6, 3)
            found = decode_one(graph, scores, Search(beam=500.0, max_active=100_000))
            assert tuple(graph.words[w - 1] for w in found) == expected
