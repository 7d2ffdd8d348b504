"""`hocket reproduce`: every claim runs; verdicts follow the numbers; runs are computed once."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from unittest.mock import ANY

import pytest
import scipy.stats

from hocket import KStep
from hocket.cli.main import main
from hocket.errors import ConfigError
from hocket.report import charts
from hocket.report.runs import Point
from hocket.reproduce import all_claims, cache, checks, execute, find, outcome, statistics, writing
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.command import UNFINISHED
from hocket.reproduce.outcome import Arm, Found
from hocket.reproduce.tasks import SIZES

BENCH = Bench("smoke", SIZES["smoke"].task, 1, (0, 1), 0.2)


def kstep_run(**more: object) -> Run:
    return BENCH.run("k", KStep(sync_every=4), 2, seed=0, **more)  # type: ignore[arg-type]


# ------------------------------------------------------------------ the claims


@pytest.mark.parametrize("name", list(all_claims()))
def test_every_claim_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    ask = ["reproduce", name, "--smoke", "--jobs", "1"]
    assert main(ask) == 0
    first = capsys.readouterr().out
    assert "verdict: none" in first
    assert "<svg" in (tmp_path / "runs/reproduce" / f"{name}.html").read_text()
    assert not (tmp_path / "docs/results").exists(), "only the full form is recorded"
    assert main(ask) == 0  # known: no run is computed again
    told = capsys.readouterr()
    assert told.out == first
    assert "about" not in told.err


@pytest.mark.parametrize("claim", all_claims().values(), ids=lambda c: c.name)
def test_every_claim_can_be_judged_at_every_scale(claim: Claim) -> None:
    """With made-up outcomes: the verdict is computed, and every arm it names has runs."""
    for scale in ("quick", "full"):
        bench = Bench(scale, claim.task(scale) or SIZES[scale].task, 1, (0, 1, 2), 0.2)
        runs = claim.runs(bench)
        assert len({(r.arm, r.setting, r.seed) for r in runs}) == len(runs)
        found = Found(
            Arm(arm, setting, tuple(made_up(1.0 + 0.1 * s) for s in range(3)))
            for arm, setting in dict.fromkeys((r.arm, r.setting) for r in runs)
        )
        assert claim.judge(found, bench)
        report = writing.Report(claim, bench, found, claim.judge(found, bench), "command", 0)
        assert claim.claim in writing.markdown(report)
        assert "<table" in writing.page(report)


@pytest.mark.parametrize("claim", all_claims().values(), ids=lambda c: c.name)
def test_no_claim_holds_if_every_run_diverged(claim: Claim) -> None:
    """And the page can be drawn nevertheless."""
    bench = Bench("full", claim.task("full") or SIZES["full"].task, 1, (0, 1, 2), 0.2)
    gone = outcome.of_divergence("the loss is not finite", 1.0)
    arms = dict.fromkeys((r.arm, r.setting) for r in claim.runs(bench))
    found = Found(Arm(*names, (gone,) * 3) for names in arms)
    judged = claim.judge(found, bench)
    assert checks.overall(judged) != "holds"
    report = writing.Report(claim, bench, found, judged, "command", 0)
    assert "nan" not in writing.page(report)
    assert claim.claim in writing.markdown(report)


def test_a_diverged_run_is_read_as_what_it_is(tmp_path: Path) -> None:
    gone = outcome.of_divergence("the loss is not finite", 1.0)
    outcome.write(tmp_path / "outcome.json", gone)
    assert outcome.read(tmp_path / "outcome.json") == replace(gone, wer=ANY)


def made_up(loss: float) -> outcome.Outcome:
    points = tuple(Point(n, 10 * n, loss + 1 / n, 0.5) for n in (1, 2, 3))
    return outcome.Outcome(loss, 0.5, 100, 0, 3.0, 1000, 0.5, points, 1.0)


def test_the_full_form_is_recorded_with_command_commit_and_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    monkeypatch.setitem(SIZES, "full", SIZES["smoke"])
    assert main(["reproduce", "adaptive-k", "--jobs", "1", "--seeds", "1"]) == 0
    page = (tmp_path / "docs/results/adaptive-k.md").read_text()
    assert page.startswith("# adaptive-k: inconclusive")
    assert "two or more are needed" in page
    assert f"`hocket reproduce adaptive-k --seeds 1` at commit {writing.commit()}" in page
    assert "cores." in page


def test_an_unknown_claim_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'k-sweep'"):
        find("k-swep")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--lr", "0"], "--lr must be above 0"),
        (["--epochs", "0"], "--epochs must be above 0"),
        (["--seeds", "0"], "--seeds must be above 0"),
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--minutes", "0"], "--minutes must be above 0"),
        (["--task", "nowhere"], "neither 'synthetic' nor a folder"),
    ],
)
def test_bad_options_are_refused(
    more: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "k-sweep", "--smoke", *more]) == 2
    assert reason in capsys.readouterr().err


def test_the_task_may_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Task, model, rate and epochs; what the claim decides is refused."""
    (tmp_path / "task.toml").write_text(
        "[task]\nnum_frames = 600\ndev_frames = 100\nbatch_frames = 50\n"
        "[model]\nlayers = 1\nwidth = 8\n[optimizer]\nlr = 0.05\n[schedule]\nepochs = 2\n"
    )
    ask = ["reproduce", "k-sweep", "--smoke", "--jobs", "1", "--out", str(tmp_path / "out")]
    assert main([*ask, "--config", str(tmp_path / "task.toml")]) == 0
    kept = list((tmp_path / "out/cache").glob("*/outcome.json"))
    assert {outcome.read(path).frames for path in kept} == {2 * 600}
    (tmp_path / "bad.toml").write_text('[strategy]\nname = "bmuf"\n')
    assert main([*ask, "--config", str(tmp_path / "bad.toml")]) == 2
    assert "[strategy] has no effect here" in capsys.readouterr().err


