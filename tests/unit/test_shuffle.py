"""A random order without memory."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.data.shuffle import Permutation


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 16, 17, 100, 1000, 65_537])
def test_it_is_a_permutation(n: int) -> None:
    for key in (0, 1, 12345):
        order = Permutation(n, key)(np.arange(n))
        assert np.array_equal(np.sort(order), np.arange(n))


def test_parts_equal_the_whole() -> None:
    order = Permutation(10_001, 3)
    whole = order(np.arange(10_001))
    parts = np.concatenate(
        [order(np.arange(i, min(i + 256, 10_001))) for i in range(0, 10_001, 256)]
    )
    assert np.array_equal(whole, parts)


def test_keys_give_different_orders_that_look_random() -> None:
    n = 20_000
    a, b = Permutation(n, 1)(np.arange(n)), Permutation(n, 2)(np.arange(n))
    assert (a == b).sum() < 20  # one is expected
    assert abs(np.corrcoef(np.arange(n), a)[0, 1]) < 0.03
    # Each minibatch must be drawn from everywhere: counts in ten parts, against chi-squared.
    for start in range(0, n, 2000):
        counts = np.bincount(a[start : start + 2000] * 10 // n, minlength=10)
        assert ((counts - 200) ** 2 / 200).sum() < 40  # 99.999 % quantile of 9 degrees: 39
    assert np.abs(np.diff(a)).mean() == pytest.approx(n / 3, rel=0.05)  # neighbours part


def test_36_million_frames_take_no_memory() -> None:
    order = Permutation(36_000_000, 5)
    found = order(np.arange(256) * 140_000)
    assert len(np.unique(found)) == 256
    assert found.max() < 36_000_000


def test_nothing_to_permute_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 thing, not 0"):
        Permutation(0, 1)
