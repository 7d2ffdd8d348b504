"""The loop of `plain.py` on several learners.

python -m hocket.launch --learners 2 examples/attach.py
"""

from __future__ import annotations

import torch
from torch import nn

import hocket


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
    with hocket.attach(model, optimizer, strategy="kstep", lr="sequential") as dist:
        for epoch in range(5):
            for x, label in data(seed=epoch)[dist.rank :: dist.size]:
                loss = nn.functional.cross_entropy(model(x), label)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                dist.step(len(x))
    right = sum(int((model(x).argmax(1) == label).sum()) for x, label in data(seed=99))
    print(f"rank {dist.rank} of {dist.size}: accuracy {right / 2048:.3f}")


if __name__ == "__main__":
    main()
