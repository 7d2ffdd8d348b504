"""Passes over a corpus with a GMM-HMM: align, collect moments, collect tree statistics.

Each pass runs in pieces of 48 utterances, in several processes, and adds up the pieces in their
order, so the result does not depend on the number of processes. Alignments (the pdf of every frame)
are in a memory-mapped file beside the features; -1 marks frames without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar

import kaldi_decoder
import kaldifst
import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from hocket.errors import UnreadableError
from hocket.speech.features.store import FeatureStore, Normalisation, new_array
from hocket.speech.gmm.front import Front, as_tensor, deltas
from hocket.speech.gmm.gmm import GMM, Densities, Moments
from hocket.speech.gmm.speakers import Speakers, transformed
from hocket.speech.graph.graph import alignment_graph
from hocket.speech.graph.lexicon import Lexicon, read_lexicon
from hocket.speech.graph.senones import NUM_STATES, SILENCE_ID, ContextStats, Senones
from hocket.support.arrays import read_array, read_arrays
from hocket.support.files import atomically
from hocket.support.parallel import chunks, ordered_map
from hocket.support.progress import progress

PIECE: Final = 48  # utterances of one job
BEAMS: Final = (150.0, 600.0, 2400.0)  # in log-likelihood; the next is used if one finds no path
LOOP_RANGE: Final = (0.05, 0.98)
R = TypeVar("R")
Ints32 = NDArray[np.int32]


@dataclass
class GMMHMM:
    """A GMM and a loop probability for every senone, and what it sees of an utterance."""

    senones: Senones
    gmm: GMM
    loop: NDArray[np.float64]  # (pdfs,) probability of staying in a state
    front: Front

    def save(self, folder: Path) -> None:
        """Write model.npz, loops.npz and tree.json."""
        folder.mkdir(parents=True, exist_ok=True)
        self.senones.write(folder / "tree.json")
        for name, save in (
            ("model.npz", self.gmm.save),
            ("loops.npz", self._save_rest),
        ):
            with atomically(folder / name) as partial_path:  # training is resumed from it
                save(partial_path)

    def _save_rest(self, path: Path) -> None:
        front = self.front
        np.savez(path, loop=self.loop, transform=front.transform, weights=front.weights)

    @classmethod
    def load(cls, folder: Path) -> GMMHMM:
        """Read what `save` wrote."""
        arrays = read_arrays(
            folder / "loops.npz",
            {"loop": ("float", 1), "transform": ("float", 2), "weights": ("float", 1)},
        )
        loop, front = arrays["loop"], Front(arrays["transform"], arrays["weights"])
        senones = Senones.read(folder / "tree.json")
        gmm = GMM.load(folder / "model.npz")
        pdfs, _, dims = gmm.mean.shape
        fits = pdfs == senones.num_pdfs == len(loop) and dims == front.dims == len(front.weights)
        if not fits:
            raise UnreadableError.of(folder, "its files belong to different models: train it again")
        return cls(senones, gmm, loop, front)

    @cached_property
    def recognising(self) -> Densities:
        """Densities in which all features have the same weight."""
        return self.gmm.densities()

    @cached_property
    def aligning(self) -> Densities:
        """Densities in which deltas have less weight, see `front.DELTA_WEIGHT`."""
        return self.gmm.densities(torch.from_numpy(self.front.weights))

    def log_likelihoods(
        self, x: NDArray[np.float32], w: NDArray[np.float64] | None = None
    ) -> NDArray[np.float32]:
        """Return (frames, pdfs) for normalised cepstra; `w`: the transform of their speaker."""
        seen = as_tensor(self.front, x)
        if w is not None:
            seen = transformed(seen, w)
        scores: NDArray[np.float32] = self.recognising.log_likelihoods(seen).numpy()
        return scores


@dataclass(frozen=True)
class Corpus:
    """Where a pass finds its data; kept small, because it is sent to every process."""

    store: Path
    lexicon: Path
    normalisation: Normalisation = "speaker"

    def open(self) -> FeatureStore:
        """Open the cepstra."""
        return _open_store(self.store, self.normalisation)

    def pronunciations(self) -> Lexicon:
        """Open the lexicon."""
        return _open_lexicon(self.lexicon)


@lru_cache(maxsize=4)
def _open_store(path: Path, normalisation: Normalisation) -> FeatureStore:
    return FeatureStore(path, "mfcc", normalisation)


@lru_cache(maxsize=4)
def _open_lexicon(path: Path) -> Lexicon:
    return read_lexicon(path)


def phones_of(lexicon: Lexicon, words: Sequence[str]) -> list[list[list[int]]]:
    """Return, for each word, its pronunciations as phone ids."""
    return [
        [[lexicon.phone_id[p] for p in phones] for phones in lexicon.said(word)] for word in words
    ]


def new_alignment(path: Path, store: FeatureStore) -> None:
    """Create an alignment file in which no frame is aligned yet."""
    file = new_array(path, np.int32, (len(store.x),))
    file[:] = -1


def usable(corpus: Corpus) -> tuple[NDArray[np.int64], dict[str, str]]:
    """Return the utterances that can be aligned, and why the others cannot."""
    store, lexicon = corpus.open(), corpus.pronunciations()
    numbers, left_out = [], {}
    for number, words in enumerate(store.words):
        unknown = [w for w in words if not lexicon.said(w)]
        if unknown:
            left_out[store.ids[number]] = f"no pronunciation of {unknown[0]!r}"
            continue
        shortest = sum(min(len(p) for p in lexicon.said(w)) for w in words)
        if store.frames[number] < NUM_STATES * shortest:
            left_out[store.ids[number]] = (
                f"too short to align: {store.frames[number]} frames, but its {shortest} phones "
                f"take at least {NUM_STATES * shortest}"
            )
            continue
        numbers.append(number)
    return np.array(numbers, dtype=np.int64), left_out


# ---------------------------------------------------------------------------- running passes


@dataclass(frozen=True)
class Pass:
    """What every piece of one pass over the corpus needs to know."""

    corpus: Corpus
    alignment: Path
    model: Path | None = None  # a folder; none at the flat start
    speakers: Path | None = None  # transforms of the speakers (see `speakers.py`), if adapted


def run_pass(
    function: Callable[[Pass, Sequence[int]], R],
    what: Pass,
    numbers: NDArray[np.int64],
    *,
    title: str,
    jobs: int,
    show: bool,
) -> Iterator[R]:
    """Yield the answer of each piece, in order."""
    store = what.corpus.open()
    pieces = chunks([int(n) for n in numbers], PIECE)
    total = float(store.frames[numbers].sum())
    with progress(title, total, unit="frames", wanted=show) as advance:
        answers = ordered_map(partial(function, what), pieces, jobs=jobs, what=title)
        for piece, answer in zip(pieces, answers, strict=True):
            advance(float(store.frames[list(piece)].sum()))
            yield answer


def load_model(what: Pass) -> GMMHMM:
    """Return the model of a pass; the last two stay open."""
    assert what.model is not None
    return _load_model(what.model, (what.model / "model.npz").stat().st_mtime_ns)


@lru_cache(maxsize=2)
def _load_model(folder: Path, written_ns: int) -> GMMHMM:
    return GMMHMM.load(folder)


def aligned_utterances(
    what: Pass, numbers: Sequence[int]
) -> Iterator[tuple[NDArray[np.float32], Ints32]]:
    """Yield the cepstra and the pdfs of those utterances that have an alignment."""
    store = what.corpus.open()
    file = read_array(what.alignment, "integer", 1, mapped=True)
    for number in numbers:
        first, length = int(store.first[number]), int(store.frames[number])
        pdfs = np.array(file[first : first + length])
        if pdfs[0] >= 0:
            yield store.utterance(number), pdfs


# ---------------------------------------------------------------------------- flat start


def flat_piece(what: Pass, numbers: Sequence[int]) -> ContextStats:
    """Divide each utterance's frames evenly among its states, with silence at both ends.

    Returns moments by (phone, state); the variance of the features is computed from them too.
    """
    store, lexicon = what.corpus.open(), what.corpus.pronunciations()
    file = open_memmap(what.alignment, mode="r+")
    front = deltas(store.dims)
    keys, frames = [], []
    for number in numbers:
        said = phones_of(lexicon, store.words[number])
        phones = [SILENCE_ID, *(p for word in said for p in word[0]), SILENCE_ID]
        length = int(store.frames[number])
        states = np.array([(p, s) for p in phones for s in range(NUM_STATES)])
        even = states[np.arange(length) * len(states) // length]
        first = store.first[number]
        file[first : first + length] = (even[:, 0] - 1) * NUM_STATES + even[:, 1]
        keys.append(np.pad(even, ((0, 0), (0, 2))))
        frames.append(front(store.utterance(number)))
    return ContextStats.of_frames(np.concatenate(keys), np.concatenate(frames))


# ---------------------------------------------------------------------------- alignment


@dataclass
class Aligned:
    """What one piece of an aligning pass has collected."""

    moments: Moments
    frames: NDArray[np.float64]  # (pdfs,)
    entries: NDArray[np.float64]  # (pdfs,) how often a state was entered
    failed: dict[str, str]

    def add_(self, other: Aligned) -> None:
        """Add what another piece has collected."""
        self.moments.add_(other.moments)
        self.frames += other.frames
        self.entries += other.entries
        self.failed |= other.failed

    def loop(self) -> NDArray[np.float64]:
        """Return the probability of staying in each state; 3/4 where nothing was seen."""
        seen = np.maximum(self.frames, 1.0)
        stay = np.where(self.frames > 0, 1 - self.entries / seen, 0.75)
        return np.clip(stay, *LOOP_RANGE)


def align_piece(what: Pass, numbers: Sequence[int], *, realign: bool = True) -> Aligned:
    """Align with the model, or keep the existing alignment, and collect moments."""
    model = load_model(what)
    store = what.corpus.open()
    speakers = None
    if what.speakers is not None:
        speakers = Speakers.read(what.speakers, store, model.front.dims)
    file = open_memmap(what.alignment, mode="r+")
    frames, pdfs, failed = [], [], {}
    for number in numbers:
        first, length = int(store.first[number]), int(store.frames[number])
        x = as_tensor(model.front, store.utterance(number))
        if speakers is not None:
            x = speakers.adapted(x, number)
        if realign:
            found = force_align(
                model, x, phones_of(what.corpus.pronunciations(), store.words[number])
            )
            if found is None:
                file[first : first + length] = -1
                failed[store.ids[number]] = "no alignment found: does the transcript fit the audio?"
                continue
            file[first : first + length] = found
        aligned = np.array(file[first : first + length])
        if aligned[0] >= 0:
            frames.append(x)
            pdfs.append(aligned)
    if not frames:
        nothing = np.zeros(model.senones.num_pdfs)
        return Aligned(model.gmm.no_moments(), nothing, nothing.copy(), failed)
    together = np.concatenate(pdfs)
    moments = model.gmm.accumulate(torch.cat(frames), torch.from_numpy(together).long())
    count = partial(np.bincount, minlength=model.senones.num_pdfs)
    entered = np.concatenate([p[np.r_[True, p[1:] != p[:-1]]] for p in pdfs])
    return Aligned(moments, count(together).astype(float), count(entered).astype(float), failed)


def keep_piece(what: Pass, numbers: Sequence[int]) -> Aligned:
    """Collect moments with the existing alignment."""
    return align_piece(what, numbers, realign=False)


def force_align(
    model: GMMHMM, x: torch.Tensor, words: Sequence[Sequence[Sequence[int]]]
) -> Ints32 | None:
    """Return the pdf of every frame on the best path through the transcript."""
    graph, pdfs = alignment_graph(words, model.senones, model.loop)
    scores = model.aligning.log_likelihoods(x, torch.from_numpy(pdfs)).numpy()
    for beam in BEAMS:
        path = best_path(graph, scores, beam)
        if path is not None:
            labels, _ = path
            return pdfs[labels].astype(np.int32)
    return None


def best_path(
    graph: Any, scores: NDArray[np.float32], beam: float
) -> tuple[NDArray[np.int64], list[int]] | None:
    """Return the columns of `scores` on the best path, and its words; None if no path ends."""
    options = kaldi_decoder.FasterDecoderOptions(beam=beam, max_active=2**31 - 1)
    decoder = kaldi_decoder.FasterDecoder(graph, options)
    decoder.decode(kaldi_decoder.DecodableCtc(scores))
    if not decoder.reached_final():
        return None
    found, path = decoder.get_best_path()
    if not found:
        return None
    _, labels, words, _ = kaldifst.get_linear_symbol_sequence(path)
    return np.array(labels, dtype=np.int64) - 1, list(words)


# ---------------------------------------------------------------------------- phones


def phone_spans(pdfs: Ints32, senones_owners: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the phones of an utterance: rows of (phone, first frame, number of frames)."""
    owner = senones_owners[pdfs]
    changed = np.r_[True, pdfs[1:] != pdfs[:-1]]
    starts = np.flatnonzero(changed & (owner[:, 1] == 0))
    lengths = np.diff(np.r_[starts, len(pdfs)])
    return np.stack([owner[starts, 0], starts, lengths], axis=1)


def context_piece(what: Pass, numbers: Sequence[int], *, front: Front) -> ContextStats:
    """Collect moments by (centre, state, left, right) with the existing alignment."""
    owners = load_model(what).senones.owners
    keys, frames = [], []
    for x, pdfs in aligned_utterances(what, numbers):
        spans = phone_spans(pdfs, owners)
        padded = np.r_[SILENCE_ID, spans[:, 0], SILENCE_ID]
        context = np.stack([padded[:-2], padded[2:]], axis=1).repeat(spans[:, 2], axis=0)
        keys.append(np.concatenate([owners[pdfs], context], axis=1))
        frames.append(front(x))
    if not keys:
        none = np.zeros((0, front.dims), np.float32)
        return ContextStats.of_frames(np.zeros((0, 4), np.int64), none)
    return ContextStats.of_frames(np.concatenate(keys), np.concatenate(frames))
