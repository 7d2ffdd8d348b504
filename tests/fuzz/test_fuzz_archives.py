"""Kaldi's archives: what kaldiio writes is read to the same numbers; what is spoilt is refused.

kaldiio is the referee here and nowhere else: it unpickles what a stranger wrote.
"""

from __future__ import annotations

import gzip
import io
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kaldiio
import numpy as np
import pytest
from helpers.fuzzing import edits, in_numbers, refused, spoilt_bytes, try_out
from hypothesis import strategies as st

from hocket.errors import UnreadableError
from hocket.speech.errors import SpeechError
from hocket.speech.input import kaldi_archive
from hocket.speech.input.kaldi_archive import (
    read_archive,
    read_value,
    write_integers,
    write_matrix,
)
from hocket.speech.kaldi_files import load_matrix, read_alignments
from hocket.support.inputs import MIB

METHODS = (None, 1, 2, 3, 4, 5, 6, 7)  # of compression; None: none


def matrix(seed: int, rows: int = 11, columns: int = 5, dtype: str = "<f4") -> Any:
    x = np.random.default_rng(seed).normal(size=(rows, columns)) * 10
    return x.astype(dtype)


def whole_numbers(seed: int, count: int) -> Any:
    return np.random.default_rng(seed).integers(-5, 10**6, size=count).astype(np.int32)


def an_archive(path: Path) -> Path:
    """Every kind of entry that Kaldi has."""
    with path.open("wb") as file:
        for method in METHODS:
            name = f"matrix-{method}"
            kaldiio.save_ark(file, {name: np.abs(matrix(1))}, compression_method=method)
        kaldiio.save_ark(file, {"wide": matrix(2, dtype="<f8"), "vector": matrix(3)[0]})
        kaldiio.save_ark(file, {"ali": whole_numbers(4, 30), "empty": whole_numbers(5, 0)})
        kaldiio.save_ark(file, {"text": matrix(6)}, text=True)
        kaldiio.save_ark(file, {"ali-text": whole_numbers(7, 9)}, text=True)
    return path


# ---------------------------------------------------------------------------- the same numbers


@in_numbers
def test_what_kaldiio_writes_is_read_to_the_same_numbers(cases: int, tmp_path: Path) -> None:
    path = tmp_path / "an.ark"

    def attempt(drawn: tuple[Any, ...]) -> None:
        seed, rows, columns, method, dtype, text = drawn
        x = matrix(seed, rows, columns, dtype)
        how: dict[str, Any] = {"text": True} if text else {"compression_method": method}
        with path.open("wb") as file:
            kaldiio.save_ark(file, {"a": x, "ü": x[:1]}, **how)
            kaldiio.save_ark(file, {"i": whole_numbers(seed, rows)}, text=text)
        theirs = dict(kaldiio.load_ark(str(path)))
        for name, ours in read_archive(path):
            assert np.array_equal(ours, theirs.pop(name)), name
        assert not theirs

    options = (st.sampled_from(METHODS), st.sampled_from(["<f4", "<f8"]), st.booleans())
    try_out(
        cases,
        st.tuples(st.integers(0, 999), st.integers(1, 20), st.integers(1, 9), *options),
        attempt,
    )


@in_numbers
def test_what_we_write_is_read_by_kaldiio(cases: int) -> None:
    def attempt(drawn: tuple[int, int, int]) -> None:
        seed, rows, columns = drawn
        file = io.BytesIO()
        x, pdfs = matrix(seed, rows, columns), whole_numbers(seed, rows)
        place = write_matrix(file, "größe", x)
        write_integers(file, "b", pdfs)
        file.seek(0)
        read = dict(kaldiio.load_ark(file))
        assert np.array_equal(read["größe"], x)
        assert np.array_equal(read["b"], pdfs)
        assert file.getvalue()[place : place + 2] == b"\0B"

    try_out(cases, st.tuples(st.integers(0, 999), st.integers(1, 30), st.integers(1, 30)), attempt)


def test_a_place_and_a_range_are_read_as_kaldiio_reads_them(tmp_path: Path) -> None:
    ark, scp = tmp_path / "a.ark", tmp_path / "a.scp"
    kaldiio.save_ark(str(ark), {"a": matrix(1), "b": matrix(2)}, scp=str(scp))
    for line in scp.read_text().splitlines():
        name, where = line.split()
        for cut in ("", "[0:3]", "[2:10]", "[0:10,1:3]", "[:,0:1]", "[4:4]"):
            assert np.array_equal(read_value(where + cut), kaldiio.load_mat(where + cut)), name
    first = scp.read_text().split()[1]
    assert len(read_value(first + "[0:13]")) == 11  # Kaldi lets a range reach a little too far
    for bad in ("[0:14]", "[11:11]", "[3:2]", "[0:1,0:1,0:1]", "[:5]", "[1:2:3]"):
        with pytest.raises(UnreadableError, match="range"):
            read_value(first + bad)


