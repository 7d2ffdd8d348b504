"""Recognition with a trained network: the run directory is all it needs.

    log p(x | senone) = log P(senone | x) - log P(senone) + a constant                   (1)

The posteriors are the network's. The priors are the senones' shares of the training frames, or the
network's mean posteriors over them (`hocket.speech.decode.priors`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from hocket.models import MODELS
from hocket.record.rundir import RunDirectory
from hocket.speech.decode.decoding import Decoder, Search
from hocket.speech.decode.evaluation import Evaluation, evaluate
from hocket.speech.decode.priors import Priors, mean_posteriors
from hocket.speech.errors import SpeechError
from hocket.speech.features.store import FeatureStore
from hocket.speech.task import SpeechTask
from hocket.support.progress import progress

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


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
        model.load_state_dict(load_file(RunDirectory(run).model_path))
    except (SafetensorError, RuntimeError) as error:
        raise SpeechError(
            f"{RunDirectory(run).model_path} cannot be read ({str(error)[:200]}): copy it again, "
            "or take the model of the last folder in checkpoints"
        ) from error
    model.eval()
    if priors == "posterior":
        shares = mean_posteriors(model, task)
    else:
        shares = np.load(task.folder / "alignment" / "priors.npy")
    return model, torch.from_numpy(np.log(shares)).float(), task.context


def task_of(run: Path) -> SpeechTask:
    """Return the task that a run was trained on."""
    directory = RunDirectory(run)
    settings = directory.table("task")
    if settings["name"] != "speech":
        raise SpeechError(
            f"{run} was trained on the task {settings['name']!r}, which has no words: decode "
            "a run of `hocket train EXP`"
        )
    if not directory.model_path.exists():
        raise SpeechError(
            f"{run} has no model yet: finish it with `hocket train --resume --out {run}`"
        )
    kind = MODELS[directory.table("model").get("name", "dnn")]
    model = kind(**_settings(directory, "model", kind))
    task = SpeechTask(**_settings(directory, "task", SpeechTask), model=model)
    trained_on, now = directory.table("facts")["prepared"], task.describe()["prepared"]
    if trained_on != now:
        raise SpeechError(
            f"{task.folder} was prepared again after {run} was trained, so its senones are "
            "different: train again, or prepare with the options it had then"
        )
    return task


def _settings(run: RunDirectory, table: str, kind: type[DataclassInstance]) -> dict[str, Any]:
    """Return the settings of a table; one that this version does not have is an error.

    Without it the network could not be rebuilt as it was trained.
    """
    found = {key: value for key, value in run.table(table).items() if key != "name"}
    unknown = sorted(found.keys() - {f.name for f in fields(kind)})
    if unknown:
        raise SpeechError(
            f"{run.config_path} sets {table}.{unknown[0]}, which this version of Hocket does not "
            f"have: decode with the version that trained it, {run.table('versions')['hocket']}"
        )
    return found


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
    tables = RunDirectory(run).config()
    name = f"{tables['strategy']['name']}, {tables['runtime']['learners']} learner(s)"
    gmm = task.folder / "gmm"
    unit = Evaluation.read(gmm).score.unit if gmm.is_dir() else "word"
    decoder = Decoder(NetworkScorer(run, priors), graph, search, jobs, show, unit)
    return evaluate(decoder, RunDirectory(run).decode_path, name, None if split == "dev" else split)
