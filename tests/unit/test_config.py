from __future__ import annotations

import json
from pathlib import Path

import pytest

from hocket import Cluster, KStep, config
from hocket.cli.main import main
from hocket.errors import ConfigError
from hocket.experiment import Experiment
from hocket.strategies import STRATEGIES


def experiment(*settings: str) -> object:
    tables: dict[str, dict[str, object]] = {"task": {"name": "synthetic"}}
    for setting in settings:
        config.override(tables, setting)
    return config.build_experiment(tables)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["strategy.name=kstep", "strategy.sync_evry=4"], "sync_evry.*Did you mean 'sync_every'"),
        (["strategy.name=kstp"], "'kstp' is not known.*Did you mean 'kstep'.*There are: seq"),
        (["strategy.name=kstep", "strategy.sync_every=0"], "sync_every must be at least 1, not 0"),
        (["strategy.name=kstep", "strategy.sync_every=2.5"], "a whole number, not 2.5"),
        (["strategy.name=sequential", "strategy.sync_every=4"], "unknown key.*Valid keys: none"),
        (["strtegy.name=kstep"], "table 'strtegy' is not known.*Did you mean 'strategy'"),
        (["strategy"], "table.key=value"),
        (["runtime.learners=2"], "'sequential' runs on at most 1 learner"),
        (["runtime.learners=0"], "runtime.learners must be at least 1"),
        (["runtime.sharding=fixd"], "one of 'pool', 'fixed', not 'fixd'.*Did you mean 'fixed'"),
        (["runtime.seed=-1"], "runtime.seed"),
        (["runtime.deterministic=1"], "true or false, not 1"),
        (["runtime.timeout_s=0"], "timeout_s must be above 0"),
        (["runtime.guard_factor=1"], "guard_factor must be above 1"),
        (["optimizer.lr=fast"], "optimizer.*lr must be a number, not 'fast'"),
        (["optimizer.name=adam"], "Did you mean 'adamw'"),
        (["optimizer.lr=-0.1"], "optimizer.lr must be above 0"),
        (
            ["optimizer.name=adamw", "schedule.lr_compensation=full"],
            "has no effect with optimizer 'adamw'",
        ),
        (["schedule.name=newbob", "schedule.end_halving=0.5"], "end_halving must lie between"),
        (["schedule.epochs=0"], "schedule.epochs must be at least 1"),
        (["codec.name=onebyte"], "codec.name 'onebyte' is not known"),
        (["task.noise=0"], "task.noise must be above 0"),
        (["task.num_classes=2"], "num_classes must be at least 4"),
        (["task.nam=synthetic"], "Did you mean|unknown key 'nam'"),
        (["model.width=0"], "model.width must be at least 1"),
        (["model.activation=tanh"], "one of 'relu', 'sigmoid', not 'tanh'"),
    ],
)
def test_bad_options_are_refused_by_name(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment(*settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[hosts]]\ncount = 0", "hosts.count must be at least 1"),
        (
            "[[hosts]]\nlearners = 0",
            "hosts.learners must be at least 1, not 0, or 0 on a host that",
        ),
        ("[[hosts]]\nlearners = 0\nattendants = 2", "all .* have 0 of them"),
        ("[[hosts]]\nspeed = 3.0", "unknown key 'speed'"),
        ("[[hosts]]\nframes_per_s = -1", "frames_per_s must be above 0"),
        ("[[slow]]\nrank = 3\nfactor = 2.0", r"names rank 3, but the cluster has ranks 0 to 0"),
        ("[[slow]]\nrank = 0", "needs a value for 'factor'"),
        ("[[deaths]]\nrank = 0", "needs either at_s or at_draw"),
        (
            "[[hosts]]\ncount=2\n[[deaths]]\nrank=0\nat_s=1\n[[deaths]]\nrank=1\nat_s=1",
            "stay alive",
        ),
        ("[[hosts]\n", "Expected"),
        ("hosts = 3", "must be a list"),
    ],
)
def test_bad_clusters_are_refused_by_name(text: str, message: str, tmp_path: Path) -> None:
    from hocket.api import open_cluster

    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        open_cluster(path)


def test_a_record_can_be_read_back(tmp_path: Path) -> None:
    first = experiment("strategy.name=kstep", "strategy.sync_every=7", "runtime.learners=3")
    assert isinstance(first, Experiment)
    cluster = Cluster.even(3)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.record(first, cluster)))
    tables = config.read(path)
    assert config.build_cluster(tables.pop("cluster")) == cluster
    second = config.build_experiment(tables)
    assert second.strategy == KStep(sync_every=7)
    assert second == first


def test_record_is_complete() -> None:
    first = experiment("runtime.seed=5")
    assert isinstance(first, Experiment)
    record = config.record(first)
    assert record["runtime"]["seed"] == 5
    assert set(record["versions"]) == {"hocket", "torch", "numpy", "python", "platform"}
    assert 0 < record["facts"]["bayes_error"] < 0.5


