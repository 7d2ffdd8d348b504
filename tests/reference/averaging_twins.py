"""K-AVG with momentum policies, BMUF, DiLoCo, EASGD and ADMM on the quadratic, from the papers.

As in `twins`: float64 loops over numpy arrays; only the data and the order of items are shared with
the code under test. DiLoCo's outer step is torch's own optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from helpers.tasks import DIM, Quadratic

from reference.twins import Momentum, Vector, mean_gradient

Orders = Sequence[Sequence[int]]


def blocks(orders: Orders, learners: int, k: int) -> Iterator[list[list[int]]]:
    """Yield, block by block, the items of each learner; a block ends with its epoch."""
    for order in orders:
        lanes = [list(order[r::learners]) for r in range(learners)]
        for start in range(0, max(map(len, lanes)), k):
            yield [lane[start : start + k] for lane in lanes]


def weighted(task: Quadratic, block: list[list[int]], models: Sequence[Vector]) -> Vector:
    n = np.array([sum(task.frames_of(i) for i in lane) for lane in block], dtype=np.float64)
    mean: Vector = (n[:, None] * np.stack(models)).sum(0) / n.sum()
    return mean


def walked(
    task: Quadratic, start: Vector, lanes: list[list[int]], rules: list[Momentum], lr: float
) -> list[Vector]:
    """Return where each learner is after its items."""
    ends = []
    for lane, rule in zip(lanes, rules, strict=True):
        w = start.copy()
        for index in lane:
            w = rule.step(w, mean_gradient(task, w, index), lr)
        ends.append(w)
    return ends


def kstep(
    task: Quadratic, orders: Orders, learners: int, k: int, lr: float, mu: float, policy: str
) -> Vector:
    w, rules = np.zeros(DIM), [Momentum(mu) for _ in range(learners)]
    for block in blocks(orders, learners, k):
        w = weighted(task, block, walked(task, w, block, rules, lr))
        mean = weighted(task, block, [rule.v for rule in rules])
        for rule in rules:
            rule.v = {"keep": rule.v, "reset": np.zeros(DIM), "average": mean}[policy]
    return w


def dev_loss(task: Quadratic, w: Vector) -> float:
    """Half the squared distance per frame of the five held-out items, in the quadratic's metric."""
    targets = np.concatenate([task.targets(i) for i in range(5)])
    return float(0.5 * ((task.curvature() * (w - targets)) ** 2).sum() / len(targets))


