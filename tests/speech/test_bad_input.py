"""Bad input, case by case: an error that names the thing and the remedy, or one utterance less.

Every case starts from the same small good data, spoils one thing, and asks for a preparation that
would stop before the GMM-HMM is trained.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from helpers.audio import data_directory, tone, write_wav

from hocket.cli.main import main
from hocket.errors import HocketError
from hocket.speech.features import store
from hocket.speech.graph.arpa import read_arpa
from hocket.speech.input import audio
from hocket.speech.prepare import Preparation, PrepareOptions
from hocket.speech.steps import Facts
from hocket.support.files import atomically

TRAIN = {f"{s}{n}": "one two" for s in "ab" for n in range(4)}
DEV = {f"c{n}": "two one" for n in range(2)}
LEXICON = "one W AH N\ntwo T UW\n"
ARPA = "\\data\\\nngram 1=4\n\n\\1-grams:\n-99 <s>\n-0.5 </s>\n-0.5 one\n-0.5 two\n\n\\end\\\n"


class EnoughError(Exception):
    """The part of the preparation that is looked at here is over."""


class UpToLexicon(Preparation):
    """Stops before the GMM-HMM."""

    def _mono(self, out: Path) -> Facts:
        raise EnoughError


def good_data(root: Path) -> Path:
    data = root / "data"
    data_directory(data / "train", TRAIN)
    data_directory(data / "dev", DEV)
    (root / "lexicon.txt").write_text(LEXICON)
    (root / "lm.arpa").write_text(ARPA)
    return data


def prepare(root: Path, **options: Any) -> dict[str, str]:
    """Prepare; return what was left out and why."""
    options = {"lexicon": str(root / "lexicon.txt")} | options
    with pytest.raises(EnoughError):
        UpToLexicon(
            root / "data",
            root / "exp",
            PrepareOptions(**options),
            1,
            show=False,
            say=lambda _: None,
        ).run()
    rows = [line.split("\t") for line in (root / "exp" / "left_out.txt").read_text().splitlines()]
    return {name: why for name, _, why in rows}


Spoil = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """What is spoilt, and what must be said about it."""

    name: str
    spoil: Spoil
    says: tuple[str, ...]
    left_out: str = ""  # the utterance that is left out; else it is an error
    options: dict[str, Any] = field(default_factory=dict)


def wav(root: Path, name: str = "a0") -> Path:
    return root / "data" / "train" / "wav" / f"{name}.wav"


def table(root: Path, name: str, split: str = "train") -> Path:
    return root / "data" / split / name


def put(where: str, text: str | bytes) -> Spoil:
    def spoil(root: Path) -> None:
        data = text.encode() if isinstance(text, str) else text
        (root / where).write_bytes(data)

    return spoil


def change(where: str, old: str, new: str) -> Spoil:
    def spoil(root: Path) -> None:
        path = root / where
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))

    return spoil


def cut(where: Callable[[Path], Path], keep: int) -> Spoil:
    return lambda root: where(root).write_bytes(where(root).read_bytes()[:keep])


def write_audio(samples: Any, rate: int = 8000, **more: Any) -> Spoil:
    return lambda root: soundfile.write(wav(root), samples, rate, **more)


def no_audio_a0(root: Path) -> None:
    wav(root).unlink()


def folder_for_audio(root: Path) -> None:
    wav(root).unlink()
    wav(root).mkdir()


def broken_flac(root: Path) -> None:
    path = wav(root).with_suffix(".flac")
    soundfile.write(path, tone(1.0) / 32768, 8000)
    path.write_bytes(path.read_bytes()[:3000])
    change("data/train/wav.scp", "wav/a0.wav", "wav/a0.flac")(root)


def segments(*rows: str) -> Spoil:
    others = [f"{n} {n} 0 1" for n in TRAIN if n != "a0"]
    return put("data/train/segments", "\n".join([*rows, *others]) + "\n")


def one_rate_more(root: Path) -> None:
    write_wav(wav(root), tone(1.0, 16000), 16000)


def all_of_rate(rate: int) -> Spoil:
    def spoil(root: Path) -> None:
        for split, texts in (("train", TRAIN), ("dev", DEV)):
            data_directory(root / "data" / split, texts, rate=rate)

    return spoil


def without(*names: str) -> Spoil:
    def spoil(root: Path) -> None:
        for name in names:
            (root / name).unlink()

    return spoil


def only_one_utterance(root: Path) -> None:
    import shutil

    shutil.rmtree(root / "data")
    data_directory(root / "data", {"a0": "one"})


def nothing(root: Path) -> None:
    del root


MISSING = str(Path("nowhere") / "file.txt")
ARPA_OPTION: dict[str, Any] = {"arpa": "lm.arpa"}
CASES = [
    # ------------------------------------------------------------------ audio
    Case("missing", no_audio_a0, ("missing audio", "a0.wav"), "a0"),
    Case("empty file", lambda r: wav(r).write_bytes(b""), ("a0.wav", "empty"), "a0"),
    Case("truncated", cut(wav, 9000), ("a0.wav", "truncated", "copy it again"), "a0"),
    Case("header only", cut(wav, 30), ("a0.wav",), "a0"),
    Case("text as wav", lambda r: wav(r).write_text("hello" * 50), ("not an audio file",), "a0"),
    Case("a folder", folder_for_audio, ("a0.wav", "directory"), "a0"),
    Case("stereo", write_audio(np.zeros((8000, 2))), ("2 channels", "split them"), "a0"),
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
    Case("mixed rates", one_rate_more, ("mixed sample rates", "16000 Hz", "--resample")),
    Case("odd rate", all_of_rate(44100), ("44100 Hz", "--resample")),
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


def test_the_good_data_is_good(tmp_path: Path) -> None:
    good_data(tmp_path)
    assert prepare(tmp_path, arpa=str(tmp_path / "lm.arpa")) == {}
    all_of_rate(44100)(tmp_path)
    one_rate_more(tmp_path)
    assert prepare(tmp_path, resample=8000) == {}


# ---------------------------------------------------------------------------- ARPA files

ARPA_CASES = [
    ("not an ARPA file", "hello\n", ("lm.arpa:1", "no ARPA file")),
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
    ("no end of sentence", ARPA.replace("-0.5 </s>", "-0.5 three"), ("</s>", "never end")),
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


# ---------------------------------------------------------------------------- the command line

COMMANDS: list[tuple[str, list[str], tuple[str, ...]]] = [
    (
        "both language models",
        ["prepare", "D", "--out", "E", "--arpa", "L", "--lm-text", "L"],
        ("--lm-text", "--arpa", "leave one out"),
    ),
    (
        "an order of an ARPA file",
        ["prepare", "D", "--out", "E", "--arpa", "L", "--lm-order", "3"],
        ("--lm-order", "leave it out"),
    ),
    (
        "not an ARPA file",
        ["prepare", "D", "--out", "E", "--arpa", "T"],
        ("text:1", "not an ARPA file"),
    ),
    (
        "no such lexicon",
        ["prepare", "D", "--out", "E", "--lexicon", "nowhere.txt"],
        ("--lexicon nowhere.txt", "cmudict"),
    ),
    ("no jobs", ["prepare", "D", "--out", "E", "--jobs", "0"], ("--jobs", "at least 1")),
    ("no such data", ["prepare", "nowhere", "--out", "E"], ("nowhere", "no such folder")),
    (
        "unknown corpus",
        ["corpus", "asistant", "--out", "X"],
        ("asistant", "Did you mean 'assistant'"),
    ),
    ("noise backwards", ["corpus", "digits", "--out", "X", "--snr", "20:5"], ("give 5:20",)),
    (
        "noise and clean",
        ["corpus", "digits", "--out", "X", "--snr", "5", "--clean"],
        ("leave one",),
    ),
    ("into a full folder", ["corpus", "digits", "--out", "D"], ("not empty", "--out")),
    ("untrained run", ["decode", "D"], ("no run directory",)),
    ("undecoded run", ["score", "D"], ("no decoded words", "hocket decode")),
    ("no reference", ["score", "L"], ("--ref",)),
    ("not prepared", ["train", "D", "--out", "R"], ("hocket prepare",)),
    (
        "nothing to import",
        [
            "import",
            "--train",
            "D",
            "--train-ali",
            "x*",
            "--dev",
            "D",
            "--dev-ali",
            "x*",
            "--num-pdfs",
            "9",
            "--out",
            "I",
        ],
        ("no file matches 'x*'",),
    ),
    (
        "one pdf",
        [
            "import",
            "--train",
            "D",
            "--train-ali",
            "x*",
            "--dev",
            "D",
            "--dev-ali",
            "x*",
            "--num-pdfs",
            "1",
            "--out",
            "I",
        ],
        ("--num-pdfs",),
    ),
    ("nothing to export", ["export", "D", "--out", "I"], ("no prepared experiment",)),
]


@pytest.mark.parametrize(("args", "says"), [c[1:] for c in COMMANDS], ids=[c[0] for c in COMMANDS])
def test_bad_commands(
    args: list[str], says: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = good_data(tmp_path)
    places = {"D": data, "E": tmp_path / "E", "L": tmp_path / "lm.arpa", "R": tmp_path / "R"}
    places["T"] = data / "train" / "text"
    before = sorted(tmp_path.rglob("*"))
    status = main([str(places.get(a, tmp_path / a if a in "XI" else a)) for a in args])
    assert status in (1, 2)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    for words in says:
        assert words in said
    assert sorted(tmp_path.rglob("*")) == before  # nothing was begun, nothing was lost


# ---------------------------------------------------------------------------- settings of a task


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[task]\ncontxt = 5\n", ("contxt", "context")),
        ("[modle]\nwidth = 5\n", ("modle", "model")),
        ("[task\n", ("train.toml",)),
        ('[task]\nfeatures = "plp"\n', ("plp", "--features plp", "mfcc")),
    ],
)
def test_bad_settings_in_a_tasks_folder(
    toml: str, says: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good_data(tmp_path)
    prepare(tmp_path)
    experiment = tmp_path / "exp"
    (experiment / "alignment").mkdir()
    facts = {"key": "0" * 24, "facts": {"senones": 3}}
    (experiment / "alignment" / "step.json").write_text(json.dumps(facts))
    for split in ("train", "dev"):
        rows = len(store.FeatureStore(experiment / "features" / split, "mfcc").x)
        np.save(experiment / "alignment" / f"{split}.npy", np.zeros(rows, np.int32))
    (experiment / "train.toml").write_text(toml)
    assert main(["train", str(experiment), "--out", str(tmp_path / "run"), "--quiet"]) in (1, 2)
    said = capsys.readouterr().err
    for words in says:
        assert words in said


# ---------------------------------------------------------------------------- full disks, Ctrl-C


def test_a_full_disk_is_an_error_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good_data(tmp_path)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(HocketError, match=r"fbank.npy: no room for .*free some space"):
            prepare(tmp_path)
    assert (tmp_path / "exp" / "data" / "step.json").exists()  # the step before is kept
    assert not (tmp_path / "exp" / "features").exists()  # and this one is not believed
    assert prepare(tmp_path) == {}


def test_a_file_for_which_there_is_no_room_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")

    def write() -> None:
        with atomically(path) as partial:
            partial.write_text("half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(HocketError, match=r"page.html: no room.*free some"):
        write()
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    assert path.read_text() == "before"


def test_a_corpus_for_which_there_is_no_room_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise soundfile.LibsndfileError(2)

    monkeypatch.setattr(soundfile, "write", full)
    with pytest.raises(HocketError, match=r"a\.wav cannot be written .*is the disk full"):
        audio.write(tmp_path / "a.wav", np.zeros(10, np.int16), 8000)


def test_interrupted_steps_are_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good_data(tmp_path)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hocket.speech.prepare.write_store", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(tmp_path)
    assert prepare(tmp_path) == {}


@pytest.mark.parametrize("damage", ["", "{", '{"key": 1}'])
def test_a_damaged_record_of_a_step_is_not_believed(damage: str, tmp_path: Path) -> None:
    good_data(tmp_path)
    prepare(tmp_path)
    (tmp_path / "exp" / "features" / "step.json").write_text(damage)
    (tmp_path / "exp" / "features" / "train" / "mfcc.npy").unlink()
    assert prepare(tmp_path) == {}
    assert (tmp_path / "exp" / "features" / "train" / "mfcc.npy").exists()


def test_there_are_many_cases() -> None:
    assert len(CASES) + len(ARPA_CASES) + len(COMMANDS) + 4 + 5 >= 60
