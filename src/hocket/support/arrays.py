"""Arrays and tensors from files: the header is compared with the file before memory is taken.

numpy and safetensors both refuse pickled objects. What they do not refuse is looked at here: a
header that announces more values than the file has, another type or number of dimensions than the
caller can use, a pipe in place of a file.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, Final, Literal, TypeAlias

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, load_file

from hocket.errors import UnreadableError
from hocket.support.inputs import MIB, file_size, open_file, read_bytes, shown

Kind: TypeAlias = Literal["integer", "float"]
_KINDS: Final[dict[Kind, str]] = {"integer": "iu", "float": "f"}  # as numpy writes them
ARRAYS_LIMIT: Final = 1024 * MIB  # of one .npz, unfolded: a GMM has some megabytes
# A type that torch lacks, or the library does, ends in one of the last five.
_NOT_TENSORS: Final = (
    *(OSError, SafetensorError),
    *(KeyError, TypeError, ValueError, RuntimeError, AttributeError),
)
# A header is an expression of Python, which numpy looks through with Python's own tokenizer.
_NOT_A_HEADER: Final = (
    *(ValueError, KeyError, TypeError, SyntaxError, TokenError),
    *(RecursionError, MemoryError, OverflowError),
)
_HEADERS: Final = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_array(path: Path, kind: Kind, ndim: int, *, mapped: bool = False) -> Any:
    """Return the array of a .npy file; `mapped`: read from the disk as it is used."""
    with open_file(path) as file:
        _check_header(path, file, file_size(path), kind, ndim)
    try:
        return np.load(path, mmap_mode="r" if mapped else None)
    except (OSError, ValueError) as error:
        raise UnreadableError.of(path, f"not an array of numpy ({error})") from error


def read_arrays(path: Path, kinds: dict[str, tuple[Kind, int]]) -> dict[str, Any]:
    """Return the arrays of a .npz file, which must have these names, types and dimensions."""
    try:
        with open_file(path, ARRAYS_LIMIT) as file, zipfile.ZipFile(file) as archive:
            found: dict[str, NDArray[Any]] = {}
            for name, (kind, ndim) in kinds.items():
                size = archive.getinfo(f"{name}.npy").file_size
                if size > ARRAYS_LIMIT:
                    raise UnreadableError.of(path, f"{name!r} unfolds to {shown(size)}")
                with archive.open(f"{name}.npy") as member:
                    _check_header(path, member, size, kind, ndim)
                with archive.open(f"{name}.npy") as member:
                    found[name] = npy.read_array(member)
            return found
    except KeyError as error:
        raise UnreadableError.of(path, f"an array is missing ({error.args[0]})") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        # RuntimeError, NotImplementedError: encrypted, or packed in a way that Python does not know
        raise UnreadableError.of(path, f"not arrays of numpy ({error})") from error


def _check_header(path: Path, file: IO[bytes], size: int, kind: Kind, ndim: int) -> None:
    """Raise unless the file is as long as its header says, and holds what the caller wants."""
    try:
        shape, _, dtype = _HEADERS[npy.read_magic(file)](file)
        start = file.tell()
    except (OSError, *_NOT_A_HEADER) as error:
        raise UnreadableError.of(path, f"not an array of numpy ({error})") from error
    if dtype.kind not in _KINDS[kind] or len(shape) != ndim:
        raise UnreadableError.of(
            path,
            f"it holds {dtype} of shape {list(shape)}, not {kind}s in {ndim} dimension(s)",
        )
    if min(shape, default=0) < 0 or start + math.prod(shape) * dtype.itemsize > size:
        raise UnreadableError.of(
            path, f"its header announces {list(shape)} values of {dtype}, more than it has"
        )


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a .safetensors file."""
    file_size(path)
    try:
        str(path).encode()
    except UnicodeEncodeError:  # a name that the library cannot open
        return tensors_of(path, read_bytes(path, file_size(path)))
    try:
        return load_file(path)
    except _NOT_TENSORS as error:
        raise UnreadableError.of(path, f"not a .safetensors file ({error})") from error


def tensors_of(path: Path, data: bytes) -> dict[str, torch.Tensor]:
    """Return the tensors in what was read from a .safetensors file."""
    try:
        return load(data)
    except _NOT_TENSORS as error:
        raise UnreadableError.of(path, f"not a .safetensors file ({error})") from error
