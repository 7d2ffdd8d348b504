"""Every format that is read, spoilt: what comes out is data or an error that names the file."""

from __future__ import annotations

import gzip
import json
import os
import socket
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fuzzing import edits, in_numbers, refused, spoilt_bytes, try_out
from hypothesis import strategies as st
from safetensors.torch import save_file

from hocket.errors import UnreadableError
from hocket.support import arrays, inputs
from hocket.support.arrays import read_array, read_arrays, read_tensors
from hocket.support.inputs import (
    CONFIG_LIMIT,
    LINE_LIMIT,
    MIB,
    UNFOLD_FLOOR,
    lines,
    open_file,
    read_bytes,
    read_json,
    read_text,
    read_toml,
    unfolded,
)

NPZ = {"a": ("float", 2), "b": ("integer", 1)}


def npy(path: Path) -> None:
    np.save(path, np.arange(12.0).reshape(3, 4))


def npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, a=np.ones((3, 4)), b=np.arange(5))


def tensors(path: Path) -> None:
    save_file({"x": torch.ones(3, 4), "y": torch.arange(5), "z": torch.zeros(0)}, path)


def text(path: Path) -> None:
    path.write_text("".join(f"utt-{n} ein wört und noch eins\n" for n in range(50)))


def zipped(path: Path) -> None:
    text(path)
    path.write_bytes(gzip.compress(path.read_bytes()))


JSON = {"a": [1, 2.5, None, True], "b": {"c": "d\u00e9", "e": []}, "f": -1e300}
TOML = "[task]\nname = 'x'\nframes = 3\n[[hosts]]\ncount = 2\nspeed = 1e3\n"

FORMATS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "npy": (npy, lambda p: read_array(p, "float", 2)),
    "npy mapped": (npy, lambda p: read_array(p, "float", 2, mapped=True)),
    "npz": (npz, lambda p: read_arrays(p, NPZ)),  # type: ignore[arg-type]
    "safetensors": (tensors, read_tensors),
    "safetensors in memory": (tensors, lambda p: arrays.tensors_of(p, read_bytes(p))),
    "json": (lambda p: p.write_text(json.dumps(JSON)), read_json),
    "toml": (lambda p: p.write_text(TOML), read_toml),
    "text": (text, lambda p: list(lines(p))),
    "gz": (zipped, lambda p: list(lines(p))),
}


@in_numbers
@pytest.mark.parametrize("name", FORMATS)
def test_spoilt_files_are_read_or_refused(cases: int, name: str, tmp_path: Path) -> None:
    make, read = FORMATS[name]
    path = tmp_path / "given"
    make(path)
    path = next(tmp_path.iterdir())  # numpy adds an ending
    data = path.read_bytes()
    assert not refused(lambda: read(path))

    def attempt(changes: list[tuple[str, float, bytes]]) -> None:
        path.write_bytes(spoilt_bytes(data, changes))
        refused(lambda: read(path), naming="given")

    try_out(cases, edits, attempt)


@in_numbers
@pytest.mark.parametrize("name", FORMATS)
def test_any_bytes_are_read_or_refused(cases: int, name: str, tmp_path: Path) -> None:
    path = tmp_path / "given"

    def attempt(data: bytes) -> None:
        path.write_bytes(data)
        refused(lambda: FORMATS[name][1](path), naming="given")

    starts = [
        b"",
        b"\x93NUMPY\x01\0",
        b"PK\x03\x04",
        b"\x1f\x8b\x08\0",
        b"{",
        b"\x08\0\0\0\0\0\0\0{",
    ]
    try_out(
        cases, st.tuples(st.sampled_from(starts), st.binary(max_size=80)).map(b"".join), attempt
    )


# ---------------------------------------------------------------------------- what is no file


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


