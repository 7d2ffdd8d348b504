"""From audio files to a feature store, by several processes.

Headers are read first: they give every utterance its place in the store, and bad files are found
before the long work begins. An utterance that cannot be used is left out, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from hocket.errors import HocketError
from hocket.speech.errors import SpeechError
from hocket.speech.features.spectral import SAMPLE_RATES, Kind, analysis, extract, num_dims
from hocket.speech.features.store import new_array
from hocket.speech.input import audio
from hocket.speech.input.datadir import Utterance
from hocket.speech.input.resampling import resampled_length
from hocket.support.parallel import chunks, ordered_map
from hocket.support.progress import progress

Sums: TypeAlias = NDArray[np.float64]
PIECE = 64  # utterances of one job


@dataclass(frozen=True)
class _Piece:
    folder: Path
    kinds: tuple[Kind, ...]
    num_bins: int
    sample_rate: int
    utterances: Sequence[Utterance]
    firsts: Sequence[int]
    lengths: Sequence[int]


def common_sample_rate(
    utterances: Sequence[Utterance], left_out: dict[str, str], resample_to: int | None = None
) -> tuple[int, dict[str, int]]:
    """Look at all headers; return the one sample rate, and how many samples each utterance has.

    Utterances with a bad header are put into `left_out`. Mixed rates are an error unless all audio
    is to be resampled: features of two rates do not belong in one model.
    """
    infos: dict[Path, audio.AudioInfo | str] = {}
    samples: dict[str, int] = {}
    rates: dict[int, Path] = {}
    for utterance in utterances:
        if utterance.path not in infos:
            infos[utterance.path] = _probe(utterance.path)
        info = infos[utterance.path]
        if isinstance(info, str):
            left_out[utterance.id] = info
            continue
        end = info.num_samples
        if utterance.end_s is not None:
            end = min(end, round(utterance.end_s * info.sample_rate))
        length = max(0, end - round(utterance.start_s * info.sample_rate))
        to_rate = resample_to or info.sample_rate
        samples[utterance.id] = resampled_length(length, info.sample_rate, to_rate)
        rates.setdefault(to_rate, utterance.path)
    _refuse_rates(rates)
    return next(iter(rates), 0), samples


def _refuse_rates(rates: dict[int, Path]) -> None:
    """Raise unless there is only one rate and it is supported."""
    known = " and ".join(map(str, SAMPLE_RATES))
    if len(rates) > 1:
        listed = ", ".join(f"{rate} Hz ({path})" for rate, path in sorted(rates.items()))
        raise SpeechError(
            f"mixed sample rates: {listed}. Give --resample {min(SAMPLE_RATES)} (or "
            f"{max(SAMPLE_RATES)}) to bring all audio to one rate"
        )
    for rate, path in rates.items():
        if rate not in SAMPLE_RATES:
            raise SpeechError(
                f"sample rate {rate} Hz ({path}): only {known} Hz are supported. Give --resample "
                f"{max(SAMPLE_RATES)} (or {min(SAMPLE_RATES)}) to have the audio resampled"
            )


def _probe(path: Path) -> audio.AudioInfo | str:
    try:
        info = audio.probe(path)
    except SpeechError as error:
        return str(error)
    if info.channels != 1:
        return f"{path}: {info.channels} channels: split them into files of one each"
    return info


def write_store(
    folder: Path,
    utterances: Sequence[Utterance],
    num_samples: dict[str, int],
    sample_rate: int,
    kinds: Sequence[Kind],
    *,
    num_bins: int = 40,
    left_out: dict[str, str],
    jobs: int = 1,
    show: bool = True,
) -> None:
    """Extract features of all utterances in parallel; unreadable ones go to `left_out`."""
    folder.mkdir(parents=True, exist_ok=True)
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
            [known[i] for i in numbers],
            [int(firsts[i]) for i in numbers],
            [lengths[i] for i in numbers],
        )
        for numbers in chunks(range(len(known)), PIECE)
    ]
    index: list[dict[str, Any]] = []
    sums: dict[Kind, list[NDArray[np.float64]]] = {kind: [] for kind in kinds}
    with progress(
        f"features of {folder.name}", float(firsts[-1]), unit="frames", wanted=show
    ) as go:
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
                utterance.path, utterance.start_s, utterance.end_s, piece.sample_rate
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
