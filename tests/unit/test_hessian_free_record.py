"""What a run of hessian-free shows and leaves: figures, progress, a chart; and what it is given."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.runs import real, simulated, simulator
from helpers.tasks import Quadratic, acoustic

from hocket import Cluster, Constant, HessianFree, Sequential, config
from hocket.experiment import Experiment, RuntimeOptions
from hocket.models.gauss_newton import PRODUCT_COST
from hocket.record.display import LineDisplay, measured
from hocket.report.page import write_page
from hocket.report.runs import read_run
from hocket.support import progress

STRATEGY = HessianFree(curvature=0.2, cg_iterations=4, damping=0.5, start_decay=0, held_out_items=3)


def evaluations(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    return [row for row in rows if row["event"] == "eval"]


def test_every_iteration_is_evaluated_with_its_figures(tmp_path: Path) -> None:
    task = acoustic()
    simulated(task, STRATEGY, 2, schedule=Constant(epochs=3), out=tmp_path / "run")
    found = evaluations(tmp_path / "run")
    assert [row["frames"] for row in found] == [3000, 6000, 9000]
    for row in found:
        assert row["cg_iterations"] == 4
        assert row["damping"] > 0
        assert 0 < row["ratio"] < 3
        assert row["step"] == 1.0
    assert [row["products_max"] for row in found] == [4, 8, 12]
    sample = 640 / 3000  # ten minibatches
    scored = 3 * 64 / 3000 / 3  # each time
    for n, row in enumerate(found, 1):
        rest = row["passes_max"] - n * (1 + 4 * PRODUCT_COST * sample)
        assert rest / scored == pytest.approx(round(rest / scored))
        assert rest / scored >= 2 * n  # before the step, and at least one iterate


@pytest.mark.parametrize(("given", "found"), [({}, 6), ({"evaluate_every": 1.0}, 2)])
def test_samples_are_evaluated_one_by_one_unless_told_otherwise(
    tmp_path: Path, given: dict[str, Any], found: int
) -> None:
    """Twice 17 items of an epoch, then the 13 that are left."""
    strategy = replace(STRATEGY, sample=0.35)
    simulated(acoustic(), strategy, 1, schedule=Constant(epochs=2), out=tmp_path / "run", **given)
    assert len(evaluations(tmp_path / "run")) == found


def test_a_page_draws_loss_against_passes(tmp_path: Path) -> None:
    task = acoustic()
    for name, how in {"hf": STRATEGY, "sgd": Sequential()}.items():
        simulated(task, how, 1, schedule=Constant(epochs=2), out=tmp_path / name)
    runs = [read_run(tmp_path / name) for name in ("hf", "sgd")]
    write_page(tmp_path / "page.html", "both", runs)
    assert "dev loss against passes over the data" in (tmp_path / "page.html").read_text()
    assert [runs[1].passes(p) for p in runs[1].points] == [1.0, 2.0]
    assert runs[0].passes(runs[0].points[-1]) > 4.0
    write_page(tmp_path / "other.html", "one", runs[1:])
    assert "against passes" not in (tmp_path / "other.html").read_text()


def test_the_display_says_what_it_is_doing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress.Pace, "due", lambda self: True)
    events: list[dict[str, Any]] = []
    experiment = Experiment(
        Quadratic(), STRATEGY, schedule=Constant(epochs=2), options=RuntimeOptions(learners=2)
    )
    simulator(experiment, Cluster.even(2), events.append).run()
    telling = [e for e in events if e["event"] == "progress"]
    assert telling[0]["doing"] == "iteration 1  CG 1  damping 0.5"
    assert all(e["rank"] is None for e in telling)
    shown = LineDisplay("hf", 88)
    for event in events:
        shown.show(event)
    said = capsys.readouterr().err
    assert "iteration 1  CG 3  damping 0.5" in said
    assert re.search(r"dev loss .*  CG 4  damping 0\.5  ratio [01]\.\d\d\n", said)
    assert "loss 0.0000" not in said  # nothing new was learnt while it computes products
    assert measured({"cg_iterations": 4.0, "damping": 0.5}) == "  CG 4  damping 0.5  no step"


def test_progress_is_not_recorded(tmp_path: Path) -> None:
    real(Quadratic(), STRATEGY, 2, schedule=Constant(epochs=2), out=tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert "progress" not in {row["event"] for row in rows}
    assert not any("doing" in row for row in rows)


def test_the_rate_of_a_prepared_folder_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "train.toml").write_text(
        "[task]\nbatch_frames = 64\n[optimizer]\nlr = 0.5\n"
        '[schedule]\nname = "exponential"\nepochs = 3\nfinal_factor = 0.03\n'
    )
    usual = config.defaults(str(tmp_path))
    assert usual == config.defaults(str(tmp_path), "bmuf")
    assert usual["optimizer"] == {"lr": 0.5}
    without = config.defaults(str(tmp_path), "hessian-free")
    assert "optimizer" not in without
    assert without["schedule"] == {"epochs": 3}
    assert without["task"] == usual["task"]
