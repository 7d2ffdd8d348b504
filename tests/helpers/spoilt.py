"""Small good data for a preparation, and ways to spoil one thing in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import soundfile

from helpers.audio import data_directory, tone, write_wav
from hocket.speech.prepare import Preparation, PrepareOptions
from hocket.speech.steps import Facts

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
