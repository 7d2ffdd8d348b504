"""Run directories, spoilt: checkpoints, configurations, metrics, traces, results."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.fuzzing import (
    edits,
    in_numbers,
    refused,
    spoilt_bytes,
    spoilt_json,
    spoilt_tree,
    tree_edits,
    try_out,
)
from helpers.runs import simulated
from helpers.tasks import Quadratic
from safetensors.torch import load_file, save_file

from hocket import ASGD, BMUF, SGD, Constant, config
from hocket.cli import boundary
from hocket.cli.main import main
from hocket.record import checkpoint
from hocket.record.checkpoint import Checkpoints
from hocket.record.metrics import rewind
from hocket.record.rundir import RunDirectory
from hocket.report.runs import read_errors, read_run

STRATEGIES = {"bmuf": BMUF(sync_every=2), "asgd": ASGD()}


def trained(out: Path, strategy: str, epochs: int, **more: Any) -> Any:
    return simulated(
        Quadratic(num_items=8),
        STRATEGIES[strategy],
        2,
        out=out,
        optimizer=SGD(lr=0.1, momentum=0.5),
        schedule=Constant(epochs=epochs),
        trace=True,
        **more,
    )


@pytest.fixture(scope="module", params=STRATEGIES)
def begun(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one checkpoint, of a strategy that has much to remember."""
    out = tmp_path_factory.mktemp("begun") / str(request.param)
    trained(out, request.param, 1)
    return out


# ---------------------------------------------------------------------------- checkpoints


def content(saved: checkpoint.Saved) -> list[Any]:
    """Everything that a checkpoint holds, to compare."""
    parts = [saved.plain(rank, key) for rank in saved.ranks for key in ("ledger", "desk")]
    tensors = [load_file(saved.path / f"rank-{rank}.safetensors") for rank in saved.ranks]
    values = [{k: t.tolist() for k, t in one.items()} for one in [saved.model, *tensors]]
    return [saved.run, parts, values]


@in_numbers
def test_a_damaged_checkpoint_is_never_believed(cases: int, begun: Path, tmp_path: Path) -> None:
    run = RunDirectory(shutil.copytree(begun, tmp_path / "run"))
    (path,) = run.checkpoints()
    whole = {file: file.read_bytes() for file in sorted(path.iterdir())}
    expected = content(Checkpoints(run.path, 2).newest_whole())

    def attempt(changes: list[tuple[str, float, bytes]]) -> None:
        files = list(whole)
        victim = files[len(changes[0][2]) % len(files)]
        victim.write_bytes(spoilt_bytes(whole[victim], changes))
        found: list[Any] = []
        refused(lambda: found.append(Checkpoints(run.path, 2).newest_whole()), naming=victim.name)
        if found:  # nothing that matters was changed
            assert content(found[0]) == expected
        victim.write_bytes(whole[victim])

    try_out(cases, edits, attempt)


def forged(path: Path) -> None:
    """Give a checkpoint the checksums of what it holds: a stranger knows SHA-256, too."""
    record = json.loads((path / "run.json").read_text())
    if not isinstance(record, dict) or record.get("format") != checkpoint.FORMAT:
        return
    for part in path.glob("rank-*.json"):
        facts = json.loads(part.read_text())
        if isinstance(facts, dict):
            tensors = part.with_suffix(".safetensors").read_bytes()
            facts["tensors_sha256"] = hashlib.sha256(tensors).hexdigest()
            part.write_text(json.dumps(facts))
    if isinstance(record.get("files"), dict):
        for name in record["files"]:
            if (path / name).is_file():
                record["files"][name] = hashlib.sha256((path / name).read_bytes()).hexdigest()
    record.pop("sha256", None)
    record["sha256"] = checkpoint._own_checksum(record)
    (path / "run.json").write_text(json.dumps(record))


def ends_well(resume: Callable[[], Any]) -> None:
    """Resume as the command line does. What a forger puts in may be taken for a bug of ours."""

    def work() -> int:
        resume()
        return 0

    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert boundary.guarded("hocket", [], None, work) in (0, 1, 2, boundary.BUG)
    assert "Traceback" not in said.getvalue()
    for report in re.findall(r"please report it with (.*)", said.getvalue()):
        Path(report).unlink()


