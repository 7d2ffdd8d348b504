"""Where a learner computes, how precisely, and how its vectors travel.

Everything here but CUDA itself is tested with the CPU; no machine with a GPU was at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Literal, TypeAlias

import torch

from hocket.errors import ConfigError

DeviceName: TypeAlias = Literal["auto", "cpu", "cuda"]
Precision: TypeAlias = Literal["float32", "bfloat16"]
Transport: TypeAlias = Literal["auto", "shared_memory", "sockets", "torch", "mpi"]  # of vectors
LIBRARIES: Final = ("torch", "mpi")  # these carry vectors in our place, and end with any learner


def resolve(name: DeviceName, local_rank: int) -> torch.device:
    """Return the device of a host's n-th learner; learners share GPUs if there are too few."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            "runtime.device = 'cuda', but torch finds no CUDA device here: use 'auto' or 'cpu', or "
            "install a torch with CUDA"
        )
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def computing(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """Return the context of forward passes: lower precision is autocast's business."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def seed(device: torch.device, value: int) -> None:
    """Seed the generators that a minibatch may use."""
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.manual_seed(value)


def random_state(device: torch.device) -> list[torch.Tensor]:
    """Return how far the generators have got that a minibatch may use."""
    found = [torch.get_rng_state()]
    return [*found, torch.cuda.get_rng_state(device)] if device.type == "cuda" else found


def set_random_state(device: torch.device, state: list[torch.Tensor]) -> None:
    """Let the generators go on from there; those of another kind of device stay as they are."""
    torch.set_rng_state(state[0].clone())  # torch 2.13 crashes where memory is not all its own
    if device.type == "cuda" and len(state) > 1:
        torch.cuda.set_rng_state(state[1].clone(), device)


def move(tree: Any, device: torch.device) -> Any:
    """Return a batch with its tensors on a device; on the CPU it is the batch itself."""
    if device.type == "cpu":
        return tree
    if isinstance(tree, torch.Tensor):
        return tree.to(device, non_blocking=True)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(move(child, device) for child in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(move(child, device) for child in tree)
    if isinstance(tree, dict):
        return {key: move(child, device) for key, child in tree.items()}
    return tree


class Lane:
    """Where one kind of work runs on a device: a stream of its own on CUDA, nothing on the CPU.

    Work begins once what was issued before it has passed the default stream: it sees all that was
    written there, and memory it frees is not used again while others still read it. It has ended
    when the block is left: its results are valid on every stream. Two lanes run side by side.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def work(self) -> Iterator[None]:
        """Do the work of the block here."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.default_stream(self._device))
        with torch.cuda.stream(self._stream):  # a thread's current device is set with it
            yield
        self._stream.synchronize()
