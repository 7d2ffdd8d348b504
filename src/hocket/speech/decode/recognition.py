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
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hocket.core.limits import check_numbers
from hocket.errors import UnreadableError
from hocket.models import MODELS
from hocket.record.rundir import RunDirectory
from hocket.speech.chunk_task import SpeechChunks
from hocket.speech.decode.decoding import Decoder, Search
from hocket.speech.decode.evaluation import Evaluation, evaluate
from hocket.speech.decode.networks import AnySpeechTask, scores_of
from hocket.speech.decode.priors import Priors, mean_posteriors
from hocket.speech.errors import SpeechError
from hocket.speech.features.store import FeatureStore
from hocket.speech.task import SpeechTask
from hocket.support.arrays import read_array, read_tensors
from hocket.support.inputs import well_formed
from hocket.support.ownership import owned
from hocket.support.progress import print_line, progress

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TASKS: Final[dict[str, type[AnySpeechTask]]] = {
    "speech": SpeechTask,
    "speech-chunks": SpeechChunks,
}


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
        model, log_prior, task = network_of(self.run, self.priors)
        posterior = torch.log_softmax(scores_of(model, task, store, number), dim=1)
        likelihood: NDArray[np.float32] = (posterior - log_prior).numpy()  # eq. 1
        return likelihood


@lru_cache(maxsize=2)
def network_of(run: Path, priors: Priors) -> tuple[nn.Module, torch.Tensor, AnySpeechTask]:
    """Return a run's network, the logarithm of its priors, and the task it was trained on."""
    task = task_of(run)
    with well_formed(RunDirectory(run).config_path):
        model = task.build_model()
    try:
        model.load_state_dict(read_tensors(RunDirectory(run).model_path))
    except (UnreadableError, RuntimeError) as error:  # RuntimeError: of another model
        raise SpeechError(
            f"{RunDirectory(run).model_path} cannot be read ({str(error)[:200]}): copy it again, "
            "or take the model of the last folder in checkpoints"
        ) from error
    model.eval()
    shares = mean_posteriors(model, task) if priors == "posterior" else _shares(task)
    return model, torch.from_numpy(np.log(shares)).float(), task


def _shares(task: AnySpeechTask) -> NDArray[np.float64]:
    path = task.folder / "alignment" / "priors.npy"
    shares: NDArray[np.float64] = read_array(path, "float", 1)
    if shares.shape != (task.num_senones,) or not (np.isfinite(shares) & (shares > 0)).all():
        raise SpeechError(
            f"{path} holds no priors of {task.num_senones} senones: prepare it again, or give "
            "--priors posterior"
        )
    return shares


def task_of(run: Path) -> AnySpeechTask:
    """Return the task that a run was trained on."""
    directory = RunDirectory(run)
    name = directory.table("task").get("name")
    if name not in TASKS:
        raise SpeechError(
            f"{run} was trained on the task {name!r}, which has no words: decode a run of `hocket "
            "train EXP`"
        )
    if not directory.model_path.exists():
        raise SpeechError(
            f"{run} has no model yet: finish it with `hocket train --resume --out {run}`"
        )
    with well_formed(directory.config_path):
        kind = MODELS[directory.table("model").get("name", "dnn")]
        model = kind(**_settings(directory, "model", kind))
        check_numbers(model, "model")
        task = TASKS[name](**_settings(directory, "task", TASKS[name]), model=model)
        check_numbers(task, "task")
        trained_on = directory.table("facts")["prepared"]
    now = task.describe()["prepared"]
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
            f"have: decode with the version that trained it, {run.table('versions').get('hocket')}"
        )
    return found


def _chosen_split(task: AnySpeechTask, split: str | None) -> str:
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
    directory = RunDirectory(run)
    strategy, learners = directory.table("strategy"), directory.table("runtime")
    name = f"{strategy.get('name')}, {learners.get('learners')} learner(s)"
    gmm = task.folder / "gmm"
    unit = Evaluation.read(gmm).score.unit if gmm.is_dir() else "word"
    decoder = Decoder(NetworkScorer(run, priors), graph, search, jobs, show, unit)
    with owned(run, "hocket decode", print_line):
        return evaluate(decoder, directory.decode_path, name, None if split == "dev" else split)
