"""Checkpoints that a disk, a copy or a person has damaged: named, set aside, and never believed.

Every file of the newest checkpoint is damaged in every way; the run then goes on from the one
before, to the same model bit for bit as if nothing had happened.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.runs import keep_only_first_checkpoint, real, same_model, simulated
from helpers.tasks import Quadratic

from hocket import AllReduceSGD, Constant, KStep, Result
from hocket.errors import DamagedError
from hocket.record.checkpoint import Checkpoints
from hocket.record.rundir import RunDirectory

FILES = [
    "run.json",
    "model.safetensors",
    *("rank-0.json", "rank-0.safetensors", "rank-1.json", "rank-1.safetensors"),
]


def changed(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def flipped(at: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[int(at * (len(data) - 1))] ^= 1
        path.write_bytes(data)

    return damage


def replaced_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "a byte is missing": lambda p: changed(p, lambda data: data[:-1]),
    "half is missing": lambda p: changed(p, lambda data: data[: len(data) // 2]),
    "empty": lambda p: changed(p, lambda data: b""),
    "zeros": lambda p: changed(p, lambda data: bytes(len(data))),
    "appended to": lambda p: changed(p, lambda data: data + b"x"),
    "a bit at the start": flipped(0.0),
    "a bit in the head": flipped(0.1),
    "a bit in the middle": flipped(0.5),
    "a bit at the end": flipped(1.0),
    "no JSON": lambda p: p.write_text("{"),
    "a list": lambda p: p.write_text("[]"),
    "an empty table": lambda p: p.write_text("{}"),
    "null": lambda p: p.write_text("null"),
    "nested": lambda p: p.write_text("[" * 100_000),
    "gone": lambda p: p.unlink(),
    "a folder": replaced_by(lambda p: p.mkdir()),
    "a pipe": replaced_by(os.mkfifo),
    "a loop": replaced_by(lambda p: p.symlink_to(p.name)),
    "the same file of the one before": lambda p: shutil.copy(
        p.parent.parent / "000000000044" / p.name, p
    ),
}


def trained(out: Path, epochs: int, **more: Any) -> Result:
    return simulated(
        Quadratic(), KStep(sync_every=2), 2, out=out, schedule=Constant(epochs=epochs), **more
    )


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints."""
    out = tmp_path_factory.mktemp("damage") / "run"
    trained(out, 2)
    return out


