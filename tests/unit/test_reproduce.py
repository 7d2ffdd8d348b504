"""Runs of claims: computed once, tuned with a seed that does not judge, resumed."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import pytest
from helpers.claims import BENCH, kstep_run, made_up

from hocket import Exponential, KStep
from hocket.cli.main import main
from hocket.optim.schedules import ScheduleState, Warmup
from hocket.reproduce import cache, command, execute, outcome
from hocket.reproduce.claim import Run, budgets, stretched
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


def test_the_tuning_seed_tries_the_grid_and_the_others_judge(tmp_path: Path) -> None:
    """An arm with one setting does without the tuning seed."""
    runs = [
        BENCH.run(arm, KStep(sync_every=4), 2, seed=seed, lr=lr, setting=f"lr {lr:g}")
        for arm in ("a", "b")
        for lr in (1e-4, 0.2, 1e-3)
        for seed in BENCH.seeds
        if arm == "a" or lr == 0.2
    ]
    assert len(execute.planned(runs, tmp_path)) == 3 + 2 + 2
    advanced: list[float] = []
    assert execute.execute(runs, tmp_path, jobs=1, limit_s=60.0, advance=advanced.append) == 0
    assert len(advanced) == 5, "arm b is arm a at its best setting, known already"
    found = execute.collect(runs, tmp_path)
    assert found["a"].setting == "lr 0.2"
    counted = [(len(arm.tuned), len(arm.outcomes)) for arm in found.settings("a")]
    assert counted == [(1, 0), (1, 2), (1, 0)]
    assert (len(found["b"].tuned), len(found["b"].outcomes)) == (0, 2)
    first = execute.known(tmp_path, runs[len(BENCH.seeds)])
    assert found["a"].tuned == (first,)
    assert first not in found["a"].outcomes


def test_an_arm_that_is_tuned_as_another_takes_its_setting_at_every_budget(tmp_path: Path) -> None:
    """The grid is tried once, with the other one; the arm itself only judges."""
    grid = BENCH.grid({"": KStep(sync_every=4)}, (1e-3, 1.0))
    runs = BENCH.arm("a", 2, grid, budgets=(1.0, 2.0))
    runs += BENCH.arm("b", 3, grid, budgets=(1.0, 2.0), tuned_as="a")
    assert len(execute.planned(runs, tmp_path)) == 2 * 2 + 2 * 2 + 2 * 2
    assert execute.execute(runs, tmp_path, jobs=1, limit_s=60.0, advance=lambda n: None) == 0
    found = execute.collect(runs, tmp_path)
    for row in ("b", "b, 2.00 x frames"):
        assert [arm.setting for arm in found.settings(row)] == ["lr 0.2"]
        assert (len(found[row].tuned), len(found[row].outcomes)) == (0, 2)
    assert len(found["b"].longer) == 2


def test_the_expected_time_counts_work_learners_and_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 ms a gradient: simulated runs share the jobs, real learners the minibatches."""
    monkeypatch.setattr(execute, "_probe", lambda run: 0.001)
    strategy, items = KStep(sync_every=4), len(BENCH.task.items("train"))
    each = execute.OVERHEAD * 0.001 + execute.ITEM_S
    one = BENCH.run("a", strategy, 2, seed=0)
    six = BENCH.run("b", strategy, 2, seed=0, work=6.0)
    real = BENCH.run("c", strategy, 4, seed=0, real=True)
    assert execute.expected_s([one], 1) == pytest.approx(each * items)
    assert execute.expected_s([one, six], 2) == pytest.approx(7 * each * items / 2)
    assert execute.expected_s([real], 2) == pytest.approx(each * items / 4)


def test_a_single_seed_tunes_and_judges(tmp_path: Path) -> None:
    """As in --smoke, where nothing is concluded."""
    alone = replace(BENCH, seeds=(0,))
    runs = alone.arm("a", 2, alone.grid({"": KStep(sync_every=4)}, (1e-3, 1.0)), budgets=(1.0, 2.0))
    assert execute.execute(runs, tmp_path, jobs=1, limit_s=60.0, advance=lambda n: None) == 0
    found = execute.collect(runs, tmp_path)
    assert found["a"].setting == "lr 0.2"
    assert len(found["a"].tuned) == len(found["a"].outcomes) == 1
    assert len(execute.planned(runs, tmp_path)) == 4


