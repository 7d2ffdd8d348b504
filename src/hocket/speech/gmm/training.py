"""A GMM-HMM from scratch: flat start, monophones, a tree, triphones, an alignment.

This is the classical first half of a hybrid system, trained by maximum likelihood (the baseline in
published tables is often a discriminatively trained GMM, BMMI, which is stronger). Its alignments
are the DNN's labels.

    flat start   frames divided evenly among the states of the transcript
    monophones   align, re-estimate, add Gaussians; repeat
    tree         triphone states tied to a given number of senones (see `senones.py`)
    triphones    re-estimate with more Gaussians, realign every few iterations
    alignment    once more with the final model

Every iteration writes a complete model, so interrupted training continues with the next iteration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hocket.errors import require
from hocket.speech.errors import SpeechError
from hocket.speech.gmm import alignment, gmm
from hocket.speech.gmm.alignment import GMMHMM, Aligned, Corpus, Pass, run_pass
from hocket.speech.gmm.gmm import GMM
from hocket.speech.gmm.senones import ContextStats, Senones, grow

FIRST_LOOP: Final = 0.75


@dataclass(frozen=True)
class GMMOptions:
    """How the GMM-HMM is trained."""

    senones: int = 200
    mono_iterations: int = 10
    mono_gaussians: int = 4  # per state at the end, on average
    tri_iterations: int = 9
    tri_gaussians: int = 10  # per senone at the end, on average
    realign_every: int = 3  # triphone iterations

    def __post_init__(self) -> None:
        for key in (
            "senones", "mono_iterations", "mono_gaussians", "tri_iterations", "tri_gaussians",
            "realign_every",
        ):  # fmt: skip
            require(getattr(self, key) >= 1, f"{key} must be at least 1, not {getattr(self, key)}")


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

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if len(self.numbers) == 0:
            raise SpeechError("no utterance can be aligned: see the ones that were left out")

    # ------------------------------------------------------------------ the two stages

    def monophones(self) -> GMMHMM:
        """Train monophones from the flat start."""
        iterations = self.options.mono_iterations
        done, model = self._resume()
        if model is None:
            model = self._flat_start()
            self._save(model, 0)
        target = self.options.mono_gaussians * model.senones.num_pdfs
        for iteration in range(done + 1, iterations + 1):
            model = self._iterate(model, iteration, iterations, target, realign=True)
        return model

    def triphones(self, start: GMMHMM, alignment_path: Path) -> GMMHMM:
        """Grow the tree on an alignment by `start`, and train its senones."""
        iterations = self.options.tri_iterations
        done, model = self._resume()
        if model is None:
            model = self._tied(start, alignment_path)
            self._save(model, 0)
        target = self.options.tri_gaussians * model.senones.num_pdfs
        for iteration in range(done + 1, iterations + 1):
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
        parts = self._statistics(alignment.flat_piece, Pass(self.corpus, self.alignment))
        stats = ContextStats.merged(parts)
        count = stats.count.sum()
        mean = stats.first.sum(0) / count
        deviation = np.sqrt(np.maximum(stats.second.sum(0) / count - mean**2, 1e-10))
        scale = 1 / deviation
        senones = Senones.monophone(self.corpus.pronunciations().phones)
        stats.first *= scale
        stats.second *= scale**2
        mixtures, _ = _by_pdf(stats, senones)
        loop = np.full(senones.num_pdfs, FIRST_LOOP)
        return GMMHMM(senones, mixtures, loop, scale.astype(np.float32))

    def _tied(self, start: GMMHMM, alignment_path: Path) -> GMMHMM:
        what = Pass(self.corpus, alignment_path, alignment_path.parent)
        parts = self._statistics(alignment.context_piece, what)
        stats = ContextStats.merged(parts)
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
        return GMMHMM(senones, mixtures, loop, start.scale)

    def _statistics(
        self, function: Callable[[Pass, Sequence[int]], ContextStats], what: Pass
    ) -> list[ContextStats]:
        title = f"{self.name}: statistics"
        return list(
            run_pass(function, what, self.numbers, title=title, jobs=self.jobs, show=self.show)
        )

    def _iterate(
        self, model: GMMHMM, iteration: int, iterations: int, target: int, *, realign: bool
    ) -> GMMHMM:
        """Collect, re-estimate, and add Gaussians on the way to `target`."""
        title = f"{self.name} {iteration}/{iterations}"
        what = Pass(self.corpus, self.alignment, self.folder)
        answer = collect(
            what, self.numbers, realign=realign, title=title, jobs=self.jobs, show=self.show
        )
        mixtures = gmm.update(model.gmm, answer.moments)
        last_growth = max(1, iterations - 3)  # the last iterations add none
        if iteration <= last_growth:
            base = model.senones.num_pdfs
            wanted = base + (target - base) * iteration // last_growth
            mixtures = gmm.split(mixtures, answer.moments.count.sum(1), wanted)
        model = GMMHMM(model.senones, mixtures, answer.loop(), model.scale)
        facts = {
            "log_likelihood": answer.moments.log_likelihood / max(1, answer.moments.frames),
            "frames": answer.moments.frames,
            "gaussians": mixtures.num_gaussians,
            "failed": len(answer.failed),
        }
        self._save(model, iteration, facts)
        return model

    # ------------------------------------------------------------------ saving and resuming

    def _resume(self) -> tuple[int, GMMHMM | None]:
        log = self.folder / "iterations.json"
        if not log.exists():
            return 0, None
        return len(json.loads(log.read_text())) - 1, GMMHMM.load(self.folder)

    def _save(self, model: GMMHMM, iteration: int, facts: dict[str, Any] | None = None) -> None:
        model.save(self.folder)
        log = self.folder / "iterations.json"
        rows = json.loads(log.read_text())[:iteration] if log.exists() else []
        log.write_text(json.dumps([*rows, facts or {}], indent=1))


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
