"""LDA, MLLT and what a GMM-HMM sees, against obvious twins and against the maximum itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from unit.test_alignment import store

from hocket.speech.features.spectral import add_deltas
from hocket.speech.gmm import lda, training
from hocket.speech.gmm.alignment import GMMHMM, Corpus, usable
from hocket.speech.gmm.front import CONTEXT, Front, deltas, spliced, whole_splice
from hocket.speech.gmm.gmm import GMM, single_gaussians
from hocket.speech.gmm.training import GMMOptions, Trainer, usual_senones
from hocket.speech.graph.senones import Senones

RNG = np.random.default_rng(5)
Doubles = NDArray[np.float64]


def test_deltas_are_a_transform_of_spliced_frames() -> None:
    for length in (1, 3, 30):
        x = RNG.normal(size=(length, 13)).astype(np.float32)
        assert np.allclose(deltas(13)(x), add_deltas(x), atol=1e-5)


def test_edges_are_repeated_and_nothing_is_changed_by_the_whole_splice() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    found = spliced(x).reshape(3, 2 * CONTEXT + 1, 2)
    assert (found[0, : CONTEXT + 1] == x[0]).all()
    assert (found[0, CONTEXT + 1] == x[1]).all()
    assert (found[2, CONTEXT:] == x[2]).all()
    assert np.array_equal(whole_splice(2)(x), spliced(x))


def classes(num: int = 4, frames: int = 4000, dims: int = 6) -> tuple[Doubles, NDArray[np.int32]]:
    """Classes that differ in two directions, under a covariance common to all."""
    labels = RNG.integers(0, num, frames).astype(np.int32)
    means = np.zeros((num, dims))
    means[:, :2] = RNG.normal(size=(num, 2)) * 3
    mix = RNG.normal(size=(dims, dims))
    return (means[labels] + RNG.normal(size=(frames, dims))) @ mix.T, labels


def test_lda_whitens_within_classes_and_keeps_what_separates_them() -> None:
    x, labels = classes()
    whole = lda.scatter(x, labels, 4)
    halves = lda.scatter(x[:1000], labels[:1000], 4)
    halves.add_(lda.scatter(x[1000:], labels[1000:], 4))
    assert np.allclose(halves.second, whole.second)
    y = x @ lda.lda(halves, 6).T
    within = sum(np.cov(y[labels == c].T, ddof=0) * (labels == c).mean() for c in range(4))
    assert np.allclose(within, np.eye(6), atol=1e-6)
    spread = np.array([[y[labels == c, d].mean() for c in range(4)] for d in range(6)]).std(1)
    assert (spread[:2] > 1.0).all()  # the two directions come first,
    assert (spread[2:] < 0.1).all()  # and only they separate


def full_log_likelihood(a: Doubles, x: Doubles, labels: NDArray[np.int32]) -> float:
    """Log-likelihood of x under diagonal Gaussians of A x that fit best: what MLLT maximises."""
    y = x @ a.T
    total = len(x) * np.log(abs(np.linalg.det(a)))
    for c in np.unique(labels):
        mine = y[labels == c]
        total -= 0.5 * len(mine) * np.log(mine.var(0)).sum()
    return float(total)


def fitted(x: Doubles, labels: NDArray[np.int32]) -> GMM:
    count = np.bincount(labels).astype(float)
    one = np.eye(len(count))[labels]
    return single_gaussians(count, one.T @ x, one.T @ x**2)


def test_mllt_finds_the_transform_behind_diagonal_gaussians() -> None:
    """Classes are diagonal in some basis; repeated MLLT must reach the likelihood of that basis."""
    labels = RNG.integers(0, 3, 6000).astype(np.int32)
    deviation = np.exp(RNG.normal(size=(3, 4)))
    basis = RNG.normal(size=(4, 4))
    x = (RNG.normal(size=(6000, 4)) * deviation[labels]) @ np.linalg.inv(basis).T
    a = np.eye(4)
    reached = [full_log_likelihood(a, x, labels)]
    for _ in range(40):
        y = x @ a.T
        spread = lda.covariance_sums(
            fitted(y, labels), torch.from_numpy(y).float(), torch.from_numpy(labels).long()
        )
        a = lda.mllt(spread) @ a
        reached.append(full_log_likelihood(a, x, labels))
    assert (np.diff(reached) > -0.5).all()  # every step is uphill; float32 rounds a little
    assert reached[-1] > reached[0] + 1000
    assert reached[-1] > full_log_likelihood(basis, x, labels) - 20


def test_rows_of_mllt_leave_no_slope() -> None:
    """At the maximum of beta log |det A| - 1/2 sum_i a_i G_i a_i' the gradient is zero."""
    dims, frames = 5, 100.0
    g = np.stack([np.cov(RNG.normal(size=(dims, 40))) * frames for _ in range(dims)])
    a = lda.mllt(lda.CovarianceSums(g, frames))
    slope = frames * np.linalg.inv(a).T - np.stack([g[i] @ a[i] for i in range(dims)])
    assert np.abs(slope).max() < 1e-6 * frames


