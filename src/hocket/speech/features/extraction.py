"""From audio files to a feature store, by several processes.

Headers are read first: they give every utterance its place in the store, and bad files are found
before the long work begins. An utterance that cannot be used is left out, with the reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from hocket.errors import HocketError
from hocket.speech.errors import SpeechError
from hocket.speech.features.spectral import SAMPLE_RATES, Kind, analysis, extract, num_dims
from hocket.speech.features.store import new_array
from hocket.speech.input import audio
from hocket.speech.input.datadir import Utterance
from hocket.support.parallel import chunks, ordered_map
from hocket.support.progress import progress

PIECE = 64  # utterances of one job


@dataclass(frozen=True)
class _Piece:
    folder: Path
    kinds: tuple[Kind, ...]
    num_bins: int
    sample_rate: int
    channel: audio.Channel
    utterances: Sequence[Utterance]
    firsts: Sequence[int]
    lengths: Sequence[int]


@dataclass
class Recordings:
    """What the headers of all files say, and what becomes of their rates and channels."""

    sample_rate: int  # of all features
    num_samples: dict[str, int] = field(default_factory=dict)  # of each utterance, at that rate
    channel: audio.Channel = "mean"
    notes: list[str] = field(default_factory=list)  # for the user


def look_at(
    utterances: Sequence[Utterance],
    left_out: dict[str, str],
    resample_to: int | None = None,
    channel: audio.Channel = "mean",
) -> Recordings:
    """Look at all headers; choose the one rate, and say how many samples each utterance has.

    Utterances with a bad header are put into `left_out`. Features of two rates do not belong in one
    model, so audio of other rates is brought to `resample_to`, or to the highest known rate that
    all files have at least: a higher one would leave the upper bands of some files empty.
    """
    infos: dict[Path, audio.AudioInfo] = {}
    for path in dict.fromkeys(u.path for u in utterances):
        try:
            infos[path] = audio.probe(path)
            audio.check_channel(infos[path], channel, path)
        except SpeechError as error:
            infos.pop(path, None)
            left_out |= {u.id: str(error) for u in utterances if u.path == path}
    rates = {info.sample_rate: path for path, info in infos.items()}
    found = Recordings(resample_to or _common_rate(rates), channel=channel)
    for utterance in utterances:
        if utterance.path in infos:
            length = _length(utterance, infos[utterance.path], found.sample_rate)
            if length > audio.MAX_UTTERANCE_S * found.sample_rate:  # no room is reserved for it
                why = audio.too_long(utterance.path, length, found.sample_rate)
                left_out[utterance.id] = str(why)
            else:
                found.num_samples[utterance.id] = length
    found.notes = _notes(infos, found)
    return found


def _common_rate(rates: dict[int, Path]) -> int:
    """Return the highest supported rate that no file is below."""
    lowest = min(rates, default=max(SAMPLE_RATES))
    fitting = [rate for rate in SAMPLE_RATES if rate <= lowest]
    if not fitting:
        raise SpeechError(
            f"sample rate {lowest} Hz ({rates[lowest]}): features need at least "
            f"{min(SAMPLE_RATES)} Hz. Give --resample {min(SAMPLE_RATES)} to use it nevertheless; "
            "its upper bands will be empty"
        )
    return max(fitting)


def _length(utterance: Utterance, info: audio.AudioInfo, sample_rate: int) -> int:
    end = info.num_samples
    if utterance.end_s is not None:
        end = min(end, round(utterance.end_s * info.sample_rate))
    length = max(0, end - round(utterance.start_s * info.sample_rate))
    return audio.resampled_length(length, info.sample_rate, sample_rate)


def _notes(infos: dict[Path, audio.AudioInfo], found: Recordings) -> list[str]:
    """Say which files are not used as they are."""
    rates = Counter(info.sample_rate for info in infos.values())
    notes = [
        f"{count:,} files resampled from {rate} Hz"
        for rate, count in sorted(rates.items())
        if rate != found.sample_rate
    ]
    several = sum(info.channels > 1 for info in infos.values())
    if several:
        which = "the mean" if found.channel == "mean" else f"channel {found.channel}"
        notes.append(f"{which} of the channels of {several:,} files")
    return notes


def write_store(
    folder: Path,
    utterances: Sequence[Utterance],
    recordings: Recordings,
    kinds: Sequence[Kind],
    *,
    num_bins: int = 40,
    left_out: dict[str, str],
    title: str = "features",
    jobs: int = 1,
    show: bool = True,
) -> None:
    """Extract features of all utterances in parallel; unreadable ones go to `left_out`."""
    folder.mkdir(parents=True, exist_ok=True)
    sample_rate, num_samples = recordings.sample_rate, recordings.num_samples
    frame = analysis(sample_rate, num_bins)
    known = [u for u in utterances if u.id in num_samples]
    lengths = [
        max(0, 1 + (num_samples[u.id] - frame.length) // frame.shift)
        if num_samples[u.id] >= frame.length
        else 0
        for u in known
    ]
    firsts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    for kind in kinds:
        shape = (int(firsts[-1]), num_dims(kind, num_bins))
        new_array(folder / f"{kind}.npy", np.float32, shape)
    pieces = [
        _Piece(
            folder,
            tuple(kinds),
            num_bins,
            sample_rate,
            recordings.channel,
            [known[i] for i in numbers],
            [int(firsts[i]) for i in numbers],
            [lengths[i] for i in numbers],
        )
        for numbers in chunks(range(len(known)), PIECE)
    ]
    index: list[dict[str, Any]] = []
    sums: dict[Kind, list[NDArray[np.float64]]] = {kind: [] for kind in kinds}
    title = f"{title}: {folder.name}"
    with progress(title, float(firsts[-1]), unit="frames", wanted=show) as go:
        for piece, answers in zip(
            pieces,
            ordered_map(_extract_piece, pieces, jobs=jobs, what="extracting features"),
            strict=True,
        ):
            go(float(sum(piece.lengths)))
            for number, answer in enumerate(answers):
                utterance = piece.utterances[number]
                if isinstance(answer, str):
                    left_out[utterance.id] = answer
                    continue
                index.append(
                    {"id": utterance.id, "speaker": utterance.speaker}
                    | {"words": list(utterance.words), "path": str(utterance.path)}
                    | {"first": piece.firsts[number], "frames": piece.lengths[number]}
                )
                for kind, one in zip(kinds, answer, strict=True):
                    sums[kind].append(one)
    for kind in kinds:
        empty = np.zeros((0, 2, num_dims(kind, num_bins)))
        np.save(folder / f"{kind}.sums.npy", np.stack(sums[kind]) if sums[kind] else empty)
    facts = {"sample_rate": sample_rate, "kinds": list(kinds), "utterances": index}
    (folder / "index.json").write_text(json.dumps(facts))


def _extract_piece(piece: _Piece) -> list[str | list[NDArray[np.float64]]]:
    """Write the features of a piece; return each utterance's sums, or what is wrong with it."""
    files = {kind: open_memmap(piece.folder / f"{kind}.npy", mode="r+") for kind in piece.kinds}
    answers: list[str | list[NDArray[np.float64]]] = []
    for utterance, first, length in zip(piece.utterances, piece.firsts, piece.lengths, strict=True):
        if length == 0:
            answers.append(f"{utterance.path}: shorter than one frame of 25 ms")
            continue
        sums = []
        try:
            samples = audio.read(
                utterance.path,
                utterance.start_s,
                utterance.end_s,
                piece.sample_rate,
                piece.channel,
            )
            for kind, file in files.items():
                bins = piece.num_bins if kind == "fbank" else None
                x = _of_length(extract(samples, piece.sample_rate, kind, bins), length)
                if not np.isfinite(x).all():
                    raise SpeechError(f"{utterance.path}: its {kind} features are not finite")
                file[first : first + length] = x
                wide = x.astype(np.float64)
                sums.append(np.stack([wide.sum(0), np.square(wide).sum(0)]))
        except HocketError as error:
            answers.append(str(error))
            continue
        answers.append(sums)
    return answers


def _of_length(x: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    """Cut, or repeat the last frame: the pitch tracker may give one frame more or less."""
    return (
        x[np.minimum(np.arange(length), len(x) - 1)]
        if len(x)
        else np.zeros_like(x, shape=(length, x.shape[1]))
    )
