"""Recognition with a trained network: the run directory is all it needs.

    log p(x | senone) = log P(senone | x) - log P(senone) + a constant                   (1)

The posteriors are the network's. The priors are the senones' shares of the training frames, or the
network's mean posteriors over them (`hocket.speech.decode.priors`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from hocket.models import MODELS
from hocket.speech.decode.decoding import Decoder, Search
from hocket.speech.decode.evaluation import Evaluation, evaluate
from hocket.speech.decode.priors import Priors, mean_posteriors
from hocket.speech.errors import SpeechError
from hocket.speech.features.store import FeatureStore
from hocket.speech.task import SpeechTask
from hocket.support.progress import progress


@dataclass(frozen=True)
class NetworkScorer:
    """Scores utterances with the final network of a run."""

    run: Path
    priors: Priors = "alignment"

    def store(self, split: str) -> FeatureStore:
        """Open the features the network was trained on."""
        return task_of(self.run).store(split)

    def scores(self, store: FeatureStore, number: int) -> NDArray[np.float32]:
        """Return eq. 1 for every frame and senone."""
        model, log_prior, context = _network(self.run, self.priors)
        frames = np.arange(store.frames[number])
        x = store.gather(np.full(len(frames), number), frames, context)
        with torch.inference_mode():
            posterior = torch.log_softmax(model(torch.from_numpy(x)), dim=1)
        likelihood: NDArray[np.float32] = (posterior - log_prior).numpy()  # eq. 1
        return likelihood


@lru_cache(maxsize=2)
def _network(run: Path, priors: Priors) -> tuple[nn.Module, torch.Tensor, int]:
    task = task_of(run)
    model = task.build_model()
    try:
        model.load_state_dict(load_file(run / "model.safetensors"))
    except (SafetensorError, RuntimeError) as error:
        raise SpeechError(
            f"{run / 'model.safetensors'} cannot be read ({str(error)[:200]}): copy it again, or "
            "take the model of the last folder in checkpoints"
        ) from error
    model.eval()
    if priors == "posterior":
        shares = mean_posteriors(model, task)
    else:
        shares = np.load(task.folder / "alignment" / "priors.npy")
    return model, torch.from_numpy(np.log(shares)).float(), task.context


def task_of(run: Path) -> SpeechTask:
    """Return the task that a run was trained on."""
    path = run / "config.json"
    try:
        tables = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SpeechError(f"{run} is not a run directory: {path.name} cannot be read") from error
    if not isinstance(tables, dict) or "task" not in tables:
        raise SpeechError(f"{run} is not a run directory: {path.name} has no task")
    if tables["task"]["name"] != "speech":
        raise SpeechError(
            f"{run} was trained on the task {tables['task']['name']!r}, which has no words: decode "
            "a run of `hocket train EXP`"
        )
    if not (run / "model.safetensors").exists():
        raise SpeechError(
            f"{run} has no model yet: finish it with `hocket train --resume --out {run}`"
        )
    kind = MODELS[tables["model"].get("name", "dnn")]
    model = kind(**_known(kind, tables["model"]))
    task = SpeechTask(**_known(SpeechTask, tables["task"]), model=model)
    trained_on, now = tables["facts"]["prepared"], task.describe()["prepared"]
    if trained_on != now:
        raise SpeechError(
            f"{task.folder} was prepared again after {run} was trained, so its senones are "
            "different: train again, or prepare with the options it had then"
        )
    return task


def _known(kind: Any, table: dict[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    return {key: value for key, value in table.items() if key in names}


def _chosen_split(task: SpeechTask, split: str | None) -> str:
    have = [s for s in ("dev", "test") if (task.folder / "features" / s).is_dir()]
    if split is None:
        split = have[-1]
    if split not in have:
        raise SpeechError(
            f"{task.folder} has no {split!r} split, only {' and '.join(have)}: prepare it from "
            f"data with a folder {split}, or give --split dev"
        )
    return split


def loglikes(
    run: Path, split: str | None, *, priors: Priors = "alignment", show: bool = True
) -> tuple[str, Iterator[tuple[str, NDArray[np.float32]]]]:
    """Return the split and each utterance's log-likelihoods (eq. 1), for use by other decoders."""
    split = _chosen_split(task_of(run), split)
    scorer = NetworkScorer(run, priors)
    store = scorer.store(split)

    def matrices() -> Iterator[tuple[str, NDArray[np.float32]]]:
        title = f"log-likelihoods of {split}"
        with progress(title, float(len(store)), unit="utterances", wanted=show) as advance:
            for number, name in enumerate(store.ids):
                yield name, scorer.scores(store, number)
                advance(1.0)

    return split, matrices()


def decode_run(
    run: Path,
    *,
    split: str | None,
    jobs: int,
    search: Search,
    show: bool = True,
    priors: Priors = "alignment",
) -> Evaluation:
    """Tune on dev, decode the split, and write the results to RUN/decode."""
    task = task_of(run)
    split = _chosen_split(task, split)
    graph = task.folder / "graph"
    if not (graph / "HCLG.fst").exists():
        raise SpeechError(
            f"{task.folder} has no decoding graph: finish it with `hocket prepare DATA --out "
            f"{task.folder}`, or, if it was imported from Kaldi, decode there: --write-loglikes"
        )
    tables = json.loads((run / "config.json").read_text())
    name = f"{tables['strategy']['name']}, {tables['runtime']['learners']} learner(s)"
    gmm = task.folder / "gmm"
    unit = Evaluation.read(gmm).score.unit if gmm.is_dir() else "word"
    decoder = Decoder(NetworkScorer(run, priors), graph, search, jobs, show, unit)
    return evaluate(decoder, run / "decode", name, None if split == "dev" else split)
