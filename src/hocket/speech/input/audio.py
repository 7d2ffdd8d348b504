"""Reading and writing audio files, with a check of their headers.

Samples are on the int16 scale, as Kaldi reads them. libsndfile reports no error if the end of a wav
file is missing, so the header is compared with the file's size here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from hocket.speech.errors import SpeechError
from hocket.speech.input.resampling import resample

_UNKNOWN_SIZES = (0, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFF000)  # written by programs that stream


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """The facts in an audio file's header."""

    sample_rate: int
    num_samples: int
    channels: int


def probe(path: Path) -> AudioInfo:
    """Read a header; raise if the file is missing, empty, truncated or not audio."""
    try:
        size = path.stat().st_size
        missing = _missing_bytes(path, size)
    except OSError as error:
        raise SpeechError(f"{path}: {error.strerror or 'cannot be read'}") from error
    if size == 0:
        raise SpeechError(f"{path}: the file is empty")
    if missing:
        raise SpeechError(f"{path}: truncated, {missing:,} bytes are missing: copy it again")
    try:
        info = soundfile.info(str(path))
    except soundfile.LibsndfileError as error:
        raise SpeechError(f"{path}: not an audio file that can be read: {error}") from error
    return AudioInfo(int(info.samplerate), int(info.frames), int(info.channels))


def write(path: Path, samples: NDArray[np.int16], sample_rate: int) -> None:
    """Write a wav file of 16 bits."""
    try:
        soundfile.write(path, samples, sample_rate, subtype="PCM_16")
    except soundfile.LibsndfileError as error:
        raise SpeechError(
            f"{path} cannot be written ({error}): is the disk full? The same command continues "
            "where this one ended"
        ) from error


def read(
    path: Path, start_s: float = 0.0, end_s: float | None = None, sample_rate: int | None = None
) -> NDArray[np.float32]:
    """Return one channel's samples on the int16 scale, whole or from `start_s` to `end_s`.

    Their rate is the file's own, or `sample_rate`.
    """
    info = probe(path)
    if info.channels != 1:
        raise SpeechError(f"{path}: {info.channels} channels: split them into files of one each")
    first = round(start_s * info.sample_rate)
    last = info.num_samples if end_s is None else round(end_s * info.sample_rate)
    last = min(last, info.num_samples)
    try:
        samples, _ = soundfile.read(
            str(path), start=min(first, info.num_samples), stop=last, dtype="float32"
        )
    except soundfile.LibsndfileError as error:
        raise SpeechError(f"{path}: cannot be decoded: {error}") from error
    if len(samples) < max(0, last - first):
        raise SpeechError(
            f"{path}: ends after {first + len(samples):,} of {last:,} samples: copy it again"
        )
    if sample_rate not in (None, info.sample_rate):
        assert sample_rate is not None
        samples = resample(samples.astype(np.float64), info.sample_rate, sample_rate)
    scaled: NDArray[np.float32] = samples.astype(np.float32) * np.float32(32768.0)
    return scaled


def _missing_bytes(path: Path, size: int) -> int:
    """Return how many bytes are missing at the end of a wav file; 0 for other formats."""
    with path.open("rb") as file:
        head = file.read(12)
        if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
            return 0
        while len(chunk := file.read(8)) == 8:
            name, length = struct.unpack("<4sI", chunk)
            if name == b"data":
                end = file.tell() + length
                return 0 if length in _UNKNOWN_SIZES else max(0, end - size)
            file.seek(length + (length & 1), 1)
    return 1  # no samples at all
