"""From acoustic scores to words, tuned on the dev set.

A *scorer* gives a matrix (frames, pdfs) of log-likelihoods for an utterance: a GMM-HMM its own, a
network its log posteriors minus the log priors of the senones. The decoder searches HCLG for the
path with the best

    acoustic_scale * sum of log-likelihoods + log P(words, durations) - word_penalty * words

The WER depends on the scale more than on most things one would compare, so scale and penalty are
tuned for every model (`tuning.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Final, Protocol

import kaldi_decoder
import kaldifst
import numpy as np
from numpy.typing import NDArray

from hocket.core.limits import check_numbers
from hocket.errors import require
from hocket.speech.errors import SpeechError
from hocket.speech.features.store import FeatureStore, Normalisation
from hocket.speech.gmm.alignment import GMMHMM
from hocket.speech.gmm.speakers import Speakers
from hocket.speech.graph.graph import Graph
from hocket.speech.units import Unit
from hocket.support.parallel import chunks, ordered_map
from hocket.support.progress import progress

PIECE: Final = 24  # utterances of one job


@dataclass(frozen=True)
class Search:
    """How many alternatives the decoder keeps: its beam, and the most active states."""

    beam: float = 10.0
    max_active: int = 2000

    def __post_init__(self) -> None:
        require(self.beam > 0, f"beam must be above 0, not {self.beam}")
        check_numbers(self, "search")
        require(self.max_active >= 10, f"max_active must be at least 10, not {self.max_active}")


@dataclass(frozen=True, order=True)
class Setting:
    """The two numbers that are tuned: acoustic scale and word penalty."""

    scale: float
    penalty: float


class Scorer(Protocol):
    """Scores utterances; kept small, because it is sent to every process."""

    def __hash__(self) -> int: ...

    def store(self, split: str) -> FeatureStore:
        """Open the features it reads."""
        ...

    def scores(self, store: FeatureStore, number: int) -> NDArray[np.float32]:
        """Return log-likelihoods (frames, pdfs)."""
        ...


@dataclass(frozen=True)
class GMMScorer:
    """Scores utterances with a GMM-HMM."""

    features: Path
    model: Path
    normalisation: Normalisation
    speakers: Path | None = None  # a folder with the transforms of each split's speakers: SPLIT.npy

    def store(self, split: str) -> FeatureStore:
        """Open the cepstra."""
        return FeatureStore(self.features / split, "mfcc", self.normalisation)

    def scores(self, store: FeatureStore, number: int) -> NDArray[np.float32]:
        """Return the log-likelihoods of all mixtures for every frame."""
        model, w = _gmm(self.model), None
        if self.speakers is not None:
            path = self.speakers / f"{store.folder.name}.npy"
            w = Speakers.read(path, store, model.front.dims).of(number)
        return model.log_likelihoods(store.utterance(number), w)


@lru_cache(maxsize=2)
def _gmm(folder: Path) -> GMMHMM:
    return GMMHMM.load(folder)


# ---------------------------------------------------------------------------- decoding


@dataclass(frozen=True)
class _Job:
    scorer: Scorer
    graph: Path
    split: str
    settings: tuple[Setting, ...]
    search: Search


def _decode_piece(job: _Job, numbers: Sequence[int]) -> list[list[list[str]]]:
    """Decode each utterance with each setting; scores are computed once."""
    store = _open(job.scorer, job.split)
    graph = _graph(job.graph)
    answers = []
    for number in numbers:
        scores = job.scorer.scores(store, number)
        if scores.shape[1] < graph.num_pdfs:  # the search would read beyond the end of a row
            raise SpeechError(
                f"{job.graph} needs {graph.num_pdfs} senones, but the model has "
                f"{scores.shape[1]}: they belong to different preparations; prepare again"
            )
        answers.append(
            [
                decode_one(
                    _penalised(job.graph, setting.penalty), scores * setting.scale, job.search
                )
                for setting in job.settings
            ]
        )
    return [[[graph.words[w - 1] for w in words] for words in row] for row in answers]


@lru_cache(maxsize=2)
def _graph(folder: Path) -> Graph:
    return Graph.read(folder)


@lru_cache(maxsize=16)
def _penalised(folder: Path, penalty: float) -> Graph:
    return _graph(folder).with_word_penalty(penalty)


@lru_cache(maxsize=4)
def _open(scorer: Scorer, split: str) -> FeatureStore:
    return scorer.store(split)


def decode_one(graph: Graph, scores: NDArray[np.float32], search: Search) -> list[int]:
    """Return the words on the best path, or on the best unfinished one if none reached the end."""
    options = kaldi_decoder.FasterDecoderOptions(beam=search.beam, max_active=search.max_active)
    decoder = kaldi_decoder.FasterDecoder(graph.fst, options)
    decoder.decode(kaldi_decoder.DecodableCtc(scores))
    found, path = decoder.get_best_path(use_final_probs=decoder.reached_final())
    if not found:
        return []
    return list(kaldifst.get_linear_symbol_sequence(path)[2])


@dataclass
class Decoder:
    """Decodes splits of an experiment with one scorer."""

    scorer: Scorer
    graph: Path
    search: Search = field(default_factory=Search)
    jobs: int = 1
    show: bool = True
    unit: Unit = "word"  # what the transcripts consist of
    step: str = ""  # of what longer work, for the progress display

    def decode(
        self,
        split: str,
        settings: Sequence[Setting],
        title: str | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[dict[str, list[str]]]:
        """Return, for each setting, the words of each utterance, or of those with some numbers."""
        store = self._stores(split)
        job = _Job(self.scorer, self.graph, split, tuple(settings), self.search)
        wanted = range(len(store)) if numbers is None else numbers
        pieces = chunks(wanted, min(PIECE, max(1, len(wanted) // (2 * self.jobs))))
        title = ": ".join(filter(None, (self.step, title or f"decoding {split}")))
        found: list[dict[str, list[str]]] = [{} for _ in settings]
        with progress(title, float(len(wanted)), unit="utterances", wanted=self.show) as advance:
            answers = ordered_map(
                partial(_decode_piece, job), pieces, jobs=self.jobs, what=f"decoding {split}"
            )
            for piece, answer in zip(pieces, answers, strict=True):
                advance(float(len(piece)))
                for number, row in zip(piece, answer, strict=True):
                    for hyps, words in zip(found, row, strict=True):
                        hyps[store.ids[number]] = words
        return found

    def references(self, split: str) -> dict[str, list[str]]:
        """Return the transcripts of a split."""
        store = self._stores(split)
        return dict(zip(store.ids, store.words, strict=True))

    def speakers(self, split: str) -> dict[str, str]:
        """Return the speaker of each utterance."""
        store = self._stores(split)
        return dict(zip(store.ids, store.speakers, strict=True))

    def seconds(self, split: str) -> float:
        """Return how long the speech of a split is."""
        return self._stores(split).seconds

    def _stores(self, split: str) -> FeatureStore:
        return _open(self.scorer, split)
