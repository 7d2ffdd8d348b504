"""The settings an experiment brings along: valid, by size, and never overwritten once edited."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from hocket import config
from hocket.speech.usual import num_epochs, usual_settings, write_usual_settings


@pytest.mark.parametrize("hours", [0.01, 0.3, 1.0, 6.0, 300.0])
@pytest.mark.parametrize("kind", ["fbank", "mfcc", "kaldi"])
def test_they_are_settings_of_every_table(hours: float, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(usual_settings(hours, kind))  # type: ignore[arg-type]
    tables = config.read(path)
    assert tables["optimizer"]["clip_norm"] > 0
    for table in ("model", "optimizer", "schedule"):
        known = config.options()[table][tables[table].get("name", "dnn")]
        assert tables[table].keys() - {"name"} <= known.keys()
    assert tables["task"].keys() <= config.options()["task"]["speech"].keys()


def test_more_speech_is_seen_less_often_by_a_larger_network() -> None:
    assert num_epochs(0.001) == 16
    assert num_epochs(1.0) == 8
    assert num_epochs(1000.0) == 3
    widths = [tomllib.loads(usual_settings(h, "fbank"))["model"]["width"] for h in (0.1, 3.0, 50.0)]
    assert widths == sorted(set(widths))


def test_edited_settings_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    write_usual_settings(tmp_path, 1.0, "fbank")
    first = path.read_text()
    write_usual_settings(tmp_path, 8.0, "fbank")
    assert path.read_text() != first  # untouched: renewed
    config.read(path)
    mine = first.replace("lr = 0.5", "lr = 0.2")
    assert mine != first
    path.write_text(mine)
    write_usual_settings(tmp_path, 8.0, "fbank")
    assert path.read_text() == mine
