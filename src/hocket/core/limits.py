"""How large an option may be. A number beyond these cannot be meant, and would not end well.

Each part of a configuration checks what its numbers mean. Here is what holds for all of them: a
number is a number, fits into float32 where it is a fraction, and a size is one that some machine
could hold. docs/limits.md lists these; a test holds the page to the numbers here.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final

from hocket.errors import require

MOST: Final[dict[str, int]] = {
    "learners": 65_536,  # simulated; real ones are processes (`MOST_PROCESSES`)
    "count": 65_536,  # hosts of a kind
    "attendants": 65_536,
    "servers": 65_536,
    "stages": 1_024,
    "ranks_per_learner": 1_024,
    "micro_batches": 65_536,
    "threads": 1_024,
    "epochs": 1_000_000,
    "layers": 1_000,
    "dense_layers": 1_000,
    "cells": 1_000_000,
    "width": 1_000_000,
    "group": 1_000_000,
    "teacher_width": 1_000_000,
    "context": 10_000,
    "num_features": 1_000_000,
    "num_classes": 1_000_000,
    "combine_models": 10_000,
    "first_parts": 1_000,  # each is a step of its own
    "num_bins": 1_000,
    "lm_order": 20,
    "senones": 1_000_000,
    "max_active": 2**31 - 1,  # an int32 of the decoder
    "seed": 2**63 - 1,
    "data_seed": 2**63 - 1,
    "mixing_seed": 2**63 - 1,
}
MOST_OF_ANYTHING: Final = 10**12  # frames, items, minibatches
MOST_PROCESSES: Final = 1_024  # of one host
LARGEST: Final = 1e30  # a fraction, or the rate of an optimizer: its products fit into float32
SMALLEST: Final = 1e-30  # but for 0 itself
LONGEST_S: Final = 1e8  # three years: no wait is endless
INFINITE: Final = frozenset(
    [
        *("evaluate_every", "checkpoint_every", "log_every", "guard_factor", "until_s", "p"),
        *("max_staleness", "drop_worse_by", "lr_limit", "clip_norm", "first_max_change"),
        *("max_change", "max_change_output", "max_change_global", "bandwidth_gbit", "memory_gbit"),
    ]
)  # where infinity means "never" or "no limit"


def check_numbers(part: Any, table: str) -> None:
    """Raise `ConfigError` for a number in a part of the configuration that cannot be meant."""
    for field in dataclasses.fields(part):
        value, name = getattr(part, field.name), f"{table}.{field.name}"
        if isinstance(value, bool):
            continue
        if isinstance(value, int):
            most = MOST.get(field.name, MOST_OF_ANYTHING)
            require(abs(value) <= most, f"{name} must be at most {most:,}, not {_shown(value)}")
        elif isinstance(value, float):
            _check_fraction(value, field.name, name)


def _check_fraction(value: float, key: str, name: str) -> None:
    require(not math.isnan(value), f"{name} must be a number, not nan")
    if math.isinf(value):
        require(key in INFINITE, f"{name} must be finite, not {value}")
        return
    most = LONGEST_S if key.endswith("_s") else LARGEST
    require(abs(value) <= most, f"{name} must be at most {most:g}, not {value:g}")
    small = value != 0 and abs(value) < SMALLEST
    require(not small, f"{name} must be 0 or at least {SMALLEST:g}, not {value:g}")


def _shown(value: int) -> str:
    return f"{value:,}" if abs(value) < 10**30 else "a number of more than 30 digits"
