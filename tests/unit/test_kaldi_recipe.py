"""The recipes are complete configurations that run."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from hocket import Kaldi, NaturalSGD, config
from hocket.cli.main import main

KALDI = Path(__file__).parents[2] / "recipes" / "kaldi"


def test_kaldis_recipe_names_every_switch_at_its_default() -> None:
    tables = config.read(KALDI / "train.toml")
    parts = config.build_parts({**tables, "task": {"name": "synthetic"} | tables["task"]})
    assert parts["strategy"] == Kaldi()
    assert parts["optimizer"] == NaturalSGD(lr=0.15)
    unset = {"final_learners", "first_max_change", "local_momentum"}  # None: as described there
    assert {f.name for f in fields(Kaldi)} - set(tables["strategy"]) == unset
    rest = {"weight_decay", "clip_norm"}  # not Kaldi's
    assert {f.name for f in fields(NaturalSGD)} - set(tables["optimizer"]) == rest


def test_the_small_recipe_learns(tmp_path: Path) -> None:
    sizes = ("task.num_frames=6000", "task.dev_frames=1000", "strategy.sync_every=4")
    settings = [word for size in sizes for word in ("--set", size)]
    ask = ["simulate", "synthetic", "--config", str(KALDI / "small.toml"), "--learners", "3"]
    more = ["--epochs", "2", "--quiet", "--out", str(tmp_path / "run")]
    assert main([*ask, *settings, *more]) == 0
    rows = [json.loads(row) for row in (tmp_path / "run" / "metrics.jsonl").open()]
    losses = [row["loss"] for row in rows if row["event"] == "eval"]
    assert losses[-1] < 2.6  # the uniform guess over 24 classes costs 3.18