def test_larger_budgets_are_tuned_apart_and_add_to_the_arms_times(tmp_path: Path) -> None:
    """A budget stretches the schedule to whole epochs, and the longer runs have their own row."""
    grid = BENCH.grid({"": KStep(sync_every=4)}, (1e-3, 1.0))
    runs = BENCH.arm("a", 2, grid, budgets=(1.0, 1.5))
    assert {(run.budget, run.experiment.schedule.epochs) for run in runs} == {(1.0, 1), (1.5, 2)}
    assert execute.execute(runs, tmp_path, jobs=1, limit_s=60.0, advance=lambda n: None) == 0
    found = execute.collect(runs, tmp_path)
    assert found.names == ["a", "a, 1.50 x frames"]
    arm, longer = found["a"], found["a, 1.50 x frames"]
    assert [o.frames for o in longer.outcomes] == [2 * o.frames for o in arm.outcomes]
    assert arm.longer == tuple((o,) for o in longer.outcomes)
    end = longer.outcomes[0]
    assert end.loss < arm.outcomes[0].loss
    assert arm.times_to([o.loss for o in longer.outcomes])[0] <= end.time_s
    assert longer.longer in ((), ((), ()))


def test_a_stretched_warm_up_is_the_same_shape() -> None:
    usual = Warmup(epochs=4, warmup_epochs=1.0, hold_epochs=1.0, step_factor=0.25)
    longer = stretched(usual, 2.0)
    assert (longer.epochs, stretched(usual, 1.0)) == (8, usual)
    state = ScheduleState()
    assert longer.factor(1.0, state) == usual.factor(0.5, state)
    assert longer.factor(7.99, state) == pytest.approx(usual.factor(3.99, state), rel=0.6)
    assert stretched(Exponential(epochs=3), 1.81) == Exponential(epochs=6)


def test_budgets_go_up_to_what_the_speed_up_allows() -> None:
    assert list(budgets(20, 6.1)) == pytest.approx([1.0, (20 / 6.1) ** 0.5, 20 / 6.1], abs=1e-4)
    assert budgets(4, 4.0) == budgets(4, 5.0) == (1.0,)


def test_only_what_is_judged_at_equal_frames_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding costs as much as training; a call that is interrupted in it goes on with it."""
    grid = BENCH.grid({"": KStep(sync_every=4)}, (1e-3, 1.0))
    runs = BENCH.arm("a", 2, grid, budgets=(1.0, 2.0))
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
    assert decoded == [best + "1", best + "1", best + "2"]
    found = execute.collect(runs, tmp_path)
    assert [o.wer for o in found["a"].outcomes] == [0.25, 0.25]
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


def test_outcomes_from_before_the_share_of_the_rate_can_be_read(tmp_path: Path) -> None:
    outcome.write(tmp_path / "outcome.json", replace(made_up(1.0), rate_share=0.5))
    assert outcome.read(tmp_path / "outcome.json").rate_share == 0.5
    kept = json.loads((tmp_path / "outcome.json").read_text())
    del kept["rate_share"]
    (tmp_path / "outcome.json").write_text(json.dumps(kept))
    assert outcome.read(tmp_path / "outcome.json").rate_share == 1.0


def test_a_diverged_run_is_read_as_what_it_is(tmp_path: Path) -> None:
    gone = outcome.of_divergence("the loss is not finite", 1.0)
    outcome.write(tmp_path / "outcome.json", gone)
    assert outcome.read(tmp_path / "outcome.json") == replace(gone, wer=ANY, rate_share=ANY)


# ------------------------------------------------------------------ the cache


def test_a_run_is_known_by_everything_that_decides_it() -> None:
    keys = {
        cache.key(run)
        for run in (
            kstep_run(),
            kstep_run(lr=0.3),
            kstep_run(evaluate_every=0.3),
            BENCH.run("k", KStep(sync_every=5), 2, seed=1),
            BENCH.run("k", KStep(sync_every=4), 4, seed=1),
            BENCH.run("k", KStep(sync_every=4), 2, seed=2),
            BENCH.run("k", KStep(sync_every=4), 2, seed=1, real=True),
            kstep_run(task=SIZES["quick"].task),
        )
    }
    assert len(keys) == 8
    assert cache.key(kstep_run()) == cache.key(replace(kstep_run(), arm="another name"))


def test_the_code_of_a_run_is_what_it_reaches() -> None:
    needed = cache.reachable((KStep.__module__, "hocket.runtime.sim.simulator"))
    assert {"hocket.strategies.kstep", "hocket.runtime.shared.worker", "hocket.optim.sgd"} <= needed
    assert not needed & {"hocket.strategies.allreduce", "hocket.cli.main", "hocket.report.page"}


def test_an_interrupted_page_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "docs" / "results" / "README.md"
    page.parent.mkdir(parents=True)
    page.write_text("old")

    def half(path: Path, text: str, encoding: str) -> None:
        path.write_bytes(text.encode(encoding)[:9])
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(KeyboardInterrupt):
        command._headlines()
    assert page.read_text() == "old"
    assert list(page.parent.iterdir()) == [page]


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
