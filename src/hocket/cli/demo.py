"""`hocket demo`: from synthesised audio to word error rates, with one learner and with two."""

from __future__ import annotations

import time
from pathlib import Path

from hocket import api
from hocket.cli.demo_synthetic import cleared, narrow_table, opened, whole
from hocket.models.dnn import DNN
from hocket.report import page
from hocket.report.runs import read_errors, read_run
from hocket.speech.corpus.build import build
from hocket.speech.corpus.options import CorpusOptions
from hocket.speech.decode.comparison import compare
from hocket.speech.decode.decoding import Search
from hocket.speech.decode.evaluation import Evaluation, read_text
from hocket.speech.decode.recognition import decode_run, task_of
from hocket.speech.gmm.training import GMMOptions
from hocket.speech.prepare import Preparation, PrepareOptions
from hocket.speech.task import SpeechTask
from hocket.support.parallel import default_jobs
from hocket.support.progress import printer

CORPUS = CorpusOptions("digits", hours=0.7, held_out_hours=0.3, snr_db=(5.0, 20.0))
PREPARE = PrepareOptions(lm_order=2, gmm=GMMOptions(senones=150), score_steps=("tri",))
TARGET_LOSS = 1.9
RUNS = (("sequential", 1), ("kstep", 2))


def run(out: Path) -> int:
    """Synthesise speech, prepare it, train twice, decode, and compare the word error rates."""
    opened(out)
    console = printer()
    began = time.monotonic()

    def step(text: str) -> None:
        console.print(f"{text}  ({time.monotonic() - began:.0f} s)", style="bold")

    step(f"Synthesising {CORPUS.hours:g} hours of spoken digits in noise")
    facts = build(CORPUS, out / "data")
    step("Preparing: features, GMM-HMM, alignment, decoding graph")
    experiment = out / "experiment"
    best = Preparation(out / "data", experiment, PREPARE).run()
    for strategy, learners in RUNS:
        step(f"Training: {strategy}, {learners} learner(s)")
        folder = _train(experiment, strategy, learners, out)
        step(f"Decoding: {strategy}")
        decode_run(folder, split="test", jobs=default_jobs(), search=Search())
    records = [read_run(out / strategy) for strategy, _ in RUNS]
    gmm_errors = read_errors(experiment / "gmm-tri")
    table = narrow_table()
    for number, heading in enumerate(page.headings(TARGET_LOSS)):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for row in page.rows(records, gmm_errors, TARGET_LOSS):
        table.add_row(*row)
    console.print(table)
    for line in _verdicts(out, best):
        console.print(line)
    words, task = best.score.errors.words, _task(out)
    notes = [
        f"Connected digits by espeak-ng in rooms and noise ({_range(CORPUS.snr_db)} dB): "
        f"{facts['train']['hours']:.2f} h by {facts['train']['speakers']} speakers to train, "
        f"{words:,} words by {facts['test']['speakers']} other speakers to test.",
        f"A network with the usual settings: {_network(task)}, {2 * task.context + 1} frames of "
        f"{task.kind}, {task.num_senones} senones.",
        *_verdicts(out, best),
    ]
    page.write_page(
        out / "index.html",
        "Hocket: digits in noise, one learner and two",
        records,
        gmm=gmm_errors,
        target_loss=TARGET_LOSS,
        notes=notes,
    )
    step(f"Curves, word error rates and timelines: {out / 'index.html'}")
    return 0


def _range(values: tuple[float, float] | None) -> str:
    return "no" if values is None else f"{values[0]:g} to {values[1]:g}"


def _task(out: Path) -> SpeechTask:
    task = task_of(out / RUNS[0][0])
    assert isinstance(task, SpeechTask)
    return task


def _network(task: SpeechTask) -> str:
    model = task.model
    assert isinstance(model, DNN)
    return f"{model.layers} x {model.width} {model.activation}"


def _verdicts(out: Path, best: Evaluation) -> list[str]:
    """Say whether the network is better than the GMM-HMMs, by the paired bootstrap."""
    network = out / RUNS[0][0] / "decode"
    said = []
    for name, folder in (("deltas", "gmm-tri"), ("LDA + MLLT", "gmm")):
        refs, first, second = (
            read_text(path)
            for path in (
                network / "test.ref",
                out / "experiment" / folder / "test.hyp",
                network / "test.hyp",
            )
        )
        found = compare(refs, first, second)
        relative = found.difference / found.first
        said.append(
            f"GMM-HMM ({name}) {found.first:.1%}, {RUNS[0][0]} {found.second:.1%}: {relative:+.0%} "
            f"relative; {found}"
        )
    return said


def _train(experiment: Path, strategy: str, learners: int, out: Path) -> Path:
    """Train with the settings that the experiment brings along (its train.toml)."""
    folder = cleared(out / strategy)
    whole(
        api.train(
            str(experiment),
            strategy=strategy,
            learners=learners,
            evaluate_every=0.5,
            trace=True,
            out=folder,
        )
    )
    return folder
