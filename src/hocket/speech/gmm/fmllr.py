"""Speaker adaptation: one affine transform of the features for each speaker (fMLLR).

    y(t) -> W xi(t),    W = [A b],    xi(t) = [y(t); 1]                                    (1)

gamma_m(t) is the posterior of Gaussian m, of the senone that frame t is aligned with; beta is the
number of frames. W maximises

    Q(W) = beta log |det A| - 1/2 sum_i (w_i G_i w_i' - 2 w_i k_i)                         (2)
    G_i  = sum_mt gamma_m(t) / var_mi  xi(t) xi(t)'                                        (3)
    k_i  = sum_mt gamma_m(t) mu_mi / var_mi  xi(t)                                         (4)

row by row: with p_i the i-th row of cofactors of A, and a zero for b,

    w_i = (alpha p_i + k_i) G_i^-1                                                         (5)
    alpha^2 (p_i G_i^-1 p_i') + alpha (p_i G_i^-1 k_i) = beta                              (6)

where of the two roots the one with the higher Q is taken. No row can lower Q, and no round of
"posteriors, then rows" the likelihood.

Reference: M. Gales, "Maximum likelihood linear transformations for HMM-based speech recognition",
Computer Speech and Language 1998 (there: constrained MLLR). Kaldi's `tri3b` is a GMM-HMM trained on
such features.

Differences: the alignment is the best path, not a sum over paths; a speaker with fewer than
MIN_FRAMES stays as he is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.speech.gmm.alignment import GMMHMM, Corpus, force_align, phones_of
from hocket.speech.gmm.front import as_tensor
from hocket.speech.gmm.gmm import GMM
from hocket.speech.gmm.speakers import Speakers, identity, numbered, transformed
from hocket.speech.graph.lexicon import Lexicon
from hocket.support.arrays import read_array
from hocket.support.files import atomically
from hocket.support.parallel import ordered_map
from hocket.support.progress import progress

Doubles = NDArray[np.float64]
Pairs = Iterator[tuple[torch.Tensor, torch.Tensor]]
MIN_FRAMES: Final = 500  # of a speaker, as in Kaldi: 1,640 numbers are not learnt from less
ROUNDS: Final = 20  # over all rows of W; Kaldi's number, too
PIECE: Final = 4096  # frames whose outer products are in memory at a time: 27 MB
RIDGE: Final = 1e-6  # relative to the mean of G's diagonal: a feature that never changes


# ---------------------------------------------------------------------------- the mathematics


@dataclass
class SpeakerSums:
    """G (dims, dims + 1, dims + 1) and k (dims, dims + 1) of eqs. 3 and 4, and beta."""

    g: Doubles
    k: Doubles
    frames: int = 0

    @classmethod
    def nothing(cls, dims: int) -> SpeakerSums:
        """Return the sums of no frames."""
        return cls(np.zeros((dims, dims + 1, dims + 1)), np.zeros((dims, dims + 1)))

    def add_frames_(self, gmm: GMM, y: torch.Tensor, pdf: torch.Tensor, w: Doubles) -> None:
        """Add frames whose pdfs are known; posteriors are those of W xi."""
        order = torch.argsort(pdf, stable=True)  # the order in which posteriors come
        xi = torch.cat([y[order], torch.ones(len(y), 1)], dim=1)
        precision, pull = (torch.empty_like(y) for _ in range(2))
        start = 0
        for p, mine, posterior in gmm.posteriors(transformed(y, w), pdf):
            inverse = 1 / gmm.variance[p]
            rows = slice(start, start + len(mine))
            precision[rows] = posterior @ inverse
            pull[rows] = posterior @ (gmm.mean[p] * inverse)
            start = rows.stop
        for first in range(0, len(xi), PIECE):
            some, weights = xi[first : first + PIECE], precision[first : first + PIECE]
            outer = (some[:, :, None] * some[:, None, :]).flatten(1)
            self.g += (weights.T @ outer).view(self.g.shape).double().numpy()  # eq. 3
        self.k += (pull.T @ xi).double().numpy()  # eq. 4
        self.frames += len(y)


def best_transform(total: SpeakerSums, start: Doubles, rounds: int = ROUNDS) -> Doubles:
    """Return the W that maximises Q, from `start` on."""
    if total.frames < MIN_FRAMES:
        return start
    dims = len(start)
    ridge = RIDGE * np.einsum("ijj->i", total.g) / (dims + 1)
    inverse = np.linalg.inv(total.g + ridge[:, None, None] * np.eye(dims + 1))
    w = start.copy()
    for _ in range(rounds):
        back = np.linalg.inv(w[:, :-1])
        for row in range(dims):
            cofactors = back[:, row].copy()  # up to det A, which alpha makes up for
            new = _best_row(np.append(cofactors, 0.0), inverse[row], total.k[row], total.frames)
            change = (new - w[row])[:-1] @ back  # the inverse follows: Sherman and Morrison 1950
            back -= np.outer(cofactors, change) / (1 + change[row])
            w[row] = new
    return w


def _best_row(p: Doubles, inverse: Doubles, k: Doubles, frames: int) -> Doubles:
    """Return eq. 5 with the better root of eq. 6."""
    a, b = float(p @ inverse @ p), float(p @ inverse @ k)
    root = np.sqrt(b * b + 4 * a * frames)
    roots = [(-b + sign * root) / (2 * a) for sign in (1, -1)]

    def gain(alpha: float) -> float:
        return float(frames * np.log(abs(alpha * a + b)) - 0.5 * alpha * alpha * a)

    row: Doubles = (max(roots, key=gain) * p + k) @ inverse
    return row


# ---------------------------------------------------------------------------- of all speakers


@dataclass(frozen=True)
class AlignedSpeakers:
    """Speakers whose frames are aligned already, and how they were transformed until now."""

    corpus: Corpus
    model: Path
    alignment: Path
    before: Path | None

    def transform(self, numbers: Sequence[int]) -> Doubles:
        """Return the transform of a speaker, whose utterances these are."""
        model, store = GMMHMM.load(self.model), self.corpus.open()
        w = identity(model.front.dims)
        if self.before is not None:
            w = Speakers.read(self.before, store, model.front.dims).of(numbers[0])
        labels = read_array(self.alignment, "integer", 1, mapped=True)

        def pairs() -> Pairs:
            for number in numbers:
                first = int(store.first[number])
                pdfs = torch.from_numpy(np.array(labels[first : first + store.frames[number]]))
                if pdfs[0] >= 0:
                    yield as_tensor(model.front, store.utterance(number)), pdfs.long()

        return best_transform(_total(model.gmm, pairs(), w), w)


@dataclass(frozen=True)
class HeardSpeakers:
    """Speakers of whom only words are known: those that were said, or were recognised.

    They are aligned with the unadapted model first, which gives a first transform, and then with
    the adapted one. `words` belong to the utterances of the store, in order.
    """

    corpus: Corpus
    words: tuple[tuple[str, ...], ...]
    models: tuple[Path, ...]  # the unadapted one, then the adapted one, of the same senones

    def transform(self, numbers: Sequence[int]) -> Doubles:
        """Return the transform of a speaker, whose utterances these are."""
        lexicon, store = self.corpus.pronunciations(), self.corpus.open()
        w: Doubles | None = None
        for folder in self.models:
            model = GMMHMM.load(folder)
            w = identity(model.front.dims) if w is None else w
            frames = ((as_tensor(model.front, store.utterance(n)), self.words[n]) for n in numbers)
            w = best_transform(_total(model.gmm, _aligned(model, lexicon, frames, w), w), w)
        assert w is not None
        return w


def _aligned(
    model: GMMHMM,
    lexicon: Lexicon,
    spoken: Iterator[tuple[torch.Tensor, tuple[str, ...]]],
    w: Doubles,
) -> Pairs:
    """Yield frames and pdfs of those utterances whose words fit."""
    for y, words in spoken:
        if not words or not all(lexicon.said(word) for word in words):
            continue
        pdfs = force_align(model, transformed(y, w), phones_of(lexicon, words))
        if pdfs is not None:
            yield y, torch.from_numpy(pdfs).long()


def _total(gmm: GMM, pairs: Pairs, w: Doubles) -> SpeakerSums:
    total = SpeakerSums.nothing(len(w))
    for y, pdfs in pairs:
        total.add_frames_(gmm, y, pdfs, w)
    return total


def write_transforms(
    path: Path, what: AlignedSpeakers | HeardSpeakers, *, title: str, jobs: int, show: bool
) -> None:
    """Write the transforms of all speakers of a split; each speaker is one job."""
    store = what.corpus.open()
    number = numbered(store)
    by_speaker = [np.flatnonzero(number == one).tolist() for one in range(number.max() + 1)]
    found = []
    with progress(title, float(len(store)), unit="utterances", wanted=show) as advance:
        transform: Callable[[Sequence[int]], Doubles] = partial(_transform, what)
        answers = ordered_map(transform, by_speaker, jobs=jobs, what=title)
        for numbers, one in zip(by_speaker, answers, strict=True):
            advance(float(len(numbers)))
            found.append(one)
    with atomically(path) as partial_path, partial_path.open("wb") as file:
        np.save(file, np.stack(found))


def _transform(what: AlignedSpeakers | HeardSpeakers, numbers: Sequence[int]) -> Doubles:
    return what.transform(numbers)