def test_g_is_the_sum_it_is_defined_as() -> None:
    x, labels = classes(num=2, frames=50, dims=3)
    gmm = fitted(x, labels)
    found = lda.covariance_sums(gmm, torch.from_numpy(x).float(), torch.from_numpy(labels).long())
    twin = np.zeros((3, 3, 3))
    for frame, c in zip(x, labels, strict=True):
        apart = frame - gmm.mean[c, 0].double().numpy()
        for i in range(3):
            twin[i] += np.outer(apart, apart) / float(gmm.variance[c, 0, i])
    assert np.allclose(found.g, twin, rtol=1e-3, atol=1e-2)
    assert found.frames == 50


def test_a_transformed_model_scores_transformed_frames() -> None:
    """With a diagonal A, likelihoods change by log |det A| only."""
    x = RNG.normal(size=(20, 13)).astype(np.float32)
    front = deltas(13)
    gmm = single_gaussians(np.full(3, 50.0), RNG.normal(size=(3, 39)) * 50, np.full((3, 39), 90.0))
    model = GMMHMM(Senones.monophone(["SIL"]), gmm, np.full(3, 0.5), front)
    scale = np.exp(RNG.normal(size=39) * 0.1)
    turned = lda.transformed(model, np.diag(scale))
    expected = model.log_likelihoods(x) - np.log(scale).sum()
    assert np.allclose(turned.log_likelihoods(x), expected, atol=2e-2)
    assert isinstance(turned.front, Front)


def test_more_speech_is_worth_more_senones() -> None:
    assert usual_senones(0.01, 40) == 120
    assert usual_senones(0.5, 40) < usual_senones(1.0, 40) == 400 < usual_senones(6.0, 40) < 1500


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    (tmp_path / "lexicon.txt").write_text("one W AH N\na AH\na EY Y\n")
    said = {f"u{n}": (["one", "a", "one"], 60) for n in range(60)}
    return Corpus(store(tmp_path / "train", said), tmp_path / "lexicon.txt")


def test_interrupted_lda_goes_on_and_ends_the_same(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, _ = usable(corpus)
    options = GMMOptions(
        senones=18, mono_iterations=2, tri_iterations=5, lda_dims=10, lda_iterations=5
    )

    def trainer(folder: str) -> Trainer:
        return Trainer("x", corpus, numbers, tmp_path / folder, options, 1, False, lambda _: None)

    mono = trainer("mono")
    tri = trainer("tri")
    start = tri.triphones(mono.monophones(), mono.alignment)

    def train(folder: str) -> list[bytes]:
        one = trainer(folder)
        one.decorrelated(start, tri.alignment)
        names = ("model.npz", "loops.npz", "alignment.npy", "iterations.json")
        return [(tmp_path / folder / name).read_bytes() for name in names]

    whole = train("whole")
    real, calls = training.collect, 0

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:  # right after the first MLLT
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(training, "collect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train("parts")
    assert train("parts") == whole
