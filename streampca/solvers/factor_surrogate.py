"""Maximum likelihood factors from few passes: Anderson acceleration and a surrogate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from streampca.kernels import Array
from streampca.solvers.factor_likelihood import FactorSolution, maximum_likelihood

REGULAR = 1e-12  # of the largest eigenvalue of the differences' Gram matrix


class Anderson:
    """Anderson acceleration of a fixed-point iteration x -> g(x).

    The next point is the image of the affine combination of the last ``depth`` + 1 points that has
    the smallest residual g(x) - x, to first order. Near the fixed point of a smooth iteration that
    converges slowly, such as EM, it acts as GMRES does on a linear iteration: 5 to 10 times fewer
    steps are usual. It does not know the objective. The caller checks that the point improves it,
    and otherwise takes the image and calls ``forget``.

    Cost: 2 (depth + 1) vectors, 2 depth (depth + 2) flops for each entry.
    Source: Walker and Ni 2011, "Anderson acceleration for fixed-point iterations", SIAM J. Numer.
    Anal. 49, 1715-1735; for EM, Henderson and Varadhan 2019, J. Comput. Graph. Stat. 28, 834-846.
    """

    def __init__(self, depth: int = 5) -> None:
        self.depth = depth
        self.forget()

    def forget(self) -> None:
        """Drop the history."""
        self._images: list[Array] = []
        self._residuals: list[Array] = []

    def following(self, point: Array, image: Array) -> Array:
        """The next point after ``point`` (any shape), whose image is ``image``."""
        self._images = [*self._images[-self.depth :], image]
        self._residuals = [*self._residuals[-self.depth :], image - point]
        if len(self._images) == 1:
            return image
        moved = [a - self._residuals[-1] for a in self._residuals[:-1]]
        gram = np.array([[np.vdot(a, b) for a in moved] for b in moved])
        values, vectors = np.linalg.eigh(gram)
        used = values > REGULAR * values[-1]
        if not used.any():
            return image
        right = -np.array([np.vdot(a, self._residuals[-1]) for a in moved])
        share = vectors[:, used] @ ((vectors[:, used].T @ right) / values[used])
        combined = image.copy()
        for weight, earlier in zip(share, self._images[:-1], strict=True):
            combined += weight * (earlier - image)
        return combined


# Factor analysis of correlations that are known only through products with a few vectors.

INNER = 2000  # most EM steps on the surrogate between two passes
WINDOW = 5  # EM steps over which the gain is judged
ENOUGH = 1e-3  # of the tolerance: stop when WINDOW steps gain less
LARGEST = 5.0  # upper bound of the logarithm of a uniqueness
DIAGONAL = 20  # corrections of the diagonal outside the basis


@dataclass(frozen=True)
class FactorPoint:
    """Loadings (p, k) and uniquenesses (p,) on the scale of correlations, and their likelihood.

    image : (p, k) S times the loadings over the uniquenesses.
    log_determinant, trace : log|Sigma| and tr(S / Sigma); the discrepancy is their sum.
    gradient : (p,) of the discrepancy by the logarithms of the uniquenesses.
    """

    loadings: Array
    uniquenesses: Array
    image: Array
    log_determinant: float
    trace: float
    gradient: Array

    @property
    def discrepancy(self) -> float:
        """-2 / n times the log-likelihood, without p log(2 pi)."""
        return self.log_determinant + self.trace


class FactorSurrogate:
    """A matrix that agrees with the correlations S on a basis and on the diagonal.

    With Q orthonormal, Y = S Q and P = I - QQ' it is Y (Q'Y)^-1 Y' + P D P, where the diagonal D
    makes its own diagonal 1. The likelihood of loadings W and uniquenesses N, and an EM step from
    there, need S only on the columns of W / N and on the diagonal. Both are exact where these
    columns are in the span of Q. So the optimum of the surrogate is found without a pass. Another
    pass adds W / N of that optimum to Q, and the remaining gain falls by two or three orders of
    magnitude.

    lower : least uniqueness.
    Cost of a step on it: 12 p m k flops for m vectors; 5 p m float64.
    Source: the interpolation is that of Nystroem (Halko, Martinsson and Tropp 2011, section 5.5);
    EM of Rubin and Thayer 1982, Psychometrika 47, in the expanded parameters of Liu, Rubin and Wu
    1998, Biometrika 85, section 4.1.
    """

    def __init__(self, p: int, lower: float) -> None:
        self.p, self.lower = p, lower
        self.basis, self.products = np.zeros((p, 0)), np.zeros((p, 0))

    def add(self, block: Array, product: Array, uniquenesses: Array | None = None) -> None:
        """Add orthonormal vectors (p, w), orthogonal to the basis, and S times them.

        uniquenesses : (p,) near the optimum; None assumes that all are equal.
        """
        self.basis = np.hstack([self.basis, block])
        self.products = np.hstack([self.products, product])
        inner = self.basis.T @ self.products
        values, vectors = scipy.linalg.eigh((inner + inner.T) / 2)
        used = values > 1e-12 * max(values[-1], 0.0)
        self._factor = self.products @ (vectors[:, used] / np.sqrt(values[used]))
        wanted = 1.0 - np.einsum("ij,ij->i", self._factor, self._factor)
        weight = np.ones(self.p) if uniquenesses is None else 1.0 / uniquenesses
        self._rest = self._diagonal(np.maximum(wanted, 1e-12), weight)

    def keep(self, count: int, best: FactorPoint) -> None:
        """Reduce the basis to ``count`` dimensions; the next ``add`` continues from these.

        The surrogate stays exact at the best known point. The other dimensions kept are those
        with the largest variance relative to its uniquenesses, where factors are found.
        """
        if self.basis.shape[1] <= count:
            return
        inner = self.basis.T @ self.products
        noise = self.basis.T @ (best.uniquenesses[:, None] * self.basis)
        _, turned = scipy.linalg.eigh((inner + inner.T) / 2, noise)
        here = self.basis.T @ (best.loadings / best.uniquenesses[:, None])
        turn = np.linalg.qr(np.hstack([here, turned[:, ::-1]])[:, :count])[0]
        self.basis, self.products = self.basis @ turn, self.products @ turn

    def _diagonal(self, wanted: Array, weight: Array) -> Array:
        """(p,) D, not negative, with diag(P D P) near ``wanted``.

        The second loop reduces an excess by its weight: a feature with a uniqueness of .005 whose
        diagonal is .01 too large would suggest a factor of its own that does not exist. A deficit
        counts as uniqueness.
        """
        q = self.basis
        height = np.einsum("ij,ij->i", q, q)
        free = np.maximum(1.0 - height, 0.0)  # share of each feature outside the basis
        most = np.divide(wanted, free**2, out=np.zeros_like(wanted), where=free > 1e-4)

        def projected(d: Array) -> Array:
            across = q @ (q.T @ (d[:, None] * q))
            return np.asarray((1.0 - 2.0 * height) * d + np.einsum("ij,ij->i", across, q))

        d = np.minimum(wanted, most)
        for _ in range(DIAGONAL):
            d = np.minimum(d * wanted / np.maximum(projected(d), 1e-3 * wanted), most)
        full = np.maximum(projected(weight), 1e-300)
        for _ in range(DIAGONAL):
            share = np.minimum(wanted / np.maximum(projected(d), 1e-300), 1.0)
            d = d * np.maximum(projected(weight * share), 0.0) / full
        return np.asarray(d)

    def times(self, x: Array) -> Array:
        """The surrogate times x (p, k)."""
        q = self.basis
        left = self._rest[:, None] * (x - q @ (q.T @ x))
        return np.asarray(self._factor @ (self._factor.T @ x) + left - q @ (q.T @ left))

    def exact_times(self, x: Array) -> Array:
        """S x for x (p, k) in the span of the basis."""
        return np.asarray(self.products @ (self.basis.T @ x))

    def residual(self, x: Array) -> Array:
        """(p, at most k) orthonormal columns: the part of x outside the basis."""
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
        """Likelihood of loadings (p, k) and uniquenesses (p,).

        exact : under S itself; W / N must be in the basis.
        """
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
        slope = uniquenesses * (model - data)
        return FactorPoint(loadings, uniquenesses, image, logdet, trace, slope)

    def climb(self, here: FactorPoint, tol: float) -> tuple[FactorPoint, float]:
        """(the optimum of the surrogate from here, its gain in discrepancy).

        Accelerated EM in expanded parameters, with a plain step where acceleration increases the
        discrepancy. It stops when WINDOW steps gain less than ENOUGH times the tolerance.
        """
        at = self.point(here.loadings, here.uniquenesses, exact=False)
        values, ahead, k = [at.discrepancy], Anderson(), at.loadings.shape[1]
        while len(values) < INNER:
            loadings, unique = self._step(at)
            proposed = ahead.following(
                np.column_stack([at.loadings, np.log(at.uniquenesses)]),
                np.column_stack([loadings, np.log(unique)]),
            )
            clipped = np.exp(np.clip(proposed[:, k], np.log(self.lower), LARGEST))
            there = self.point(proposed[:, :k], clipped, exact=False)
            if not there.discrepancy <= at.discrepancy:
                ahead.forget()
                there = self.point(loadings, unique, exact=False)
            at = there
            values.append(at.discrepancy)
            if values[-1 - WINDOW :][0] - values[-1] <= ENOUGH * tol and len(values) > WINDOW:
                break
        return at, max(values[0] - values[-1], 0.0)

    @property
    def complete(self) -> bool:
        """Whether the basis spans all p dimensions, so that the surrogate is S itself."""
        return self.basis.shape[1] >= self.p

    def maximum(self, near: FactorPoint) -> tuple[FactorPoint, bool]:
        """(the point of the largest likelihood under S itself, whether it converged to rounding).

        Needs a complete basis. Newton steps on the p x p matrix start from ``near`` and from their
        own start, because there may be several maxima.
        """
        half = np.linalg.solve(self.basis.T, self.products.T)
        correlation, k = (half + half.T) / 2, near.loadings.shape[1]
        np.fill_diagonal(correlation, 1.0)
        starts = (near.uniquenesses, None)
        solutions = [maximum_likelihood(correlation, k, self.lower, start=s) for s in starts]
        best = min(solutions, key=lambda solution: solution.discrepancy)
        return self.point(best.loadings, best.uniquenesses, exact=True), best.converged

    def _step(self, at: FactorPoint) -> tuple[Array, Array]:
        """One step of EM in expanded parameters."""
        weighted = at.loadings / at.uniquenesses[:, None]
        inverse, _ = _inner(at.loadings, weighted)
        cross = at.image @ inverse
        moment = inverse + inverse @ (weighted.T @ at.image) @ inverse
        loadings = np.linalg.solve(moment, cross.T).T
        unique = np.maximum(1.0 - np.einsum("ij,ij->i", loadings, cross), self.lower)
        return loadings @ np.linalg.cholesky((moment + moment.T) / 2), unique


def _inner(loadings: Array, weighted: Array) -> tuple[Array, float]:
    """((k, k) posterior covariance of the factors, log-determinant of its inverse)."""
    information = np.eye(loadings.shape[1]) + loadings.T @ weighted
    inverse = np.linalg.inv(information)
    return (inverse + inverse.T) / 2, float(np.linalg.slogdet(information)[1])


def solution_of(point: FactorPoint, lower: float, steps: int, converged: bool) -> FactorSolution:
    """The solution at a point, with factors in canonical order: W'W / N diagonal, descending."""
    root = np.sqrt(point.uniquenesses)[:, None]
    u, singular, _ = np.linalg.svd(point.loadings / root, full_matrices=False)
    held = (point.uniquenesses <= lower * (1.0 + 1e-9)) & (point.gradient > 0)
    largest = float(np.max(np.abs(point.gradient[~held]), initial=0.0))
    return FactorSolution(
        u * singular * root, point.uniquenesses, point.discrepancy, steps, largest, converged
    )