# ---------------------------------------------------------------------------- no code out of data


class Bomb:
    """What a stranger would pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("place", ["archive", "zipped", "scp"])
def test_a_pickled_entry_is_refused_and_never_run(place: str, tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "a.ark"
    payload = b"a PKL" + pickle.dumps(Bomb(victim))
    path.write_bytes(gzip.compress(payload) if place == "zipped" else payload)
    read: Callable[[], Any] = lambda: list(read_alignments(path))  # noqa: E731
    if place == "scp":
        read = lambda: load_matrix(f"{path}:2", "a")  # noqa: E731
    with pytest.raises(SpeechError, match="a pickled object"):
        read()
    assert not victim.exists()
    pickle.loads(payload[5:])
    assert victim.exists()  # the payload would have worked


@pytest.mark.parametrize("head", [b"NPY\x01", b"AUDIO", b"RIFF....WAVE", b"fLaC"])
def test_other_programs_entries_are_refused(head: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.ark"
    path.write_bytes(b"a " + head + bytes(100))
    with pytest.raises(UnreadableError, match="which Hocket does not read"):
        list(read_archive(path))


# ---------------------------------------------------------------------------- sizes


def announcing(token: bytes, rows: int, columns: int) -> bytes:
    if token.startswith(b"CM"):
        return token + b" " + struct.pack("<ffii", 0.0, 1.0, rows, columns)
    if token.endswith(b"V"):
        return token + b" " + struct.pack("<bi", 4, rows)
    return token + b" " + struct.pack("<bibi", 4, rows, 4, columns)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("token", [b"FM", b"DM", b"FV", b"DV", b"CM", b"CM2", b"CM3", b"\4"])
def test_a_header_that_announces_too_much_takes_no_memory(
    token: bytes, zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = struct.pack("<bi", 4, 10**9) if token == b"\4" else announcing(token, 10**9, 10**9)
    path = tmp_path / "a.ark"
    data = b"a \0B" + head + bytes(1000)
    path.write_bytes(gzip.compress(data) if zipped else data)
    taken: list[int] = []
    original = kaldi_archive._Values.take

    def take(self: Any, count: int) -> bytes:
        found = original(self, count)
        taken.append(len(found))
        return found

    monkeypatch.setattr(kaldi_archive._Values, "take", take)
    with pytest.raises(UnreadableError, match=r"the limit is|announced|cut off"):
        list(read_archive(path))
    assert max(taken) <= MIB


def test_negative_sizes_and_shapes_without_values_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ark"
    for rows, columns in ((-1, 5), (5, -1), (10**9, 0), (0, 7)):
        for token in (b"FM", b"CM"):
            path.write_bytes(b"a \0B" + announcing(token, rows, columns) + bytes(100))
            with pytest.raises(UnreadableError, match=r"a\.ark"):
                list(read_archive(path))


# ---------------------------------------------------------------------------- spoilt ones


@in_numbers
@pytest.mark.parametrize("zipped", [False, True])
def test_spoilt_archives_are_read_or_refused(cases: int, zipped: bool, tmp_path: Path) -> None:
    data, path = an_archive(tmp_path / "whole").read_bytes(), tmp_path / "a.ark"
    pack: Callable[[bytes], bytes] = gzip.compress if zipped else bytes

    def attempt(changes: list[tuple[str, float, bytes]]) -> None:
        path.write_bytes(pack(spoilt_bytes(data, changes)))
        refused(lambda: list(read_archive(path)), naming="a.ark")
        refused(lambda: list(read_alignments(path)), naming="a.ark")

    try_out(cases, edits, attempt)


@in_numbers
def test_any_bytes_are_read_or_refused(cases: int, tmp_path: Path) -> None:
    path = tmp_path / "a.ark"

    def attempt(data: bytes) -> None:
        path.write_bytes(data)
        refused(lambda: list(read_archive(path)), naming="a.ark")
        refused(lambda: load_matrix(f"{path}:2[0:1]", "a"), naming="a.ark")

    starts = st.sampled_from([b"", b"a ", b"a \0B", b"a \0BFM ", b"a \0BCM ", b"a [ ", b"a 1 2"])
    try_out(cases, st.tuples(starts, st.binary(max_size=60)).map(b"".join), attempt)