def test_dots_have_doubling_ticks_a_level_and_names() -> None:
    series = charts.Spread("P=4", [(1.0, 0.5, 0.4, 0.6), (8.0, 0.7, 0.7, 0.7)], "#123456")
    level = charts.Estimate("sequential", 0.45, 0.44, 0.46, "#888888")
    drawn = charts.dots("loss over K", "K", [series], doubling=True, level=level)
    assert all(f">{tick}</text>" in drawn for tick in (1, 2, 4, 8))
    assert ">P=4</text>" in drawn
    assert ">sequential</text>" in drawn
    assert "no data" in charts.dots("", "", [charts.Spread("", [], "")])


# ------------------------------------------------------------------ running


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


# ------------------------------------------------------------------ statistics


@pytest.mark.parametrize("df", [1, 1.7, 2, 5, 30, 1998])
@pytest.mark.parametrize("p", [0.6, 0.9, 0.975, 0.999])
def test_student_as_scipy_has_it(p: float, df: float) -> None:
    assert statistics.t_quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-4)


def test_the_interval_of_a_difference_is_welchs() -> None:
    a, b = [1.0, 1.2, 1.1, 1.4], [0.9, 0.7, 0.5]
    theirs = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    ours = statistics.difference(a, b)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-4)


def test_so_many_seeds_do_settle_it() -> None:
    """Half the interval with n seeds of the same scatter is below the distance; with n - 1 not."""
    a, b, distance = [1.0, 1.2, 1.1], [0.95, 1.25, 1.1], 0.05
    n = statistics.seeds_needed(a, b, distance)
    assert n is not None
    for m, enough in ((n, True), (n - 1, False)):
        widened = [stdev(x) for x in (a, b)]
        half = scipy.stats.t.ppf(0.975, 2 * m - 2) * math.sqrt(sum(s * s for s in widened) / m)
        assert (half < distance) == enough
    assert statistics.seeds_needed(a, b, 1e-9) is None
    assert statistics.seeds_needed(a, b, 10.0) == 4  # three were there and did not show it


