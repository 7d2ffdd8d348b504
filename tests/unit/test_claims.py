"""`hocket reproduce`: every claim runs, is judged, and leaves its pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.claims import BENCH, made_up

from hocket.cli.main import main
from hocket.errors import ConfigError
from hocket.report import charts
from hocket.reproduce import all_claims, checks, find, outcome, writing
from hocket.reproduce.claim import Bench, Claim
from hocket.reproduce.outcome import Arm, Found
from hocket.reproduce.tasks import SIZES


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


def test_one_seed_does_not_refute_the_claim_on_large_batches() -> None:
    """No size is judged with one seed, so nobody is known to stop before anybody else."""
    claim = find("large-batches")
    assert judged_at(claim, {}, seeds=1) == "inconclusive"


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({}, "inconclusive"),  # nobody can be told from the sequential run
        ({"sequential": 1.01}, "does not hold"),  # everybody reaches it at all sizes
        ({"sequential": 1.01, "allreduce": 9.0}, "holds"),
        ({"sequential": 1.01, "delay-by-one": 9.0, "fixed": 9.0, "random": 9.0}, "does not hold"),
    ],
)
def test_the_claim_on_large_batches_compares_the_largest_sizes(
    losses: dict[str, float], expected: str
) -> None:
    assert judged_at(find("large-batches"), losses) == expected


def judged_at(claim: Claim, losses: dict[str, float], seeds: int = 3) -> str:
    """Judge made-up outcomes: a method has its loss in `losses`, or 1."""
    bench = Bench("full", SIZES["full"].task, 1, tuple(range(seeds)), 0.2)
    names = dict.fromkeys((run.arm, run.setting) for run in claim.runs(bench))
    arms = []
    for arm, setting in names:
        loss = next((x for method, x in losses.items() if arm.startswith(method)), 1.0)
        arms.append(Arm(arm, setting, tuple(made_up(loss + 1e-3 * n) for n in range(seeds))))
    return checks.overall(claim.judge(Found(arms), bench))


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
