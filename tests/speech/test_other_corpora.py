"""The whole way with recorded voices, and with another language."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hocket.cli.main import main
from hocket.speech.input.datadir import read_table

pytestmark = pytest.mark.timeout(300)
FSDD = Path(__file__).parents[3] / "shared" / "data" / "fsdd"  # real voices; not ours to ship


def hocket(*args: object) -> int:
    return main([str(a) for a in args])


@pytest.mark.skipif(not FSDD.is_dir(), reason="the recordings are not here")
def test_real_voices_go_the_whole_way(tmp_path: Path) -> None:
    """A tenth of the Free Spoken Digit Dataset, 8 kHz, with its own relative paths."""
    data = tmp_path / "fsdd"
    for split, every in (("train", 10), ("test", 3)):
        folder = data / split
        folder.mkdir(parents=True)
        keep = set(list(read_table(FSDD / split / "wav.scp"))[::every])
        for name in ("wav.scp", "text", "utt2spk"):
            rows = read_table(FSDD / split / name)
            lines = [f"{k} {v}\n" for k, v in rows.items() if k in keep]
            (folder / name).write_text("".join(lines))
    (data / "wav").symlink_to(FSDD / "wav")
    exp, out = tmp_path / "exp", tmp_path / "run"
    assert hocket("prepare", data, "--out", exp, "--senones", 60, "--quiet") == 0
    gmm = json.loads((exp / "gmm" / "result.json").read_text())["score"]["errors"]
    assert gmm["words"] == 100
    assert gmm["substitutions"] + gmm["deletions"] + gmm["insertions"] <= 15
    network = ("--epochs", 8, "--lr", 0.1, "--set", "model.width=64", "--quiet")
    assert hocket("train", exp, *network, "--out", out) == 0
    assert hocket("decode", out, "--quiet") == 0
    found = json.loads((out / "decode" / "result.json").read_text())["score"]["errors"]
    assert found["substitutions"] + found["deletions"] + found["insertions"] <= 40


@pytest.mark.long
def test_mandarin_digits_are_recognised_in_characters(tmp_path: Path) -> None:
    """The published features, writing without spaces, and a corpus of another language."""
    data, experiment, run = tmp_path / "data", tmp_path / "exp", tmp_path / "run"
    hours = ("--hours", 0.15, "--held-out-hours", 0.03, "--clean", "--quiet")
    assert hocket("corpus", "mandarin", "--out", data, *hours) == 0
    options = ("--units", "character", "--lexicon", data / "lexicon.txt", "--lm-order", 2)
    features = ("--features", "plp_pitch", "--senones", 90, "--quiet")
    assert hocket("prepare", data, "--out", experiment, *options, *features) == 0
    assert hocket("train", experiment, "--epochs", 8, "--lr", 0.2, "--out", run, "--quiet") == 0
    config = json.loads((run / "config.json").read_text())
    assert config["facts"]["inputs"] == 11 * 42  # the published input
    assert hocket("decode", run, "--quiet") == 0
    found = json.loads((run / "decode" / "result.json").read_text())["score"]
    errors = found["errors"]
    wrong = errors["substitutions"] + errors["deletions"] + errors["insertions"]
    assert found["unit"] == "character"
    assert wrong / errors["words"] < 0.4  # two in ten when it was written; a guess has nine
