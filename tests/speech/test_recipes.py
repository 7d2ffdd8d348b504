"""Recipes: complete, valid, and what a task's folder brings along."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import hocket
from hocket import config
from hocket.cli.main import main
from hocket.cli.recipe import digest, main as recipe_main
from hocket.errors import DivergedError
from hocket.report.runs import read_run
from hocket.speech.corpus.options import CorpusOptions
from hocket.speech.features.spectral import num_dims
from hocket.speech.gmm.training import GMMOptions
from hocket.speech.prepare import PrepareOptions
from hocket.strategies import STRATEGIES

RECIPES = Path(__file__).parents[2] / "recipes"
pytestmark = pytest.mark.timeout(300)


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"recipe_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # dataclasses look their module up
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("name", ["sweep", "assistant"])
def test_recipes_are_valid(name: str) -> None:
    recipe = module(RECIPES / name / "prepare.py").RECIPE
    assert recipe.name == name
    tables = config.read(recipe.train)
    tables.pop("task")
    config.build_parts({k: v for k, v in tables.items() if k != "model"}, hocket_task())


def hocket_task() -> hocket.Task:
    return config.build_task({"task": {"name": "synthetic"}})


def prepared(folder: Path) -> Path:
    """What training needs of a prepared experiment, without any audio."""
    rng = np.random.default_rng(0)
    for split, frames in (("train", 600), ("dev", 100)):
        where = folder / "features" / split
        where.mkdir(parents=True)
        for kind in ("mfcc", "fbank"):
            x = rng.normal(size=(frames, num_dims(kind))).astype(np.float32)
            np.save(where / f"{kind}.npy", x)
            np.save(where / f"{kind}.sums.npy", np.stack([x.sum(0), (x**2).sum(0)])[None])
        row = {"id": "u", "speaker": "s", "words": [], "path": "", "first": 0, "frames": frames}
        facts = {"sample_rate": 8000, "kinds": ["mfcc", "fbank"], "utterances": [row]}
        (where / "index.json").write_text(json.dumps(facts))
        (folder / "alignment").mkdir(exist_ok=True)
        np.save(
            folder / "alignment" / f"{split}.npy", rng.integers(4, size=frames).astype(np.int32)
        )
    facts = {"key": "k" * 24, "facts": {"senones": 4}}
    (folder / "alignment" / "step.json").write_text(json.dumps(facts))
    return folder


TOML = """
[task]
context = 2
batch_frames = 100
[model]
width = 8
[optimizer]
lr = 0.25
[schedule]
name = "exponential"
epochs = 2
final_factor = 0.5
"""


def test_a_tasks_folder_brings_its_settings(tmp_path: Path) -> None:
    task = prepared(tmp_path / "task")
    (task / "train.toml").write_text(TOML)
    given = ["--set", "model.width=6", "--lr", "0.125", "--quiet"]
    assert main(["simulate", str(task), "--learners", "2", "--strategy", "kstep", *given,
                 "--out", str(tmp_path / "a")]) == 0  # fmt: skip
    tables = json.loads((tmp_path / "a" / "config.json").read_text())
    assert tables["task"]["context"] == 2
    assert tables["facts"]["inputs"] == 5 * 13  # mfcc: the first kind that was prepared
    assert tables["model"]["width"] == 6
    assert tables["optimizer"]["lr"] == 0.125
    assert (tables["schedule"]["name"], tables["schedule"]["epochs"]) == ("exponential", 2)

    hocket.simulate(str(task), cluster=1, optimizer={"momentum": 0.5}, out=tmp_path / "b",
                    progress=False)  # fmt: skip
    tables = json.loads((tmp_path / "b" / "config.json").read_text())
    assert (tables["optimizer"]["lr"], tables["optimizer"]["momentum"]) == (0.25, 0.5)
    assert tables["model"]["width"] == 8

    (tmp_path / "mine.toml").write_text('[schedule]\nname = "constant"\n')  # drops the other's keys
    assert main(["train", str(task), "--config", str(tmp_path / "mine.toml"), "--epochs", "1",
                 "--quiet", "--out", str(tmp_path / "c")]) == 0  # fmt: skip
    tables = json.loads((tmp_path / "c" / "config.json").read_text())
    assert tables["schedule"]["name"] == "constant"
    assert "final_factor" not in tables["schedule"]


@pytest.mark.long
def test_a_recipe_makes_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The smallest that can be aligned; then it is there, and the same command says so."""
    recipe = dataclasses.replace(
        module(RECIPES / "sweep" / "prepare.py").RECIPE,
        corpus=CorpusOptions("digits", hours=0.03, held_out_hours=0.008, snr_db=None),
        prepare=PrepareOptions(
            lm_order=2,
            gmm=GMMOptions(senones=66, mono_iterations=3, mono_gaussians=1, tri_iterations=2),
        ),
        frozen="0123456789ab",
    )
    out = tmp_path / "task"
    assert recipe_main(recipe, [str(out), "--quiet"]) == 0
    said = capsys.readouterr()
    assert "this corpus" in said.err
    assert digest(out / "corpus") in said.err
    assert (out / "train.toml").read_text() == recipe.train.read_text()
    same = dataclasses.replace(recipe, frozen=digest(out / "corpus"))
    assert recipe_main(same, [str(out), "--quiet"]) == 0
    said = capsys.readouterr()
    assert "kept" in said.out
    assert not said.err
    small = ["--set", "model.width=16", "--epochs", "1", "--quiet"]
    assert main(["train", str(out), *small, "--out", str(tmp_path / "run")]) == 0
    tables = json.loads((tmp_path / "run" / "config.json").read_text())
    assert tables["task"]["context"] == 7


