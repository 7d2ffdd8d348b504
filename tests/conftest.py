"""One thread everywhere: results are compared to the bit."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
