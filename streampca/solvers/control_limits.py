"""Control limits of T^2 and of the squared prediction error (SPE) of rows on a fitted PCA.

Rows of the fit and new rows have other distributions, because the fit knows the former: it leaves
less of them out, and gives them larger scores. All of the following is for Gaussian rows, and uses
the spectrum of the fit alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from streampca.kernels import Array


@dataclass(frozen=True)
class FittedSpectrum:
    """What limits are computed from.

    kept : (k,) variances of the components, of divisor ``freedom``, all above 0.
    rest : (3,) sums of the first, second and third powers of all other variances.
    values, counts : (m,) those others, and how many there are of each; or a few in their place.
    scaling : mean square of a new standardised value, over that of the rows of the fit.
    dimensions : of the space that the components leave.
    freedom : degrees of freedom of the covariance, n - 1.
    leverage : what estimating the mean costs, 1 / n; 0 without centring.
    """

    kept: Array
    rest: Array
    values: Array
    counts: Array
    dimensions: int
    freedom: float
    leverage: float
    scaling: float = 1.0

    def shrinkage(self) -> Array:
        """(k,) variance of the scores of new rows over that of the rows of the fit.

        Noise turns a component towards the rows of the fit, so that these vary more along it.
        Source: Ledoit and Peche 2011, "Eigenvectors of some large sample covariance matrix
        ensembles", theorem 3; beyond the noise as Bai and Ding 2012, "Estimation of spiked
        eigenvalues in spiked models", section 2.
        """
        pull = np.sum(self.counts * self.values / self._gap, axis=1) / self.freedom
        return np.asarray(np.minimum(1.0 / np.abs(1.0 + pull) ** 2, 1.0))

    @property
    def _gap(self) -> Array:
        """(k, m) from each component to each of the others, without a pole."""
        return np.asarray(self.kept[:, None] * (1.0 - 1j / np.sqrt(self.freedom)) - self.values)

    # -- T^2 ------------------------------------------------------------------------------------

    def t2_of_new(self, alpha: float, shrunk: bool = True) -> float:
        """The limit of T^2 of new rows.  shrunk : False is the textbook's, by F alone.

        Source: Tracy, Young and Mason 1992, "Multivariate control charts for individual
        observations", eq. 4.  With k and the scale of F by the first two moments of a sum of
        unequal variances (Box 1954, theorem 3.1).
        """
        weights = self.shrinkage() if shrunk else np.ones(len(self.kept))
        scale = float(np.sum(weights**2) / np.sum(weights))
        k = float(np.sum(weights) / scale)
        left = self.freedom - k + 1.0
        if left <= 0:
            return float("inf")
        factor = (1.0 + self.leverage) * scale * k * self.freedom / left
        return float(factor * scipy.special.fdtri(k, left, 1.0 - alpha))

    def t2_of_fit(self, alpha: float) -> float:
        """The limit of T^2 of rows of the fit, by beta (Tracy, Young and Mason 1992, eq. 3)."""
        k, left = len(self.kept), self.freedom - len(self.kept)
        share = scipy.special.betaincinv(k / 2, left / 2, 1.0 - alpha) if left > 0 else 1.0
        return float((1.0 - self.leverage) * self.freedom * share)

    def t2_of_many(self, alpha: float) -> float:
        """The limit of T^2 by chi-square, as if the fit had infinitely many rows."""
        return float(scipy.special.chdtri(len(self.kept), alpha))

    # -- SPE ------------------------------------------------------------------------------------

    def spe_of_new(self, alpha: float) -> float:
        """The limit of the SPE of new rows; it is estimated, and so as F to chi-square larger."""
        powers = self.powers_of_new()
        h = powers[0] ** 2 / powers[1]
        ratio = (
            scipy.special.fdtri(h, h * self._left, 1.0 - alpha) * h / scipy.special.chdtri(h, alpha)
        )
        return float(ratio * quantile(powers, alpha))

    def powers_of_new(self) -> Array:
        """(3,) sums of powers of the variances that make the SPE of new rows.

        They are those of the noise, without the bias of sample eigenvalues (the moments of a
        Wishart matrix: Letac and Massam 2004, "All invariant moments of the Wishart distribution",
        section 4), and of what the components miss because they are estimated.
        """
        shrinkage = self.shrinkage()
        missed = self.kept * (np.sqrt(shrinkage) - shrinkage)
        grown = 1.0 + float(np.sum(self.kept * (1.0 - np.sqrt(shrinkage)))) / self.rest[0]
        own = _population(self.rest * grown ** np.array([1, 2, 3]), self._left, self.dimensions)
        one, two = (own[i] / own[0] * self._met(i) for i in (1, 2))  # (k,) variances there
        powers = own + np.array(
            [
                np.sum(missed),
                np.sum(2 * missed * one + missed**2),
                np.sum(3 * missed * two + 3 * missed**2 * one + missed**3),
            ]
        )
        return np.asarray(powers * (self.scaling * (1.0 + self.leverage)) ** np.array([1, 2, 3]))

    def _met(self, power: int) -> Array:
        """(k,) mean of this power of the variances that a component turns to, over that of all."""
        towards = self.counts * self.values / np.abs(self._gap) ** 2
        mean = np.sum(towards * self.values**power, axis=1) / np.sum(towards, axis=1)
        return np.asarray(mean * self.rest[0] / self.rest[power])

    def spe_of_fit(self, alpha: float) -> float:
        """The limit of the SPE of rows of the fit: n - 1 coordinates of a uniform direction.

        The left singular vectors of Gaussian rows are uniform; a row is one coordinate of each.
        """
        f, (first, second, third) = self.freedom, self.rest
        powers = np.array(
            [
                first,
                (second - first**2 / f) * f / (f + 2),
                (third * f**2 - 3 * f * first * second + 2 * first**3) / ((f + 2) * (f + 4)),
            ]
        )
        return quantile(powers * (1.0 - self.leverage) ** np.array([1, 2, 3]), alpha)

    def spe_of_many(self, alpha: float) -> float:
        """The limit of Jackson and Mudholkar, of the sample's own variances."""
        return jackson_mudholkar(self.rest, alpha)

    @property
    def _left(self) -> float:
        """Degrees of freedom of what the components leave."""
        return max(self.freedom - len(self.kept), 1.0)


