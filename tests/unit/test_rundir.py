"""The one reader of run directories: what it finds, and how it names what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hocket import DNN, config
from hocket.errors import ConfigError
from hocket.record.rundir import RunDirectory, Span, result_path
from hocket.report.runs import read_errors
from hocket.speech.errors import SpeechError

TABLES = {"task": {"name": "synthetic"}, "versions": {"hocket": "0.1.0"}}
EVENTS = [
    {"event": "train", "frames": 10},
    {"event": "eval", "frames": 20, "train_s": 0.5, "loss": 1.5, "accuracy": 0.5},
    {"event": "eval", "frames": 30, "train_s": 1.0, "loss": 1.25, "accuracy": 0.75},
    {
        **{"event": "summary", "frames": 30, "train_s": 1.0, "aside_s": 0.5, "accuracy": 0.75},
        **{"loss": 1.25, "frames_per_s": 30.0, "discarded_frames": 0, "learners": []},
    },
]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run that has ended."""
    found = RunDirectory(tmp_path)
    found.config_path.write_text(json.dumps(TABLES))
    found.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in EVENTS))
    return found


def test_all_parts_are_read(run: RunDirectory) -> None:
    assert run.is_run()
    assert run.config() == TABLES
    assert run.table("task") == {"name": "synthetic"}
    assert run.metrics() == EVENTS
    assert run.evaluations() == EVENTS[1:3]
    assert run.summary() == EVENTS[3]
    assert run.checkpoints() == run.traces() == []


def test_only_complete_checkpoints_are_listed_oldest_first(run: RunDirectory) -> None:
    for name in ("000000000300", ".000000000400.partial", "000000000200"):
        (run.checkpoints_path / name).mkdir(parents=True)
    assert [p.name for p in run.checkpoints()] == ["000000000200", "000000000300"]


def test_traces_of_simulated_and_real_runs_are_found(run: RunDirectory) -> None:
    for rank in (None, 0, 1):
        run.trace_path(rank).touch()
    assert [p.name for p in run.traces()] == ["trace-0.jsonl", "trace-1.jsonl", "trace.jsonl"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, r"is not a run directory: it has no config\.json; give the folder that"),
        ('{"task"', r"is not a run directory: config\.json cannot be read \(.*; copy it again"),
        ("[]", r"config\.json cannot be read \(it holds no table\)"),
        ("{}", r"config\.json cannot be read \(it has no table 'task'\)"),
    ],
)
def test_a_configuration_that_is_missing_or_damaged_is_named(
    run: RunDirectory, text: str | None, says: str
) -> None:
    run.config_path.unlink()
    if text is not None:
        run.config_path.write_text(text)
    assert not run.is_run()
    with pytest.raises(ConfigError, match=says):
        run.table("task")


def test_metrics_that_are_missing_or_cut_off_are_named(run: RunDirectory) -> None:
    run.metrics_path.write_text('{"event": "train"}\n{"eve')
    with pytest.raises(ConfigError, match=r"metrics\.jsonl: line 2 was cut off.*--resume"):
        run.metrics()
    run.metrics_path.unlink()
    with pytest.raises(ConfigError, match=r"is not a run directory: it has no metrics\.jsonl"):
        run.metrics()


def test_a_run_that_has_not_ended_has_no_summary(run: RunDirectory) -> None:
    run.metrics_path.write_text(json.dumps(EVENTS[0]) + "\n")
    with pytest.raises(ConfigError, match="has not ended yet: finish it with --resume"):
        run.summary()


def test_a_damaged_trace_is_named_with_its_line(run: RunDirectory) -> None:
    whole = '{"rank": 0, "kind": "compute", "start_s": 0.0, "end_s": 1.0}\n'
    run.trace_path().write_text(whole + "[]\n")
    spans = run.spans(run.trace_path())
    assert next(spans) == Span(0, "compute", 0.0, 1.0)
    with pytest.raises(ConfigError, match=r"trace\.jsonl: line 2 is damaged .*copy the file again"):
        next(spans)


@pytest.mark.parametrize("text", [None, "{", "[]", '{"score": 3}'])
def test_a_damaged_result_is_named(run: RunDirectory, text: str | None) -> None:
    evaluation = pytest.importorskip("hocket.speech.decode.evaluation")
    folder = run.decode_path
    folder.mkdir()
    assert read_errors(folder) is None
    if text is not None:
        result_path(folder).write_text(text)
        with pytest.raises(
            ConfigError, match=r"result\.json: no result can be read .*decode again"
        ):
            read_errors(folder)
    with pytest.raises(ConfigError, match=r"result\.json: no result can be read .*decode again"):
        evaluation.Evaluation.read(folder)


def test_a_config_json_is_read_as_that_of_a_run(run: RunDirectory) -> None:
    assert config.read(run.config_path) == config.read_run(run.path)
    run.config_path.write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        config.read(run.config_path)


def test_folders_of_other_programs_are_no_runs(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Wav2Vec2"]}')
    assert not RunDirectory(tmp_path).is_run()


def test_a_table_that_does_not_exist_is_refused(run: RunDirectory) -> None:
    run.config_path.write_text(json.dumps(TABLES | {"optimiser": {}}))
    with pytest.raises(ConfigError, match=r"config\.json: table 'optimiser'|Did you mean"):
        config.read_run(run.path)


def test_a_setting_that_this_version_does_not_have_is_not_dropped(run: RunDirectory) -> None:
    recognition = pytest.importorskip("hocket.speech.decode.recognition")
    model = {"name": "dnn", "layers": 2, "gates": 4}
    run.config_path.write_text(json.dumps(TABLES | {"model": model}))
    with pytest.raises(
        SpeechError, match=r"sets model\.gates.*the version that trained it, 0\.1\.0"
    ):
        recognition._settings(run, "model", DNN)
    del model["gates"]
    run.config_path.write_text(json.dumps(TABLES | {"model": model}))
    assert recognition._settings(run, "model", DNN) == {"layers": 2}
