"""Reading and writing audio files, with a check of their headers.

Whatever libsndfile reads can be used: wav, flac, ogg, opus, mp3, aiff and more, with any number of
channels, at any rate (soxr changes it). Samples are on the int16 scale, as Kaldi reads them.
libsndfile reports no error if the end of a wav file is missing, so the header is compared with the
file's size here. A header may announce more than there is: samples are decoded piece by piece, and
memory is taken for what came.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal, TypeAlias

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from hocket.errors import UnreadableError
from hocket.speech.errors import SpeechError
from hocket.support.inputs import open_file

Channel: TypeAlias = int | Literal["mean"]  # counted from 1; or the mean of all channels

ENDINGS: Final = (
    ".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aiff", ".aif", ".au", ".caf", ".w64",
    ".rf64", ".sph",
)  # fmt: skip
QUALITY: Final = "HQ"  # soxr's: a stop band of 20 bits, below what 16-bit audio can hold
MAX_UTTERANCE_S: Final = 4 * 3600  # of samples in memory at a time
SAMPLE_RATES: Final = range(1_000, 768_001)  # that audio has; filters are made for them
_PIECE: Final = 1 << 22  # samples decoded at a time
_MAX_CHUNKS: Final = 10_000  # of a wav file, before its samples: real ones have a few
_UNKNOWN_SIZES: Final = (0, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFF000)  # written by programs that stream


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """The facts in an audio file's header."""

    sample_rate: int
    num_samples: int
    channels: int


def probe(path: Path) -> AudioInfo:
    """Read a header; raise if the file is missing, empty, truncated or not audio."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            missing = _missing_bytes(file, size)
    except UnreadableError as error:
        raise SpeechError(str(error)) from error
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
    if info.samplerate not in SAMPLE_RATES or info.frames < 0:
        raise SpeechError(
            f"{path}: {info.samplerate} Hz is no rate of audio: between {SAMPLE_RATES[0]} and "
            f"{SAMPLE_RATES[-1]} is possible"
        )
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
    path: Path,
    start_s: float = 0.0,
    end_s: float | None = None,
    sample_rate: int | None = None,
    channel: Channel = "mean",
) -> NDArray[np.float32]:
    """Return the samples on the int16 scale, whole or from `start_s` to `end_s`.

    Their rate is the file's own, or `sample_rate`. Of several channels one is taken, or the mean.
    """
    info = probe(path)
    first = round(start_s * info.sample_rate)
    last = info.num_samples if end_s is None else round(end_s * info.sample_rate)
    first, last = min(first, info.num_samples), min(last, info.num_samples)
    if last - first > MAX_UTTERANCE_S * info.sample_rate:
        raise too_long(path, last - first, info.sample_rate)
    samples = _decoded(path, first, last, info.channels)
    if len(samples) < max(0, last - first):
        raise SpeechError(
            f"{path}: ends after {first + len(samples):,} of {last:,} samples: copy it again"
        )
    scaled = _one_channel(samples, channel, path) * np.float32(32768.0)
    if sample_rate in (None, info.sample_rate):
        return scaled
    assert sample_rate is not None
    return resample(scaled, info.sample_rate, sample_rate)


def check_channel(info: AudioInfo, channel: Channel, path: Path) -> None:
    """Raise if a file does not have the channel that is asked for."""
    if channel != "mean" and channel > info.channels:
        raise SpeechError(
            f"{path}: there is no channel {channel}, only {info.channels}: give --channel 1 to "
            f"{info.channels}, or mean"
        )


def _one_channel(samples: NDArray[np.float32], channel: Channel, path: Path) -> NDArray[np.float32]:
    check_channel(AudioInfo(0, 0, samples.shape[1]), channel, path)
    one: NDArray[np.float32]
    one = samples.mean(axis=1) if channel == "mean" else samples[:, channel - 1]
    return one


def resampled_length(num_samples: int, from_rate: int, to_rate: int) -> int:
    """Return how many samples a signal has after resampling."""
    return round(num_samples * to_rate / from_rate)


def resample(x: NDArray[np.float32], from_rate: int, to_rate: int) -> NDArray[np.float32]:
    """Return the signal at another rate."""
    changed = soxr.resample(x, from_rate, to_rate, quality=QUALITY)
    missing = resampled_length(len(x), from_rate, to_rate) - len(changed)
    exact: NDArray[np.float32] = np.pad(changed, (0, max(0, missing)))
    return exact[: len(changed) + missing]


def too_long(path: Path, num_samples: int, sample_rate: int) -> SpeechError:
    """Return the error about an utterance that is longer than the limit."""
    return SpeechError(
        f"{path}: {num_samples / sample_rate / 3600:,.1f} hours at once are more than the limit "
        f"of {MAX_UTTERANCE_S // 3600}: cut it into utterances (segments)"
    )


def _decoded(path: Path, first: int, last: int, channels: int) -> NDArray[np.float32]:
    """Return samples of a file (samples, channels), or as many of them as there are."""
    pieces, left = [np.zeros((0, channels), np.float32)], max(0, last - first)
    try:
        with soundfile.SoundFile(str(path)) as file:
            if first:
                file.seek(first)
            while left:
                piece = file.read(min(left, _PIECE), dtype="float32", always_2d=True)
                if not len(piece):
                    break
                pieces.append(piece)
                left -= len(piece)
    except soundfile.LibsndfileError as error:
        raise SpeechError(f"{path}: cannot be decoded: {error}") from error
    return np.concatenate(pieces)


def _missing_bytes(file: IO[bytes], size: int) -> int:
    """Return how many bytes are missing at the end of a wav file; 0 for other formats."""
    head = file.read(12)
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return 0
    for _ in range(_MAX_CHUNKS):
        chunk = file.read(8)
        if len(chunk) < 8:
            break
        name, length = struct.unpack("<4sI", chunk)
        if name == b"data":
            end = file.tell() + length
            return 0 if length in _UNKNOWN_SIZES else max(0, end - size)
        file.seek(length + (length & 1), 1)
    return 1  # no samples at all
