"""Factor analysis of correlations that are known only by their products with a few vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from streampca.kernels import Array
from streampca.solvers.factor_likelihood import FactorSolution

INNER = 2000  # steps of EM on the surrogate between two passes
ENOUGH = 1e-3  # of the tolerance: what the last inner step gains
DIAGONAL = 20  # corrections of what lies beside the basis


@dataclass(frozen=True)
class FactorPoint:
    """Loadings (p, k) and uniquenesses (p,) on the scale of correlations, and how likely they are.

    log_determinant, trace : log|Sigma| and tr(S / Sigma), their sum the discrepancy.
    gradient : (p,) of the discrepancy by the logarithms of the uniquenesses.
    """

    loadings: Array
    uniquenesses: Array
    log_determinant: float
    trace: float
    gradient: Array

    @property
    def discrepancy(self) -> float:
        """-2 / n of the log-likelihood, but for p log(2 pi)."""
        return self.log_determinant + self.trace


class FactorSurrogate:
    """A matrix that agrees with the correlations S on a basis and on the diagonal.

    With Q orthonormal and Y = S Q it is Y (Q'Y)^-1 Y' + P D P, P = I - QQ', D the diagonal that
    makes its own diagonal 1. The likelihood of loadings W and uniquenesses N, and a step of EM
    from there, need S only on the columns of W / N and on the diagonal: where those lie in the
    span of Q, both are exact. So its optimum is found without reading; another pass adds W / N of
    that optimum to Q, and what is left to gain falls by two or three orders of magnitude.

    lower : least uniqueness.
    Cost of a step on it: 12 p m k flops for m vectors; 5 p m float64.
    Source: the interpolation is that of Nystroem (Halko, Martinsson and Tropp 2011, section 5.5);
    EM of Rubin and Thayer 1982, Psychometrika 47, in the expanded parameters of Liu, Rubin and Wu
    1998, Biometrika 85, section 4.1.
    """

    def __init__(self, p: int, lower: float) -> None:
        self.p, self.lower = p, lower
        self.basis, self.products = np.zeros((p, 0)), np.zeros((p, 0))

    def add(self, block: Array, product: Array) -> None:
        """Take in orthonormal vectors, orthogonal to the basis, and S times them."""
        self.basis = np.hstack([self.basis, block])
        self.products = np.hstack([self.products, product])
        inner = self.basis.T @ self.products
        values, vectors = scipy.linalg.eigh((inner + inner.T) / 2)
        used = values > 1e-12 * max(values[-1], 0.0)
        self._factor = self.products @ (vectors[:, used] / np.sqrt(values[used]))
        self._beside = self._diagonal(1.0 - np.einsum("ij,ij->i", self._factor, self._factor))

    def keep_last(self, count: int) -> None:
        """Forget all but so many of the basis: the next ``add`` works without them."""
        first = max(self.basis.shape[1] - count, 0)
        self.basis, self.products = self.basis[:, first:].copy(), self.products[:, first:].copy()

    def _diagonal(self, wanted: Array) -> Array:
        """(p,) D, not negative, with diag(P D P) near what is wanted."""
        q = self.basis
        wanted = np.maximum(wanted, 1e-12)
        height = np.einsum("ij,ij->i", q, q)
        free = np.maximum(1.0 - height, 0.0)  # of each feature beside the basis
        most = np.divide(wanted, free**2, out=np.zeros_like(wanted), where=free > 1e-4)
        beside = np.minimum(wanted, most)
        for _ in range(DIAGONAL):
            made = (1.0 - 2.0 * height) * beside
            made += np.einsum("ij,ij->i", q @ (q.T @ (beside[:, None] * q)), q)
            beside = np.minimum(beside * wanted / np.maximum(made, 1e-3 * wanted), most)
        return beside

    def times(self, x: Array) -> Array:
        """The surrogate times x (p, k)."""
        q = self.basis
        left = self._beside[:, None] * (x - q @ (q.T @ x))
        return np.asarray(self._factor @ (self._factor.T @ x) + left - q @ (q.T @ left))

    def exact_times(self, x: Array) -> Array:
        """S x for x in the span of the basis."""
        return np.asarray(self.products @ (self.basis.T @ x))

    def residual(self, x: Array) -> Array:
        """(p, at most k) orthonormal: what the columns of x have beside the basis."""
        rest = x / np.maximum(np.linalg.norm(x, axis=0), 1e-300)
        for _ in range(2):
            rest -= self.basis @ (self.basis.T @ rest)
        u, singular, _ = np.linalg.svd(rest, full_matrices=False)
        u = u[:, singular > 1e-13]
        u -= self.basis @ (self.basis.T @ u)
        return np.asarray(np.linalg.qr(u)[0])

    def start(self, k: int) -> tuple[Array, Array]:
        """(loadings, uniquenesses) from the leading directions of the basis."""
        inner = self.basis.T @ self.products
        values, vectors = scipy.linalg.eigh((inner + inner.T) / 2)
        values, vectors = values[::-1][:k], vectors[:, ::-1][:, :k]
        noise = max((self.p - float(values.sum())) / max(self.p - len(values), 1), 0.0)
        size = np.sqrt(np.maximum(values - noise, 1e-2 * np.maximum(values, 1e-6)))
        loadings = (self.basis @ vectors) * size
        shares = np.einsum("ij,ij->i", loadings, loadings)
        loadings *= np.sqrt(np.minimum(1.0, 0.95 / np.maximum(shares, 1e-300)))[:, None]
        unique = 1.0 - np.einsum("ij,ij->i", loadings, loadings)
        return loadings, np.maximum(unique, self.lower)

    def point(self, loadings: Array, uniquenesses: Array, exact: bool) -> FactorPoint:
        """How likely parameters are.  exact : under S itself, where W / N lies in the basis."""
        weighted = loadings / uniquenesses[:, None]
        image = self.exact_times(weighted) if exact else self.times(weighted)
        inverse, logdet = _inner(loadings, weighted)
        both = weighted.T @ image
        trace = float(np.sum(1.0 / uniquenesses) - np.sum(inverse * both))
        turned = weighted @ inverse
        model = 1.0 / uniquenesses - np.einsum("ij,ij->i", turned, weighted)
        data = 1.0 / uniquenesses**2
        data -= 2.0 * np.einsum("ij,ij->i", image, turned) / uniquenesses
        data += np.einsum("ij,ij->i", turned @ both, turned)
        logdet += float(np.sum(np.log(uniquenesses)))
        return FactorPoint(loadings, uniquenesses, logdet, trace, uniquenesses * (model - data))

    def climb(self, here: FactorPoint, tol: float) -> tuple[FactorPoint, float]:
        """(the optimum of the surrogate from here, what it gains in discrepancy)."""
        loadings, unique = here.loadings, here.uniquenesses
        first = last = np.inf
        for _ in range(INNER):
            weighted = loadings / unique[:, None]
            image = self.times(weighted)
            inverse, logdet = _inner(loadings, weighted)
            trace = float(np.sum(1.0 / unique) - np.sum(inverse * (weighted.T @ image)))
            value = logdet + float(np.sum(np.log(unique))) + trace
            first = value if first == np.inf else first
            if last - value <= ENOUGH * tol:
                break
            last = value
            loadings, unique = self._step(image, inverse, weighted)
        return self.point(loadings, unique, exact=False), max(first - value, 0.0)

    def _step(self, image: Array, inverse: Array, weighted: Array) -> tuple[Array, Array]:
        """One step of EM in expanded parameters."""
        cross = image @ inverse
        moment = inverse + inverse @ (weighted.T @ image) @ inverse
        loadings = np.linalg.solve(moment, cross.T).T
        unique = np.maximum(1.0 - np.einsum("ij,ij->i", loadings, cross), self.lower)
        return loadings @ np.linalg.cholesky((moment + moment.T) / 2), unique


def _inner(loadings: Array, weighted: Array) -> tuple[Array, float]:
    """((k, k) posterior covariance of the factors, log-determinant of its inverse)."""
    information = np.eye(loadings.shape[1]) + loadings.T @ weighted
    inverse = np.linalg.inv(information)
    return (inverse + inverse.T) / 2, float(np.linalg.slogdet(information)[1])


def solution_of(point: FactorPoint, lower: float, steps: int, converged: bool) -> FactorSolution:
    """The record of a point, its factors in the canonical order: W'W / N diagonal, descending."""
    root = np.sqrt(point.uniquenesses)[:, None]
    u, singular, _ = np.linalg.svd(point.loadings / root, full_matrices=False)
    held = (point.uniquenesses <= lower * (1.0 + 1e-9)) & (point.gradient > 0)
    largest = float(np.max(np.abs(point.gradient[~held]), initial=0.0))
    return FactorSolution(
        u * singular * root, point.uniquenesses, point.discrepancy, steps, largest, converged
    )