def adaptive_kstep(
    task: Quadratic,
    orders: Orders,
    learners: int,
    k: int,
    lr: float,
    mu: float,
    *,
    least: int = 1,
    shrink_sync: bool = True,
    shrink_rate: bool = False,
    accept: bool = False,
    stall: float = 0.05,
    tolerance: float = 0.02,
) -> tuple[Vector, list[int]]:
    """K-AVG that looks at the dev set after every epoch, and before an average is taken."""
    w, rules = np.zeros(DIM), [Momentum(mu) for _ in range(learners)]
    scale, last, held_out, ks = 1.0, np.inf, np.inf, []
    for order in orders:
        lanes = [list(order[r::learners]) for r in range(learners)]
        start = 0
        while start < max(map(len, lanes)):
            ks.append(k)
            block = [lane[start : start + k] for lane in lanes]
            start += k
            mean = weighted(task, block, walked(task, w, block, rules, lr * scale))
            loss = dev_loss(task, mean)
            if accept and k > least and loss > (1 + tolerance) * held_out:
                rules = [Momentum(mu) for _ in range(learners)]
                k = max(least, k // 2)
            else:
                w, held_out = mean, loss
        now = dev_loss(task, w)
        if now > (1 - stall) * last:
            k = max(least, k // 2) if shrink_sync else k
            scale *= 0.5 if shrink_rate else 1.0
        last = now
    return w, ks


def bmuf(
    task: Quadratic,
    orders: Orders,
    learners: int,
    k: int,
    lr: float,
    eta: float,
    zeta: float,
    nesterov: bool,
) -> Vector:
    """W(T) of Chen and Huo, with W and W_g apart as in the paper."""
    w = start = delta = np.zeros(DIM)
    for block in blocks(orders, learners, k):
        rules = [Momentum(0.0) for _ in range(learners)]
        g = weighted(task, block, walked(task, start, block, rules, lr)) - start
        delta = eta * delta + zeta * g
        w = w + delta
        start = w + eta * delta if nesterov else w
    return w


def diloco(
    task: Quadratic,
    orders: Orders,
    learners: int,
    k: int,
    lr: float,
    outer: dict[str, float | bool],
) -> Vector:
    theta = torch.zeros(DIM, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([theta], **outer)  # type: ignore[arg-type]
    for block in blocks(orders, learners, k):
        rules = [Momentum(0.0) for _ in range(learners)]
        start = theta.detach().numpy().copy()
        mean = weighted(task, block, walked(task, start, block, rules, lr))
        theta.grad = torch.from_numpy(start - mean)
        optimizer.step()
    result: Vector = theta.detach().numpy()
    return result


def slowmo(
    task: Quadratic,
    orders: Orders,
    learners: int,
    tau: int,
    rates: Sequence[float],
    alpha: float,
    beta: float,
) -> Vector:
    """x(t,0) at the end; `rates` has one for each block."""
    x, u = np.zeros(DIM), np.zeros(DIM)
    for block, gamma in zip(blocks(orders, learners, tau), rates, strict=True):
        rules = [Momentum(0.0) for _ in range(learners)]
        mean = weighted(task, block, walked(task, x, block, rules, gamma))
        u = beta * u + (x - mean) / gamma
        x = x - alpha * gamma * u
    return x


class Elastic:
    """One learner of EASGD: local steps, with Nesterov's momentum for EAMSGD."""

    def __init__(self, task: Quadratic, lr: float, delta: float) -> None:
        self.task, self.lr, self.delta = task, lr, delta
        self.x, self.v = np.zeros(DIM), np.zeros(DIM)

    def step(self, index: int) -> Vector:
        """Return the local step from where the learner is."""
        g = mean_gradient(self.task, self.x + self.delta * self.v, index)
        self.v = self.delta * self.v - self.lr * g
        return self.v


def easgd(
    task: Quadratic,
    orders: Orders,
    learners: int,
    tau: int,
    lr: float,
    alpha: float,
    delta: float = 0.0,
) -> Vector:
    """The centre; every learner has as many items as the others."""
    centre, all_ = np.zeros(DIM), [Elastic(task, lr, delta) for _ in range(learners)]
    for block in blocks(orders, learners, tau):
        for one, lane in zip(all_, block, strict=True):
            for index in lane[:-1]:
                one.x = one.x + one.step(index)
        old = [one.x for one in all_]
        for one, lane in zip(all_, block, strict=True):
            one.x = one.x + one.step(lane[-1]) - alpha * (one.x - centre)
        centre = (1 - learners * alpha) * centre + learners * alpha * np.mean(old, axis=0)
    return centre


def async_easgd(
    task: Quadratic,
    items: Sequence[Sequence[int]],
    exchanges: Sequence[int],
    tau: int,
    lr: float,
    alpha: float,
) -> Vector:
    """The centre, given each learner's items and in which order their exchanges reach it."""
    centre = np.zeros(DIM)
    all_ = [Elastic(task, lr, 0.0) for _ in items]
    lanes = [list(lane) for lane in items]
    for rank in exchanges:
        one, block = all_[rank], lanes[rank][:tau]
        lanes[rank] = lanes[rank][tau:]
        for index in block[: tau - 1]:
            one.x = one.x + one.step(index)
        pull = alpha * (one.x - centre)
        step = one.step(block[tau - 1]) if len(block) == tau else np.zeros(DIM)
        one.x = one.x + step - pull
        centre = centre + pull
    return centre


def admm(
    task: Quadratic,
    orders: Orders,
    learners: int,
    k: int,
    lr: float,
    rho: float,
    balance: bool,
) -> Vector:
    """The consensus; multipliers in scaled form u = lambda / rho, as Boyd et al. have them."""
    centre = np.zeros(DIM)
    w = [np.zeros(DIM) for _ in range(learners)]
    u = [np.zeros(DIM) for _ in range(learners)]
    for block in blocks(orders, learners, k):
        for r, lane in enumerate(block):
            for index in lane:
                g = mean_gradient(task, w[r], index)
                w[r] = w[r] - lr * (g + rho * (u[r] + w[r] - centre))
        before, centre = centre, np.mean([w[r] + u[r] for r in range(learners)], axis=0)
        u = [u[r] + w[r] - centre for r in range(learners)]
        primal = np.sqrt(np.mean([np.sum((x - centre) ** 2) for x in w]))
        dual = rho * np.linalg.norm(centre - before)
        factor = 2.0 if primal > 10 * dual else 0.5 if dual > 10 * primal else 1.0
        if balance:
            rho, u = rho * factor, [x / factor for x in u]
    return centre