def stand_ins(powers: Array, count: float) -> tuple[Array, Array]:
    """(values, counts) of at most two variances with these sums of powers, (3,), of ``count`` ones.

    Source: Golub and Meurant 2010, "Matrices, Moments and Quadrature", section 3.1 (Gauss rule).
    """
    first, second, third = powers
    determinant = count * second - first**2
    if determinant > 1e-9 * first**2:
        sum_of_two = (count * third - first * second) / determinant
        product = (first * third - second**2) / determinant
        values = np.real(np.roots([1.0, -sum_of_two, product]))
        if values[1] > 0:
            larger = (first - values[1] * count) / (values[0] - values[1])
            return values, np.array([larger, count - larger])
    return np.array([second / first]), np.array([first**2 / second])


def rest_of_moments(mean: float, variance: float, freedom: float, leverage: float) -> Array:
    """(3,) sums of powers of the variances left out, from the SPE of the rows of the fit.

    The third as if all were equal, which makes limits those of g times chi-square of h.
    Source: Nomikos and MacGregor 1995, "Multivariate SPC charts for monitoring batch processes",
    section 3.3; Box 1954.
    """
    left = 1.0 - leverage
    first = mean / left
    second = 0.5 * variance / left**2 * (freedom + 2) / freedom + first**2 / freedom
    return np.array([first, second, second**2 / first])


def jackson_mudholkar(powers: Array, alpha: float) -> float:
    """The upper limit of a sum of squares whose variances have these sums of powers, (3,).

    Source: Jackson and Mudholkar 1979, "Control procedures for residuals associated with principal
    component analysis", eq. 3.4.
    """
    first, second, third = powers
    power = 1.0 - 2.0 * first * third / (3.0 * second**2)
    deviate = scipy.special.ndtri(1.0 - alpha) * power * np.sqrt(2.0 * second) / first
    return float(first * (deviate + 1.0 + second * power * (power - 1.0) / first**2) ** (1 / power))


def quantile(powers: Array, alpha: float) -> float:
    """As :func:`jackson_mudholkar`, by a chi-square with the same three moments.

    It also serves distributions that lean to the left, as those of bounded sums do.
    Source: Imhof 1961, "Computing the distribution of quadratic forms in normal variables",
    section 4 (Pearson's approximation).
    """
    mean, variance, third = powers[0], 2.0 * powers[1], 8.0 * powers[2]
    if not variance > 0:
        return float(mean)
    deviation = np.sqrt(variance)
    skew = third / variance**1.5
    if abs(skew) < 1e-4:
        return float(mean + deviation * scipy.special.ndtri(1.0 - alpha))
    h = 8.0 / skew**2
    point = scipy.special.chdtri(h, alpha if skew > 0 else 1.0 - alpha)
    return float(mean + np.sign(skew) * deviation * (point - h) / np.sqrt(2.0 * h))


def exceedance(powers: Array, value: float) -> float:
    """The probability that a sum of squares exceeds a value: the inverse of :func:`quantile`."""
    mean, variance, third = powers[0], 2.0 * powers[1], 8.0 * powers[2]
    h = 8.0 * variance**3 / third**2
    return float(
        scipy.special.chdtrc(h, max(h + (value - mean) * np.sqrt(2.0 * h / variance), 0.0))
    )


def order_statistic(values: Array, alpha: float) -> float:
    """The limit that a further value of the same distribution exceeds with probability alpha.

    Infinite where there are fewer than 1 / alpha - 1 values, as none is so far out.
    Source: David and Nagaraja 2003, "Order Statistics", section 7.3.
    """
    place = int(np.ceil((1.0 - alpha) * (len(values) + 1))) - 1
    return float(np.partition(values, place)[place]) if place < len(values) else float("inf")


def _population(powers: Array, freedom: float, dimensions: int) -> Array:
    """(3,) sums of powers of variances, from those of their sample covariance; unbiased."""
    f = freedom
    first, second, third = powers
    own = first
    squares = (second - first**2 / f) * f**2 / max((f - 1) * (f + 2), 1.0)
    system = np.array(
        [
            [1 + 3 / f + 4 / f**2, 3 / f + 3 / f**2, 1 / f**2],
            [4 / f + 4 / f**2, 1 + 1 / f + 4 / f**2, 1 / f],
            [8 / f**2, 6 / f, 1.0],
        ]
    )
    cubes = 0.0  # fewer degrees of freedom say nothing of third powers
    if f > 2.5:
        cubes = float(np.linalg.solve(system, [third, first * second, first**3])[0])
    squares = max(squares, own**2 / dimensions)  # Cauchy and Schwarz
    return np.array([own, squares, max(cubes, squares**2 / own)])
