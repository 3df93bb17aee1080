"""What a step of the iteration told: which components are certain, and whether to go on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.kernels import CONFIDENCE, Array
from streampca.solvers import (
    Certificate,
    Ritz,
    certify_ritz,
    coherent_rounding,
    entry_rounding,
    product_floor,
    solver_floor,
)

SMALL = 0.1  # residual over value: a product is taken instead of a vector that is good already


@dataclass(frozen=True)
class Judge:
    """What stays the same from step to step.

    k : components asked.  total : trace of the scatter.  divisor : n - ddof.
    dtype, shape, terms : of the products, as for :func:`product_floor`.
    multiplies : whether the vectors that are returned may be multiplied once more.
    """

    k: int
    tol: float
    total: float
    divisor: float
    dtype: np.dtype[Any]
    shape: tuple[int, int]
    terms: int
    multiplies: bool = False

    def verdict(self, ritz: Ritz, passes: int) -> Verdict:
        """Of the Ritz pairs after so many passes."""
        k = min(self.k, len(ritz.values))
        floor = product_floor(self.dtype, ritz.values, self.total, self.shape, self.terms)
        solver, measured = solver_floor(ritz.values, max(self.shape)), ritz.rounding is not None
        level = np.full(len(ritz.values), floor)
        if ritz.rounding is not None:
            level = solver + ritz.rounding / CONFIDENCE
        multiplied = ritz.residual[:k] < SMALL * ritz.values[:k] * self.multiplies
        multiplied &= ritz.residual[:k] > level[:k]  # else a product is no better, and rounded
        certificate = certify_ritz(
            ritz.values,
            ritz.residual,
            k,
            self.total,
            solver if measured else floor,
            self.divisor,
            passes,
            entry_rounding(self.dtype) if measured else coherent_rounding(self.dtype),
            multiplied,
            ritz.rounding,
        )
        nothing = ritz.values[:k] <= 10.0 * level[:k]
        certified = (certificate.angle_bound <= self.tol) | nothing
        stuck = certified | (ritz.residual[:k] <= np.maximum(level[:k], floor))
        return Verdict(ritz, certificate, level, certified, stuck, multiplied, self.tol)


@dataclass(frozen=True)
class Verdict:
    """Of one step.

    floor : (d,) rounding of a product with each Ritz vector, in units of the spectrum.
    certified : (k,) whether the angle of each component is bounded by tol, or its variance is 0.
    stuck : (k,) whether more steps would tell nothing more of a component.
    multiplied : (k,) whether its vector is S times the Ritz vector, which is nearer.
    """

    ritz: Ritz
    certificate: Certificate
    floor: Array
    certified: Array
    stuck: Array
    multiplied: Array
    tol: float

    def passes_needed(self, before: Verdict | None) -> int:
        """Passes until the next component is certified, if residuals fall as since ``before``."""
        if before is None:
            return 0
        k, todo = len(self.stuck), ~self.stuck
        values, residual = self.ritz.values, self.ritz.residual[:k]
        gain = np.log(before.ritz.residual[:k] / np.maximum(residual, 1e-300))[todo]
        gap = np.maximum(values[:k] - np.append(values, 0.0)[1 : k + 1], self.floor[:k])
        excess = np.minimum(residual / gap, self.certificate.angle_bound) / self.tol
        excess = np.log(np.maximum(excess, 1.0))
        needed = excess[todo] / np.maximum(gain, 1e-3)
        return math.ceil(float(needed.min(initial=np.inf)) / 2)  # Krylov steps speed up

    def uncertain(self, stopped: str, exact: str = "") -> str:
        """Which components are not as certain as the arithmetic allows, and how far they may be
        off; "" where all are. (What it cannot resolve is in the certificate, and no failure.)

        exact : what would be certain, a sentence.
        """
        bad = np.flatnonzero(~self.stuck)
        if not bad.size:
            return ""
        bound = self.certificate.angle_bound
        words = [
            f"{i + 1} (angle <= {bound[i]:.1e})"
            if bound[i] < 1.5
            else f"{i + 1} (its direction is not determined)"
            for i in bad[:6]
        ]
        more = "" if bad.size <= 6 else f" and {bad.size - 6} more"
        return (
            f"{bad.size} of {len(bound)} components are not certified to "
            f"tol={self.tol:g} after {self.certificate.passes} passes ({stopped}): "
            f"component {', '.join(words)}{more}. Raise max_passes or tol; where neighbouring "
            f"variances are equal, only their common space is determined.{exact}"
        )