def test_every_kind_of_features_can_be_asked_for_and_resumed(tmp_path: Path) -> None:
    task = prepared(tmp_path / "task")
    for kind in ("auto", "fbank"):
        out = str(tmp_path / kind)
        setting = ["--set", f"task.features={kind}", "--set", "model.width=4", "--quiet"]
        assert main(["simulate", str(task), *setting, "--epochs", "1", "--out", out]) == 0
        assert main(["simulate", "--resume", "--epochs", "2", "--quiet", "--out", out]) == 0
    assert json.loads((tmp_path / "fbank" / "config.json").read_text())["facts"]["inputs"] == 440


def test_the_table_runs_every_strategy_and_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but the corpus and the decoder, which other tests run, is real."""
    table = module(RECIPES / "table.py")
    decoded: list[Path] = []

    def fake_result(folder: Path) -> None:
        errors = {"words": 100, "substitutions": 12, "deletions": 0, "insertions": 0}
        folder.mkdir(exist_ok=True)
        score = {"errors": errors, "low": 0.1, "high": 0.2}
        (folder / "result.json").write_text(json.dumps({"score": score}))

    def fake_decode(run: Path, **_: object) -> None:
        decoded.append(run)
        fake_result(run / "decode")

    class FakeRecipe:
        def make(self, out: Path) -> None:
            if not out.exists():
                (prepared(out) / "train.toml").write_text(TOML)
                fake_result(out / "gmm")

    monkeypatch.setattr(table, "recipe_of", lambda name: FakeRecipe())
    monkeypatch.setattr(table, "decode_run", fake_decode)
    monkeypatch.setattr(table, "STRATEGIES", {k: STRATEGIES[k] for k in ("sequential", "kstep")})
    out = tmp_path / "results"
    arguments = ["table", "--tasks", str(tmp_path / "exp"), "--out", str(out), "--learners", "2"]
    arguments += ["--seeds", "2", "--epochs", "1", "--jobs", "1", "--budget-s", "0.001"]
    monkeypatch.setattr("sys.argv", arguments)
    with monkeypatch.context() as patch:  # Ctrl-C: a stopped run is neither decoded nor believed
        stopped = type("Stopped", (), {"stopped": True})
        patch.setattr(table.hocket, "simulate", lambda *_, **__: stopped)
        assert table.main() == 130
        assert not decoded
    assert table.main() == 0
    text = (out / "table.md").read_text()
    assert text.count("`sequential` | 1 | rate x ") == 3  # twice on sweep, once on assistant
    assert text.count("`kstep` | 2 | rate x ") == 3
    assert "±" in text
    assert "12.0%" in text
    assert "1.0 (of 2.0)" in text, "a run of equal time costs more than a thousandth of a second"
    tuning = [path for path in (out / "sweep").iterdir() if path.name.endswith("seed0")]
    assert len(tuning) == 3 + 6  # rates; rates times two K
    judged = {path.name for path in decoded}
    assert not any(name.endswith("seed0") for name in judged), "the tuning seed is not shown"
    assert len(decoded) == 6  # 2 x 2 seeds, and one each on assistant; equal time: the same runs
    assert table.main() == 0
    assert len(decoded) == 6  # nothing is done twice


def test_the_table_gives_every_method_the_time_of_a_sequential_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two learners see twice the frames, if the runs may cost that much; a diverged run is kept."""
    table = module(RECIPES / "table.py")
    task = prepared(tmp_path / "exp" / "sweep")
    (task / "train.toml").write_text(TOML)

    class Made:
        def make(self, out: Path) -> None:
            assert out == task

    def no_words(run: Path, **_: object) -> None:
        errors = {"words": 100, "substitutions": 12, "deletions": 0, "insertions": 0}
        (run / "decode").mkdir()
        score = {"errors": errors, "low": 0.1, "high": 0.2}
        (run / "decode" / "result.json").write_text(json.dumps({"score": score}))

    monkeypatch.setattr(table, "recipe_of", lambda name: Made())
    monkeypatch.setattr(table, "decode_run", no_words)
    real, tried = table.hocket.simulate, []

    def fragile(task: str, **given: Any) -> hocket.Result:
        tried.append(given)
        if given["optimizer"]["lr"] > 0.25:
            raise DivergedError("too fast")
        result: hocket.Result = real(task, **given)
        return result

    monkeypatch.setattr(table.hocket, "simulate", fragile)
    monkeypatch.setattr(table, "FACTORS", (1.0, 2.0))
    out = tmp_path / "results"
    arguments = ["table", "--tasks", str(task.parent), "--out", str(out), "--learners", "2"]
    arguments += ["--seeds", "1", "--jobs", "1", "--only", "sweep", "--strategies", "allreduce"]
    monkeypatch.setattr("sys.argv", [*arguments, "--budget-s", "1000"])
    assert table.main() == 0
    text = (out / "table.md").read_text()
    assert "the time of a sequential run of 2 epochs" in text
    frames = {
        path.name: read_run(path).summary["frames"]
        for path in (out / "sweep").iterdir()
        if path.name.endswith("seed1")
    }
    assert frames["sequential-1-x1-epochs2-seed1"] == 1200
    assert frames["allreduce-2-x1-epochs4-seed1"] == 2400
    done = len(tried)
    assert table.main() == 0
    assert len(tried) == done, "what diverged is not tried again"
