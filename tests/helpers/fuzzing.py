"""Hostile input by the thousand: ways to spoil bytes and trees, and how often to try.

A property is written once. `make test` tries it some dozens of times, `make test-long` thousands.
What may happen to spoilt input is always the same: it is read, or it is refused with an error of
ours that names the file. Anything else is found by hypothesis and shown at its smallest.
"""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from hocket.errors import HocketError

FEW = 25
MANY = 1000

in_numbers = pytest.mark.parametrize(
    "cases",
    [
        pytest.param(FEW, id="few"),
        pytest.param(MANY, id="many", marks=[pytest.mark.long, pytest.mark.timeout(1200)]),
    ],
)


def try_out(cases: int, strategy: st.SearchStrategy[Any], attempt: Callable[[Any], None]) -> None:
    """Try an attempt with so many values; the same ones every time."""
    configured = settings(
        max_examples=cases,
        deadline=None,  # no test asserts time
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    configured(given(strategy)(attempt))()


def refused(attempt: Callable[[], Any], *, naming: str = "") -> bool:
    """True if an attempt ends with an error of ours, which must name the file; False: no error."""
    try:
        attempt()
    except HocketError as error:
        if naming not in str(error):
            raise AssertionError(f"{error!r} does not name {naming}") from error
        return True
    return False


# ---------------------------------------------------------------------------- bytes

NUMBERS = [0, 1, -1, 2**31 - 1, -(2**31), 10**9, 2**63 - 1, -(2**63), 255, 65535, 2**32]
BYTES = [
    *(b"\0", b"\xff", b"\x80", b"\n", b" ", b"[", b"]", b"{", b"}", b'"', b"\\", b"|", b":"),
    *(b"\0BFM ", b"\0BCM ", b"PKL", b"NaN", b"1e999", b"-1", b"\x1f\x8b", b"RIFF", b"\xef\xbb\xbf"),
    *(struct.pack("<q", n) for n in NUMBERS),
    *(struct.pack("<i", n) for n in NUMBERS if abs(n) < 2**31),
]

edits = st.lists(
    st.tuples(
        st.sampled_from(["flip", "set", "insert", "remove", "repeat", "cut"]),
        st.floats(0, 1),
        st.one_of(st.sampled_from(BYTES), st.binary(max_size=8)),
    ),
    min_size=1,
    max_size=4,
)


def spoilt_bytes(data: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    """Return the bytes after some edits, each at a share of their length."""
    for kind, share, more in changes:
        at = int(share * len(data))
        if kind == "flip" and at < len(data):
            data = data[:at] + bytes([data[at] ^ 1 << len(more) % 8]) + data[at + 1 :]
        elif kind == "set":
            data = data[:at] + more + data[at + len(more) :]
        elif kind == "insert":
            data = data[:at] + more + data[at:]
        elif kind == "remove":
            data = data[:at] + data[at + 1 + len(more) :]
        elif kind == "repeat":
            data = data[:at] + data[at // 2 : at] + data[at:]
        elif kind == "cut":
            data = data[:at]
    return data


# ---------------------------------------------------------------------------- trees

VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 3, 10**9, 10**30, -(10**30), 0.5, 1e308, -1e308),
    *(float("nan"), float("inf"), "", "x", "two", "../../etc", "[/b]", "<script>", "\udcff"),
    *("a\0b", "é" * 300, [], {}, [[]], [None], {"a": 1}, [1, 2, 3], [0] * 50, {"": None}),
]

tree_edits = st.lists(
    st.tuples(
        st.sampled_from(["put", "drop", "add"]),
        st.integers(0, 10**6),
        st.sampled_from(VALUES),
    ),
    min_size=1,
    max_size=3,
)


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) of a tree of dicts and lists."""
    keys: list[Any] = []
    if isinstance(tree, dict):
        keys = list(tree)
    elif isinstance(tree, list):
        keys = list(range(len(tree)))
    found = [(tree, key) for key in keys]
    for key in keys:
        found += places(tree[key])
    return found


def spoilt_tree(tree: Any, changes: list[tuple[str, int, Any]]) -> Any:
    """Return a copy of a tree in which some places hold something else, or are gone."""
    tree = copy.deepcopy(tree)
    for kind, number, value in changes:
        there = places(tree)
        if not there:
            return copy.deepcopy(value)
        container, key = there[number % len(there)]
        if kind == "put":
            container[key] = copy.deepcopy(value)
        elif kind == "drop":
            del container[key]
        elif isinstance(container, dict):
            container["unheard-of"] = copy.deepcopy(value)
        else:
            container.append(copy.deepcopy(value))
    return tree


def spoilt_json(text: str, changes: list[tuple[str, int, Any]]) -> str:
    """Return a JSON text whose tree was spoilt."""
    return json.dumps(spoilt_tree(json.loads(text), changes))
