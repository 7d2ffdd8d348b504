"""Transforms of speakers against sums by definition, the maximum itself, and a known distortion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from unit.test_alignment import store

from hocket.errors import ConfigError, UnreadableError
from hocket.speech.gmm import fmllr, training
from hocket.speech.gmm.alignment import GMMHMM, Corpus, usable
from hocket.speech.gmm.fmllr import SpeakerSums, best_transform
from hocket.speech.gmm.gmm import GMM
from hocket.speech.gmm.speakers import Speakers, identity, transformed
from hocket.speech.gmm.training import SPEAKERS, GMMOptions, Trainer

Doubles = NDArray[np.float64]
PDFS, SLOTS, DIMS = 6, 2, 4
pytestmark = pytest.mark.timeout(300)


def mixtures(seed: int = 0) -> GMM:
    rng = torch.Generator().manual_seed(seed)
    weight = torch.rand(PDFS, SLOTS, generator=rng) + 0.5
    return GMM(
        (weight / weight.sum(1, keepdim=True)).log(),
        torch.randn(PDFS, SLOTS, DIMS, generator=rng) * 3,
        torch.rand(PDFS, SLOTS, DIMS, generator=rng) + 0.5,
    )


def spoken(gmm: GMM, frames: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames that the mixtures would say, and their pdfs."""
    rng = np.random.default_rng(seed)
    pdf = rng.integers(0, PDFS, frames)
    slot = (rng.random(frames) > gmm.log_weight[pdf, 0].exp().numpy()).astype(int)
    deviation = gmm.variance[pdf, slot].sqrt().numpy()
    y = gmm.mean[pdf, slot].numpy() + rng.normal(size=(frames, DIMS)) * deviation
    return torch.from_numpy(y.astype(np.float32)), torch.from_numpy(pdf)


def distortion(seed: int = 2) -> tuple[Doubles, Doubles]:
    rng = np.random.default_rng(seed)
    return np.eye(DIMS) + 0.2 * rng.normal(size=(DIMS, DIMS)), rng.normal(size=DIMS)


def distorted(y: torch.Tensor) -> torch.Tensor:
    a, b = distortion()
    return torch.from_numpy((y.double().numpy() @ a.T + b).astype(np.float32))


def sums(gmm: GMM, y: torch.Tensor, pdf: torch.Tensor, w: Doubles) -> SpeakerSums:
    total = SpeakerSums.nothing(DIMS)
    total.add_frames_(gmm, y, pdf, w)
    return total


def log_likelihood(gmm: GMM, y: torch.Tensor, pdf: torch.Tensor, w: Doubles) -> float:
    """Log-likelihood of the frames y, by definition and in float64: what all this is to raise."""
    z = y.double().numpy() @ w[:, :-1].T + w[:, -1]
    mean, variance = (t[pdf].double().numpy() for t in (gmm.mean, gmm.variance))
    exponent = (z[:, None] - mean) ** 2 / variance + np.log(2 * np.pi * variance)
    each = gmm.log_weight[pdf].double().numpy() - 0.5 * exponent.sum(2)
    volume = np.log(abs(np.linalg.det(w[:, :-1])))
    return float(np.logaddexp.reduce(each, axis=1).sum() + len(y) * volume)


def test_the_sums_are_what_they_are_defined_as() -> None:
    gmm = mixtures()
    y, pdf = spoken(gmm, 80)
    w = identity(DIMS) + 0.05
    found = sums(gmm, y, pdf, w)
    g, k = np.zeros((DIMS, DIMS + 1, DIMS + 1)), np.zeros((DIMS, DIMS + 1))
    for frame, p in zip(y.double().numpy(), pdf.tolist(), strict=True):
        xi = np.append(frame, 1.0)
        mean, variance = gmm.mean[p].double().numpy(), gmm.variance[p].double().numpy()
        near = -0.5 * ((w @ xi - mean) ** 2 / variance + np.log(variance)).sum(1)
        near += gmm.log_weight[p].double().numpy()
        posterior = np.exp(near - np.logaddexp.reduce(near))
        for i in range(DIMS):
            for m in range(SLOTS):
                g[i] += posterior[m] / variance[m, i] * np.outer(xi, xi)
                k[i] += posterior[m] * mean[m, i] / variance[m, i] * xi
    assert np.allclose(found.g, g, rtol=1e-4, atol=1e-2)
    assert np.allclose(found.k, k, rtol=1e-4, atol=1e-2)
    assert found.frames == 80


def test_pieces_of_long_utterances_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gmm = mixtures()
    y, pdf = spoken(gmm, 300)
    whole = sums(gmm, y, pdf, identity(DIMS))
    monkeypatch.setattr(fmllr, "PIECE", 7)
    assert np.allclose(sums(gmm, y, pdf, identity(DIMS)).g, whole.g, rtol=1e-5)


def quality(total: SpeakerSums, w: Doubles) -> float:
    """Q(W), eq. 2 of `fmllr`."""
    _, volume = np.linalg.slogdet(w[:, :-1])
    square = np.einsum("ij,ijk,ik->", w, total.g, w)
    return float(total.frames * volume - 0.5 * square + (w * total.k).sum())


