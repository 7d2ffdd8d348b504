"""Commands and settings that cannot work end with an error that names the remedy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.spoilt import (
    good_data,
    prepare,
)

from hocket.cli.main import main
from hocket.speech.features import store

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
    ("untrained run", ["decode", "D"], ("not a run directory",)),
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
    ("nothing to export", ["export", "D", "--out", "I"], ("not a prepared experiment",)),
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
    assert status == 2
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
    assert main(["train", str(experiment), "--out", str(tmp_path / "run"), "--quiet"]) == 2
    said = capsys.readouterr().err
    for words in says:
        assert words in said
