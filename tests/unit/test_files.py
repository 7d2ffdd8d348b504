"""Files and folders that are there in full or not at all."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from hocket.errors import HocketError
from hocket.support.files import (
    atomically,
    folder_atomically,
    move_folder,
    put_back_replaced,
    sync,
    write_atomically,
)


def test_a_file_replaces_the_old_one_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    with atomically(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_file_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_atomically(path, "old")
    with suppress(KeyboardInterrupt), atomically(path) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_ending_stays_for_libraries_that_append_their_own(tmp_path: Path) -> None:
    with atomically(tmp_path / "arrays.npz") as partial:
        np.savez(partial, x=np.arange(3))
    assert [p.name for p in tmp_path.iterdir()] == ["arrays.npz"]


def test_a_full_disk_is_named_with_the_remedy(tmp_path: Path) -> None:
    with (
        pytest.raises(HocketError, match=r"page\.html: no room.*free some"),
        atomically(tmp_path / "page.html"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "noise"
    with suppress(KeyboardInterrupt), folder_atomically(path) as partial:
        (partial / "stale").touch()
        raise KeyboardInterrupt
    assert not path.exists()
    with folder_atomically(path) as partial:
        (partial / "fresh").touch()
        assert not path.exists()
    assert [p.name for p in path.iterdir()] == ["fresh"]
    assert list(tmp_path.iterdir()) == [path]


def test_files_and_folders_can_be_synced(tmp_path: Path, synced: list[Path]) -> None:
    (tmp_path / "run.json").touch()
    sync(tmp_path / "run.json")
    sync(tmp_path)
    assert synced == [tmp_path / "run.json", tmp_path]


def test_a_folder_that_ends_with_its_run_is_not_waited_for(
    tmp_path: Path, synced: list[Path]
) -> None:
    for durable in (False, True):
        move_folder(folder(tmp_path / "staging", "new"), tmp_path / "final", durable=durable)
        assert synced == ([tmp_path] if durable else [])


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files and folders that were waited for."""
    waited: list[Path] = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: waited.append(Path(f"/proc/self/fd/{fd}").resolve())
    )
    return waited


def folder(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "page").write_text(text)
    return path


def test_a_folder_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    old = folder(tmp_path / "kept", "old")
    folder(tmp_path / ".kept.replaced", "left by an interruption")
    move_folder(folder(tmp_path / "new", "new"), old)
    assert (old / "page").read_text() == "new"
    assert list(tmp_path.iterdir()) == [old]


def test_a_folder_moved_aside_is_put_back_unless_another_took_its_place(tmp_path: Path) -> None:
    folder(tmp_path / ".one.replaced", "old")
    folder(tmp_path / ".two.replaced", "old")
    folder(tmp_path / "two", "new")
    put_back_replaced(tmp_path, re.compile(r"\..*"))
    pages = {path.parent.name: path.read_text() for path in tmp_path.glob("*/page")}
    assert pages == {"one": "old", "two": "new"}
    assert len(list(tmp_path.iterdir())) == 2