def test_no_round_over_the_rows_lowers_q_and_in_the_end_it_has_no_slope() -> None:
    gmm = mixtures()
    y, pdf = spoken(gmm, 2000)
    total = sums(gmm, distorted(y), pdf, identity(DIMS))
    steps = [best_transform(total, identity(DIMS), rounds) for rounds in (0, 1, 2, 3, 5, 9, 60)]
    reached = [quality(total, w) for w in steps]
    assert (np.diff(reached) > -1e-6 * abs(reached[-1])).all()
    assert reached[-1] > reached[0] + 1000
    w = steps[-1]
    volume = np.pad(np.linalg.inv(w[:, :-1]).T, ((0, 0), (0, 1)))
    slope = total.frames * volume + total.k - np.einsum("ijk,ik->ij", total.g, w)
    assert np.abs(slope).max() < 1e-3 * total.frames
    rng = np.random.default_rng(3)
    for size in (1e-3, 1e-2, 0.1):
        other = w + size * rng.normal(size=w.shape)
        assert quality(total, other) < reached[-1]


def test_the_likelihood_never_falls_and_the_distortion_is_undone() -> None:
    gmm = mixtures()
    y, pdf = spoken(gmm, 20_000)
    heard, w = distorted(y), identity(DIMS)
    reached = [log_likelihood(gmm, heard, pdf, w)]
    for _ in range(12):
        w = best_transform(sums(gmm, heard, pdf, w), w)
        reached.append(log_likelihood(gmm, heard, pdf, w))
    assert (np.diff(reached) > -1.0).all()  # float32 rounds a little
    a, b = distortion()
    exact = np.linalg.inv(a)
    assert np.abs(w[:, :-1] - exact).max() < 0.02
    assert np.abs(w[:, -1] + exact @ b).max() < 0.05
    truth = np.concatenate([exact, -(exact @ b)[:, None]], axis=1)
    assert reached[-1] >= log_likelihood(gmm, heard, pdf, truth) - 1.0  # it is the maximum


def test_few_frames_and_constant_features_do_no_harm() -> None:
    gmm = mixtures()
    y, pdf = spoken(gmm, 499)
    few = sums(gmm, distorted(y), pdf, identity(DIMS))
    assert np.array_equal(best_transform(few, identity(DIMS)), identity(DIMS))
    y, pdf = spoken(gmm, 2000)
    y[:, 1] = 0.5
    w = best_transform(sums(gmm, y, pdf, identity(DIMS)), identity(DIMS))
    assert np.isfinite(w).all()


# ---------------------------------------------------------------------------- of a corpus


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Four speakers (as many as utterances) of random cepstra."""
    (tmp_path / "lexicon.txt").write_text("one W AH N\na AH\na EY Y\n")
    said = {f"u{n}": (["one", "a", "one"], 600) for n in range(4)}
    return Corpus(store(tmp_path / "train", said), tmp_path / "lexicon.txt")


@pytest.fixture
def trained(corpus: Corpus, tmp_path: Path) -> tuple[GMMHMM, Path]:
    options = GMMOptions(senones=18, mono_iterations=2, tri_iterations=3)
    numbers, _ = usable(corpus)

    def trainer(folder: str) -> Trainer:
        return Trainer("x", corpus, numbers, tmp_path / folder, options, 1, False, lambda _: None)

    mono, tri = trainer("mono"), trainer("tri")
    return tri.triphones(mono.monophones(), mono.alignment), tri.alignment


def test_adapted_training_is_interrupted_and_ends_the_same(
    corpus: Corpus, trained: tuple[GMMHMM, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, alignment = trained
    numbers, _ = usable(corpus)
    options = GMMOptions(senones=18, sat=True, sat_iterations=3)

    def train(folder: str) -> list[bytes]:
        out = tmp_path / folder
        one = Trainer("sat", corpus, numbers, out, options, 1, False, lambda _: None)
        one.adapted(start, alignment)
        names = ("model.npz", "alignment.npy", "iterations.json", SPEAKERS)
        return [(out / name).read_bytes() for name in names]

    whole = train("whole")
    transforms = np.load(tmp_path / "whole" / SPEAKERS)
    assert transforms.shape == (4, 39, 40)
    assert np.abs(transforms - identity(39)).max() > 0.01
    real, calls = training.collect, 0

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(training, "collect", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train("parts")
    assert train("parts") == whole


def test_what_is_heard_wrongly_or_not_at_all_is_passed_over(
    corpus: Corpus, trained: tuple[GMMHMM, Path], tmp_path: Path
) -> None:
    """Words that nobody can say, no words, and more words than there are frames."""
    start, alignment = trained
    folder = alignment.parent
    words: list[tuple[str, ...]] = [("one", "a", "one")] * 4
    words[0], words[1], words[2] = (), ("two",), ("one",) * 300
    path = tmp_path / "speakers.npy"
    what = fmllr.HeardSpeakers(corpus, tuple(words), (folder, folder))
    fmllr.write_transforms(path, what, title="speakers", jobs=1, show=False)
    found = Speakers.read(path, corpus.open(), start.front.dims)
    for number in (0, 1, 2):
        assert np.array_equal(found.of(number), identity(39))
    assert np.abs(found.of(3) - identity(39)).max() > 0.01
    y = torch.zeros(3, 39)
    assert torch.equal(found.adapted(y, 3), transformed(y, found.of(3)))


def test_transforms_of_others_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    np.save(tmp_path / "speakers.npy", np.zeros((2, 39, 40)))
    with pytest.raises(UnreadableError, match="other speakers"):
        Speakers.read(tmp_path / "speakers.npy", corpus.open(), 39)


def test_speakers_are_adapted_after_lda_only() -> None:
    with pytest.raises(ConfigError, match="--no-lda"):
        GMMOptions(lda=False, sat=True)
    assert GMMOptions(sat=True).steps == ("mono", "tri", "lda", "sat")
