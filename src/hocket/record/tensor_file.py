"""A safetensors file that is written one tensor after the other: never more than one is in memory.

The format: eight bytes that say how long the header is, the header (JSON: each tensor's kind, shape
and place), and the tensors' bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch

Fact: TypeAlias = Sequence[Any]  # a tensor's name, its kind as torch says it, its shape

_KINDS: Final = {
    "torch.float32": ("F32", 4),
    "torch.float64": ("F64", 8),
    "torch.float16": ("F16", 2),
    "torch.bfloat16": ("BF16", 2),
    "torch.int64": ("I64", 8),
    "torch.int32": ("I32", 4),
    "torch.int16": ("I16", 2),
    "torch.int8": ("I8", 1),
    "torch.uint8": ("U8", 1),
    "torch.bool": ("BOOL", 1),
}


def width(fact: Fact) -> int:
    """Return the bytes of one value: the widest come first, so that all lie where they may."""
    return _KINDS[str(fact[1])][1]


class TensorFile:
    """Takes tensors in the order in which they were announced."""

    def __init__(self, path: Path, facts: Sequence[Fact]) -> None:
        header: dict[str, object] = {}
        at = 0
        for name, kind, shape in facts:
            code, width = _KINDS[str(kind)]
            size = math.prod(shape) * width
            places = {"data_offsets": [at, at + size]}
            header[str(name)] = {"dtype": code, "shape": list(shape), **places}
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)

    def add(self, tensor: torch.Tensor) -> None:
        """Write the next one."""
        flat = tensor.detach().cpu().contiguous().view(-1)
        if flat.numel():
            self._file.write(flat.view(torch.uint8).numpy().data)

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors that are there, without a copy of all of them."""
    facts: list[Fact] = [(name, str(t.dtype), list(t.shape)) for name, t in tensors.items()]
    facts.sort(key=lambda fact: -width(fact))
    file = TensorFile(path, facts)
    try:
        for name, _, _ in facts:
            file.add(tensors[name])
    finally:
        file.close()
