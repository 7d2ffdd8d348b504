"""Bad input, case by case: an error that names the thing and the remedy, or one utterance less.

Every case starts from the same small good data, spoils one thing, and asks for a preparation that
would stop before the GMM-HMM is trained.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from helpers.audio import data_directory, tone
from helpers.spoilt import (
    ARPA,
    TRAIN,
    Case,
    all_of_rate,
    broken_flac,
    change,
    cut,
    folder_for_audio,
    good_data,
    no_audio_a0,
    nothing,
    one_rate_more,
    only_one_utterance,
    prepare,
    put,
    segments,
    wav,
    without,
    write_audio,
)

from hocket.errors import HocketError
from hocket.speech.features import store
from hocket.speech.graph.arpa import read_arpa

MISSING = str(Path("nowhere") / "file.txt")


CASES = [
    # ------------------------------------------------------------------ audio
    Case("missing", no_audio_a0, ("missing audio", "a0.wav"), "a0"),
    Case("empty file", lambda r: wav(r).write_bytes(b""), ("a0.wav", "empty"), "a0"),
    Case("truncated", cut(wav, 9000), ("a0.wav", "truncated", "copy it again"), "a0"),
    Case("header only", cut(wav, 30), ("a0.wav",), "a0"),
    Case("text as wav", lambda r: wav(r).write_text("hello" * 50), ("not an audio file",), "a0"),
    Case("a folder", folder_for_audio, ("a0.wav", "directory"), "a0"),
    Case("no such channel", nothing, ("no channel 2, only 1", "--channel"), "", {"channel": 2}),
    Case("channel 0", nothing, ("--channel counts from 1",), "", {"channel": 0}),
    Case("silence for unknown words", nothing, ("--oov", "SIL"), "", {"oov": "SIL"}),
    Case("an unknown step", nothing, ("--score-steps quad", "tri"), "", {"score_steps": ("quad",)}),
    Case("too short", write_audio(np.zeros(150)), ("shorter than one frame",), "a0"),
    Case("no samples", write_audio(np.zeros(0)), ("shorter than one frame",), "a0"),
    Case(
        "not a number",
        write_audio(np.array([0.1, np.nan] * 4000), subtype="FLOAT"),
        ("NaN",),
        "a0",
    ),
    Case("broken flac", broken_flac, ("a0.flac",), "a0"),
    Case("too short to align", write_audio(tone(0.1) / 32768), ("too short to align",), "a0"),
    Case("low rate", all_of_rate(4000), ("4000 Hz", "--resample")),
    Case(
        "resample to an odd rate", nothing, ("--resample", "8000, 16000"), "", {"resample": 11025}
    ),
    # ------------------------------------------------------------------ data directories
    Case("no data", without("data/train/wav.scp"), ("no utterance can be used", "transcripts.txt")),
    Case("no text", without("data/train/text"), ("train/text", "No such file")),
    Case(
        "a key twice",
        change("data/train/text", "a1 ", "a0 "),
        ("text:2", "'a0'", "twice", "remove"),
    ),
    Case("a pipe", change("data/train/wav.scp", "wav/a0.wav", "sox x |"), ("pipe", "no commands")),
    Case("no path", change("data/train/wav.scp", "a0 wav/a0.wav", "a0"), ("'a0' has no path",)),
    Case("not UTF-8", put("data/train/text", b"a0 \xff\xfe\n"), ("train/text", "not UTF-8")),
    Case("empty text", put("data/train/text", ""), ("no utterance can be used", "no line in text")),
    Case("empty transcript", change("data/train/text", "a0 one two", "a0"), ("empty",), "a0"),
    Case(
        "no transcript", change("data/train/text", "a0 one two\n", ""), ("no line in text",), "a0"
    ),
    Case(
        "no audio listed", change("data/train/wav.scp", "a0 wav/a0.wav\n", ""), ("no audio",), "a0"
    ),
    Case("segment of nothing", segments("a0 zz 0 1"), ("'zz' is not in wav.scp",), "a0"),
    Case("segment without times", segments("a0 a0 0"), ("segments", "recording start end")),
    Case("segment backwards", segments("a0 a0 0.5 0.2"), ("ends (0.2) before it starts (0.5)",)),
    Case("segment past the end", segments("a0 a0 5 6"), ("shorter than one frame",), "a0"),
    Case(
        "shared by two splits",
        lambda r: data_directory(r / "data" / "dev", {"a0": "one"}),
        ("in train and in dev", "'a0'", "worthless"),
    ),
    Case("too little to hold out", only_one_utterance, ("too few to hold out",)),
    # ------------------------------------------------------------------ lexica
    Case("no lexicon", nothing, ("--lexicon", MISSING, "cmudict"), "", {"lexicon": MISSING}),
    Case("empty lexicon", put("lexicon.txt", "\n"), ("lexicon.txt", "empty")),
    Case(
        "no phones", put("lexicon.txt", "one\ntwo T UW\n"), ("lexicon.txt:1", "'one' has no phones")
    ),
    Case("lexicon not UTF-8", put("lexicon.txt", b"\xff\xfe"), ("lexicon.txt", "not UTF-8")),
    Case(
        "another language", put("lexicon.txt", "eins AY N S\n"), ("another language", "--lexicon")
    ),
    Case(
        "an unknown word",
        change("data/train/text", "a0 one", "a0 zwei"),
        ("no pronunciation of 'zwei'",),
        "a0",
        {"oov": "leave-out"},
    ),
    # ------------------------------------------------------------------ options
    Case(
        "unknown features", nothing, ("'plpp'", "Did you mean 'plp'"), "", {"features": ("plpp",)}
    ),
    Case(
        "bins of nothing",
        nothing,
        ("--num-bins", "fbank"),
        "",
        {"features": ("mfcc",), "num_bins": 30},
    ),
    Case("too much held out", nothing, ("held_out", "0.9"), "", {"held_out": 0.9}),
    Case("order 0", nothing, ("lm_order must be at least 1",), "", {"lm_order": 0}),
    Case("no such ARPA file", nothing, (MISSING, "no such file"), "", {"arpa": MISSING}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_data(case: Case, tmp_path: Path) -> None:
    good_data(tmp_path)
    case.spoil(tmp_path)
    if case.left_out:
        left_out = prepare(tmp_path, **case.options)
        assert list(left_out) == [case.left_out]
        said = left_out[case.left_out]
        features = store.FeatureStore(tmp_path / "exp" / "features" / "train", "mfcc")
        assert set(features.ids) | {case.left_out} == set(TRAIN)  # nothing else is lost
    else:
        with pytest.raises(HocketError) as caught:
            prepare(tmp_path, **case.options)
        said = str(caught.value)
    for words in case.says:
        assert words in said


def test_an_unknown_word_costs_no_utterance(tmp_path: Path) -> None:
    good_data(tmp_path)
    change("data/train/text", "a0 one", "a0 zwei")(tmp_path)
    assert prepare(tmp_path) == {}
    assert "<unk> SPN\n" in (tmp_path / "exp" / "lexicon" / "lexicon.txt").read_text()
    said = json.loads((tmp_path / "exp" / "lexicon" / "step.json").read_text())["facts"]["said"]
    assert "1 words without a pronunciation: zwei" in said
    assert "1 of 16 training words are <unk>, spoken SPN" in said
    assert prepare(tmp_path, oov="OTHER") == {}
    assert "<unk> OTHER\n" in (tmp_path / "exp" / "lexicon" / "lexicon.txt").read_text()


def test_the_good_data_is_good(tmp_path: Path) -> None:
    good_data(tmp_path)
    assert prepare(tmp_path, arpa=str(tmp_path / "lm.arpa")) == {}
    all_of_rate(44100)(tmp_path)
    one_rate_more(tmp_path)
    assert prepare(tmp_path, resample=8000) == {}


# ---------------------------------------------------------------------------- ARPA files


ARPA_CASES = [
    ("not an ARPA file", "hello\n", ("lm.arpa:1", "not an ARPA file")),
    ("cut off", ARPA.replace("\\end\\", ""), ("no \\end\\", "cut off")),
    ("miscounted", ARPA.replace("1=4", "1=5"), ("4 1-grams", "promises 5")),
    (
        "not promised",
        ARPA.replace("\\end", "\\2-grams:\n-1 one two\n\\end"),
        ("2-grams", "promise"),
    ),
    ("too probable", ARPA.replace("-0.5 one", "0.5 one"), ("lm.arpa:7", "above 0")),
    ("no number", ARPA.replace("-0.5 one", "x one"), ("lm.arpa:7", "no number")),
    ("too many fields", ARPA.replace("-0.5 one", "-0.5 one a b c"), ("lm.arpa:7", "5 fields")),
    (
        "no end of sentence",
        ARPA.replace("-0.5 </s>", "-0.5 three"),
        ("</s>", "no sentence could end"),
    ),
    ("other words", ARPA.replace("one", "eins").replace("two", "zwei"), ("another language",)),
]


@pytest.mark.parametrize(
    ("text", "says"), [c[1:] for c in ARPA_CASES], ids=[c[0] for c in ARPA_CASES]
)
def test_bad_arpa_files(text: str, says: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "lm.arpa"
    path.write_text(text)
    with pytest.raises(HocketError) as caught:
        read_arpa(path, ["one", "two"])
    for words in says:
        assert words in str(caught.value)


def test_an_arpa_file_may_be_zipped(tmp_path: Path) -> None:
    path = tmp_path / "lm.arpa.gz"
    path.write_bytes(gzip.compress(ARPA.encode()))
    assert read_arpa(path, ["one", "two"]).order == 1
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(HocketError, match=r"lm\.arpa\.gz"):
        read_arpa(path, ["one", "two"])
