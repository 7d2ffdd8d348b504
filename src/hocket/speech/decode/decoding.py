"""From acoustic scores to words, tuned on the dev set.

A *scorer* gives a matrix (frames, pdfs) of log-likelihoods for an utterance: a GMM-HMM its own, a
network its log posteriors minus the log priors of the senones. The decoder searches HCLG for the
path with the best

    acoustic_scale * sum of log-likelihoods + log P(words, durations) - word_penalty * words

The WER depends on the scale more than on most things one would compare, so scale and penalty are
tuned on dev for every model. The optimum must lie inside the grid; while it does not, the grid is
widened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Final, Protocol

import kaldi_decoder
import kaldifst
import numpy as np
from numpy.typing import NDArray

from hocket.errors import require
from hocket.speech.decode.scoring import Unit, count
from hocket.speech.features.store import FeatureStore, Normalisation
from hocket.speech.gmm.alignment import GMMHMM
from hocket.speech.graph.graph import Graph
from hocket.support.parallel import chunks, ordered_map
from hocket.support.progress import progress

PIECE: Final = 24  # utterances of one job
SCALE: Final = 0.14  # where tuning begins
COARSE, FINE, STEP = 1.4, 1.18, 1.0  # ratios of neighbouring scales, difference of penalties
MAX_WIDENING: Final = 10  # how often a line of settings is made longer


@dataclass(frozen=True)
class Search:
    """How many alternatives the decoder keeps: its beam, and the most active states."""

    beam: float = 10.0
    max_active: int = 2000

    def __post_init__(self) -> None:
        require(self.beam > 0, f"beam must be above 0, not {self.beam}")
        require(self.max_active >= 10, f"max_active must be at least 10, not {self.max_active}")


@dataclass(frozen=True, order=True)
class Setting:
    """The two numbers that are tuned: acoustic scale and word penalty."""

    scale: float
    penalty: float

    def moved(self, way: int, ratio: float, step: float) -> Setting:
        """Return a neighbour: the scale times or over `ratio`, the penalty plus or minus `step`."""
        return Setting(self.scale * ratio**way, self.penalty + way * step)


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

    def store(self, split: str) -> FeatureStore:
        """Open the cepstra."""
        return FeatureStore(self.features / split, "mfcc", self.normalisation)

    def scores(self, store: FeatureStore, number: int) -> NDArray[np.float32]:
        """Return the log-likelihoods of all mixtures for every frame."""
        return _gmm(self.model).log_likelihoods(store.utterance(number))


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

    def decode(
        self, split: str, settings: Sequence[Setting], title: str | None = None
    ) -> list[dict[str, list[str]]]:
        """Return, for each setting, the words of each utterance."""
        store = self._stores(split)
        job = _Job(self.scorer, self.graph, split, tuple(settings), self.search)
        pieces = chunks(range(len(store)), PIECE)
        title = title or f"decoding {split}"
        found: list[dict[str, list[str]]] = [{} for _ in settings]
        with progress(title, float(len(store)), unit="utterances", wanted=self.show) as advance:
            answers = ordered_map(
                partial(_decode_piece, job), pieces, jobs=self.jobs, what=f"decoding {split}"
            )
            for piece, answer in zip(pieces, answers, strict=True):
                advance(float(len(piece)))
                for number, row in zip(piece, answer, strict=True):
                    for hyps, words in zip(found, row, strict=True):
                        hyps[store.ids[number]] = words
        return found

    def tune(self, split: str = "dev") -> Tuning:
        """Find scale and penalty with the fewest errors on a split."""
        return Tuning(self, split).run()

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


# ---------------------------------------------------------------------------- tuning


@dataclass
class Tuning:
    """A search along one axis after the other: a line of settings grows until its best is inside.

    Decoding spends most of its time here. A small scale prunes little and is slow, so smaller
    scales are tried only while they reduce the errors.
    """

    decoder: Decoder
    split: str
    errors: dict[Setting, int] = field(default_factory=dict)
    inside: bool = True

    @cached_property
    def _refs(self) -> dict[str, list[str]]:
        return self.decoder.references(self.split)

    @property
    def best(self) -> Setting:
        """The setting with the fewest errors; of equals, the middle one."""
        fewest = min(self.errors.values())
        equals = sorted(s for s, n in self.errors.items() if n == fewest)
        return equals[len(equals) // 2]

    def run(self) -> Tuning:
        """Tune scale, then penalty, then both again around the best, the scale in finer steps."""
        start = self._line(Setting(SCALE, 0.0), ratio=COARSE)
        start = self._line(start, step=STEP)
        start = self._line(start, ratio=FINE)
        self._line(start, step=STEP)
        return self

    def _line(self, start: Setting, *, ratio: float = 1.0, step: float = 0.0) -> Setting:
        """Add neighbours along one axis until the best is not at an end; return the best."""
        line = [start.moved(-1, ratio, step), start, start.moved(1, ratio, step)]
        for _ in range(MAX_WIDENING):
            self._evaluate(line)
            errors = [self.errors[setting] for setting in line]
            fewest = min(errors)
            equals = [setting for setting in line if self.errors[setting] == fewest]
            best = equals[len(equals) // 2]
            if fewest in errors[1:-1]:
                return best
            if errors[0] == fewest:
                line.insert(0, line[0].moved(-1, ratio, step))
            else:
                line.append(line[-1].moved(1, ratio, step))
        self.inside = False
        return best

    def _evaluate(self, settings: Sequence[Setting]) -> None:
        new = [s for s in settings if s not in self.errors]
        if not new:
            return
        found = self.decoder.decode(self.split, new, f"tuning on {self.split}")
        ids = list(self._refs)
        for setting, hyps in zip(new, found, strict=True):
            refs = [self._refs[i] for i in ids]
            self.errors[setting] = count(refs, [hyps[i] for i in ids]).total
