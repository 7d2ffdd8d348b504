"""`hocket demo`: from synthesised audio to word error rates, with one learner and with two."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from hocket import api
from hocket.api import Result
from hocket.models.dnn import DNN
from hocket.optim import SGD, Exponential
from hocket.record.rundir import RunDirectory
from hocket.report import page
from hocket.report.runs import read_errors, read_run
from hocket.speech.corpus.build import build
from hocket.speech.corpus.options import CorpusOptions
from hocket.speech.decode.decoding import Search
from hocket.speech.decode.recognition import decode_run
from hocket.speech.gmm.training import GMMOptions
from hocket.speech.prepare import Preparation, PrepareOptions
from hocket.speech.task import SpeechTask
from hocket.support.parallel import default_jobs

CORPUS = CorpusOptions("digits", hours=0.7, held_out_hours=0.1, snr_db=(5.0, 20.0))
PREPARE = PrepareOptions(lm_order=2, gmm=GMMOptions(senones=150))
CONTEXT = 7  # frames on each side
MODEL = DNN(layers=3, width=256, dropout=0.15)
OPTIMIZER = SGD(lr=0.5)
SCHEDULE = Exponential(epochs=5, final_factor=0.03)
TARGET_LOSS = 1.9
RUNS = (("sequential", 1), ("kstep", 2))


def run(out: Path) -> int:
    """Synthesise speech, prepare it, train twice, decode, and compare the word error rates."""
    console = Console(soft_wrap=True)
    began = time.monotonic()

    def step(text: str) -> None:
        console.print(f"[bold]{text}[/bold]  [dim]({time.monotonic() - began:.0f} s)[/dim]")

    step(f"Synthesising {CORPUS.hours:g} hours of spoken digits in noise")
    facts = build(CORPUS, out / "data")
    step("Preparing: features, GMM-HMM, alignment, decoding graph")
    experiment = out / "experiment"
    gmm = Preparation(out / "data", experiment, PREPARE).run()
    for strategy, learners in RUNS:
        step(f"Training: {strategy}, {learners} learner(s)")
        folder = _train(experiment, strategy, learners, out)
        step(f"Decoding: {strategy}")
        decode_run(folder, split="test", jobs=default_jobs(), search=Search())
    records = [read_run(out / strategy) for strategy, _ in RUNS]
    gmm_errors = read_errors(experiment / "gmm" / "result.json")
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for number, heading in enumerate(page.headings(TARGET_LOSS)):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for row in page.rows(records, gmm_errors, TARGET_LOSS):
        table.add_row(*row)
    console.print(table)
    words = gmm.score.errors.words
    notes = [
        f"Connected digits by espeak-ng in rooms and noise ({_range(CORPUS.snr_db)} dB): "
        f"{facts['train']['hours']:.2f} h by {facts['train']['speakers']} speakers to train, "
        f"{words:,} words by {facts['test']['speakers']} other speakers to test.",
        f"A network of {MODEL.layers} x {MODEL.width} {MODEL.activation}, {2 * CONTEXT + 1} frames "
        f"of 13 cepstra, {_task(experiment).num_senones} senones; {SCHEDULE.epochs} epochs.",
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


def _task(experiment: Path) -> SpeechTask:
    return SpeechTask(str(experiment.resolve()), features="mfcc", context=CONTEXT, model=MODEL)


def _train(experiment: Path, strategy: str, learners: int, out: Path) -> Path:
    folder = out / strategy
    if RunDirectory(folder).is_run():  # only ever a run of an earlier demo
        shutil.rmtree(folder)
    result: Result = api.train(
        _task(experiment),
        strategy=strategy,
        learners=learners,
        optimizer=OPTIMIZER,
        schedule=SCHEDULE,
        evaluate_every=0.25,
        trace=True,
        out=folder,
    )
    if result.stopped:
        raise KeyboardInterrupt
    return folder
