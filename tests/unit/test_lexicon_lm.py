"""Lexica and the language model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hocket.errors import ConfigError
from hocket.speech.errors import SpeechError
from hocket.speech.graph.language import LanguageSource
from hocket.speech.graph.lexicon import UNKNOWN, Lexicon, lexicon_for, read_lexicon
from hocket.speech.graph.lm import END, START, estimate


def test_cmudict_without_stress_and_espeak_for_its_gaps() -> None:
    lexicon, missing = lexicon_for(["zero", "One", "hocketing"], "cmudict")
    assert lexicon.entries["One"] == (("W", "AH", "N"),)
    assert len(lexicon.entries["zero"]) == 2
    assert lexicon.entries["hocketing"][0][:3] == ("HH", "AA", "K")  # not a word of cmudict's
    assert not missing
    assert lexicon.phones[0] == "SIL"
    assert all(not p[-1].isdigit() for p in lexicon.phones)


def test_espeak_alone() -> None:
    lexicon, missing = lexicon_for(["nine"], "espeak")
    assert lexicon.entries["nine"] == (("n", "aI", "n"),)
    assert not missing


def test_a_file_with_and_without_probabilities(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text("one W AH N\none 0.5 W AO N\ntwo T UW\n\n")
    lexicon, missing = lexicon_for(["one", "two", "three"], str(path))
    assert lexicon.entries["one"] == (("W", "AH", "N"), ("W", "AO", "N"))
    assert list(missing) == ["three"]
    lexicon.write(tmp_path / "again.txt")
    assert read_lexicon(tmp_path / "again.txt").entries == lexicon.entries


@pytest.mark.parametrize(
    ("content", "message"), [("one\n", "lexicon.txt:1: 'one' has no phones"), ("", "is empty")]
)
def test_a_bad_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text(content)
    with pytest.raises(SpeechError, match=message):
        read_lexicon(path)


def test_no_such_source() -> None:
    with pytest.raises(SpeechError, match="neither 'cmudict', 'espeak' nor a file"):
        lexicon_for(["one"], "cmudikt")


def test_a_dictionarys_silence_and_unknown_word_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text("!SIL sil\n<UNK> spn\n<noise> nsn\nSil S IH L\nsil S IH L\none W AH N\n")
    lexicon, missing = lexicon_for(["one", "two", "Sil"], str(path))
    assert set(missing) == {"two"}
    assert lexicon.entries[UNKNOWN] == (("spn",),)
    assert lexicon.said("two") == (("spn",),)  # its own phone, not that of --oov:
    assert lexicon.with_unknown("SPN").said("two") == (("spn",),)
    assert lexicon.entries["Sil"] == (("S", "IH", "L"),)  # a word that only looks like silence
    assert lexicon_for(["one", "!SIL"], str(path))[0].entries["!SIL"] == (("SIL",),)


def test_an_unknown_word_spoken_as_silence_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text("<sil> SIL\n<UNK> SIL\none W AH N\n")
    lexicon, _ = lexicon_for(["one", "two"], str(path))
    assert list(lexicon.entries) == ["one"]
    assert lexicon.said("two") == ()
    assert lexicon.with_unknown("SPN").said("two") == (("SPN",),)
    assert lexicon.with_unknown("SPN").phones == ["SIL", "AH", "N", "SPN", "W"]


def test_the_language_model_predicts_unknown_words_if_training_had_some(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text("one W AH N\n")
    known = read_lexicon(path)
    said = [["one", "two", "one"], ["one", "three"]]
    phones = ["SIL", "AH", "N", "SPN", "W"]
    without, _ = LanguageSource(2).model(said, known, phones, str(path))
    assert without.vocabulary == ("one",)
    model, lexicon = LanguageSource(2).model(said, known.with_unknown("SPN"), phones, str(path))
    assert model.vocabulary == (UNKNOWN, "one")
    assert model.probability(UNKNOWN, ["one"]) > model.probability("one", ["one"])
    assert lexicon.said("three") == (("SPN",),)
    arpa = tmp_path / "lm.arpa"
    arpa.write_text(
        "\\data\\\nngram 1=4\n\n\\1-grams:\n-99 <s>\n-0.5 </s>\n-0.5 one\n-0.9 <UNK>\n\n\\end\\\n"
    )
    source = LanguageSource(1, arpa=str(arpa))
    model, _ = source.model(said, known.with_unknown("SPN"), phones, str(path))
    assert model.probability(UNKNOWN, []) == pytest.approx(10**-0.9)
    model, _ = source.model(said, known, phones, str(path))
    assert model.vocabulary == ("one",)


def test_phone_numbers_leave_room_for_epsilon() -> None:
    assert Lexicon({"a": (("B", "A"),)}).phone_id == {"SIL": 1, "A": 2, "B": 3}


SENTENCES = [["a", "b"], ["a", "b", "a"], ["b"], ["a", "c", "b"]]


@pytest.mark.parametrize("order", [1, 2, 3])
def test_probabilities_sum_to_one_after_every_history(order: int) -> None:
    vocabulary = ["a", "b", "c", "unseen"]
    model = estimate(SENTENCES, vocabulary, order)
    for history in ([], [START], [START, "a"], ["a", "b"], ["c", "c"], ["unseen"]):
        total = sum(model.probability(w, history) for w in [*vocabulary, END])
        assert total == pytest.approx(1.0)


def test_bigram_by_hand() -> None:
    model = estimate([["a", "b"], ["a", "a"]], ["a", "b"], 2)
    # unigrams: a 3, b 1, </s> 2: six events of three kinds, over a uniform third
    assert model.probability("a", []) == pytest.approx((3 + 3 / 3) / (6 + 3))
    # after a: b, a, </s> once each: T = 3, c = 3
    assert model.probability("b", ["a"]) == pytest.approx((1 + 3 * 2 / 9) / 6)
    # after b only </s>: T = 1, c = 1, so a has half of its unigram probability
    assert model.probability("a", ["b"]) == pytest.approx(0.5 * 4 / 9)


def test_likelier_on_its_own_text_than_a_uniform_guess() -> None:
    model = estimate(SENTENCES * 5, ["a", "b", "c"], 3)
    log_p = sum(
        math.log(model.probability(w, [START, *s[:i]]))
        for s in SENTENCES
        for i, w in enumerate([*s, END])
    )
    assert log_p > sum((len(s) + 1) * math.log(1 / 4) for s in SENTENCES)


def test_unknown_words_are_skipped_and_bad_orders_refused() -> None:
    model = estimate([["a", "stranger", "b"]], ["a", "b"], 2)
    assert "stranger" not in model.seen[()]
    with pytest.raises(ConfigError, match="order"):
        estimate(SENTENCES, ["a"], 0)
    with pytest.raises(SpeechError, match="vocabulary is empty"):
        estimate(SENTENCES, [], 2)
