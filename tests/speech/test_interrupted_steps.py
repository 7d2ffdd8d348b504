"""Full disks, Ctrl-C and damaged records: the same command goes on."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from helpers.spoilt import (
    good_data,
    prepare,
)

from hocket.errors import HocketError
from hocket.speech.input import audio
from hocket.support.files import atomically


def test_a_full_disk_is_an_error_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good_data(tmp_path)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(HocketError, match=r"fbank.npy: no room for .*free some space"):
            prepare(tmp_path)
    assert (tmp_path / "exp" / "data" / "step.json").exists()  # the step before is kept
    assert not (tmp_path / "exp" / "features").exists()  # and this one is not believed
    assert prepare(tmp_path) == {}


def test_a_file_for_which_there_is_no_room_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")

    def write() -> None:
        with atomically(path) as partial:
            partial.write_text("half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(HocketError, match=r"page.html: no room.*free some"):
        write()
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    assert path.read_text() == "before"


def test_a_corpus_for_which_there_is_no_room_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise soundfile.LibsndfileError(2)

    monkeypatch.setattr(soundfile, "write", full)
    with pytest.raises(HocketError, match=r"a\.wav cannot be written .*is the disk full"):
        audio.write(tmp_path / "a.wav", np.zeros(10, np.int16), 8000)


def test_interrupted_steps_are_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good_data(tmp_path)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hocket.speech.stages.write_store", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(tmp_path)
    assert prepare(tmp_path) == {}


@pytest.mark.parametrize("damage", ["", "{", '{"key": 1}'])
def test_a_damaged_record_of_a_step_is_not_believed(damage: str, tmp_path: Path) -> None:
    good_data(tmp_path)
    prepare(tmp_path)
    (tmp_path / "exp" / "features" / "step.json").write_text(damage)
    (tmp_path / "exp" / "features" / "train" / "mfcc.npy").unlink()
    assert prepare(tmp_path) == {}
    assert (tmp_path / "exp" / "features" / "train" / "mfcc.npy").exists()
