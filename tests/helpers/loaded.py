"""Imported by the server that learners of tests are forked from: what each would load by itself.

The first optimizer of `torch.optim` that a process makes imports torch's compiler (0.9 s of
processor time, 800 modules), so does the first curvature product, and the compiled loops of a codec
take 0.4 s to load: in hundreds of learners.
"""

from __future__ import annotations

import torch._decomp.decompositions_for_jvp
import torch._dynamo  # noqa: F401

from hocket.codecs import kernels

kernels.load()
