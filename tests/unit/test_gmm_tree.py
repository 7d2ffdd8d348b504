"""Gaussian mixtures and decision trees against obvious twins."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from hocket.speech.errors import SpeechError
from hocket.speech.gmm.gmm import GMM, NEVER, single_gaussians, split, update
from hocket.speech.graph.senones import (
    ContextStats,
    Senones,
    Split,
    grow,
    log_likelihood,
    questions,
)


def random_gmm(pdfs: int = 4, slots: int = 3, dims: int = 5) -> GMM:
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(pdfs, slots, generator=generator).softmax(1).log()
    mean = torch.randn(pdfs, slots, dims, generator=generator)
    return GMM(weight, mean, 0.5 + torch.rand(pdfs, slots, dims, generator=generator))


def test_likelihoods_equal_torchs_distributions() -> None:
    gmm = random_gmm()
    x = torch.randn(50, 5, generator=torch.Generator().manual_seed(1))
    for pdfs in (None, torch.tensor([2, 0])):
        found = gmm.densities().log_likelihoods(x, pdfs)
        for column, p in enumerate(range(4) if pdfs is None else pdfs.tolist()):
            twin: Any = MixtureSameFamily(
                Categorical(logits=gmm.log_weight[p]),
                Independent(Normal(gmm.mean[p], gmm.variance[p].sqrt()), 1),
            )
            assert torch.allclose(found[:, column], twin.log_prob(x), atol=1e-4)


def test_features_can_count_for_less() -> None:
    gmm = random_gmm(slots=1)
    x = torch.randn(10, 5)
    weights = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0])
    found = gmm.densities(weights).log_likelihoods(x)
    first_two = GMM(gmm.log_weight, gmm.mean[..., :2], gmm.variance[..., :2])
    assert torch.allclose(found, first_two.densities().log_likelihoods(x[:, :2]), atol=1e-4)


def test_unused_slots_change_nothing() -> None:
    gmm = random_gmm(slots=2)
    padded = GMM(
        torch.cat([gmm.log_weight, torch.full((4, 1), NEVER)], 1),
        torch.cat([gmm.mean, torch.zeros(4, 1, 5)], 1),
        torch.cat([gmm.variance, torch.ones(4, 1, 5)], 1),
    )
    x = torch.randn(20, 5)
    assert torch.allclose(
        gmm.densities().log_likelihoods(x), padded.densities().log_likelihoods(x), atol=1e-5
    )
    assert padded.num_gaussians == 8


def test_training_raises_the_likelihood_and_finds_the_clusters() -> None:
    generator = torch.Generator().manual_seed(3)
    centres = torch.tensor([[-3.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    x = torch.cat([c + 0.5 * torch.randn(400, 2, generator=generator) for c in centres])
    pdf = torch.zeros(len(x), dtype=torch.long)
    wide = x.double().numpy()
    gmm = single_gaussians(
        np.array([float(len(x))]), wide.sum(0)[None], np.square(wide).sum(0)[None]
    )
    likelihoods = []
    for iteration in range(60):
        moments = gmm.accumulate(x, pdf)
        likelihoods.append(moments.log_likelihood)
        gmm = update(gmm, moments)
        if iteration in (2, 6):
            gmm = split(gmm, moments.count.sum(1), gmm.num_gaussians + 1)
    assert all(b >= a - 1e-2 for a, b in pairwise(likelihoods[:3]))
    assert likelihoods[-1] > likelihoods[0] + 500
    found = gmm.mean[0][gmm.log_weight[0] > NEVER / 2]
    assert len(found) == 3
    for centre in centres:
        assert (found - centre).norm(dim=1).min() < 0.2
    assert gmm.log_weight[0].exp().sum() == pytest.approx(1.0, abs=1e-4)


def test_accumulated_moments_equal_a_slow_twin() -> None:
    gmm = random_gmm()
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(5))
    pdf = torch.arange(60) % 4
    moments = gmm.accumulate(x, pdf)
    count = torch.zeros(4, 3, dtype=torch.float64)
    second = torch.zeros(4, 3, 5, dtype=torch.float64)
    for frame, p in zip(x, pdf.tolist(), strict=True):
        density: Any = Normal(gmm.mean[p], gmm.variance[p].sqrt())
        logs = gmm.log_weight[p] + density.log_prob(frame).sum(-1)
        posterior = logs.softmax(0).double()
        count[p] += posterior
        second[p] += posterior[:, None] * frame.double().square()
    assert torch.allclose(moments.count, count, atol=1e-4)
    assert torch.allclose(moments.second, second, atol=1e-3)
    assert moments.frames == 60


def test_a_pdf_without_frames_keeps_what_it_had(tmp_path: Path) -> None:
    gmm = random_gmm()
    again = update(gmm, gmm.accumulate(torch.randn(300, 5), torch.zeros(300, dtype=torch.long)))
    assert torch.equal(again.mean[1:], gmm.mean[1:])
    assert not torch.equal(again.mean[0], gmm.mean[0])
    again.save(tmp_path / "m.npz")
    assert torch.equal(GMM.load(tmp_path / "m.npz").mean, again.mean)


# ---------------------------------------------------------------------------- trees


def stats_of(means: dict[tuple[int, int, int, int], float], n: int = 200) -> ContextStats:
    """Frames of one feature: (centre, state, left, right) -> its mean."""
    rng = np.random.default_rng(0)
    keys = np.repeat(np.array(list(means)), n, axis=0)
    x = np.repeat(np.array(list(means.values())), n) + 0.1 * rng.normal(size=len(keys))
    return ContextStats.of_frames(keys, x[:, None].astype(np.float32))


def contexts(rule: Any) -> ContextStats:
    """Phones 1 (silence), 2, 3, 4; the mean of phone 2's first state follows the rule."""
    means = {}
    for centre, state, left, right in product((1, 2, 3, 4), range(3), (1, 2, 3, 4), (1, 2, 3, 4)):
        base = 10.0 * centre + 3.0 * state
        extra = rule(left, right) if (centre, state) == (2, 0) else 0.0
        means[centre, state, left, right] = base + extra
    return stats_of(means)


