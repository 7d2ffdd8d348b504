"""Preconditioners of Hessian-free: curvature products to the same loss."""

from __future__ import annotations

from typing import ClassVar

from hocket.optim import Constant
from hocket.report import charts
from hocket.report.charts import COLOURS, Series
from hocket.reproduce import checks
from hocket.reproduce.checks import Check
from hocket.reproduce.claim import Bench, Claim, Run
from hocket.reproduce.outcome import Found
from hocket.reproduce.setups.newton import SIZES_OF_NEWTON, WORK
from hocket.reproduce.tasks import Scale, Size
from hocket.strategies import HessianFree

PLAIN = "none"
CURVATURE = 0.125
SAVED = 0.1  # of the products. A quick form had shown 1 of 117; fixed after it, before a full one


class HessianFreePreconditioners(Claim):
    """Products until the loss at which the plain method ends."""

    name: ClassVar[str] = "hessian-free-preconditioners"
    claim: ClassVar[str] = (
        "An L-BFGS preconditioner from earlier runs of conjugate gradients saves a tenth of the "
        "curvature products at least; with samples that grow, time is saved, too"
    )
    paper: ClassVar[str] = "Sainath et al., ASRU 2013; Martens, ICML 2010"
    published: ClassVar[str] = (
        "L-BFGS preconditioning and sampling together: 1.5 times as fast on 50 h, 2.3 times on "
        "300 h, no loss in WER"
    )
    refuted_by: ClassVar[str] = (
        "to within 1 % of the loss at which the method ends without a preconditioner, L-BFGS needs "
        "more than 0.9 of its products; or L-BFGS with samples that grow needs as long"
    )
    figures: ClassVar[tuple[str, ...]] = ("loss", "error", "time_s", "products")

    def size(self, scale: Scale) -> Size:
        """Return synthetic frames that repeat."""
        return SIZES_OF_NEWTON[scale]

    def ways(self) -> dict[str, HessianFree]:
        """The arms."""
        return {
            PLAIN: HessianFree(curvature=CURVATURE),
            "diagonal": HessianFree(curvature=CURVATURE, preconditioner="diagonal"),
            "lbfgs": HessianFree(curvature=CURVATURE, preconditioner="lbfgs"),
            "lbfgs, growing samples": HessianFree(
                curvature=CURVATURE, preconditioner="lbfgs", sample=0.25, sample_growth=1.2
            ),
        }

    def runs(self, bench: Bench) -> list[Run]:
        """One learner each, the same number of passes of gradients."""
        epochs = bench.pick(smoke=2, quick=8, full=12)
        return [
            run
            for name, how in self.ways().items()
            for run in bench.arm(
                name,
                1,
                {"": {"strategy": how}},
                schedule=Constant(epochs=epochs),
                evaluate_every=0.25,
                work=WORK,
            )
        ]

    def targets(self, found: Found) -> list[float]:
        """Return, seed by seed, the loss that all are timed to."""
        return [(1 + self.margin) * loss for loss in found[PLAIN].losses]

    def products(self, found: Found, name: str) -> list[float]:
        """Return, seed by seed, the products to it."""
        pairs = zip(found[name].outcomes, self.targets(found), strict=True)
        return [outcome.products_to(loss) for outcome, loss in pairs]

    def judge(self, found: Found, bench: Bench) -> list[Check]:
        """Fewer products, less time."""
        fewer = checks.below(
            "L-BFGS: less than 0.9 of the products",
            self.products(found, "lbfgs"),
            [(1 - SAVED) * n for n in self.products(found, PLAIN)],
        )
        both, plain = (
            found[name].times_to(self.targets(found)) for name in ("lbfgs, growing samples", PLAIN)
        )
        return [fewer, checks.below("L-BFGS and growing samples: sooner", both, plain)]

    def notes(self, found: Found, bench: Bench) -> list[str]:
        """The products of every arm, seed by seed."""
        return [
            f"{name}: products to within 1 % of the plain method's final loss: "
            + ", ".join(f"{n:.0f}" for n in self.products(found, name))
            for name in self.ways()
        ]

    def plots(self, found: Found, bench: Bench) -> list[str]:
        """Dev loss against products."""
        series = []
        for n, name in enumerate(self.ways()):
            whole = [o.curve for o in found[name].outcomes if o.diverged is None]
            points = [(p.products or 0.0, p.loss) for p in (whole[0] if whole else ())]
            series.append(Series(name, points, COLOURS[n]))
        return [charts.lines("dev loss against products", "products", series, key=True)]
