"""How well an alignment agrees with known phone times.

A synthesiser reports when it spoke each phoneme, and `phones.ctm` in a data directory holds these
times. A constant offset between its clock and ours (frames are 25 ms wide) is measured on every
second utterance; agreement is then measured on the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hocket.speech.errors import SpeechError
from hocket.speech.features.store import FeatureStore
from hocket.speech.gmm.alignment import Ints32
from hocket.speech.graph.lexicon import SILENCE
from hocket.speech.graph.senones import Senones
from hocket.speech.input.datadir import numbered_lines
from hocket.support.arrays import read_array

CENTRE_S = 0.0125  # of a frame, after its start
OFFSETS_S = np.arange(-0.06, 0.0601, 0.005)


@dataclass(frozen=True)
class PhoneAgreement:
    """Share of frames that the alignment gives the reference's phone."""

    frames: float
    speech_frames: float  # where the reference has no silence
    offset_s: float
    utterances: int

    def __str__(self) -> str:
        return (
            f"{self.frames:.1%} of frames have the synthesiser's phone ({self.speech_frames:.1%} "
            f"without silence; its clock is {self.offset_s * 1000:+.0f} ms off)"
        )


def read_ctm(path: Path) -> dict[str, tuple[NDArray[np.float64], list[str]]]:
    """Read `utterance channel start duration phone`: start times and phones of each utterance."""
    rows: dict[str, list[tuple[float, str]]] = {}
    for number, line in numbered_lines(path):
        try:
            utterance, _, start, _, phone = line.split()[:5]
            rows.setdefault(utterance, []).append((float(start), phone))
        except ValueError:
            raise SpeechError(
                f"{path}:{number}: should read 'utterance channel start duration phone'"
            ) from None
    return {
        utterance: (np.array([start for start, _ in sorted(spans)]), [p for _, p in sorted(spans)])
        for utterance, spans in rows.items()
    }


def agreement(
    ctm: Path, alignment: Path, store: FeatureStore, senones: Senones
) -> PhoneAgreement | None:
    """Compare with the reference; None if there is none, or if its phones are not the lexicon's."""
    if not ctm.exists():
        return None
    reference = read_ctm(ctm)
    phone_id = {phone: number for number, phone in enumerate(senones.phones, 1)}
    used = {p for _, phones in reference.values() for p in phones} - {SILENCE}
    if len(used - phone_id.keys()) > 0.2 * len(used):
        return None
    labels = read_array(alignment, "integer", 1, mapped=True)
    owners = senones.owners
    pairs = []
    for number, name in enumerate(store.ids):
        first, length = int(store.first[number]), int(store.frames[number])
        pdfs: Ints32 = np.array(labels[first : first + length])
        if name in reference and pdfs[0] >= 0:
            starts, phones = reference[name]
            spoken = np.array([phone_id.get(p, 0) for p in phones])
            pairs.append((owners[pdfs, 0], starts, spoken))
    if len(pairs) < 2:
        return None
    shares = [_compare(pairs[::2], offset)[0] for offset in OFFSETS_S]
    offset = float(OFFSETS_S[int(np.argmax(shares))])
    frames, speech = _compare(pairs[1::2], offset)
    return PhoneAgreement(frames, speech, offset, len(pairs[1::2]))


def _compare(
    pairs: list[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]], offset_s: float
) -> tuple[float, float]:
    """Return the share of frames that agree, among all frames and among speech frames."""
    right, speech = [], []
    silence = 1
    for aligned, starts, spoken in pairs:
        times = np.arange(len(aligned)) * 0.01 + CENTRE_S
        at = np.clip(np.searchsorted(starts + offset_s, times, side="right") - 1, 0, None)
        right.append(spoken[at] == aligned)
        speech.append(spoken[at] != silence)
    all_right, all_speech = np.concatenate(right), np.concatenate(speech)
    return float(all_right.mean()), float(all_right[all_speech].mean())