def restorable(begun: Path, copy: Path) -> Callable[[], Any]:
    """Copy a run, and return what resumes the copy."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(begun, copy)
    return lambda: trained(copy, begun.name, 2, resume=True)


@in_numbers
@pytest.mark.parametrize("name", ["run.json", "rank-0.json"])
def test_a_forged_checkpoint_is_resumed_or_refused(
    cases: int, name: str, begun: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"

    def attempt(changes: list[tuple[str, int, Any]]) -> None:
        resume = restorable(begun, copy)
        (path,) = RunDirectory(copy).checkpoints()
        (path / name).write_text(spoilt_json((path / name).read_text(), changes))
        forged(path)
        ends_well(resume)

    try_out(cases // 3, tree_edits, attempt)  # a whole run each


@in_numbers
def test_tensors_of_other_shapes_are_resumed_or_refused(
    cases: int, begun: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"

    def attempt(changes: list[tuple[str, int, Any]]) -> None:
        resume = restorable(begun, copy)
        (path,) = RunDirectory(copy).checkpoints()
        file = path / ("model.safetensors" if changes[0][1] % 3 == 0 else "rank-0.safetensors")
        tensors = load_file(file)
        for kind, number, _ in changes:
            key = sorted(tensors)[number % len(tensors)] if tensors else "x"
            if kind == "drop":
                tensors.pop(key, None)
            elif kind == "put":
                tensors[key] = torch.zeros(number % 7, number % 3)
            else:
                tensors[key] = torch.ones(number % 9, dtype=torch.int64)
        save_file(tensors, file)
        forged(path)
        ends_well(resume)

    try_out(cases // 3, tree_edits, attempt)


@in_numbers
def test_checkpoints_without_checksums_are_resumed_or_refused(
    cases: int, begun: Path, tmp_path: Path
) -> None:
    """Format 1, as tests/golden/run has it."""
    copy, old = tmp_path / "run", Path(shutil.copytree(begun, tmp_path / begun.name))
    (path,) = RunDirectory(old).checkpoints()
    record = json.loads((path / "run.json").read_text())
    record = {k: v for k, v in record.items() if k not in ("files", "sha256")} | {"format": 1}
    (path / "run.json").write_text(json.dumps(record))
    for part in path.glob("rank-*.json"):
        part.write_text(json.dumps(json.loads(part.read_text())["tree"]))
    restorable(old, copy)()  # whole, it is resumed

    def attempt(changes: list[tuple[str, int, Any]]) -> None:
        resume = restorable(old, copy)
        (path,) = RunDirectory(copy).checkpoints()
        name = ("run.json", "rank-0.json", "rank-1.json")[changes[0][1] % 3]
        (path / name).write_text(spoilt_json((path / name).read_text(), changes))
        ends_well(resume)

    try_out(cases // 3, tree_edits, attempt)


# ---------------------------------------------------------------------------- the other files


@in_numbers
@pytest.mark.parametrize("how", ["bytes", "trees"])
@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "trace.jsonl"])
def test_spoilt_records_are_read_or_refused(
    cases: int, name: str, how: str, begun: Path, tmp_path: Path
) -> None:
    run = RunDirectory(shutil.copytree(begun, tmp_path / "run"))
    path, page = run.path / name, tmp_path / "page.html"
    whole = path.read_text()

    def attempt(changes: list[Any]) -> None:
        if how == "bytes":
            path.write_bytes(spoilt_bytes(whole.encode(), changes))
        elif name == "config.json":
            path.write_text(spoilt_json(whole, changes))
        else:
            rows = spoilt_tree([json.loads(line) for line in whole.splitlines()], changes)
            rows = rows if isinstance(rows, list) else [rows]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert main(["report", str(run.path), "--target-loss", "0.5", "--out", str(page)]) in (0, 2)
        refused(lambda: config.build_experiment(config.read_run(run.path)))
        refused(lambda: read_run(run.path))
        if name == "metrics.jsonl":
            refused(lambda: rewind(run.path, 20))

    try_out(cases, edits if how == "bytes" else tree_edits, attempt)


@in_numbers
def test_a_run_with_spoilt_records_is_resumed_or_refused(
    cases: int, begun: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"

    def attempt(drawn: list[tuple[str, int, Any]]) -> None:
        resume = restorable(begun, copy)
        path = copy / ("config.json" if drawn[0][1] % 2 else "metrics.jsonl")
        if path.name == "config.json":
            path.write_text(spoilt_json(path.read_text(), drawn))
        else:
            rows = spoilt_tree([json.loads(x) for x in path.read_text().splitlines()], drawn)
            path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        refused(resume)

    try_out(cases // 3, tree_edits, attempt)


SCORE = {
    "errors": {"words": 9, "substitutions": 1, "deletions": 0, "insertions": 2},
    **{"low": 0.1, "high": 0.4, "speakers": {}, "utterances": 3, "wrong_utterances": 1},
}
RESULT = {
    **{"system": "x", "split": "test", "setting": {"scale": 0.1, "penalty": 0.0}, "inside": True},
    **{"real_time_factor": 9.0, "jobs": 1, "grid": []},
    **{"dev": SCORE, "score": SCORE},
}


@in_numbers
def test_spoilt_results_are_read_or_refused(cases: int, tmp_path: Path) -> None:
    evaluation = pytest.importorskip("hocket.speech.decode.evaluation")
    path = tmp_path / "result.json"
    path.write_text(json.dumps(RESULT))
    assert evaluation.Evaluation.read(tmp_path).score.errors.words == 9

    def attempt(changes: list[tuple[str, int, Any]]) -> None:
        path.write_text(json.dumps(spoilt_tree(RESULT, changes)))
        refused(lambda: str(evaluation.Evaluation.read(tmp_path).score), naming="result.json")
        refused(lambda: read_errors(tmp_path), naming="result.json")

    try_out(cases, tree_edits, attempt)
