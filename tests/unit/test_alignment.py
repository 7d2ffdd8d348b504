"""Which utterances can be aligned, and what the flat start does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.speech.errors import SpeechError
from hocket.speech.gmm import training
from hocket.speech.gmm.alignment import Corpus, Pass, flat_piece, new_alignment, usable
from hocket.speech.gmm.training import GMMOptions, Trainer


def store(folder: Path, utterances: dict[str, tuple[list[str], int]]) -> Path:
    """A store of random cepstra: name -> (words, frames)."""
    folder.mkdir()
    total = sum(n for _, n in utterances.values())
    x = np.random.default_rng(0).normal(size=(total, 13)).astype(np.float32)
    np.save(folder / "mfcc.npy", x)
    rows, sums, first = [], [], 0
    for name, (words, frames) in utterances.items():
        piece = x[first : first + frames].astype(np.float64)
        sums.append([piece.sum(0), np.square(piece).sum(0)])
        rows.append({"id": name, "speaker": name, "words": words, "path": "", "first": first,
                     "frames": frames})  # fmt: skip
        first += frames
    np.save(folder / "mfcc.sums.npy", np.array(sums))
    (folder / "index.json").write_text(json.dumps({"sample_rate": 8000, "utterances": rows}))
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    lexicon = tmp_path / "lexicon.txt"
    lexicon.write_text("one W AH N\na AH\na EY Y\n")
    folder = store(
        tmp_path / "train",
        {
            "good": (["one", "a"], 40),
            "short": (["one", "a"], 11),  # four phones take twelve frames
            "unknown": (["one", "two"], 40),
            "tight": (["one", "a"], 12),
        },
    )
    return Corpus(folder, lexicon)


def test_what_cannot_be_aligned_says_why(corpus: Corpus) -> None:
    numbers, left_out = usable(corpus)
    assert numbers.tolist() == [0, 3]
    assert left_out["short"] == ("too short to align: 11 frames, but its 4 phones take at least 12")
    assert left_out["unknown"] == "no pronunciation of 'two'"


def test_the_flat_start_shares_frames_out_evenly(corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "alignment.npy"
    new_alignment(path, corpus.open())
    stats = flat_piece(Pass(corpus, path), [0])
    phones = corpus.pronunciations().phones
    labels = np.load(path)[:40]
    expected = ["SIL", "W", "AH", "N", "AH", "SIL"]  # the first pronunciation of each word
    states = [(phones.index(p)) * 3 + s for p in expected for s in range(3)]
    assert labels.tolist() == [states[t * len(states) // 40] for t in range(40)]
    assert stats.count.sum() == 40
    assert (np.load(path)[40:] == -1).all()


def test_training_on_nothing_is_an_error(corpus: Corpus, tmp_path: Path) -> None:
    empty = np.array([], dtype=np.int64)
    with pytest.raises(SpeechError, match="no utterance can be aligned"):
        Trainer("mono", corpus, empty, tmp_path / "m", GMMOptions(), 1, False, print)


def test_interrupted_training_goes_on_and_ends_the_same(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, _ = usable(corpus)

    def train(folder: str) -> tuple[bytes, bytes]:
        options = GMMOptions(mono_iterations=5, mono_gaussians=1)
        trainer = Trainer("mono", corpus, numbers, tmp_path / folder, options, 1, False, print)
        trainer.monophones()
        return trainer.alignment.read_bytes(), (tmp_path / folder / "model.npz").read_bytes()

    whole = train("whole")
    real, calls = training.collect, 0

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(training, "collect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train("parts")
    assert train("parts") == whole
    assert calls == 6  # two iterations, the interrupted one, and the three that were left
