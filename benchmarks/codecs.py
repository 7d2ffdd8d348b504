"""How fast codecs are: encode and decode against a copy of the same vector, one thread, one run.

    python benchmarks/codecs.py             # 6.7 million values in columns of 1,024
    python benchmarks/codecs.py --values 46e6 --json
    python benchmarks/codecs.py --profile   # where the time of the compiled `onebit` goes

Copies and codecs take turns, so that whatever else the machine does hits both alike. The figure
is the median of the ratios of neighbouring turns. What is needed of `onebit`: at most 5 copies for
both with the compiled loops (the aim is 3).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from hocket.codecs import BFloat16, Float16, OneBit, TopK, kernels
from hocket.codecs.onebit import OneBitCoder
from hocket.core.codec import Coder
from hocket.core.flat import Layout
from hocket.runtime.sim.pays import layout_of


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def coders(layout: Layout) -> dict[str, Coder]:
    found: dict[str, Coder] = {}
    for codec in (Float16(), BFloat16(), TopK()):
        coder = codec.fitted(layout)
        assert coder is not None
        found[codec.name] = coder
    options = {"float_below": OneBit().float_below, "feeds_back": True}
    found["onebit, torch"] = OneBitCoder(layout, compiled=False, **options)  # type: ignore[arg-type]
    if kernels.load() is not None:
        found["onebit, compiled"] = OneBitCoder(layout, **options)  # type: ignore[arg-type]
    return found


def measured(coder: Coder, x: torch.Tensor, turns: int) -> dict[str, float]:
    residual, out, target = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    codes = [coder.encode_(x, residual, coder.whole)]  # compiles, and touches all memory

    def encode() -> None:
        codes[0] = coder.encode_(x, residual, coder.whole)

    def decode() -> None:
        coder.decode_(codes[0], coder.whole, out, add=False)

    decode()
    ratios: dict[str, list[float]] = {"encode": [], "decode": [], "both": []}
    for _ in range(turns):
        copy = statistics.mean(seconds(lambda: target.copy_(x)) for _ in range(3))
        e, d = seconds(encode), seconds(decode)
        for name, spent in (("encode", e), ("decode", d), ("both", e + d)):
            ratios[name].append(spent / copy)
    return {name: statistics.median(found) for name, found in ratios.items()} | {
        "bytes": coder.size.total / coder.size.uncoded,
        "copy_ms": 1000 * copy,
    }


def profile(turns: int) -> dict[str, float]:
    """Time parts of the compiled encoder on 6,700 columns of 1,024, in copies, processor time."""
    import numba
    import numpy as np

    from hocket.codecs import compiled

    x = np.random.default_rng(0).normal(size=(6_700, 1_024)).astype(np.float32)
    rest, target, headers = np.zeros_like(x), np.zeros_like(x), np.zeros((len(x), 2), np.float32)
    bodies, one, zero = np.zeros((len(x), 128), np.uint8), np.float32(1), np.float32(0)

    @numba.njit
    def moved(given: Any, kept: Any, weight: Any) -> None:
        """Read gradient and residual, write the residual: what no encoder can do without."""
        v = np.empty(given.shape[1], np.float32)
        for row in range(len(given)):
            for i in range(len(v)):
                v[i] = given[row, i] * weight + kept[row, i]
            for i in range(len(v)):
                kept[row, i] = v[i] - (weight if v[i] >= zero else zero)

    parts: dict[str, Callable[[], object]] = {
        "copy": lambda: np.copyto(target, x),
        "memory alone": lambda: moved(x, rest, one),
        "encode": lambda: compiled.encode_bits(x, rest, headers, bodies, one, True),
        "decode": lambda: compiled.decode_bits(headers, bodies, target, one, False),
    }
    for part in parts.values():
        part()  # compiles
    spent: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(turns):
        for name, part in parts.items():
            began = time.process_time()
            part()
            spent[name].append(time.process_time() - began)
    copy_s = statistics.median(spent["copy"])
    return {name: statistics.median(found) / copy_s for name, found in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", action="store_true", help="parts of the compiled encoder")
    parser.add_argument("--values", type=float, default=6.7e6)
    parser.add_argument("--turns", type=int, default=41)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.profile:
        for name, copies in profile(args.turns).items():
            print(f"{name:14} {copies:5.2f} copies")
        return
    layout = layout_of(int(args.values))
    x = torch.randn(layout.size, generator=torch.Generator().manual_seed(0))
    table = {name: measured(coder, x, args.turns) for name, coder in coders(layout).items()}
    if args.json:
        print(json.dumps({"values": layout.size, "codecs": table}, indent=1))
        return
    print(f"{layout.size:,} values; times in copies of the vector, one thread")
    for name, row in table.items():
        print(
            f"{name:18} encode {row['encode']:6.2f}  decode {row['decode']:5.2f}  both "
            f"{row['both']:6.2f}  wire 1/{1 / row['bytes']:.1f}  (a copy: {row['copy_ms']:.2f} ms)"
        )


if __name__ == "__main__":
    main()
