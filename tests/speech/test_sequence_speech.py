"""Networks for sequences on a prepared experiment: training, scores of utterances, export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.experiments import SENONES, SPLITS, prepared
from torch import nn

from hocket import LSTM, HocketError, config
from hocket.cli.main import main
from hocket.data.chunks import Chunks
from hocket.models.sequence import SequenceNetwork
from hocket.speech.chunk_task import SpeechChunks
from hocket.speech.decode import networks
from hocket.speech.decode.onnx_export import export_onnx
from hocket.speech.decode.priors import mean_posteriors
from hocket.speech.decode.recognition import NetworkScorer, loglikes, network_of
from hocket.speech.task import SpeechTask

MODELS = {
    "lstm": ["layers=1", "cells=6", "look_ahead=2"],
    "blstmp": ["name=lstm", "cells=6", "bidirectional=true", "projection=3", "bottleneck=3"],
    "pnorm": ["width=12", "group=3"],
    "blstm": ["name=lstm", "layers=2", "cells=5", "bidirectional=true", "input_transform=lda"],
    "tdnn": ["width=8", "dilations=[1, 2]", "bottleneck=3"],
    "cldnn": ["maps=2", "conv_frames=3", "conv_bins=3", "linear=4", "layers=1", "cells=5"],
    "dnn": ["width=9"],
}


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = prepared(tmp_path_factory.mktemp("sequences") / "exp")
    (folder / "train.toml").write_text(
        "[task]\ncontext = 2\nbatch_frames = 64\n[model]\nlayers = 1\n"
    )
    return folder


def trained(experiment: Path, out: Path, name: str) -> Path:
    """A short run of a model, in the simulator."""
    if not out.exists():
        settings = [f"model.name={name}", *(f"model.{s}" for s in MODELS[name])]
        if name in ("blstm", "blstmp"):
            settings = settings[1:]
        sets = [part for s in settings for part in ("--set", s)]
        arguments = ["simulate", str(experiment), "--epochs", "10", "--lr", "1", "--quiet"]
        arguments += ["--set", "task.batch_frames=100"]
        assert main([*arguments, *sets, "--out", str(out)]) == 0
    return out


@pytest.fixture(params=list(MODELS))
def run(request: pytest.FixtureRequest, experiment: Path) -> Path:
    return trained(experiment, experiment.parent / f"run-{request.param}", request.param)


# ------------------------------------------------------------------ the task


def test_chunks_are_the_frames_of_the_task_of_windows(experiment: Path) -> None:
    task = SpeechChunks(str(experiment), chunk_frames=30, left_context=2, right_context=2,
                        batch_frames=200, model=LSTM(bidirectional=True))  # fmt: skip
    windows = SpeechTask(str(experiment), context=2, batch_frames=10_000)
    (item,) = windows.items("dev")
    x, labels = windows.load("dev", item, 0)
    rows = {r.numpy().tobytes(): int(label) for r, label in zip(x, labels, strict=True)}
    seen = 0
    for item in task.items("dev"):
        batch = task.load("dev", item, 0)
        begin = 0
        for row, count in enumerate(batch.counts):
            for t in range(count):
                window = batch.x[row, t : t + 5].contiguous().numpy().tobytes()
                assert rows[window] == int(batch.labels[begin + t])
            begin += count
            seen += count
    assert seen == sum(SPLITS["dev"])


def test_every_epoch_has_all_frames_and_other_company(experiment: Path) -> None:
    task = SpeechChunks(str(experiment), batch_frames=200)
    items = task.items("train")
    assert sum(i.frames for i in items) == sum(SPLITS["train"])
    epochs = [[task.load("train", i, epoch).x for i in items] for epoch in (0, 1, 0)]
    assert not torch.equal(epochs[0][0], epochs[1][0])
    assert all(torch.equal(a, b) for a, b in zip(epochs[0], epochs[2], strict=True))


@pytest.mark.parametrize(
    "changes",
    [{"volume_db": 6.0}, {"noise_share": 1.0}, {"echo_share": 1.0}, {"mask_bins": 4},
     {"mask_frames": 9}],
    ids=lambda c: next(iter(c)),
)  # fmt: skip
def test_training_frames_are_changed_dev_frames_are_not(
    experiment: Path, changes: dict[str, Any]
) -> None:
    plain = SpeechChunks(str(experiment), batch_frames=200)
    changed = SpeechChunks(str(experiment), batch_frames=200, **changes)

    def first(task: SpeechChunks, split: str, epoch: int = 0) -> Chunks:
        return task.load(split, task.items(split)[0], epoch)

    assert not torch.equal(first(plain, "train").x, first(changed, "train").x)
    assert torch.equal(first(changed, "train").x, first(changed, "train").x)
    assert torch.equal(first(plain, "train").labels, first(changed, "train").labels)
    assert torch.equal(first(plain, "dev").x, first(changed, "dev").x)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"speed": 0.1}, "unknown key 'speed'"),
        ({"context": 3}, "unknown key 'context'"),
        ({"mask_frames": 21}, "hide a whole chunk"),
        ({"noise_snr_db": 3.0}, "no effect without noise"),
    ],
)
def test_options_without_effect_are_refused(
    experiment: Path, table: dict[str, Any], says: str
) -> None:
    table = {"name": "speech", "experiment": str(experiment)} | table
    with pytest.raises(HocketError, match=says):
        config.build_task({"task": table, "model": {"name": "lstm"}})


# ------------------------------------------------------------------ scores of utterances


def direct(model: nn.Module, task: Any, store: Any, number: int) -> torch.Tensor:
    """The whole utterance in one piece."""
    length = int(store.frames[number])
    if isinstance(task, SpeechTask):
        frames = np.arange(length)
        x = store.gather(np.full(length, number), frames, task.context)
        return model(torch.from_numpy(x))  # type: ignore[no-any-return]
    assert isinstance(model, SequenceNetwork)
    left, right = task.cutting.left, max(task.cutting.right, model.right)
    x = store.stretches(np.array([number]), np.array([-left]), left + length + right)
    return model(torch.from_numpy(x))[0, left - model.left :][:length]  # type: ignore[no-any-return]


@torch.inference_mode()
def test_scores_in_pieces_are_those_of_the_whole(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _, task = network_of(run, "alignment")
    store = task.store("dev")
    whole = direct(model, task, store, 0)
    assert whole.shape == (SPLITS["dev"][0], SENONES)
    torch.testing.assert_close(networks.scores_of(model, task, store, 0), whole)
    monkeypatch.setattr(networks, "PIECE", 17)
    monkeypatch.setattr(networks, "MARGIN", 60)
    both_ways = isinstance(model, SequenceNetwork) and not model.streams
    tolerance = 5e-3 if both_ways else 1e-5  # frames beyond the margin are not seen
    pieces = networks.scores_of(model, task, store, 0)
    assert float((pieces - whole).abs().max()) < tolerance


def test_it_recognises_what_it_was_trained_on(run: Path) -> None:
    scorer = NetworkScorer(run)
    store = scorer.store("dev")
    labels = np.load(store.folder.parents[1] / "alignment" / "dev.npy")[: SPLITS["dev"][0]]
    scores = scorer.scores(store, 0)
    assert scores.shape == (len(labels), SENONES)
    assert (scores.argmax(1) == labels).mean() > 0.4  # by chance 0.25
    names = [name for name, _ in loglikes(run, "dev", show=False)[1]]
    assert names == ["u0", "u1"]


def test_priors_are_the_mean_posteriors_of_training_frames(run: Path) -> None:
    model, _, task = network_of(run, "alignment")
    shares = mean_posteriors(model, task, 10**6)
    assert shares.shape == (SENONES,)
    if isinstance(task, SpeechTask):
        return
    with torch.inference_mode():
        batches = [task.load("train", item, 0) for item in task.items("train")]
        reach = task.sequences.reach
        scores = [model(b.x, b.lengths, b.places(reach)) for b in batches]
    expected = torch.cat(scores).softmax(1).mean(0).numpy()
    np.testing.assert_allclose(shares, expected, rtol=1e-4)


# ------------------------------------------------------------------ export


@pytest.mark.parametrize("scores", ["posteriors", "likelihoods"])
def test_onnx_gives_the_same_scores(run: Path, tmp_path: Path, scores: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "model.onnx"
    assert main(["export", str(run), "--onnx", str(file), "--scores", scores]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(str(file))
    model, log_prior, task = network_of(run, "alignment")
    store = task.store("dev")
    for number in (0, 1):  # of other lengths
        given = {"features": store.utterance(number)[None]}
        (got,) = session.run([f"log_{scores}"], given)
        expected = direct(model, task, store, number).log_softmax(1)
        expected = expected - log_prior if scores == "likelihoods" else expected
        assert np.abs(got[0] - expected.detach().numpy()).max() < 1e-4
    facts = session.get_modelmeta().custom_metadata_map
    assert facts["features"] == "fbank"
    assert facts["normalisation"] == "speaker"
    several = np.stack([store.utterance(1)] * 3)
    (got,) = session.run(None, {"features": several})
    assert np.abs(got[2] - session.run(None, {"features": several[:1]})[0][0]).max() < 1e-5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--onnx", "x.onnx", "--priors", "posterior"], "no effect on posteriors"),
        (["--onnx", "x.onnx", "--out", "d"], "no effect together"),
        (["--scores", "posteriors", "--out", "d"], "no effect without --onnx"),
        ([], "--onnx FILE"),
        (["--onnx", "nowhere/x.onnx"], "not a folder"),
    ],
)
def test_bad_exports_are_refused(
    experiment: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(experiment, experiment.parent / "run-lstm", "lstm")
    assert main(["export", str(run), *arguments]) != 0
    assert says in capsys.readouterr().err


def test_a_run_of_another_task_is_not_exported(tmp_path: Path) -> None:
    out = tmp_path / "synthetic"
    small = ("--set", "task.num_frames=500", "--epochs", "1", "--quiet")
    assert (
        main(["simulate", "synthetic", "--set", "model.name=lstm", *small, "--out", str(out)]) == 0
    )
    with pytest.raises(HocketError, match="no words"):
        export_onnx(out, tmp_path / "x.onnx")


@pytest.mark.parametrize("name", ["lstm", "blstm", "tdnn", "cldnn"])
def test_recipes_are_valid(name: str, experiment: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "sequences" / f"{name}.toml"
    tables = config.read(recipe)
    tables["task"] |= {"name": "speech", "experiment": str(experiment)}
    made = config.build_experiment(tables)
    assert isinstance(made.task, SpeechChunks)
