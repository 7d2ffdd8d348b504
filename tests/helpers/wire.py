"""Many random inputs for what reads from a wire: few in a usual test, thousands in a long one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

few_or_many = pytest.mark.parametrize(
    "examples",
    [25, pytest.param(3000, marks=[pytest.mark.long, pytest.mark.timeout(400)])],
    ids=["few", "many"],
)


def fuzz(examples: int, *inputs: Any) -> Callable[[Callable[..., None]], None]:
    """Run a function at once with so many inputs."""

    def run(function: Callable[..., None]) -> None:
        checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
        limits = settings(
            max_examples=examples, deadline=None, database=None, suppress_health_check=checks
        )
        wrap: Any = given(*inputs)
        limits(wrap(function))()

    return run


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut bytes anywhere."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


CUTS = st.lists(st.integers(0, 10_000), max_size=4)
