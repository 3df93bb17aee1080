"""Maximum likelihood factor analysis of a correlation matrix: Newton steps in the uniquenesses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from streampca.kernels import Array

TOLERANCE = 1e-9  # of the gradient of the discrepancy by the logarithm of a uniqueness
MAX_STEPS = 200
LONGEST = 2.0  # of a step in any logarithm


@dataclass(frozen=True)
class FactorSolution:
    """Loadings and uniquenesses on the scale of correlations.

    loadings : (p, k); columns of zeros where the data hold fewer factors.
    uniquenesses : (p,) between the lower bound and 1.
    discrepancy : log|Sigma| + tr(S / Sigma) for the model Sigma: -2 / n times the log-likelihood,
        without p log(2 pi). The constant of S itself, log|S| + p, is not subtracted.
    trace : (steps + 1, 2) the discrepancy, and tr(S / Sigma) in it, where each step ended.
    steps : Newton steps.  gradient : largest entry of the gradient among variables off the bounds.
    converged : whether that is under the tolerance.
    """

    loadings: Array
    uniquenesses: Array
    discrepancy: float
    steps: int
    gradient: float
    converged: bool
    trace: Array | None = None


@dataclass(frozen=True)
class _Point:
    """The likelihood as a function of the uniquenesses alone, maximised over the loadings."""

    log: Array  # (p,) logarithms of the uniquenesses
    values: Array  # (p,) eigenvalues of S, rows and columns over the roots of uniquenesses
    vectors: Array  # (p, p)
    kept: int  # leading values above 1, k at most: they make the loadings
    discrepancy: float

    @property
    def terms(self) -> tuple[float, float]:
        """(the discrepancy, tr(S / Sigma) in it)."""
        return self.discrepancy, self.kept + float(np.sum(self.values[self.kept :]))

    @classmethod
    def of(cls, correlation: Array, log: Array, k: int) -> _Point:
        root = np.exp(-0.5 * log)
        scaled = correlation * root[:, None] * root[None, :]
        values, vectors = scipy.linalg.eigh(
            scaled, driver="evd", overwrite_a=True, check_finite=False
        )
        values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
        kept = int(np.count_nonzero(values[:k] > 1.0))
        fitted = float(np.sum(np.log(values[:kept]) + 1.0) + np.sum(values[kept:]))
        return cls(log, values, vectors, kept, fitted + float(np.sum(log)))

    def gradient(self) -> Array:
        """(p,) of the discrepancy by the logarithms."""
        return np.asarray(self.vectors[:, self.kept :] ** 2 @ (1.0 - self.values[self.kept :]))

    def hessians(self) -> tuple[Array, Array]:
        """(the Hessian, its part that is positive semidefinite everywhere)."""
        rest, values = self.vectors[:, self.kept :], self.values[self.kept :]
        safe = ((rest * values) @ rest.T) * (rest @ rest.T)
        exact = safe.copy()
        for value, vector in zip(self.values[: self.kept], self.vectors[:, : self.kept].T):
            both = vector[:, None] * rest
            factor = (1.0 - values) * (value + values) / np.maximum(value - values, 1e-12 * value)
            exact += (both * factor) @ both.T
        return exact, safe


def maximum_likelihood(
    correlation: Array,
    k: int,
    lower: float = 0.005,
    start: Array | None = None,
    max_steps: int = MAX_STEPS,
) -> FactorSolution:
    """Loadings and uniquenesses that make a correlation matrix most likely.

    correlation : (p, p) symmetric, ones on the diagonal; it may be singular.
    lower : least uniqueness. A likelihood that grows without bound towards 0 (a Heywood case)
        ends there.
    start : (p,) uniquenesses to begin at; None takes those of Joereskog, (1 - k / 2p) / diag(S^-1).

    Newton steps in the logarithms of the uniquenesses, with the exact second derivatives where
    they are positive definite. A step is halved until the likelihood does not fall. Variables at
    an active bound are left out.
    Cost: per step an eigenproblem of order p and 2 (k + 2) p^3 flops; 5 to 10 steps are usual.
    7 p x p float64.
    Source: Lawley and Maxwell 1971, "Factor Analysis as a Statistical Method", sections 4.4 and
    appendix II; Joereskog 1967, Psychometrika 32, 443-482.
    """
    low = float(np.log(lower))
    log = _start(correlation, k, low) if start is None else np.clip(np.log(start), low, 0.0)
    here = _Point.of(correlation, log, k)
    trace, largest = [here.terms], np.inf
    while True:
        gradient = here.gradient()
        free = np.flatnonzero(
            ~((here.log <= low) & (gradient > 0) | (here.log >= 0.0) & (gradient < 0))
        )
        largest = float(np.max(np.abs(gradient[free]), initial=0.0))
        if largest <= TOLERANCE or len(trace) > max_steps:
            break
        direction = _direction(here, gradient, free)
        following = _search(correlation, k, here, gradient, direction, low)
        if following is None:  # rounding: no step makes it smaller
            break
        here = following
        trace.append(here.terms)
    top, uniquenesses = here.values[: here.kept], np.exp(here.log)
    loadings = np.zeros((len(correlation), k))
    loadings[:, : here.kept] = here.vectors[:, : here.kept] * np.sqrt(top - 1.0)
    loadings *= np.sqrt(uniquenesses)[:, None]
    converged = largest <= 100.0 * TOLERANCE
    return FactorSolution(
        loadings,
        uniquenesses,
        here.discrepancy,
        len(trace) - 1,
        largest,
        converged,
        np.array(trace),
    )


def _start(correlation: Array, k: int, low: float) -> Array:
    """(p,) logarithms of the first uniquenesses; halves where the matrix has no inverse."""
    p = len(correlation)
    try:
        inverse = scipy.linalg.cho_solve(
            scipy.linalg.cho_factor(correlation, lower=True), np.eye(p), overwrite_b=True
        )
        guess = (1.0 - 0.5 * k / p) / np.diagonal(inverse)
    except np.linalg.LinAlgError:
        guess = np.full(p, 0.5)
    return np.clip(np.log(np.clip(guess, 1e-300, 1.0)), low, 0.0)


def _direction(here: _Point, gradient: Array, free: Array) -> Array:
    """(p,) Newton step of the free logarithms, with the first Hessian that is definite."""
    direction = np.zeros(len(gradient))
    for hessian in here.hessians():
        inner = hessian[np.ix_(free, free)]
        try:
            factor = scipy.linalg.cho_factor(inner, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            continue
        direction[free] = -scipy.linalg.cho_solve(factor, gradient[free], check_finite=False)
        break
    else:
        direction[free] = -gradient[free]
    return direction * min(1.0, LONGEST / max(float(np.abs(direction).max()), 1e-300))


def _search(
    correlation: Array, k: int, here: _Point, gradient: Array, direction: Array, low: float
) -> _Point | None:
    """The point of the longest halved step that does not increase the discrepancy."""
    rounding = 1e-14 * (abs(here.discrepancy) + len(gradient))
    length = 1.0
    while length > 1e-8:
        log = np.clip(here.log + length * direction, low, 0.0)
        there = _Point.of(correlation, log, k)
        promised = 1e-4 * float(gradient @ (log - here.log))
        if there.discrepancy <= here.discrepancy + promised + rounding:
            return there
        length /= 2.0
    return None
