"""A GMM-HMM from scratch: flat start, monophones, a tree, triphones, LDA and MLLT, speakers.

This is the classical first half of a hybrid system, trained by maximum likelihood (the baseline in
published tables is often a discriminatively trained GMM, BMMI, which is stronger). Its alignments
are the DNN's labels.

    flat start   frames divided evenly among the states of the transcript
    monophones   align, re-estimate, add Gaussians; repeat
    tree         triphone states tied to a given number of senones (see `senones.py`)
    triphones    re-estimate with more Gaussians, realign every few iterations
    LDA, MLLT    the same with a new tree on transformed splices (see `lda.py`)
    speakers     on request, on features transformed for each speaker (see `fmllr.py`)
    alignment    once more with the final model

Every iteration writes a complete model, so interrupted training continues with the next iteration.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from hocket.errors import UnreadableError, require
from hocket.speech.errors import SpeechError
from hocket.speech.gmm import alignment, fmllr, gmm, lda
from hocket.speech.gmm.alignment import GMMHMM, Aligned, Corpus, Pass, run_pass
from hocket.speech.gmm.front import Front, deltas
from hocket.speech.gmm.gmm import GMM
from hocket.speech.graph.senones import NUM_STATES, ContextStats, Senones, grow
from hocket.support.inputs import read_json, well_formed

FIRST_LOOP: Final = 0.75
SPEAKERS: Final = "speakers.npy"  # transforms of the training speakers that go with the model
MLLT_BEFORE: Final = (3, 5, 7, 9)  # iterations: early, while there are few Gaussians
FMLLR_BEFORE: Final = (1, 2, 4)  # iterations: the model follows the speakers, they the model
T = TypeVar("T")


@dataclass(frozen=True)
class GMMOptions:
    """How the GMM-HMM is trained."""

    senones: int = 0  # 0: by the amount of speech, see `usual_senones`
    mono_iterations: int = 10
    mono_gaussians: int = 4  # per state at the end, on average
    mono_hours: float = 1.0  # of speech are enough for monophones, but for their last iteration
    tri_iterations: int = 9
    tri_gaussians: int = 10  # per senone at the end, on average
    realign_every: int = 3  # triphone iterations
    lda: bool = True  # a step with LDA and MLLT after the triphones with deltas
    lda_dims: int = 40
    lda_iterations: int = 13
    lda_gaussians: int = 15  # per senone at the end, on average
    sat: bool = False  # a step with transforms for speakers (fMLLR) after LDA and MLLT
    sat_iterations: int = 6

    def __post_init__(self) -> None:
        for key in (
            "mono_iterations", "mono_gaussians", "tri_iterations", "tri_gaussians",
            "realign_every", "lda_dims", "lda_iterations", "lda_gaussians", "sat_iterations",
        ):  # fmt: skip
            require(getattr(self, key) >= 1, f"{key} must be at least 1, not {getattr(self, key)}")
        require(self.mono_hours > 0, f"mono_hours must be above 0, not {self.mono_hours}")
        require(self.senones >= 0, f"senones must be at least 1, not {self.senones}")
        require(
            self.lda or not self.sat, "speakers are adapted after LDA + MLLT: leave out --no-lda"
        )

    @property
    def steps(self) -> tuple[str, ...]:
        """The GMM-HMMs that are trained, one on the alignment of the other."""
        return ("mono", "tri") + ("lda",) * self.lda + ("sat",) * self.sat


def usual_senones(hours: float, num_phones: int) -> int:
    """Return how many senones so much speech is worth.

    About 1,500 on 6 hours and 250 on half an hour, as the power law between Kaldi's recipes for
    corpora of different sizes; at least one for every state of every phone.
    """
    return max(num_phones * NUM_STATES, round(float(400 * hours**0.7)))


def collect(
    what: Pass,
    numbers: NDArray[np.int64],
    *,
    realign: bool,
    title: str,
    jobs: int,
    show: bool,
) -> Aligned:
    """Run one pass with a model, with or without aligning again, and add up its pieces."""
    function = alignment.align_piece if realign else alignment.keep_piece
    total: Aligned | None = None
    for answer in run_pass(function, what, numbers, title=title, jobs=jobs, show=show):
        if total is None:
            total = answer
        else:
            total.add_(answer)
    assert total is not None
    if total.moments.frames == 0:
        name, why = next(iter(total.failed.items()))
        raise SpeechError(f"not one utterance could be aligned; for example {name}: {why}")
    return total


@dataclass
class Trainer:
    """Trains in a folder, over the utterances of one corpus."""

    name: str
    corpus: Corpus
    numbers: NDArray[np.int64]
    folder: Path
    options: GMMOptions
    jobs: int
    show: bool
    say: Callable[[str], None]
    speakers: Path | None = None  # the newest transforms of the speakers

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if len(self.numbers) == 0:
            raise SpeechError("no utterance can be aligned: see the ones that were left out")

    # ------------------------------------------------------------------ the two stages

    def monophones(self) -> GMMHMM:
        """Train monophones from the flat start; the last iteration aligns all utterances."""
        everything, self.numbers = self.numbers, self._some_hours()
        iterations = self.options.mono_iterations
        done, model = self._resume()
        if model is None:
            model = self._flat_start()
            self._save(model, 0)
        target = self.options.mono_gaussians * model.senones.num_pdfs
        for iteration in range(done + 1, iterations + 1):
            if iteration == iterations:
                self.numbers = everything
            model = self._iterate(model, iteration, iterations, target, realign=True)
        return model

    def _some_hours(self) -> NDArray[np.int64]:
        """Return evenly spaced utterances: about `mono_hours` of speech, or all."""
        frames = int(self.corpus.open().frames[self.numbers].sum())
        every = max(1, round(frames / (360_000 * self.options.mono_hours)))
        return self.numbers[::every]

    def triphones(self, start: GMMHMM, alignment_path: Path) -> GMMHMM:
        """Grow the tree on an alignment by `start`, and train its senones."""
        options = self.options
        return self._tied_states(
            start,
            alignment_path,
            lambda: start.front,
            iterations=options.tri_iterations,
            gaussians=options.tri_gaussians,
        )

    def decorrelated(self, start: GMMHMM, alignment_path: Path) -> GMMHMM:
        """Do the same on splices transformed by LDA, and improve the transform by MLLT."""

        def front() -> Front:
            what = Pass(self.corpus, alignment_path, alignment_path.parent)
            parts = self._run(lda.scatter_piece, what, "LDA")
            return lda.lda_front(parts, self.corpus.open().dims, self.options.lda_dims)

        return self._tied_states(
            start,
            alignment_path,
            front,
            MLLT_BEFORE,
            iterations=self.options.lda_iterations,
            gaussians=self.options.lda_gaussians,
        )

    def adapted(self, start: GMMHMM, alignment_path: Path) -> GMMHMM:
        """Train on with a transform for every speaker; the last ones go with the last model."""
        done, model = self._resume()
        if model is None:
            model = start
            shutil.copyfile(alignment_path, self.alignment)
            self._save(model, 0)
        iterations = self.options.sat_iterations
        for iteration in range(1, iterations + 1):
            if iteration in FMLLR_BEFORE:
                self._adapt(self.folder / f"speakers-{iteration}.npy")
            if iteration > done:
                realign = iteration % self.options.realign_every == 0
                model = self._iterate(model, iteration, iterations, None, realign=realign)
        self._adapt(self.folder / SPEAKERS)
        return model

    def _adapt(self, path: Path) -> None:
        """Make the speakers' transforms, unless an interrupted call has made them."""
        if not path.exists():
            known = fmllr.AlignedSpeakers(self.corpus, self.folder, self.alignment, self.speakers)
            title = f"{self.name}: speakers"
            fmllr.write_transforms(path, known, title=title, jobs=self.jobs, show=self.show)
        self.speakers = path

    def _tied_states(
        self,
        start: GMMHMM,
        alignment_path: Path,
        front: Callable[[], Front],
        mllt_before: Sequence[int] = (),
        *,
        iterations: int,
        gaussians: int,
    ) -> GMMHMM:
        done, model = self._resume()
        if model is None:
            model = self._tied(start, alignment_path, front())
            self._save(model, 0)
        target = gaussians * model.senones.num_pdfs
        for iteration in range(done + 1, iterations + 1):
            if iteration in mllt_before and not self._facts(iteration - 1).get("mllt"):
                model = self._mllt(model, iteration - 1)
            # The first alignment must be the new model's own: the old one names other pdfs.
            realign = iteration == 1 or iteration % self.options.realign_every == 0
            model = self._iterate(model, iteration, iterations, target, realign=realign)
        return model

    # ------------------------------------------------------------------ steps

    @property
    def alignment(self) -> Path:
        """The file with the newest model's alignment of the training utterances."""
        return self.folder / "alignment.npy"

    def _flat_start(self) -> GMMHMM:
        alignment.new_alignment(self.alignment, self.corpus.open())
        what = Pass(self.corpus, self.alignment)
        stats = ContextStats.merged(list(self._run(alignment.flat_piece, what, "statistics")))
        count = stats.count.sum()
        mean = stats.first.sum(0) / count
        deviation = np.sqrt(np.maximum(stats.second.sum(0) / count - mean**2, 1e-10))
        scale = 1 / deviation
        senones = Senones.monophone(self.corpus.pronunciations().phones)
        stats.first *= scale
        stats.second *= scale**2
        mixtures, _ = _by_pdf(stats, senones)
        loop = np.full(senones.num_pdfs, FIRST_LOOP)
        return GMMHMM(senones, mixtures, loop, deltas(self.corpus.open().dims).scaled(scale))

    def _tied(self, start: GMMHMM, alignment_path: Path, front: Front) -> GMMHMM:
        what = Pass(self.corpus, alignment_path, alignment_path.parent)
        function = partial(alignment.context_piece, front=front)
        stats = ContextStats.merged(list(self._run(function, what, "statistics")))
        senones = grow(start.senones.phones, stats, self.options.senones)
        if senones.num_pdfs < self.options.senones:
            self.say(
                f"the data gives {senones.num_pdfs} senones, not {self.options.senones}: further "
                "splits would leave too few frames"
            )
        mixtures, owner_rows = _by_pdf(stats, senones)
        loop = np.full(senones.num_pdfs, FIRST_LOOP)
        for pdf, (centre, state, left, right) in owner_rows.items():
            loop[pdf] = start.loop[start.senones.pdfs(left, centre, right)[state]]
        alignment.new_alignment(self.alignment, self.corpus.open())
        return GMMHMM(senones, mixtures, loop, front)

    def _mllt(self, model: GMMHMM, done: int) -> GMMHMM:
        """Decorrelate what the model sees; the iteration before is marked, so it is done once."""
        what = Pass(self.corpus, self.alignment, self.folder)
        total: lda.CovarianceSums | None = None
        for part in self._run(lda.covariance_piece, what, "MLLT"):
            if total is None:
                total = part
            else:
                total.add_(part)
        assert total is not None
        model = lda.transformed(model, lda.mllt(total))
        self._save(model, done, self._facts(done) | {"mllt": True})
        return model

    def _run(
        self, function: Callable[[Pass, Sequence[int]], T], what: Pass, title: str
    ) -> Iterator[T]:
        title = f"{self.name}: {title}"
        return run_pass(function, what, self.numbers, title=title, jobs=self.jobs, show=self.show)

    def _iterate(
        self, model: GMMHMM, iteration: int, iterations: int, target: int | None, *, realign: bool
    ) -> GMMHMM:
        """Collect, re-estimate, and add Gaussians on the way to `target`, if there is one."""
        title = f"{self.name} {iteration}/{iterations}"
        what = Pass(self.corpus, self.alignment, self.folder, self.speakers)
        answer = collect(
            what, self.numbers, realign=realign, title=title, jobs=self.jobs, show=self.show
        )
        mixtures = gmm.update(model.gmm, answer.moments)
        last_growth = max(1, iterations - 3)  # the last iterations add none
        if target is not None and iteration <= last_growth:
            base = model.senones.num_pdfs
            wanted = base + (target - base) * iteration // last_growth
            mixtures = gmm.split(mixtures, answer.moments.count.sum(1), wanted)
        model = GMMHMM(model.senones, mixtures, answer.loop(), model.front)
        facts = {
            "log_likelihood": answer.moments.log_likelihood / max(1, answer.moments.frames),
            "frames": answer.moments.frames,
            "gaussians": mixtures.num_gaussians,
            "failed": len(answer.failed),
        }
        self._save(model, iteration, facts)
        return model

    # ------------------------------------------------------------------ saving and resuming

    def _facts(self, iteration: int) -> dict[str, Any]:
        log = self.folder / "iterations.json"
        with well_formed(log):
            return dict(_iterations(log)[iteration])

    def _resume(self) -> tuple[int, GMMHMM | None]:
        log = self.folder / "iterations.json"
        if not log.exists():
            return 0, None
        return len(_iterations(log)) - 1, GMMHMM.load(self.folder)

    def _save(self, model: GMMHMM, iteration: int, facts: dict[str, Any] | None = None) -> None:
        model.save(self.folder)
        log = self.folder / "iterations.json"
        rows = _iterations(log)[:iteration] if log.exists() else []
        log.write_text(json.dumps([*rows, facts or {}], indent=1))


def _iterations(log: Path) -> list[Any]:
    """Return what is known of the iterations so far."""
    rows = read_json(log)
    if not isinstance(rows, list) or not rows:
        raise UnreadableError.of(log, f"it lists no iterations: delete {log.parent} to train again")
    return rows


def _by_pdf(stats: ContextStats, senones: Senones) -> tuple[GMM, dict[int, list[int]]]:
    """Return one Gaussian per pdf, and one context that leads to each pdf."""
    count = np.zeros(senones.num_pdfs)
    first, second = (np.zeros((senones.num_pdfs, stats.first.shape[1])) for _ in range(2))
    contexts: dict[int, list[int]] = {}
    for row, key in enumerate(stats.keys.tolist()):
        centre, state, left, right = key
        pdf = senones.pdfs(left, centre, right)[state]
        count[pdf] += stats.count[row]
        first[pdf] += stats.first[row]
        second[pdf] += stats.second[row]
        contexts[pdf] = key
    return gmm.single_gaussians(count, first, second), contexts
