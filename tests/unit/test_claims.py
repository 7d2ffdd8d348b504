"""`hocket reproduce`: every claim runs, is judged, and leaves its pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.claims import BENCH, at_times, made_up

from hocket.cli.main import main
from hocket.errors import ConfigError
from hocket.report import charts
from hocket.report.runs import Point
from hocket.reproduce import all_claims, checks, find, headlines, outcome, writing
from hocket.reproduce.claim import Bench, Claim
from hocket.reproduce.outcome import Arm, Found
from hocket.reproduce.setups import two_hosts
from hocket.reproduce.tasks import SIZES, Scale

LINKED = "onebit-speed"  # starts eight programs, on two hosts of its own


@pytest.mark.parametrize(
    ("name", "linked"),
    [(name, False) for name in all_claims()]
    + [pytest.param(LINKED, True, marks=pytest.mark.long, id=f"{LINKED}-linked")],
)
def test_every_claim_runs(
    name: str,
    linked: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not linked:
        monkeypatch.setattr(two_hosts, "available", lambda: False)
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
        bench = bench_at(claim, scale)
        runs = claim.runs(bench)
        assert len({(r.row, r.setting, r.seed) for r in runs}) == len(runs)
        found = Found(
            Arm(row, setting, tuple(made_up(1.0 + 0.1 * s) for s in range(3)), (made_up(1.0),))
            for row, setting in dict.fromkeys((r.row, r.setting) for r in runs)
        )
        assert claim.judge(found, bench)
        report = writing.Report(claim, bench, found, claim.judge(found, bench), "command", 0)
        assert claim.claim in writing.markdown(report)
        assert "<table" in writing.page(report)


@pytest.mark.parametrize("claim", all_claims().values(), ids=lambda c: c.name)
def test_no_claim_holds_if_every_run_diverged(claim: Claim) -> None:
    """And the page can be drawn nevertheless."""
    bench = bench_at(claim, "full")
    gone = outcome.of_divergence("the loss is not finite", 1.0)
    arms = dict.fromkeys((r.row, r.setting) for r in claim.runs(bench))
    found = Found(Arm(*names, (gone,) * 3, (gone,)) for names in arms)
    judged = claim.judge(found, bench)
    assert checks.overall(judged) != "holds"
    report = writing.Report(claim, bench, found, judged, "command", 0)
    assert "nan" not in writing.page(report)
    assert claim.claim in writing.markdown(report)


def bench_at(claim: Claim, scale: Scale) -> Bench:
    """The bench of a claim, with one tuning and three judging seeds."""
    size = claim.size(scale)
    return Bench(scale, size.task, size.epochs, (0, 1, 2, 3), 0.2)


def judged_at(claim: Claim, losses: dict[str, float], seeds: int = 3) -> str:
    """Judge made-up outcomes: an arm has the loss of the first name that is a part of its own."""
    bench = bench_at(claim, "full")
    arms = []
    for row, setting in dict.fromkeys((run.row, run.setting) for run in claim.runs(bench)):
        loss = next((x for part, x in losses.items() if part in row), 1.0)
        spread = 1e-4 if row.startswith("sequential") else -1e-4  # of differences, not zero
        judged = tuple(made_up(loss + spread * n) for n in range(seeds))
        arms.append(Arm(row, setting, judged, (made_up(loss),)))
    return checks.overall(claim.judge(Found(arms, claim.margin), bench))


def test_one_seed_does_not_refute_the_claim_on_large_batches() -> None:
    """No size is judged with one seed, so nobody is known to stop before anybody else."""
    assert judged_at(find("large-batches"), {}, seeds=1) == "inconclusive"


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({}, "does not hold"),  # everybody reaches it at all sizes
        ({"allreduce": 9.0}, "holds"),
        ({"allreduce 4 x": 1.0, "allreduce 8 x": 1.0, "allreduce": 9.0}, "holds"),  # 48 to 8
        (  # plain training: 24 to 12 is not three times
            {"as published": 1.0, "allreduce 12 x": 1.0, "48 x": 9.0, "36 x": 9.0},
            "does not hold",
        ),
        ({"sequential": 1.0, "delay": 9.0, "fixed": 9.0, "random": 9.0}, "does not hold"),
        ({"sequential": 1.0, "48 x": 1.01, "36 x": 1.01, "allreduce": 9.0}, "inconclusive"),
    ],
)
def test_the_claim_on_large_batches_compares_the_largest_sizes(
    losses: dict[str, float], expected: str
) -> None:
    assert judged_at(find("large-batches"), losses) == expected


@pytest.mark.parametrize(
    ("name", "losses", "expected"),
    [
        ("kavg-four", {"K-AVG": 1.005}, "holds"),
        ("kavg-four", {"K-AVG": 1.02}, "does not hold"),
        ("averaging-methods", {"bmuf": 0.99}, "holds"),
        ("averaging-methods", {"bmuf": 1.005}, "does not hold"),  # reaches it, but is not the best
        ("adaptive-k", {"shrink K": 0.9}, "holds"),
        ("k-sweep", {"adaptive": 1.05}, "does not hold"),
        ("bmuf-linear", {}, "does not hold"),  # as accurate, but no sooner than sequential
        ("kavg-twenty", {}, "does not hold"),
        ("averaging-speed", {}, "does not hold"),
        ("hadpsgd", {"super": 1.005, "flat": 1.005}, "holds"),
        ("hadpsgd", {"super": 1.02, "flat": 1.0}, "does not hold"),
        ("delay-by-one-large", {"allreduce": 1.1, "ring": 1.1}, "holds"),
        ("delay-by-one-large", {"P=": 1.1}, "inconclusive"),  # nobody reaches it
        ("delay-by-one-large", {"delay": 1.1}, "does not hold"),
        ("hessian-free-updates", {"hessian-free": 0.9}, "does not hold"),  # as late as SGD
        ("hessian-free-updates", {"hessian-free": 1.1}, "does not hold"),
        ("hessian-free-scaling", {}, "does not hold"),  # as long on many as on one
        ("hessian-free-preconditioners", {}, "does not hold"),  # as many products
    ],
)
def test_a_claim_is_judged_by_its_own_figures(
    name: str, losses: dict[str, float], expected: str
) -> None:
    """All arms take the same time, so claims of speed-ups fail here unless others never arrive."""
    assert judged_at(find(name), losses) == expected


@pytest.mark.parametrize("claim", all_claims().values(), ids=lambda c: c.name)
def test_every_claim_states_its_margin_and_the_published_figure(claim: Claim) -> None:
    stated = f"{claim.margin:.0%}".replace("%", " %")
    assert (
        stated in claim.refuted_by
        or "no margin" in claim.refuted_by
        or "0.95" in (claim.refuted_by)
    )
    assert claim.published


def test_full_forms_have_five_judges_and_smoke_forms_one_seed() -> None:
    assert [SIZES[scale].judges for scale in ("smoke", "quick", "full")] == [0, 3, 5]
    updates = {
        scale: len(SIZES[scale].task.items("train")) * SIZES[scale].epochs for scale in SIZES
    }
    assert updates["full"] > 60_000


def test_the_full_form_is_recorded_with_command_commit_and_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    monkeypatch.setitem(SIZES, "full", SIZES["smoke"])
    monkeypatch.setattr(Bench, "pick", lambda self, smoke, quick, full: smoke)
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
        (["--task", "nowhere"], "neither 'synthetic', 'stream' nor a folder"),
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
    claim = find("natural-frames")
    bench = bench_at(claim, "full")
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
    assert speeds["pnorm sgd P=1"] == pytest.approx(1.17 * speeds["pnorm ngsgd P=1"])


def test_an_arm_that_is_best_at_the_edge_of_its_grid_is_named() -> None:
    """By the tuning seed; of two parameters, each has edges of its own."""
    arms = [
        Arm(name, f"K {k}, lr {lr}", (), (made_up(loss + k),))
        for name, losses in (("inside", (2.0, 1.0, 3.0)), ("outside", (3.0, 2.0, 1.0)))
        for k in (0, 4)
        for lr, loss in zip((1, 2, 4), losses, strict=True)
    ]
    report = writing.Report(all_claims()["k-sweep"], BENCH, Found(arms), [], "command", 0)
    assert writing.grid(report)[-1].endswith("perhaps better beyond: outside.")


# ------------------------------------------------------------------ the table and the headlines


def test_the_table_shows_frames_and_time_to_the_sequential_loss() -> None:
    """And the speed-up; a seed that never gets there is counted."""
    arms = [
        Arm("sequential", "", (at_times(3, 2, 1.02, 1.0),) * 2),
        Arm("fast", "", (at_times(2, 1.0),) * 2),
        Arm("slow", "", (at_times(2, 1.5),) * 2, longer=((at_times(2, 2, 2, 2, 1.0),),) * 2),
        Arm("half", "", (at_times(2, 1.0), at_times(2, 1.5))),
        Arm("never", "", (at_times(2, 1.5),) * 2),
    ]
    report = writing.Report(find("kavg-four"), BENCH, Found(arms), [], "command", 0)
    first = report.headings.index("frames to it")
    shown = {row[0]: row[first : first + 3] for row in report.rows}
    assert report.headings[first : first + 3] == ["frames to it", "time to it s", "speed-up"]
    assert shown["sequential"] == ["1.00 x", "4.00", "1.0"]
    assert shown["fast"] == ["0.50 x", "2.00", "2.0"]
    assert shown["slow"] == ["1.25 x", "5.00", "0.8"]
    assert shown["half"] == ["- (1 of 2 seeds)", "-", "-"]
    assert shown["never"] == ["-", "-", "-"]
    assert "the sequential run of the same seed plus 1%" in writing.markdown(report)


def test_headlines_quote_pages_and_mark_those_of_the_earlier_judge(tmp_path: Path) -> None:
    arms = [Arm(n, "", (at_times(2, 1.0),) * 2) for n in ("sequential", "bmuf P=16")]
    claim = find("bmuf-linear")
    judged = [checks.fact("", True, "")]
    report = writing.Report(claim, bench_at(claim, "quick"), Found(arms), judged, "command", 0)
    (tmp_path / "bmuf-linear.md").write_text(writing.markdown(report))
    (tmp_path / "k-sweep-sweep.md").write_text("# k-sweep: does not hold\n")
    (tmp_path / "natural-averaging-relu.md").write_text("# natural-averaging-relu: holds\n")
    rows = headlines.page(tmp_path).splitlines()

    def row(claim: str) -> str:
        return next(line for line in rows if f"[{claim}]" in line or f"`{claim}`" in line)

    ours = "| holds | bmuf P=16: dev loss 1.0000, frames to it 1.00 x, speed-up 1.0 |"
    assert row("bmuf-linear").endswith(ours)
    assert "(does not hold; earlier judge) | to be made anew |" in row("k-sweep")
    assert "[k-sweep](k-sweep-sweep.md)" in row("k-sweep")
    assert "not run yet" in row("natural-averaging")
    assert "not run yet" in row("kavg-twenty")


def test_every_headline_names_a_claim_and_every_claim_is_one() -> None:
    """The rows that a headline quotes are arms of the claim's full form."""
    named = set()
    for headline in headlines.HEADLINES:
        if headline.claim is None:
            assert headline.open
            continue
        claim = find(headline.claim)
        named.add(claim.name)
        arms = {run.row for run in claim.runs(bench_at(claim, "full"))}
        assert set(headline.arms) <= arms, headline.claim
    assert named == set(all_claims())


