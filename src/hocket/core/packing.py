"""Trees of tensors and plain values, as JSON plus named tensors. No pickled code anywhere.

Used for messages between learners and for checkpoints. A tree is built of dicts, lists, tuples,
numbers, strings, None, tensors, tickets, and dataclasses. Dataclasses are restored by filling in a
template, so a file can never name a class to be loaded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import astuple, fields, is_dataclass, replace
from functools import partial
from types import UnionType
from typing import Any, Final, TypeAlias, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch

from hocket.core.accounts import Ticket
from hocket.errors import ContractError

OPTIONAL: Final = frozenset({"memory"})  # fields that are left out while they hold nothing

Buffer: TypeAlias = bytes | bytearray | memoryview

_DTYPES = {str(d): d for d in (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8)}
_DTYPES |= {str(d): d for d in (torch.bool, torch.float16, torch.bfloat16)}
_DTYPES |= {str(d): d for d in (torch.int16, torch.int8)}


def flatten(tree: Any, *, dataclasses: bool = True) -> tuple[Any, dict[str, torch.Tensor]]:
    """Split a tree into a JSON-able skeleton and its tensors.

    Messages are read without a template, so they may hold no dataclasses but tickets.
    """
    tensors: dict[str, torch.Tensor] = {}
    return _walk(tree, "x", tensors, dataclasses=dataclasses), tensors


def _walk(node: Any, path: str, tensors: dict[str, torch.Tensor], *, dataclasses: bool) -> Any:
    """Return the skeleton of a node. No inner function: one that calls itself would keep tensors.

    It refers to itself, so they stayed until the garbage collector came by: whole models.
    """
    if node is None or isinstance(node, bool | int | float | str):
        return node
    if isinstance(node, torch.Tensor):
        tensors[path] = node.detach().cpu()
        return {"$tensor": path}
    if isinstance(node, Ticket):
        return {"$ticket": list(astuple(node))}
    walk = partial(_walk, tensors=tensors, dataclasses=dataclasses)
    if isinstance(node, list | tuple):
        walked = [walk(child, f"{path}.{i}") for i, child in enumerate(node)]
        return walked if isinstance(node, list) else {"$tuple": walked}
    if isinstance(node, dict):
        return {"$dict": [[k, walk(v, f"{path}.{k}")] for k, v in node.items()]}
    if dataclasses and is_dataclass(node) and not isinstance(node, type):
        children = {f.name: getattr(node, f.name) for f in fields(node)}
        children = {k: v for k, v in children.items() if not (v is None and k in OPTIONAL)}
        return {"$fields": {k: walk(v, f"{path}.{k}") for k, v in children.items()}}
    raise ContractError(
        f"cannot pack {type(node).__name__} at {path!r}: use tensors, numbers, strings and "
        f"tickets, and lists, tuples, {'dicts or dataclasses' if dataclasses else 'or dicts'} "
        "of them"
    )


def unflatten(skeleton: Any, tensors: dict[str, torch.Tensor], template: Any = None) -> Any:
    """Rebuild a tree. Dataclasses take their type from the same place in `template`."""
    if isinstance(skeleton, list):
        return [unflatten(child, tensors, _child(template, i)) for i, child in enumerate(skeleton)]
    if not isinstance(skeleton, dict):
        return skeleton
    ((kind, body),) = skeleton.items()
    if kind == "$tensor":
        return tensors[body]
    if kind == "$ticket":
        return Ticket(*body)
    if kind == "$tuple":
        return tuple(unflatten(c, tensors, _child(template, i)) for i, c in enumerate(body))
    if kind == "$dict":
        return {k: unflatten(v, tensors, _child(template, k)) for k, v in body}
    known = {f.name for f in fields(template)} if is_dataclass(template) else set()
    known -= {k for k in OPTIONAL & known if k not in body and getattr(template, k) is None}
    if set(body) != known or isinstance(template, type):
        raise ContractError(
            f"saved fields {sorted(body)} do not fit {type(template).__name__} {sorted(known)}: "
            "this was written by another version or another strategy"
        )
    children = {k: unflatten(v, tensors, getattr(template, k)) for k, v in body.items()}
    hints = get_type_hints(type(template))
    for key, value in children.items():
        if not _fits(value, hints[key]):
            raise ContractError(
                f"saved field {key!r} of {type(template).__name__} is {type(value).__name__}, not "
                f"{hints[key]}: this was written by another version or another strategy"
            )
    return replace(template, **children)


def _fits(value: Any, hint: Any) -> bool:
    """True unless a value is of another kind than a field's annotation; unknown ones fit."""
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    kind = get_origin(hint) or hint
    return hint is Any or not isinstance(kind, type) or isinstance(value, kind)


def _child(template: Any, key: Any) -> Any:
    try:
        return template[key]
    except (TypeError, KeyError, IndexError):
        return None


def num_bytes(tree: Any) -> int:
    """What a message weighs on the wire: its tensors, and a little for the rest."""
    skeleton, tensors = flatten(tree, dataclasses=False)
    return len(json.dumps(skeleton)) + sum(t.numel() * t.element_size() for t in tensors.values())


def handed_on(tree: Any) -> Any:
    """Return a message to oneself as it arrives: its tensors themselves, as ownership moves."""
    return unflatten(*flatten(tree, dataclasses=False))


_ALIGN = 64  # bytes: where a tensor may begin, in what is sent and in what is received


def _here(tensor: torch.Tensor) -> list[int] | None:
    return None


def to_parts(tree: Any, put: Callable[[torch.Tensor], list[int] | None] = _here) -> list[Buffer]:
    """Encode a tree for the wire; tensors are not copied. `put` may take some by another way."""
    skeleton, tensors = flatten(tree, dataclasses=False)
    places = {k: put(t) for k, t in tensors.items()}
    metas = [[k, str(t.dtype), list(t.shape), places[k]] for k, t in tensors.items()]
    head = json.dumps([skeleton, metas]).encode()
    parts: list[Buffer] = [len(head).to_bytes(8, "little") + head, _padding(8 + len(head))]
    for tensor in (t for k, t in tensors.items() if places[k] is None):
        raw = memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        parts += [raw, _padding(len(raw))]
    return [part for part in parts if len(part)]


def _padding(length: int) -> bytes:
    return bytes(-length % _ALIGN)


def to_bytes(tree: Any) -> bytes:
    """Encode a tree for the wire, in one piece."""
    return b"".join(to_parts(tree))


def from_buffer(data: torch.Tensor, take: Callable[[list[int]], torch.Tensor] | None = None) -> Any:
    """Decode a tree from bytes that nobody else will touch: its tensors are views of them.

    `take` fetches the bytes of those that `put` took.
    """
    size = int.from_bytes(data[:8].numpy().tobytes(), "little")
    skeleton, metas = json.loads(data[8 : 8 + size].numpy().tobytes())
    tensors, offset = {}, 8 + size + len(_padding(8 + size))
    for name, kind, shape, place in metas:
        dtype = _DTYPES[kind]
        if place is not None:
            assert take is not None
            tensors[name] = take(place).view(dtype).view(shape)
            continue
        length = math.prod(shape) * dtype.itemsize
        tensors[name] = data[offset : offset + length].view(dtype).view(shape)
        offset += length + len(_padding(length))
    return unflatten(skeleton, tensors)


def from_bytes(data: Buffer) -> Any:
    """Decode a tree from the wire; its tensors own their memory."""
    owned = torch.empty(len(data), dtype=torch.uint8)
    owned.numpy()[:] = np.frombuffer(data, dtype=np.uint8)
    return from_buffer(owned)
