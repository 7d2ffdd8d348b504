from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from hocket.core.flat import ALIGNMENT_BYTES, Layout
from hocket.core.numerics import clip_coefficient, shares, stable_seed, weighted_sum
from hocket.errors import ConfigError

SEED_0_3_4 = 5042622769408512872


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2, bias=False))


def test_layout_names_shapes_and_aligned_offsets() -> None:
    layout = Layout.of(model())
    assert [(e.name, e.shape, e.offset) for e in layout.entries] == [
        ("0.weight", (5, 3), 0),
        ("0.bias", (5,), 16),
        ("1.weight", (2, 5), 32),
    ]
    assert layout.size == 48
    assert all(e.offset * 4 % ALIGNMENT_BYTES == 0 for e in layout.entries)


def test_flatten_and_views_round_trip() -> None:
    net = model()
    layout = Layout.of(net)
    flat = layout.flatten(net)
    for name, p in net.named_parameters():
        assert torch.equal(layout.named(flat)[name], p)
    assert flat[15] == 0  # padding
    layout.views(flat)[1].fill_(7)
    assert (flat[16:21] == 7).all()


def test_pack_treats_missing_gradients_as_zero() -> None:
    layout = Layout.of(model())
    flat = layout.pack([None, torch.ones(5), None])
    assert flat.sum() == 5


def test_other_dtypes_are_refused_with_the_remedy() -> None:
    with pytest.raises(TypeError, match=r"'weight' is torch.float64.*autocast"):
        Layout.of(nn.Linear(2, 2).double())


def test_shares_are_exact_for_one_contributor() -> None:
    assert shares([0.0, 7.0, 0.0]) == [0.0, 1.0, 0.0]
    assert shares([0.0, 0.0]) == [0.5, 0.5]
    assert shares([1, 3]) == [0.25, 0.75]


def test_weighted_sum_by_hand() -> None:
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])
    assert weighted_sum([x, y], [0.25, 0.75]).tolist() == [2.5, -1.0]


def test_a_dry_learners_nan_does_not_spread() -> None:
    x, bad = torch.tensor([1.0, -0.0]), torch.tensor([float("nan"), float("inf")])
    result = weighted_sum([bad, x], [0.0, 1.0])
    assert torch.equal(result, x)
    assert torch.signbit(result[1])  # bit for bit


def test_clipping_agrees_with_torch() -> None:
    g = torch.tensor([3.0, 4.0])
    p = nn.Parameter(torch.zeros(2))
    p.grad = g.clone()
    nn.utils.clip_grad_norm_([p], 2.0)
    assert torch.equal(g * clip_coefficient(g, 2.0), p.grad)
    assert clip_coefficient(g, 5.1) == 1.0


def test_seeds_are_stable() -> None:
    assert stable_seed(1, "a", 2) == stable_seed(1, "a", 2) != stable_seed(1, "a", 3)
    assert stable_seed(0, 3, 4) == SEED_0_3_4  # must never change: runs would not reproduce


# ------------------------------------------------------------------ cutting a vector


def brute_force(sizes: list[int], count: int) -> int:
    """The smallest largest part, over all ways to cut."""
    if count == 1:
        return sum(sizes)
    ways = itertools.combinations(range(1, len(sizes)), count - 1)
    return min(
        max(sum(sizes[a:b]) for a, b in itertools.pairwise((0, *cuts, len(sizes)))) for cuts in ways
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_is_between_parameters_and_as_even_as_can_be(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [16 * int(n) for n in rng.integers(1, 40, size=int(rng.integers(1, 8)))]
    model = nn.ParameterList([nn.Parameter(torch.zeros(n)) for n in sizes])
    layout = Layout.of(model)
    for count in range(1, len(sizes) + 1):
        ranges = layout.cut(count)
        assert len(ranges) == count
        assert [r.start for r in ranges] == [0, *(r.stop for r in ranges[:-1])]
        assert ranges[-1].stop == layout.size
        assert {r.start for r in ranges} <= {e.offset for e in layout.entries}
        assert max(map(len, ranges)) == brute_force(sizes, count)
        assert sum(len(layout.part(r).entries) for r in ranges) == len(sizes)


def test_a_part_has_a_layout_of_its_own() -> None:
    layout = Layout.of(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)))
    part = layout.part(layout.cut(2)[1])
    assert part.entries[0].offset == 0
    assert part.size == len(layout.cut(2)[1])
    with pytest.raises(ConfigError, match="cannot be cut into 5 parts"):
        layout.cut(5)