def test_command_line_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = str(tmp_path / "run")
    assert main(["train", "synthetik", "--out", out]) == 2
    assert "Did you mean 'synthetic'" in capsys.readouterr().err
    assert main(["train", "synthetic", "--out", out, "--config", "none.toml"]) == 2
    assert "none.toml: cannot be read" in capsys.readouterr().err
    assert main(["train", "--out", out]) == 2
    assert "name the task" in capsys.readouterr().err
    assert main(["train", "--resume", "--out", out]) == 2
    assert "is not a run directory: it has no config.json" in capsys.readouterr().err
    assert main(["train", "synthetic", "--out", out, "--set", "cluster.latency_s=1"]) == 2
    assert "has an effect in `hocket simulate` only" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_strategies_are_listed_for_people_and_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategies", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == set(STRATEGIES) >= {"sequential", "allreduce", "kstep", "bmuf"}
    first = rows["kstep"]["parameters"][0]
    assert (first["name"], first["type"], first["default"]) == ("sync_every", "int", 16)
    assert rows["kstep"]["gain"] == "1/P"
    assert all(row["paper"] and row["commits_when"] for row in rows.values())
    assert main(["strategies", "kstep"]) == 0
    assert "sync_every" in capsys.readouterr().out
    assert main(["strategies", "bmfu"]) == 2


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "simulate"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        text = capsys.readouterr().out
        assert "examples:" in text
        assert "--set strategy.sync_every=16" in text


def test_a_simulation_resumes_with_the_cluster_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for count in (2, 4):
        (tmp_path / f"{count}.toml").write_text(f"[[hosts]]\ncount = {count}\nframes_per_s = 500.0")
    out = ["--out", str(tmp_path / "run"), "--quiet"]
    small = ["--set", "task.num_frames=2000", "--set", "task.dev_frames=300", "--lr", "0.01"]
    begin = ["simulate", "synthetic", "--strategy", "kstep", *small, *out, "--epochs", "1"]
    assert main([*begin, "--cluster", str(tmp_path / "2.toml")]) == 0
    resume = ["simulate", "--resume", *out]
    assert main([*resume, "--epochs", "2", "--learners", "0"]) == 2
    assert "learners must be at least 1, not 0" in capsys.readouterr().err
    four = str(tmp_path / "4.toml")
    assert main([*resume, "--epochs", "2", "--cluster", four, "--set", "cluster.latency_s=1"]) == 2
    assert "has no effect together with --cluster" in capsys.readouterr().err
    many = ["--set", "runtime.learners=8"]
    assert main([*resume, "--epochs", "2", "--cluster", four, *many]) == 2
    assert "you asked for 8 learners, but the cluster has 4" in capsys.readouterr().err
    assert main(["train", "--resume", *out]) == 2
    assert "was started by `hocket simulate`" in capsys.readouterr().err
    assert main([*resume, "--epochs", "2", "--cluster", four]) == 0
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert saved["cluster"]["hosts"][0]["frames_per_s"] == 500.0
    assert saved["runtime"]["learners"] == 4
    assert main([*resume, "--epochs", "3", "--learners", "3"]) == 0  # an even cluster is resized
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (
        saved["cluster"]["hosts"][0] | {"count": 3, "frames_per_s": 500.0}
        == (saved["cluster"]["hosts"][0])
    )


def test_another_strategy_drops_the_keys_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[task]\nname = "synthetic"\n[strategy]\nname = "kstep"\nsync_every = 4\n')
    from hocket.cli.main import parser
    from hocket.cli.training import tables_of

    arguments = ["train", "--config", str(path), "--out", "x"]
    kept = tables_of(parser().parse_args(arguments))
    assert kept["strategy"] == {"name": "kstep", "sync_every": 4}
    for more in (["--strategy", "allreduce"], ["--set", "strategy.name=allreduce"]):
        assert tables_of(parser().parse_args([*arguments, *more]))["strategy"] == {
            "name": "allreduce"
        }


def test_every_option_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options"]) == 0
    text = capsys.readouterr().out
    for word in (
        "halving_factor = 0.5",
        "sync_every = 16",
        "[[cluster.pauses]]",
        "timeout_s = 300",
    ):
        assert word in text
    assert main(["options", "schedul"]) == 2
    assert "Did you mean 'schedule'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": KStep}, r"strategy must be a Strategy object.*give KStep\(\)"),
        ({"optimizer": 0.1}, "optimizer must be a Optimizer object"),
        ({"task": Cluster}, "task must be a Task object"),
        ({"epochs": 3}, r"unknown key 'epochs' in \[runtime\]. It belongs to \[schedule\]"),
        ({"timeout_s": float("inf")}, "timeout_s must be finite"),
    ],
)
def test_mistakes_in_python_are_named(arguments: dict[str, object], message: str) -> None:
    from hocket import simulate

    with pytest.raises(ConfigError, match=message):
        simulate(progress=False, **arguments)  # type: ignore[arg-type]


def test_files_that_are_not_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(b"\xff\xfe[task]")
    with pytest.raises(ConfigError, match=r"bad.toml: .*not UTF-8"):
        config.read(path)
