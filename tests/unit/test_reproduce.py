"""Runs of claims: computed once, tuned with the first seed, resumed when interrupted."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import pytest
from helpers.claims import BENCH, kstep_run

from hocket import KStep
from hocket.cli.main import main
from hocket.reproduce import cache, execute, outcome
from hocket.reproduce.claim import Run
from hocket.reproduce.command import UNFINISHED
from hocket.reproduce.tasks import SIZES


def test_time_that_is_up_leaves_runs_for_the_next_call(tmp_path: Path) -> None:
    runs = [kstep_run()]
    left = execute.execute(runs, tmp_path, jobs=1, limit_s=-1.0, advance=lambda n: None)
    assert left == 1
    assert execute.collect(runs, tmp_path).arms == []
    assert execute.execute(runs, tmp_path, jobs=1, limit_s=60.0, advance=lambda n: None) == 0
    assert len(execute.collect(runs, tmp_path)["k"].outcomes) == 1


def test_the_command_says_that_it_is_not_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ["reproduce", "k-sweep", "--smoke", "--jobs", "1", "--out", str(tmp_path)]
    assert main([*ask, "--minutes", "1e-9"]) == UNFINISHED
    assert "go on with: hocket reproduce k-sweep --smoke" in capsys.readouterr().out


def test_an_arm_is_tuned_with_its_first_seed(tmp_path: Path) -> None:
    """The whole grid once, the other seeds at the best setting only."""
    runs = [
        BENCH.run(arm, KStep(sync_every=4), 2, seed=seed, lr=lr, setting=f"lr {lr:g}")
        for arm in ("a", "b")
        for lr in (1e-4, 0.2, 1e-3)
        for seed in (0, 1, 2)
        if arm == "a" or lr == 1e-3
    ]
    assert len(execute.planned(runs, tmp_path)) == 3 + 2 + 3
    advanced: list[float] = []
    assert execute.execute(runs, tmp_path, jobs=1, limit_s=60.0, advance=advanced.append) == 0
    assert len(advanced) == 7, "seed 0 of arm b is a run of arm a, too"
    found = execute.collect(execute.planned(runs, tmp_path), tmp_path)
    assert found["a"].setting == "lr 0.2"
    assert [len(arm.outcomes) for arm in found.settings("a")] == [1, 3, 1]
    assert len(found["b"].outcomes) == 3


def test_only_the_best_of_a_grid_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding costs as much as training; a call that is interrupted before it goes on with it."""
    runs = [
        BENCH.run("a", KStep(sync_every=4), 2, seed=seed, lr=lr, setting=f"lr {lr:g}")
        for lr in (1e-4, 0.2, 1e-3)
        for seed in (0, 1)
    ]
    decoded: list[str] = []

    def words(run: Run, path: Path) -> float:
        assert (path / "model.safetensors").exists()
        decoded.append(run.describe())
        if len(decoded) == 1:
            raise KeyboardInterrupt
        return 0.25

    monkeypatch.setattr(execute, "_has_words", lambda task: True)
    monkeypatch.setattr(execute, "_word_errors", words)
    with pytest.raises(KeyboardInterrupt):
        execute.execute(runs, tmp_path, jobs=1, limit_s=60.0, advance=lambda n: None)
    assert execute.execute(runs, tmp_path, jobs=1, limit_s=60.0, advance=lambda n: None) == 0
    best = "a, lr 0.2, seed "
    assert decoded == [best + "0", best + "0", best + "1"]
    found = execute.collect(execute.planned(runs, tmp_path), tmp_path)
    assert [o.wer for o in found["a"].outcomes] == [0.25, 0.25]
    assert found.has_wer, "though the other rates were not decoded"
    assert not list(tmp_path.glob("*/run")), "nothing but outcomes is kept"


def test_an_interrupted_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run had reached when the machine went down is not computed again."""
    run = replace(kstep_run(checkpoint_every=0.25))
    whole = tmp_path / "whole"
    execute.execute([run], whole, jobs=1, limit_s=60.0, advance=lambda n: None)
    real_write = outcome.write

    def power_cut(path: Path, found: outcome.Outcome) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(outcome, "write", power_cut)
    with pytest.raises(KeyboardInterrupt):
        execute.execute([run], tmp_path, jobs=1, limit_s=60.0, advance=lambda n: None)
    checkpoints = sorted((execute.folder(tmp_path, run) / "run/checkpoints").iterdir())
    assert len(checkpoints) == 2
    shutil.rmtree(checkpoints[-1])
    monkeypatch.setattr(outcome, "write", real_write)
    execute.execute([run], tmp_path, jobs=1, limit_s=60.0, advance=lambda n: None)
    a, b = (execute.known(folder, run) for folder in (whole, tmp_path))
    assert a is not None
    assert b is not None
    assert (a.loss, a.time_s, a.curve) == (b.loss, b.time_s, b.curve)


def test_a_run_that_diverges_is_a_result(tmp_path: Path) -> None:
    run = kstep_run(lr=1e4)
    execute.execute([run], tmp_path, jobs=1, limit_s=60.0, advance=lambda n: None)
    arm = execute.collect([run], tmp_path)["k"]
    assert arm.num_diverged == 1
    assert math.isinf(arm.losses[0])


def test_a_diverged_run_is_read_as_what_it_is(tmp_path: Path) -> None:
    gone = outcome.of_divergence("the loss is not finite", 1.0)
    outcome.write(tmp_path / "outcome.json", gone)
    assert outcome.read(tmp_path / "outcome.json") == replace(gone, wer=ANY)


# ------------------------------------------------------------------ the cache


def test_a_run_is_known_by_everything_that_decides_it() -> None:
    keys = {
        cache.key(run)
        for run in (
            kstep_run(),
            kstep_run(lr=0.3),
            kstep_run(evaluate_every=0.3),
            BENCH.run("k", KStep(sync_every=5), 2, seed=0),
            BENCH.run("k", KStep(sync_every=4), 4, seed=0),
            BENCH.run("k", KStep(sync_every=4), 2, seed=1),
            BENCH.run("k", KStep(sync_every=4), 2, seed=0, real=True),
            kstep_run(task=SIZES["quick"].task),
        )
    }
    assert len(keys) == 8
    assert cache.key(kstep_run()) == cache.key(replace(kstep_run(), arm="another name"))


def test_the_code_of_a_run_is_what_it_reaches() -> None:
    needed = cache.reachable((KStep.__module__, "hocket.runtime.sim.simulator"))
    assert {"hocket.strategies.kstep", "hocket.runtime.shared.worker", "hocket.optim.sgd"} <= needed
    assert not needed & {"hocket.strategies.allreduce", "hocket.cli.main", "hocket.report.page"}


def test_comments_and_docstrings_are_not_code(tmp_path: Path) -> None:
    files = []
    for n, text in enumerate(
        ("def f():\n    return 1\n", '"""Doc."""\ndef f():  # why\n    """Doc."""\n    return 1\n')
    ):
        files.append(tmp_path / f"{n}.py")
        files[-1].write_text(text)
    other = tmp_path / "other.py"
    other.write_text("def f():\n    return 2\n")
    assert cache._meaning(files[0]) == cache._meaning(files[1]) != cache._meaning(other)
