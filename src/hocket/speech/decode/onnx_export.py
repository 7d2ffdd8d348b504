"""A run's network as one ONNX file: normalised features in, scores of all frames out.

    features (utterances, frames, dims)  ->  log_posteriors or log_likelihoods, (.., .., senones)

Everything between is in the graph: the first and last frame of an utterance repeated as in
training, the splicing of neighbours, the network, the softmax, and for likelihoods the priors
(`recognition`, eq. 1). Numbers of utterances and frames are open. What the features must be is in
the file's metadata. Utterances in one call must be equally long: there is no padding.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import nn

from hocket.models.sequence import SequenceNetwork
from hocket.speech.chunk_task import SpeechChunks
from hocket.speech.decode.networks import AnySpeechTask
from hocket.speech.decode.priors import Priors
from hocket.speech.decode.recognition import network_of
from hocket.speech.task import SpeechTask
from hocket.support.onnx_files import write_onnx

Scores: TypeAlias = Literal["posteriors", "likelihoods"]


class WholeUtterances(nn.Module):
    """Computes scores for all frames of utterances, from normalised features."""

    def __init__(self, model: nn.Module, task: AnySpeechTask, log_prior: torch.Tensor | None):
        super().__init__()
        self.model = model
        self.splices = isinstance(task, SpeechTask)
        self.before, self.after, self.skipped = _margins(model, task)
        self.log_prior = torch.zeros(1) if log_prior is None else log_prior

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (N, T, senones) for (N, T, D)."""
        frames = x.shape[1]
        edges = (x[:, :1], self.before), (x[:, -1:], self.after)  # ONNX cannot repeat 0 times
        first, last = ([edge.expand(-1, n, -1)] if n else [] for edge, n in edges)
        wide = torch.cat([*first, x, *last], dim=1)
        if self.splices:
            window = self.before + self.after + 1
            wide = torch.cat([wide[:, i : i + frames] for i in range(window)], dim=2)
        scores = self.model(wide)[:, self.skipped : self.skipped + frames]
        return torch.log_softmax(scores, dim=2) - self.log_prior


def _margins(model: nn.Module, task: AnySpeechTask) -> tuple[int, int, int]:
    """Return how many frames are repeated on each side, and the scores that belong to none."""
    if isinstance(task, SpeechTask):
        return task.context, task.context, 0
    assert isinstance(task, SpeechChunks)
    assert isinstance(model, SequenceNetwork)
    left, right = task.cutting.left, task.cutting.right
    return (left, model.right if model.streams else right, left - model.left)


def export_onnx(
    run: Path, file: Path, scores: Scores = "posteriors", priors: Priors = "alignment"
) -> dict[str, str]:
    """Write a run's network; return the metadata that the file carries."""
    model, log_prior, task = network_of(run, priors)
    whole = WholeUtterances(model, task, log_prior if scores == "likelihoods" else None).eval()
    store = task.store("dev")
    facts = {
        "made_by": "hocket export",
        "scores": f"log_{scores}",
        "features": store.kind,
        "dims": str(store.dims),
        "normalisation": task.normalisation,
        "sample_rate": str(store.sample_rate),
        "senones": str(task.num_senones),
        "model": task.model.name,
    }
    example = torch.zeros(2, 30, store.dims)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's, of sizes that are open all the same
        write_onnx(whole, example, file, "features", f"log_{scores}", facts)
    return facts