@pytest.fixture(scope="module")
def expected(begun: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The run as it goes on from its first checkpoint."""
    out = keep_only_first_checkpoint(begun, tmp_path_factory.mktemp("whole") / "run")
    return trained(out, 3, resume=True)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_resumed(
    name: str, damage: Callable[[Path], Any], begun: Path, expected: Result, tmp_path: Path
) -> None:
    run = RunDirectory(shutil.copytree(begun, tmp_path / "run"))
    first, newest = run.checkpoints()
    damage(newest / name)
    result = trained(run.path, 3, resume=True)
    assert result.frames == 3 * 44
    assert same_model(result, expected)
    (note,) = [row["text"] for row in run.metrics() if row["event"] == "note"]
    assert f"checkpoint {newest.name} is damaged" in note
    assert name in note
    assert f"goes on from {first.name}" in note
    assert (run.checkpoints_path / f"{newest.name}.damaged").is_dir()  # nothing was removed


def test_what_is_damaged_is_set_aside_again_and_again(begun: Path, tmp_path: Path) -> None:
    run = RunDirectory(shutil.copytree(begun, tmp_path / "run"))
    for epochs in (3, 4):
        DAMAGE["empty"](run.checkpoints()[-1] / "run.json")
        trained(run.path, epochs, resume=True, keep_checkpoints=9)
    aside = sorted(p.name for p in run.checkpoints_path.glob("*.damaged*"))
    assert aside == ["000000000088.damaged", "000000000132.damaged"]


def test_without_a_whole_checkpoint_nothing_is_touched(begun: Path, tmp_path: Path) -> None:
    run = RunDirectory(shutil.copytree(begun, tmp_path / "run"))
    for path, name in zip(run.checkpoints(), ("run.json", "rank-1.safetensors"), strict=True):
        DAMAGE["half is missing"](path / name)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.*s*") if p.is_file()}
    with pytest.raises(DamagedError, match=r"not one checkpoint is whole.*rank-1.*run\.json"):
        trained(run.path, 3, resume=True)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.*s*") if p.is_file()} == before


def test_real_learners_find_the_same_checkpoint(tmp_path: Path) -> None:
    out, longer = tmp_path / "run", Constant(epochs=3)
    real(Quadratic(), AllReduceSGD(), 2, out=out, schedule=Constant(epochs=2))
    other = keep_only_first_checkpoint(out, tmp_path / "other")
    DAMAGE["a bit in the middle"](RunDirectory(out).checkpoints()[-1] / "rank-1.safetensors")
    ends = [
        real(Quadratic(), AllReduceSGD(), 2, out=path, resume=True, schedule=longer)
        for path in (out, other)
    ]
    assert ends[0].frames == 3 * 44
    assert same_model(*ends)


def test_every_file_of_a_checkpoint_has_a_checksum(begun: Path) -> None:
    newest = RunDirectory(begun).checkpoints()[-1]
    run = json.loads((newest / "run.json").read_text())
    assert len(run["sha256"]) == 64
    listed = set(run["files"]) | {"run.json"}
    for name in list(listed):
        if name.startswith("rank-"):
            assert len(json.loads((newest / name).read_text())["tensors_sha256"]) == 64
            listed.add(name.replace(".json", ".safetensors"))
    assert listed == set(FILES) == {p.name for p in newest.iterdir()}


# ---------------------------------------------------------------------------- other people's names


FOREIGN = ["best", "000000000044 copy", "44", "0000000000440", "٠٠٠٠٠٠٠٠٠٠٤٤", "999999999999.bak"]


def test_only_our_own_names_count_as_checkpoints(begun: Path, tmp_path: Path) -> None:
    run = RunDirectory(shutil.copytree(begun, tmp_path / "run"))
    newest = run.checkpoints()[-1]
    for name in FOREIGN:
        shutil.copytree(newest, run.checkpoints_path / name)
    (run.checkpoints_path / "999999999999").write_text("a file")
    assert [p.name for p in run.checkpoints()] == ["000000000044", "000000000088"]
    trained(run.path, 5, resume=True)
    left = {p.name for p in run.checkpoints_path.iterdir()}
    assert left == {*FOREIGN, "999999999999", "000000000176", "000000000220"}


def _copy_under_another_name(checkpoints: Path) -> Path:
    return shutil.copytree(checkpoints / "000000000088", checkpoints / "000000000001")


def _notes_in_it(checkpoints: Path) -> Path:
    (checkpoints / "000000000044" / "notes.txt").write_text("the one in the paper")
    return checkpoints / "000000000044"


def _link(checkpoints: Path) -> Path:
    elsewhere = checkpoints.parent / "elsewhere"
    (checkpoints / "000000000044").rename(elsewhere)
    (checkpoints / "000000000044").symlink_to(elsewhere)
    return elsewhere


def _own(checkpoints: Path) -> Path:
    (checkpoints / "000000000002").mkdir()
    (checkpoints / "000000000002" / "thesis.tex").write_text("years")
    return checkpoints / "000000000002"


@pytest.mark.parametrize("keep", [_copy_under_another_name, _notes_in_it, _link, _own])
def test_rotation_removes_only_what_we_have_written(
    keep: Callable[[Path], Path], begun: Path, tmp_path: Path
) -> None:
    run = RunDirectory(shutil.copytree(begun, tmp_path / "run"))
    kept = keep(run.checkpoints_path)
    before = {p.name: p.read_bytes() for p in kept.iterdir()}
    trained(run.path, 6, resume=True)
    assert {p.name: p.read_bytes() for p in kept.iterdir()} == before
    assert [p.name for p in run.checkpoints()][-2:] == ["000000000220", "000000000264"]


def test_hidden_folders_of_others_are_left_alone(begun: Path, tmp_path: Path) -> None:
    run = RunDirectory(shutil.copytree(begun, tmp_path / "run"))
    for name in (".mine.partial", ".mine.replaced", ".000000000999.partial"):
        (run.checkpoints_path / name).mkdir()
    trained(run.path, 3, resume=True)
    hidden = {p.name for p in run.checkpoints_path.iterdir() if p.name.startswith(".")}
    assert hidden == {".mine.partial", ".mine.replaced"}


def test_parts_left_by_an_earlier_attempt_do_not_get_into_a_checkpoint(tmp_path: Path) -> None:
    """An attempt with three learners dies before its first checkpoint; the next one has two."""
    out = tmp_path / "run"
    trained(out, 1)
    shutil.rmtree(out / "checkpoints")
    Checkpoints(out, 2).write_part(44, 2, {"left": "behind"})
    trained(out, 1)
    assert {p.name for p in (out / "checkpoints" / "000000000044").iterdir()} == set(FILES)