def test_the_headlines_are_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "--headlines"]) == 0
    assert "written" not in capsys.readouterr().out
    (tmp_path / "docs").mkdir()
    assert main(["reproduce", "--headlines"]) == 0
    page = (tmp_path / "docs/results/README.md").read_text()
    assert page in capsys.readouterr().out


def newton_outcome(time_s: float, products: float) -> outcome.Outcome:
    """A run of hessian-free that is at its loss of 1 after so many seconds and products."""
    curve = (Point(time_s / 2, 50, 2.0, 0.5), Point(time_s, 100, 1.0, 0.5, products=products))
    return replace(made_up(1.0), time_s=time_s, curve=curve)


@pytest.mark.parametrize(("products", "expected"), [(80, "holds"), (95, "does not hold")])
def test_fewer_products_are_a_tenth_fewer(products: int, expected: str) -> None:
    claim = find("hessian-free-preconditioners")
    arms = [
        Arm(
            run.row,
            run.setting,
            tuple(
                newton_outcome(
                    3.0 + n if "growing" in run.row else 9.0 + n,
                    products + n if run.row == "lbfgs" else 100.0 + n,
                )
                for n in range(3)
            ),
            (made_up(1.0),),
        )
        for run in {r.row: r for r in claim.runs(bench_at(claim, "full"))}.values()
    ]
    assert checks.overall(claim.judge(Found(arms), bench_at(claim, "full"))) == expected


def test_an_iteration_that_scales_holds() -> None:
    claim = find("hessian-free-scaling")
    arms = []
    for run in {r.row: r for r in claim.runs(bench_at(claim, "full"))}.values():
        learners = run.experiment.options.learners
        slower = 1.3 if run.row.startswith("in turn") else 1.0
        runs = tuple(newton_outcome((100 + n) * slower / learners, 10.0) for n in range(3))
        arms.append(Arm(run.row, run.setting, runs, (made_up(1.0),)))
    judged = claim.judge(Found(arms), bench_at(claim, "full"))
    assert checks.overall(judged) == "holds"
