"""A GMM-HMM from scratch: flat start, monophones, a tree, triphones, an alignment.

This is the classical first half of a hybrid system, by maximum likelihood (the published tables
often give a discriminatively trained GMM, BMMI, as their baseline: that is stronger). Its
alignments are the DNN's labels.

    flat start   frames shared out evenly among the states of the transcript
    monophones   align, re-estimate, add Gaussians; over and over
    tree         triphone states tied to so many senones (see `senones.py`)
    triphones    re-estimate with more Gaussians, realigning now and then
    alignment    once more with the final model

Every iteration leaves a complete model in its folder, so interrupted training goes on with the next.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hocket.errors import require
from hocket.speech import alignment, gmm
from hocket.speech.alignment import GMMHMM, Aligned, Corpus, Pass, run_pass
from hocket.speech.errors import SpeechError
from hocket.speech.senones import ContextStats, Senones, grow

FIRST_LOOP: Final = 0.75


@dataclass(frozen=True)
class GMMOptions:
    """How the GMM-HMM is trained."""

    senones: int = 200
    mono_iterations: int = 12
    mono_gaussians: int = 6  # per state at the end, on average
    tri_iterations: int = 12
    tri_gaussians: int = 10  # per senone at the end, on average
    realign_every: int = 3  # triphone iterations

    def __post_init__(self) -> None:
        for key in (
            "senones", "mono_iterations", "mono_gaussians", "tri_iterations", "tri_gaussians",
            "realign_every",
        ):  # fmt: skip
            require(getattr(self, key) >= 1, f"{key} must be at least 1, not {getattr(self, key)}")


@dataclass
class Trainer:
    """Trains in a folder, over the utterances of one corpus."""

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

    def align(self, model_folder: Path) -> dict[str, str]:
        """Align with a finished model; return the utterances for which there is no alignment."""
        answer = self._collect(model_folder, realign=True, title="aligning")
        return answer.failed

    # ------------------------------------------------------------------ steps

    @property
    def alignment(self) -> Path:
        """The alignment of the training utterances by the newest model."""
        return self.folder / "alignment.npy"

    def _flat_start(self) -> GMMHMM:
        alignment.new_alignment(self.alignment, self.corpus.open())
        parts = list(self._pieces(alignment.flat_piece, None, "flat start"))
        stats = ContextStats.merged(parts)
        count = stats.count.sum()
        mean = stats.first.sum(0) / count
        deviation = np.sqrt(np.maximum(stats.second.sum(0) / count - mean**2, 1e-10))
        scale = 1 / deviation
        senones = Senones.monophone(self.corpus.pronunciations().phones)
        moments = [np.zeros(senones.num_pdfs), *(np.zeros((senones.num_pdfs, len(scale))),) * 2]
        moments = [m.copy() for m in moments]
        for row, (phone, state, _, _) in enumerate(stats.keys):
            pdf = (phone - 1) * 3 + state
            moments[0][pdf] += stats.count[row]
            moments[1][pdf] += stats.first[row] * scale
            moments[2][pdf] += stats.second[row] * scale**2
        first = gmm.single_gaussians(*moments)
        loop = np.full(senones.num_pdfs, FIRST_LOOP)
        return GMMHMM(senones, first, loop, scale.astype(np.float32))

    def _tied(self, start: GMMHMM, alignment_path: Path) -> GMMHMM:
        what = Pass(self.corpus, alignment_path, alignment_path.parent)
        parts = list(
            run_pass(
                alignment.context_piece,
                what,
                self.numbers,
                title="tree statistics",
                jobs=self.jobs,
                show=self.show,
            )
        )
        stats = ContextStats.merged(parts)
        senones = grow(start.senones.phones, stats, self.options.senones)
        if senones.num_pdfs < self.options.senones:
            self.say(
                f"the data gives {senones.num_pdfs} senones, not {self.options.senones}: further "
                "splits would leave too few frames"
            )
        count = np.zeros(senones.num_pdfs)
        first, second = (np.zeros((senones.num_pdfs, stats.first.shape[1])) for _ in range(2))
        loop = np.full(senones.num_pdfs, FIRST_LOOP)
        for row, (centre, state, left, right) in enumerate(stats.keys.tolist()):
            pdf = senones.pdfs(left, centre, right)[state]
            count[pdf] += stats.count[row]
            first[pdf] += stats.first[row]
            second[pdf] += stats.second[row]
            loop[pdf] = start.loop[start.senones.pdfs(left, centre, right)[state]]
        alignment.new_alignment(self.alignment, self.corpus.open())
        return GMMHMM(senones, gmm.single_gaussians(count, first, second), loop, start.scale)

    def _iterate(
        self, model: GMMHMM, iteration: int, iterations: int, target: int, *, realign: bool
    ) -> GMMHMM:
        """Collect, re-estimate, and add Gaussians on the way to `target`."""
        title = f"{self.folder.name} {iteration}/{iterations}"
        answer = self._collect(self.folder, realign=realign, title=title)
        mixtures = gmm.update(model.gmm, answer.moments)
        last_growth = max(1, iterations - 3)  # the last iterations settle
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

    def _collect(self, model: Path, *, realign: bool, title: str) -> Aligned:
        function = alignment.align_piece if realign else alignment.keep_piece
        total: Aligned | None = None
        for answer in self._pieces(function, model, title):
            if total is None:
                total = answer
            else:
                total.add_(answer)
        assert total is not None
        if total.moments.frames == 0:
            first = next(iter(total.failed.items()))
            raise SpeechError(f"not one utterance could be aligned; for example {first}")
        return total

    def _pieces(self, function: Any, model: Path | None, title: str) -> Any:
        what = Pass(self.corpus, self.alignment, model)
        return run_pass(
            function, what, self.numbers, title=title, jobs=self.jobs, show=self.show
        )

    # ------------------------------------------------------------------ keeping

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
