"""The preconditioner of natural-gradient SGD: an online, low-rank estimate of the Fisher matrix.

Reference: D. Povey, X. Zhang, S. Khudanpur, "Parallel training of DNNs with natural gradient and
parameter averaging", arXiv:1410.7455 (ICLR workshop 2015). The constants are those of Kaldi's code
(`OnlineNaturalGradient`), and so are the results: tests compare them with Kaldi's output.

The idea
--------
A linear layer sees N rows per minibatch: inputs x_n (with a 1 appended for the bias) and
derivatives y_n of the loss by its outputs. Its gradient is Y'X. Each side has a matrix of second
moments, F_x = mean of x x', F_y = mean of y y'; the Fisher matrix of the layer is modelled as their
Kronecker product, so the natural gradient (Y F_y^-1)' (X F_x^-1) only needs each side's rows
multiplied by an inverse. (`'` is the transpose.) The two sides are treated alike and independently;
from here on X stands for either of them.

The estimate, of rank R in D dimensions, has the form

    F = O' diag(d) O + rho I,          O O' = I (O is R x D),  d > 0,  rho > 0             (1)
    tr F = D rho + sum d                                                                   (2)

Applying it
-----------
The inverse is smoothed by a share alpha of the mean eigenvalue, G = F + (alpha/D) tr(F) I. All but
R of its eigenvalues are

    beta = rho (1 + alpha) + alpha sum(d) / D                                              (3)

and the others beta + d_i. So beta G^-1 shrinks a row in R directions and does not change it in the
others:

    beta G^-1 = I - O' E O,            e_i = d_i / (beta + d_i) = 1 / (beta / d_i + 1)     (4)
    X^ = X - H W,                      H = X W',  W = E^1/2 O                              (5)

W, not O, is stored: (5) is two thin products. A scalar restores the lost length,

    s = |X| / |X^|   (Frobenius norms; 1 if X is zero)                                     (6)

one for each side, so that the step has the size that the learning rate asks for.

Updating it
-----------
After its use, the minibatch is added to F with weight eta = 1 - exp(-N / S):

    T = (eta/N) X'X + (1 - eta) F                                                          (7)

F's new directions are one step of the power method, O T, made orthonormal by the eigenvectors of

    Z = (O T) (O T)' = U diag(c) U',   O_new = c^-1/2 U' O T                               (8)

because O is nearly right already. sqrt(c) then estimates T's leading eigenvalues, and rho is chosen
to keep the trace:

    rho_new = (tr T - sum sqrt(c)) / (D - R),     d_new = sqrt(c) - rho_new                (9)

No D x D matrix is formed. With J = H'X, L = H'H, K = J J' and q = d + rho,

    O T = (eta/N) E^-1/2 J + (1 - eta) diag(q) O                                          (10)
    Z   = a^2 E^-1/2 K E^-1/2 + a (1-eta) (E^-1/2 L E^-1/2 * (q_i + q_j)) + (1-eta)^2 diag(q)^2,
          a = eta/N, since O T O' = E^-1/2 (a L) E^-1/2 + ...                             (11)
    W_new = E_new^1/2 c^-1/2 U' O T = A (J + ((1-eta)/a) diag(q) W),
            A_ij = a sqrt(e_new_i / c_i) U_ji / sqrt(e_j)                                 (12)

| symbol | here                 |                                                     |
|--------|----------------------|-----------------------------------------------------|
| R      | `rank`               | 20 for inputs, 80 for derivatives in Kaldi          |
| alpha  | `alpha`              | smoothing                                           |
| S      | `num_samples_history`| rows over which the estimate forgets                |
| W,d,rho| `Fisher`             | the state                                           |
| -      | `update_period`      | F is updated in every n-th call after call 10       |

The minibatch is transformed with the F from *before* it: if its own rows were in F, each row would
be shrunk by its own presence.

What keeps float32 stable: eta is capped (else all-zero rows lead to 0/0), c is floored at
(rho (1-eta))^2, which it cannot fall below in exact arithmetic, d and rho are floored relative to
the largest eigenvalue, (11) is evaluated in float64 because it holds fourth powers of the data, and
rows of W that have lost their orthogonality are made orthogonal again. Rows so large that their
fourth powers overflow are transformed, but not added to F.

Differences from Kaldi: the state may be kept when models are averaged (Kaldi starts again in every
job); sign conventions of eigenvectors. Limits: the rows of a minibatch are treated as independent;
in minibatches of 4600 rows or more, eta is at its cap and F remembers little of earlier ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.errors import require

Floats: TypeAlias = NDArray[np.float64]

NUM_INITIAL_UPDATES = 10  # calls 0..10 always update: F is still far off
NUM_INITIAL_PASSES = 3  # over the first minibatch, instead of an eigenvalue decomposition of it
ETA_MAX = 0.9  # above this, all-zero input gives NaN
MOST_HISTORY = 1e12  # rows; with more, a minibatch would weigh nothing (eq. 7)
EPSILON = 1e-10  # absolute floor of d and rho, and what they start from
DELTA = 5e-4  # relative floor, of d and rho to the largest eigenvalue; at 1e-5 float32 is unstable
MAX_CONDITION = 1e6  # of Z; beyond it W is checked for orthogonality
ORTHONORMAL = 1e-3  # how far O O' may be from I before it is corrected
MAX_CHOLESKY = 100.0  # in an inverse Cholesky factor; beyond it QR is safer


@dataclass
class Fisher:
    """F = O' diag(d) O + rho I, as (5) uses it."""

    w: torch.Tensor  # (R, D) E^1/2 O, in the data's precision, where the data are
    d: torch.Tensor  # (R,) float64 on the CPU
    rho: float
    calls: int = 0

    @property
    def dim(self) -> int:
        """The number of dimensions, D."""
        return self.w.shape[1]

    def trace(self) -> float:
        """Return tr F, eq. 2."""
        return self.dim * self.rho + float(self.d.sum())

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values, for a checkpoint."""
        return {"w": self.w, "d": self.d, "rho": self.rho, "calls": self.calls}

    @classmethod
    def from_state_dict(cls, saved: dict[str, Any]) -> Fisher:
        """Restore the state from plain values; `d` goes to the CPU."""
        return cls(saved["w"].clone(), saved["d"].cpu().clone(), saved["rho"], saved["calls"])


@dataclass(slots=True)
class Seen:
    """What `settle` needs to know of a minibatch that is not in F yet."""

    j: torch.Tensor  # (R, D)
    gram: torch.Tensor  # (R, R), L
    square: torch.Tensor  # |X|^2
    num_rows: int
    unit: float


@dataclass(slots=True)
class Turned:
    """Rows multiplied by beta G^-1, and their squared norms before and after it."""

    x_hat: torch.Tensor
    ones_hat: torch.Tensor | None
    before: torch.Tensor
    after: torch.Tensor

    def scale(self) -> torch.Tensor:
        """Return s, eq. 6."""
        scale = torch.sqrt(self.before / self.after)
        return torch.where(self.before == 0, torch.ones_like(scale), scale)

    def scale_here(self) -> float:
        """Return s as a Python number, ten times cheaper; on a GPU this waits for the device."""
        before, after = float(self.before), float(self.after)
        if before == 0:
            return 1.0
        return math.sqrt(before / after) if after else math.inf


def smoothed(d: Floats, rho: float, alpha: float, dim: int) -> tuple[float, Floats]:
    """Return beta and e, eqs. 3 and 4."""
    beta = rho * (1 + alpha) + alpha * float(d.sum()) / dim
    return beta, 1 / (beta / d + 1)


class OnlineNaturalGradient:
    """The preconditioner of one side of one layer; its `state` may be replaced.

    >>> side = OnlineNaturalGradient(rank=20)
    >>> x_hat, scale = side.precondition(x)  # (N, D) -> (N, D), and a scalar tensor
    """

    def __init__(
        self,
        rank: int = 40,
        update_period: int = 4,
        num_samples_history: float = 2000.0,
        alpha: float = 4.0,
    ) -> None:
        require(rank >= 1, f"rank must be at least 1, not {rank}")
        require(update_period >= 1, f"update_period must be at least 1, not {update_period}")
        require(
            0 < num_samples_history <= MOST_HISTORY,
            f"num_samples_history must be above 0 and at most {MOST_HISTORY:g}, not "
            f"{num_samples_history}",
        )
        require(alpha > 0, f"alpha must be above 0, not {alpha}")
        self.rank = rank
        self.update_period = update_period
        self.num_samples_history = num_samples_history
        self.alpha = alpha
        self._fisher: Fisher | None = None
        self._seen: Seen | None = None

    @property
    def state(self) -> Fisher | None:
        """F with the last minibatch in it; None before the first minibatch."""
        self.settle()
        return self._fisher

    @state.setter
    def state(self, fisher: Fisher | None) -> None:
        self._fisher, self._seen = fisher, None

    @torch.no_grad()
    def settle(self) -> None:
        """Add the last minibatch to F, if that was not done; the next minibatch would do it too.

        This is delayed because a model has many sides: if all are updated one after the other,
        without large products between them, their small operations take half the time.
        """
        seen, self._seen = self._seen, None
        if seen is not None and self._fisher is not None:
            enter_(self._fisher, seen, self.eta(seen.num_rows), self.alpha)

    @torch.no_grad()
    def precondition(
        self, x: torch.Tensor, *, unit: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return X^ before scaling, and the scalar s (eqs. 5, 6); then add X to F.

        `unit`: F is that of unit * X. Apart from the absolute floor, the result does not depend on
        it. Choose it so that rows are comparable to Kaldi's: the number of rows, if X are
        derivatives of a mean.
        """
        turned = self.turn(as_rows(x), unit=unit)
        return turned.x_hat.reshape(x.shape), turned.scale()

    @torch.no_grad()
    def precondition_with_ones(
        self, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the same for [X, 1] without forming it: X^, the transformed ones, and s."""
        turned = self.turn(as_rows(x), ones=True)
        assert turned.ones_hat is not None
        return turned.x_hat, turned.ones_hat, turned.scale()

    def turn(
        self,
        x_ND: torch.Tensor,
        *,
        ones: bool = False,
        unit: float = 1.0,
        out: torch.Tensor | None = None,
    ) -> Turned:
        """Apply F to rows from `as_rows`, and keep what `settle` needs of them.

        `out` is memory for X^.
        """
        num_rows, dim = x_ND.shape[0], x_ND.shape[1] + ones
        flat = x_ND.reshape(-1)
        before, column = torch.dot(flat, flat), None
        if dim <= 1 or num_rows == 0:  # one direction: all rows are parallel
            return Turned(x_ND, x_ND.new_ones(num_rows) if ones else None, before, before)
        fisher = self.state
        if fisher is None:
            fisher = self.state = self._begin(x_ND, ones, unit)
        if ones:
            w_RD, w1_R = fisher.w[:, :-1], fisher.w[:, -1]
            h_NR = torch.addmm(w1_R, x_ND, w_RD.T)
            column = torch.addmv(x_ND.new_ones(num_rows), h_NR, w1_R, alpha=-1)
            before = before + num_rows
        else:
            w_RD = fisher.w
            h_NR = x_ND @ w_RD.T
        x_hat = torch.addmm(x_ND, h_NR, w_RD, alpha=-1, out=out)  # eq. 5
        flat = x_hat.reshape(-1)
        after = torch.dot(flat, flat)
        if column is not None:
            after = after + torch.dot(column, column)
        if self._due(fisher):
            self._seen = Seen(_scatter(h_NR, x_ND, ones), h_NR.T @ h_NR, before, num_rows, unit)
        fisher.calls += 1
        return Turned(x_hat, column, before, after)

    def _due(self, fisher: Fisher) -> bool:
        late = fisher.calls - NUM_INITIAL_UPDATES
        return late <= 0 or late % self.update_period == 0

    # ------------------------------------------------------------------ F

    def _begin(self, x_ND: torch.Tensor, ones: bool, unit: float) -> Fisher:
        """Start from orthonormal rows without a preferred direction, and add X itself."""
        num_rows, dim = x_ND.shape[0], x_ND.shape[1] + ones
        rank = min(self.rank, dim - 1)
        fisher = Fisher(
            _first_directions(rank, dim).to(x_ND) * math.sqrt(self._first_e(rank, dim)),
            torch.full((rank,), EPSILON, dtype=torch.float64),
            EPSILON,
        )
        twin = OnlineNaturalGradient(rank, 1, self.num_samples_history, self.alpha)
        twin.state = fisher
        for _ in range(NUM_INITIAL_PASSES if num_rows > rank else 1):
            twin.turn(x_ND, ones=ones, unit=unit)
        twin.settle()
        fisher.calls = 0
        return fisher

    def _first_e(self, rank: int, dim: int) -> float:
        """Return e of eq. 4 for d = rho."""
        return 1 / (2 + self.alpha * (dim + rank) / dim)

    def eta(self, num_rows: int) -> float:
        """Return the weight of a minibatch, eq. 7."""
        return min(ETA_MAX, 1 - math.exp(-num_rows / self.num_samples_history))


def enter_(fisher: Fisher, seen: Seen, eta: float, alpha: float) -> None:
    """Add a minibatch to F, eqs. 8 to 12. Matrices of size R x R are computed on the CPU."""
    square, dim, j_RD = float(seen.square), fisher.dim, seen.j
    if not math.isfinite(square):  # a diverged minibatch must not spoil F
        return
    a, c = eta / seen.num_rows * seen.unit**2, 1 - eta  # unit^2 X'X is added
    d = fisher.d.numpy()
    q, u = d + fisher.rho, 1 / np.sqrt(smoothed(d, fisher.rho, alpha, dim)[1])
    uu = a * u[:, None] * u
    z = _numpy(j_RD @ j_RD.T) * (a * uu)  # eq. 11; uu makes it float64
    z += _numpy(seen.gram) * (c * uu * (q[:, None] + q))
    z.flat[:: len(d) + 1] += (c * q) ** 2
    if not np.isfinite(z).all():  # fourth powers are outside of float32
        return
    sizes, u_RR, risky = _spectrum(z, (fisher.rho * c) ** 2)
    trace = a * square + c * fisher.trace()
    rho = float(trace - sizes.sum()) / (dim - len(d))  # eq. 9
    floor = max(EPSILON, DELTA * float(sizes[0]))
    d, rho = np.maximum(sizes - rho, floor), max(rho, floor)
    e = smoothed(d, rho, alpha, dim)[1]
    a_RR = (np.sqrt(e) / sizes)[:, None] * u_RR.T * (a * u)  # eq. 12
    b_RD = j_RD.addcmul_(_like(c / a * q, j_RD)[:, None], fisher.w)
    fisher.w, fisher.d, fisher.rho = _like(a_RR, j_RD) @ b_RD, torch.from_numpy(d), rho
    if risky:
        fisher.w = orthogonalised(fisher.w, e)


def _spectrum(z: Floats, floor: float) -> tuple[Floats, Floats, bool]:
    """Return sqrt(c) in descending order, U, and whether rounding may have spoilt them."""
    size = max(1.0, float(z.trace()))  # eigenvalues of fourth powers could overflow
    z /= size
    values, vectors = torch.linalg.eigh(torch.from_numpy(z))
    c, u_RR = values.numpy()[::-1] * size, vectors.numpy()[:, ::-1]
    risky = bool(c[0] > MAX_CONDITION * c[-1]) or bool(c[-1] < floor)
    return np.sqrt(np.maximum(c, floor)), u_RR, risky


def orthogonalised(w_RD: torch.Tensor, e: Floats) -> torch.Tensor:
    """Return W = E^1/2 O, with O O' = I restored if it was too far from that."""
    root, one = np.sqrt(e), np.eye(len(e))
    gram = _numpy(w_RD @ w_RD.T) / (root[:, None] * root)
    if float(np.abs(gram - one).max()) <= ORTHONORMAL:
        return w_RD
    factor, failed = torch.linalg.cholesky_ex(torch.from_numpy(gram))
    if not int(failed):
        inverse = torch.linalg.solve_triangular(factor, torch.from_numpy(one), upper=False).numpy()
        if float(inverse.max()) < MAX_CHOLESKY:
            return torch.mm(_like(root[:, None] * inverse / root, w_RD), w_RD)
    q_DR, _ = torch.linalg.qr(w_RD.T.to("cpu", torch.float64))  # Gram-Schmidt that cannot fail
    return _like(root[:, None] * q_DR.numpy().T, w_RD)


def _first_directions(rank: int, dim: int) -> torch.Tensor:
    """Return orthonormal rows that use every column; 1.1 breaks the symmetry."""
    rows = torch.zeros(rank, dim, dtype=torch.float64)
    for r in range(rank):
        rows[r, r::rank] = 1.0
        rows[r, r] = 1.1
    return torch.nn.functional.normalize(rows)


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """Return rows as a matrix, in float32 or float64, which the estimate needs."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.dtype in (torch.float32, torch.float64) else flat.float()


def _scatter(h_NR: torch.Tensor, x_ND: torch.Tensor, ones: bool) -> torch.Tensor:
    """Return J of eq. 10."""
    j_RD = h_NR.T @ x_ND
    return torch.cat([j_RD, h_NR.sum(0)[:, None]], 1) if ones else j_RD


def _numpy(x: torch.Tensor) -> NDArray[Any]:
    """Return a small matrix as numpy, whose operations cost a fraction of torch's."""
    return np.asarray(x.cpu().numpy())


def _like(x: Floats, other: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.from_numpy(np.ascontiguousarray(x)).to(other.device, other.dtype)
    return made
