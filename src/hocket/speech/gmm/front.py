"""What a GMM-HMM sees of an utterance: a linear transform of spliced cepstra.

    y(t) = T [x(t - 4); ...; x(t + 4)]                                                   (1)

At an utterance's edge its first or last frame is repeated. Deltas are such a transform: slopes over
two frames to each side, taken twice, reach four frames. LDA and MLLT (`lda.py`) give others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.speech.features.spectral import add_deltas

Floats = NDArray[np.float32]
CONTEXT: Final = 4  # frames on each side: the reach of second-order deltas
# Deltas reach 40 ms to each side: at full weight, a phone would begin while the silence before it
# still lasts. With less weight, alignments are closer to the synthesiser's times
# (tests/speech/test_known_times.py compares them). Recognition gives deltas full weight.
DELTA_WEIGHT: Final = 0.1


@dataclass(frozen=True)
class Front:
    """T of eq. 1, and how much each of its outputs counts when aligning."""

    transform: Floats  # (outputs, (2 * CONTEXT + 1) * inputs)
    weights: Floats  # (outputs,)

    @property
    def dims(self) -> int:
        """How many numbers a frame has."""
        return len(self.transform)

    def __call__(self, x: Floats) -> Floats:
        """Return eq. 1 for every frame of an utterance, (frames, outputs)."""
        y: Floats = spliced(x) @ self.transform.T
        return y

    def then(self, transform: NDArray[np.float64]) -> Front:
        """Return this transform followed by another one."""
        both = (transform @ self.transform.astype(np.float64)).astype(np.float32)
        return Front(both, np.ones(len(both), np.float32))

    def scaled(self, scale: NDArray[np.float64]) -> Front:
        """Return this transform with its outputs multiplied by `scale`."""
        return Front((scale[:, None] * self.transform).astype(np.float32), self.weights)


def spliced(x: Floats) -> Floats:
    """Return every frame with its neighbours, (frames, (2 * CONTEXT + 1) * inputs)."""
    window = np.arange(len(x))[:, None] + np.arange(-CONTEXT, CONTEXT + 1)
    together: Floats = x[np.clip(window, 0, len(x) - 1)].reshape(len(x), -1)
    return together


def deltas(num_inputs: int) -> Front:
    """Return the transform that appends deltas and their deltas, and weighs them down."""
    impulse = np.zeros((2 * CONTEXT + 1, 1), np.float32)
    impulse[CONTEXT] = 1.0
    response = add_deltas(impulse)[::-1]  # (2 * CONTEXT + 1, 3): what each neighbour contributes
    transform = np.einsum("kd,ij->dikj", response, np.eye(num_inputs, dtype=np.float32))
    weights = np.repeat(np.array([1.0, DELTA_WEIGHT, DELTA_WEIGHT], np.float32), num_inputs)
    return Front(transform.reshape(3 * num_inputs, -1).astype(np.float32), weights)


def whole_splice(num_inputs: int) -> Front:
    """Return the transform that changes nothing."""
    size = (2 * CONTEXT + 1) * num_inputs
    return Front(np.eye(size, dtype=np.float32), np.ones(size, np.float32))


def as_tensor(front: Front, x: Floats) -> torch.Tensor:
    """Return eq. 1 as a tensor."""
    return torch.from_numpy(np.ascontiguousarray(front(x)))
