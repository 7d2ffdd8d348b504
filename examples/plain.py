"""A plain PyTorch training loop; `attach.py` is the same loop on several learners.

python examples/plain.py
"""

from __future__ import annotations

import torch
from torch import nn


def data(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two interleaved half circles, in minibatches."""
    rng = torch.Generator().manual_seed(seed)
    label = torch.randint(2, (2048,), generator=rng)
    angle = (torch.rand(2048, generator=rng) + label) * torch.pi
    x = torch.stack([angle.cos() + label, angle.sin() + 0.5 * label], dim=1)
    x += 0.1 * torch.randn(x.shape, generator=rng)
    return list(zip(torch.split(x, 32), torch.split(label, 32), strict=True))


def main() -> None:
    """Train, then say how good the model is."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(5):
        for x, label in data(seed=epoch):
            loss = nn.functional.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    right = sum(int((model(x).argmax(1) == label).sum()) for x, label in data(seed=99))
    print(f"accuracy {right / 2048:.3f}")


if __name__ == "__main__":
    main()