NO_FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a pipe": (fifo, "it is a pipe"),
    "a socket": (unix_socket, "it is a socket"),
    "a directory": (lambda p: p.mkdir(), "it is a directory"),
    "a device": (lambda p: p.symlink_to("/dev/zero"), "it is a device"),
    "a terminal": (lambda p: p.symlink_to("/dev/tty"), "it is a device"),
    "a loop": (lambda p: p.symlink_to(p.name), "symbolic links"),
    "nothing": (lambda p: None, "No such file"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_regular_file_is_refused_before_it_is_opened(
    name: str, kind: str, tmp_path: Path
) -> None:
    make, says = NO_FILES[kind]
    make(tmp_path / "given")
    with pytest.raises(UnreadableError, match=f"given: .*{says}"):
        FORMATS[name][1](tmp_path / "given")


@pytest.mark.timeout(20)
def test_a_pipe_that_takes_a_files_place_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "given"
    path.write_text("a file")
    size_of = inputs.file_size

    def looked_at(at: Path, limit: int | None = None) -> int:
        size = size_of(at, limit)
        at.unlink()
        os.mkfifo(at)
        return size

    monkeypatch.setattr(inputs, "file_size", looked_at)
    with pytest.raises(UnreadableError, match="it is a pipe"):
        open_file(path)


@pytest.mark.parametrize("bad", ["a\0b", "x" * 5000, "x/" * 3000, "\ud800"])
def test_names_that_cannot_exist_are_refused(bad: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError):
        read_text(tmp_path / bad)
    assert not inputs.is_there(tmp_path / bad)


# ---------------------------------------------------------------------------- too much


def test_a_file_above_its_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "given.toml"
    with path.open("wb") as file:
        file.truncate(CONFIG_LIMIT + 1)  # takes no room on the disk
    for read in (read_toml, read_json):
        with pytest.raises(UnreadableError, match=r"16 MiB are more than the limit of 16 MiB"):
            read(path)


def bomb(path: Path, size: int) -> Path:
    """A gzip file that unfolds to so many zeros."""
    packer = zlib.compressobj(9, wbits=31)
    with path.open("wb") as file:
        for _ in range(size // MIB):
            file.write(packer.compress(bytes(MIB)))
        file.write(packer.flush())
    return path


def test_a_small_file_does_not_unfold_to_a_large_one(tmp_path: Path) -> None:
    path = bomb(tmp_path / "given.gz", UNFOLD_FLOOR + 64 * MIB)
    assert path.stat().st_size < MIB // 2
    with pytest.raises(UnreadableError, match=r"unfold to more than 64 MiB, the limit for such"):
        for _ in unfolded(path).pieces():
            pass
    with pytest.raises(UnreadableError, match=r"line 1 is longer than the limit of 16 MiB"):
        list(lines(path))
    with pytest.raises(UnreadableError, match="unfold to more"):
        unfolded(path).read()
    fair = bomb(tmp_path / "fair.gz", UNFOLD_FLOOR)
    assert sum(map(len, unfolded(fair).pieces())) == UNFOLD_FLOOR


def test_what_is_unfolded_is_what_was_zipped(tmp_path: Path) -> None:
    data = os.urandom(3 * MIB + 17)
    path = tmp_path / "given.gz"
    path.write_bytes(gzip.compress(data[:MIB]) + gzip.compress(data[MIB:]))  # two members
    assert unfolded(path).read() == data
    path.write_bytes(data)
    assert b"".join(unfolded(path).pieces()) == data


def test_a_line_may_be_as_long_as_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "given"
    path.write_bytes(b"x" * LINE_LIMIT + b"\ny")
    assert [len(line) for line in lines(path)] == [LINE_LIMIT, 1]
    path.write_bytes(b"x" * (LINE_LIMIT + 1) + b"\ny")
    with pytest.raises(UnreadableError, match="line 1 is longer"):
        list(lines(path))


@pytest.mark.parametrize("open_it", [read_json, read_toml], ids=["json", "toml"])
def test_endless_nesting_is_refused(open_it: Callable[[Path], Any], tmp_path: Path) -> None:
    path = tmp_path / "given"
    path.write_text(("" if open_it is read_json else "a = ") + "[" * 200_000)
    with pytest.raises(UnreadableError, match="nested too deeply"):
        open_it(path)


@pytest.mark.parametrize(
    "shape", ["(1000000000, 1000000000)", "(-1, 4)", "(4294967296, 4294967296)"]
)
def test_a_header_that_announces_too_much_is_refused(shape: str, tmp_path: Path) -> None:
    path = tmp_path / "given.npy"
    head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"
    head += " " * (117 - len(head)) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\0" + len(head).to_bytes(2, "little") + head.encode())
    for mapped in (False, True):
        with pytest.raises(UnreadableError, match="more than it has"):
            read_array(path, "float", 2, mapped=mapped)


def test_pickled_arrays_and_zip_bombs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "given.npz"
    np.save(path.with_suffix(".npy"), np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UnreadableError, match="it holds object"):
        read_array(path.with_suffix(".npy"), "float", 1)
    np.savez(path, a=np.array([{"a": 1}], dtype=object), b=np.arange(3))
    with pytest.raises(UnreadableError, match="it holds object"):
        read_arrays(path, NPZ)  # type: ignore[arg-type]
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.npy", "w") as file,
    ):
        for _ in range(arrays.ARRAYS_LIMIT // (64 * MIB) + 1):
            file.write(bytes(64 * MIB))
    assert path.stat().st_size < 2 * MIB
    with pytest.raises(UnreadableError, match="unfolds to 1"):
        read_arrays(path, NPZ)  # type: ignore[arg-type]


def test_half_a_character_is_refused_but_the_name_of_a_file_may_be_any(tmp_path: Path) -> None:
    path = tmp_path / "given"
    path.write_text('{"id": "\\ud800"}')
    with pytest.raises(UnreadableError, match="not JSON"):
        read_json(path)
    path.write_text('{"path": "caf\\udce9.wav", "both": "\\ud83d\\ude00"}')
    assert read_json(path) == {"path": "caf\udce9.wav", "both": "😀"}
