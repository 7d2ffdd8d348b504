"""From a data directory to a prepared experiment, step by step.

    EXP/data/             the utterances of each split, and those left out
    EXP/features/         memory-mapped features of each split: mfcc, and what networks read
    EXP/lexicon/          pronunciations
    EXP/mono/ tri/ lda/   GMM-HMMs; sat/: the one with transforms for speakers, on request
    EXP/alignment/        the senone of every frame of train and dev, and the senones' priors
    EXP/graph/            the decoding graph
    EXP/gmm/              the word error rate of the last GMM-HMM; gmm-tri/: that of another one
    EXP/train.toml        the settings that networks on this experiment begin with
    EXP/left_out.txt      every utterance that was left out, and why

A step is done again only if its inputs or options have changed (see `steps.py`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from hocket.speech.decode.decoding import Decoder, GMMScorer
from hocket.speech.decode.evaluation import Evaluation, evaluate, read_text
from hocket.speech.errors import SpeechError
from hocket.speech.gmm import alignment, fmllr
from hocket.speech.gmm.alignment import GMMHMM, Pass
from hocket.speech.gmm.reference import agreement
from hocket.speech.gmm.training import SPEAKERS, Trainer, collect, usual_senones
from hocket.speech.graph.arpa import check_arpa
from hocket.speech.graph.graph import decoding_graph
from hocket.speech.graph.language import LanguageSource, extended
from hocket.speech.graph.lexicon import check_lexicon, read_lexicon
from hocket.speech.graph.senones import Senones
from hocket.speech.input.datadir import numbered_lines, reasons
from hocket.speech.options import PrepareOptions
from hocket.speech.stages import VERSION, Stages, with_reasons
from hocket.speech.steps import Facts, Steps, file_state
from hocket.speech.usual import write_usual_settings
from hocket.support.files import write_lines
from hocket.support.inputs import TABLE_LIMIT, read_table
from hocket.support.ownership import owned
from hocket.support.progress import print_line

__all__ = ["Preparation", "PrepareOptions"]

STEPS: Final = (
    "data", "features", "lexicon", "mono", "tri", "lda", "sat", "alignment", "graph", "gmm",
)  # fmt: skip

SYSTEMS: Final = {
    "mono": "GMM-HMM (monophones)",
    "tri": "GMM-HMM (maximum likelihood)",
    "lda": "GMM-HMM (LDA + MLLT)",
    "sat": "GMM-HMM (LDA + MLLT, adapted to speakers)",
}


@dataclass
class Preparation(Stages):
    """One call of `hocket prepare`."""

    def run(self) -> Evaluation:
        """Run all steps; return how well the last GMM-HMM recognises."""
        if not self.source.exists():
            raise SpeechError(f"{self.source}: no such folder")
        self._check_language()
        self.folder.mkdir(parents=True, exist_ok=True)
        with owned(self.folder, "hocket prepare", print_line):
            return self._run_steps()

    def _run_steps(self) -> Evaluation:
        scored = [step for step in self.options.gmm.steps if self._is_scored(step)]
        total = len(("data", "features", "lexicon", "alignment", "graph", "gmm"))
        self.steps = Steps(
            self.folder, self.say, total=total + len(self.options.gmm.steps) + len(scored)
        )
        self.steps.refuse_foreign((*STEPS, *(f"gmm-{step}" for step in scored)))
        self.steps.run("data", self._data_inputs(), (), self._data)
        self.steps.run("features", self._feature_inputs(), ("data",), self._features)
        self.steps.run("lexicon", self._lexicon_inputs(), ("features",), self._lexicon)
        self._write_left_out()
        self._train()
        for step in scored:
            inputs = self._language_inputs() | {"units": self.options.units}
            self.steps.run(f"gmm-{step}", inputs, (step,), partial(self._other, step))
        self.steps.run("alignment", {"version": VERSION}, (self.last,), self._alignment)
        self.steps.run("graph", self._language_inputs(), (self.last,), self._graph)
        heard = ("gmm-lda",) if self.last == "sat" else ()
        self.steps.run(
            "gmm",
            {"version": VERSION, "units": self.options.units},
            ("graph", *heard),
            self._gmm,
        )
        self._write_left_out()
        write_usual_settings(
            self.folder, self.store("train").seconds / 3600, self.options.features[0]
        )
        return Evaluation.read(self.folder / "gmm")

    def _is_scored(self, step: str) -> bool:
        """True of a GMM-HMM before the last one that is scored, too.

        Speakers are adapted to what the step before has recognised.
        """
        wanted = step in self.options.score_steps or (step == "lda" and self.last == "sat")
        return wanted and step != self.last

    @property
    def last(self) -> str:
        """The GMM-HMM whose senones and alignment networks get."""
        return self.options.gmm.steps[-1]

    def _check_language(self) -> None:
        """Check the files that the last steps need before the first step begins."""
        check_lexicon(self.options.lexicon)
        if (self.folder / "graph").exists():  # they were read before; `_graph` finds changes
            return
        if self.options.arpa:
            check_arpa(Path(self.options.arpa))
        if self.options.lm_text:
            for _ in numbered_lines(Path(self.options.lm_text)):
                pass

    # ------------------------------------------------------------------ GMM-HMM

    def _train(self) -> None:
        gmm = asdict(self.options.gmm)
        mono = {k: gmm[k] for k in ("mono_iterations", "mono_gaussians", "mono_hours")}
        both = {"normalisation": self.options.normalisation, "version": VERSION}
        tri = {k: v for k, v in gmm.items() if not k.startswith(("lda", "sat"))}
        lda = {k: v for k, v in gmm.items() if not k.startswith("sat")}
        self.steps.run("mono", mono | both, ("lexicon",), self._mono)
        self.steps.run("tri", tri, ("mono",), self._tri)
        if self.options.gmm.lda:
            self.steps.run("lda", lda, ("tri",), self._lda)
        if self.options.gmm.sat:
            self.steps.run("sat", gmm, ("lda",), self._sat)

    def _trainer(self, name: str, out: Path) -> Trainer:
        corpus = self.corpus("train")
        numbers, _ = alignment.usable(corpus)
        options = self.options.gmm
        if not options.senones:
            hours = float(corpus.open().frames[numbers].sum()) / 360_000
            phones = len(corpus.pronunciations().phones)
            options = replace(options, senones=usual_senones(hours, phones))
        title = self.steps.title(name)
        return Trainer(title, corpus, numbers, out, options, self.jobs, self.show, self.say)

    def _mono(self, out: Path) -> Facts:
        model = self._trainer("mono", out).monophones()
        states, gaussians = model.senones.num_pdfs, model.gmm.num_gaussians
        return {"said": f"{states} monophone states, {gaussians:,} Gaussians"}

    def _tri(self, out: Path) -> Facts:
        start = GMMHMM.load(self.folder / "mono")
        previous = self.folder / "mono" / "alignment.npy"
        return _tied(self._trainer("tri", out).triphones(start, previous))

    def _lda(self, out: Path) -> Facts:
        start = GMMHMM.load(self.folder / "tri")
        previous = self.folder / "tri" / "alignment.npy"
        return _tied(self._trainer("lda", out).decorrelated(start, previous))

    def _sat(self, out: Path) -> Facts:
        start = GMMHMM.load(self.folder / "lda")
        previous = self.folder / "lda" / "alignment.npy"
        model = self._trainer("sat", out).adapted(start, previous)
        return _tied(model)

    def _adapt(
        self, out: Path, split: str, step: str, heard: dict[str, list[str]] | None = None
    ) -> Path:
        """Transform the features of a split's speakers, by what was said or, else, recognised.

        Their transforms are OUT/SPLIT.npy.
        """
        corpus, store = self.corpus(split), self.store(split)
        words = store.words if heard is None else [heard[name] for name in store.ids]
        if heard is not None:
            found = extended(
                corpus.pronunciations(),
                {w for sentence in words for w in sentence},
                frozenset(GMMHMM.load(self.folder / "sat").senones.phones),
                self.options.lexicon,
            )
            found.write(out / "lexicon.txt")
            corpus = replace(corpus, lexicon=out / "lexicon.txt")
        models = (self.folder / "lda", self.folder / "sat")
        what = fmllr.HeardSpeakers(corpus, tuple(map(tuple, words)), models)
        path = out / f"{split}.npy"
        title = f"{self.steps.title(step)}: speakers of {split}"
        fmllr.write_transforms(path, what, title=title, jobs=self.jobs, show=self.show)
        return path

    def _speakers(self, out: Path, split: str) -> Path | None:
        """Return the transforms with which a split is aligned."""
        if self.last != "sat":
            return None
        if split == "train":
            return self.folder / "sat" / SPEAKERS
        (out / "speakers").mkdir(exist_ok=True)
        return self._adapt(out / "speakers", split, "alignment")

    def _alignment(self, out: Path) -> Facts:
        model = self.folder / self.last
        senones = Senones.read(model / "tree.json")
        left_out: dict[str, str] = {}
        frames = {}
        for split in ("train", "dev"):
            corpus, path = self.corpus(split), out / f"{split}.npy"
            numbers, unusable = alignment.usable(corpus)
            alignment.new_alignment(path, corpus.open())
            if len(numbers) == 0:
                raise SpeechError(f"no utterance of {split} can be aligned: {reasons(unusable)}")
            what = Pass(corpus, path, model, self._speakers(out, split))
            found = collect(
                what,
                numbers,
                realign=True,
                title=f"{self.steps.title('alignment')}: {split}",
                jobs=self.jobs,
                show=self.show,
            )
            left_out |= unusable | found.failed
            frames[split] = found.moments.frames
            if split == "train":
                np.save(out / "priors.npy", (found.frames + 1) / (found.frames + 1).sum())
        facts: Facts = {"senones": senones.num_pdfs, "frames": frames, "left_out": left_out}
        said = ", ".join(f"{n:,} frames of {split}" for split, n in frames.items())
        found_agreement = agreement(
            self.source / "train" / "phones.ctm", out / "train.npy", self.store("train"), senones
        )
        if found_agreement is not None:
            said += f"; {found_agreement}"
            facts["agreement"] = asdict(found_agreement)
        return facts | {"said": with_reasons(said, left_out)}

    # ------------------------------------------------------------------ decoding

    def _language_inputs(self) -> Facts:
        facts: Facts = {"lm_order": self.options.lm_order, "version": VERSION}
        for key in ("lm_text", "arpa"):
            path = getattr(self.options, key)
            if path:
                facts[key] = file_state(Path(path))
        return facts

    def _graph(self, out: Path) -> Facts:
        return self._write_graph(self.folder / self.last, out)

    def _write_graph(self, folder: Path, out: Path) -> Facts:
        acoustic = read_lexicon(self.folder / "lexicon" / "lexicon.txt")
        model = GMMHMM.load(folder)
        source = LanguageSource(
            self.options.lm_order, self.options.lm_text, self.options.arpa, self.options.units
        )
        language, lexicon = source.model(
            self.store("train").words, acoustic, model.senones.phones, self.options.lexicon
        )
        graph = decoding_graph(lexicon, language, model.senones, model.loop)
        graph.write(out)
        facts: Facts = {"words": len(graph.words), "states": graph.fst.num_states}
        said = f"{len(graph.words):,} words, {language.order}-gram, {graph.fst.num_states:,} states"
        if "test" in self._splits():
            tokens = [w for words in self.store("test").words for w in words]
            known = set(graph.words)
            unknown = [w for w in tokens if w not in known]
            facts["unknown_share"] = len(unknown) / len(tokens)
            if unknown:
                share = len(unknown) / len(tokens)
                said += f"; {share:.1%} of the test words are unknown (for example {unknown[0]!r})"
        return facts | {"said": said}

    def _gmm(self, out: Path) -> Facts:
        return self._scored(self.last, "gmm", self.folder / "graph", out)

    def _other(self, step: str, out: Path) -> Facts:
        """Score a GMM-HMM that is not the last one, with a graph of its own."""
        graph = out / "graph"
        graph.mkdir(exist_ok=True)
        self._write_graph(self.folder / step, graph)
        return self._scored(step, f"gmm-{step}", graph, out)

    def _scored(self, step: str, name: str, graph: Path, out: Path) -> Facts:
        title = self.steps.title(name)
        speakers = out / "speakers" if step == "sat" else None
        if speakers is not None:
            speakers.mkdir(exist_ok=True)
            for held_out in sorted({"dev", "test"} & set(self._splits())):
                heard = read_text(self.folder / "gmm-lda" / f"{held_out}.hyp")
                self._adapt(speakers, held_out, name, heard)
        scorer = GMMScorer(
            self.folder / "features", self.folder / step, self.options.normalisation, speakers
        )
        unit = self.options.units
        decoder = Decoder(scorer, graph, jobs=self.jobs, show=self.show, unit=unit, step=title)
        split = "test" if "test" in self._splits() else None
        found = evaluate(decoder, out, SYSTEMS[step], split)
        dev = f"dev {found.dev.errors.rate:.2%}, " if found.split != "dev" else ""
        return {"said": f"{SYSTEMS[step]}: {dev}{found.split} {found.score}"}

    def _write_left_out(self) -> None:
        rows = []
        for name in ("data", "features", "lexicon", "alignment"):
            path = self.folder / name / "step.json"
            if path.exists():
                left_out = read_table(path, TABLE_LIMIT)["facts"].get("left_out", {})
                rows += [f"{utterance}\t{name}\t{why}\n" for utterance, why in left_out.items()]
        write_lines(self.folder / "left_out.txt", rows)


def _tied(model: GMMHMM) -> Facts:
    senones, gaussians = model.senones.num_pdfs, model.gmm.num_gaussians
    return {"said": f"{senones} senones, {gaussians:,} Gaussians", "senones": senones}