PHONES = ["SIL", "a", "b", "c"]


def test_the_tree_finds_the_context_that_matters() -> None:
    senones = grow(PHONES, contexts(lambda left, right: 5.0 * (left in (3, 4))), 13)
    assert senones.num_pdfs == 13
    tree = senones.trees[2, 0]
    assert isinstance(tree, Split)
    assert tree.side == "left"
    assert senones.pdfs(3, 2, 1)[0] == senones.pdfs(4, 2, 4)[0]
    assert senones.pdfs(3, 2, 1)[0] != senones.pdfs(1, 2, 1)[0]
    assert senones.pdfs(3, 2, 1)[1:] == senones.pdfs(1, 2, 1)[1:]
    assert senones.pdfs(0, 2, 0) == senones.pdfs(1, 2, 1)  # the edge counts as silence


def test_the_best_split_equals_trying_them_all() -> None:
    rng = np.random.default_rng(4)
    table = rng.normal(size=(5, 5)) * 3
    stats = contexts(lambda left, right: float(table[left, right]))
    mine = stats.select((stats.keys[:, 0] == 2) & (stats.keys[:, 1] == 0))
    best = -np.inf
    for column, group in product((2, 3), questions(stats)):
        yes = np.isin(mine.keys[:, column], list(group))
        if yes.all() or not yes.any():
            continue
        parts = [mine.select(side) for side in (yes, ~yes)]
        gain = sum(
            float(log_likelihood(p.count.sum(), p.first.sum(0), p.second.sum(0))) for p in parts
        )
        best = max(best, gain)
    senones = grow(PHONES, stats, 13)
    tree = senones.trees[2, 0]
    assert isinstance(tree, Split)
    column = 2 if tree.side == "left" else 3
    yes = np.isin(mine.keys[:, column], list(tree.phones))
    chosen = sum(
        float(log_likelihood(p.count.sum(), p.first.sum(0), p.second.sum(0)))
        for p in (mine.select(yes), mine.select(~yes))
    )
    assert chosen == pytest.approx(best)


def test_pdfs_know_their_phone_and_state(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    table = rng.normal(size=(5, 5)) * 3
    senones = grow(PHONES, contexts(lambda left, right: float(table[left, right])), 16)
    for left, centre, right in product((0, 1, 2, 3, 4), (1, 2, 3, 4), (0, 1, 2, 3, 4)):
        for state, pdf in enumerate(senones.pdfs(left, centre, right)):
            assert senones.owners[pdf].tolist() == [centre, state]
    senones.write(tmp_path / "tree.json")
    again = Senones.read(tmp_path / "tree.json")
    assert again.trees == senones.trees
    assert again.depends_on_context
    assert not Senones.monophone(PHONES).depends_on_context


def test_pieces_add_up_to_the_whole() -> None:
    rng = np.random.default_rng(1)
    keys = rng.integers(1, 4, size=(500, 4))
    x = rng.normal(size=(500, 3)).astype(np.float32)
    whole = ContextStats.of_frames(keys, x)
    parts = ContextStats.merged([ContextStats.of_frames(keys[s], x[s])
                                 for s in (slice(0, 200), slice(200, 500))])  # fmt: skip
    assert np.array_equal(whole.keys, parts.keys)
    assert np.allclose(whole.second, parts.second)


def test_too_few_senones_are_refused_and_too_many_not_invented() -> None:
    stats = contexts(lambda left, right: 0.0)
    with pytest.raises(SpeechError, match="11 senones are fewer than the 12 states"):
        grow(PHONES, stats, 11)
    few = stats.select(np.arange(len(stats.keys)) % 16 == 0)  # one context of each state
    assert grow(PHONES, few, 1000, min_frames=150).num_pdfs == 12