# ------------------------------------------------------------------ verdicts

TIGHT, CLOSE, FAR = [1.0, 1.01, 1.02], [1.005, 1.015, 1.02], [2.0, 2.01, 2.02]


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        (checks.reaches("", CLOSE, TIGHT), "inconclusive"),
        (checks.reaches("", [1.0, 1.0, 1.0], TIGHT), "holds"),
        (checks.reaches("", FAR, TIGHT), "does not hold"),
        (checks.reaches("", [1.0, 1.0, math.inf], TIGHT), "does not hold"),
        (checks.reaches("", TIGHT, [1.0]), "inconclusive"),
        (checks.below("", TIGHT, FAR), "holds"),
        (checks.below("", FAR, TIGHT), "does not hold"),
        (checks.below("", CLOSE, TIGHT), "inconclusive"),
        (checks.below("", TIGHT, [math.inf, 1.0]), "holds"),
        (checks.fact("", True, ""), "holds"),
    ],
)
def test_a_check_follows_the_numbers(check: checks.Check, expected: str) -> None:
    assert check.judgement == expected


def test_an_inconclusive_check_says_what_would_settle_it() -> None:
    found = checks.below("", CLOSE, TIGHT).detail
    assert "3 seeds can show differences from 0.02" in found
    assert "seeds an arm would settle this one" in found


def test_the_verdict_is_that_of_the_weakest_check() -> None:
    good, bad, unsure = (
        checks.Check("", j, "") for j in ("holds", "does not hold", "inconclusive")
    )
    assert checks.overall([good, good]) == "holds"
    assert checks.overall([good, unsure]) == "inconclusive"
    assert checks.overall([good, unsure, bad]) == "does not hold"


def test_an_arm_is_judged_at_its_best_setting() -> None:
    arms = [Arm("one", "lr 1", (made_up(2.0),)), Arm("one", "lr 2", (made_up(1.0),))]
    assert Found(arms)["one"].setting == "lr 2"
    with pytest.raises(ConfigError, match="Did you mean 'one'"):
        Found(arms)["on"]


def test_many_arms_are_drawn_in_several_drawings() -> None:
    """Nobody is left out: twelve arms, six in each pair of drawings."""
    claim = find("natural-averaging")
    bench = Bench("full", SIZES["full"].task, 1, (0,), 0.2)
    arms = list(dict.fromkeys(run.arm for run in claim.runs(bench)))
    found = Found(Arm(arm, "", (made_up(1.0),)) for arm in arms)
    drawn = writing.all_curves(writing.Report(claim, bench, found, [], "command", 0))
    assert len(arms) == 12
    assert len(drawn) == 4
    for arm in arms:
        assert sum(f">{arm}</text>" in svg for svg in drawn) == 2, arm


def test_natural_gradient_takes_its_time_in_the_simulator() -> None:
    claim = find("natural-averaging")
    speeds = {
        run.arm: run.cluster.hosts[0].frames_per_s
        for run in claim.runs(BENCH)
        if run.cluster is not None
    }
    assert speeds["dnn sgd P=1"] == pytest.approx(1.17 * speeds["dnn ngsgd P=1"])


def test_an_arm_that_is_best_at_the_edge_of_its_grid_is_named() -> None:
    arms = [
        Arm(name, f"lr {lr}", (made_up(loss),))
        for name, losses in (("inside", (2.0, 1.0, 3.0)), ("outside", (3.0, 2.0, 1.0)))
        for lr, loss in zip((1, 2, 4), losses, strict=True)
    ]
    report = writing.Report(all_claims()["k-sweep"], BENCH, Found(arms), [], "command", 0)
    assert writing.grid(report)[-1].endswith("perhaps better beyond: outside.")
