"""Total least squares: linear regression with errors in all columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from streampca.accumulators import RFactor
from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix
from streampca.models.contract.parameters import Kept, parameter
from streampca.models.contract.registry import estimator
from streampca.models.contract.request import array_of_numbers
from streampca.models.regression.regression import Regression, refuse_columns_of_holes
from streampca.passes import PassResult, PassSpec, pass_spec


@estimator
class TotalLeastSquares(Regression):
    """Linear regression with errors in X as well as in y: the least change of both.

    Attributes
    ----------
    coef_, intercept_, ols_coef_ (for comparison), standard_errors_, singular_values_, noise_ (its
    standard deviation, in units of ``noise``), plan_, cost_, result_.

    The line is the same when X and y change places; distances are perpendicular to it.
    Cost: one read of both, 2 n (p + q)^2 flops, (p + q)^2 memory: the R factor of [X, y], since
    the smallest singular vector counts.
    Raises InvalidInputError where no, or more than one, solution exists; NonFiniteError.
    Source: Golub and Van Loan 1980, SIAM J. Numer. Anal. 17(6); standard errors Fuller 1987,
    "Measurement Error Models", theorem 2.3.2.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import TotalLeastSquares
    >>> rng = np.random.default_rng(0)
    >>> true = rng.standard_normal((1000, 1))
    >>> X = true + 0.5 * rng.standard_normal((1000, 1))
    >>> y = 2 * true[:, 0] + 0.5 * rng.standard_normal(1000)
    >>> model = TotalLeastSquares().fit(X, y)
    >>> model.coef_.round(1), model.ols_coef_.round(1)  # errors in X bias the latter towards 0
    (array([1.9]), array([1.5]))
    """

    noise: Any = parameter(
        default=None,
        kept=Kept.NAME,
        needs_data=True,
        meaning="""(p + q,) standard deviations of the errors of the columns of X, then of y, known
            up to one factor. None: all alike.""",
    )
    fit_intercept: bool = parameter(default=True, meaning="subtract the means of X and y.")

    def _specs(self, joint: ChunkedMatrix, p: int) -> tuple[PassSpec, dict[str, int]]:
        n, m = joint.shape
        self._units(m)
        sums = {"r": RFactor(center=self.fit_intercept)}
        spec = pass_spec("tsqr", joint, 0, sums, flops=2.0 * n * m * m, work="factor")
        return spec, {"R factor and its SVD": 6 * m * m * 8}

    def _fewest(self, p: int) -> int:
        return p + int(self.fit_intercept)

    def _units(self, m: int) -> Array:
        if self.noise is None:
            return np.ones(m)
        expected = f"{m} numbers above 0: the columns of X, then those of y"
        units = array_of_numbers(self.noise, "noise", expected)
        if units.shape != (m,) or not (np.isfinite(units) & (units > 0)).all():
            raise InvalidInputError(f"noise of shape {units.shape}; expected {expected}")
        return units

    def _solved(self, done: PassResult, p: int) -> dict[str, Any]:
        sums = done["r"]
        refuse_columns_of_holes(sums, p)
        r = sums.r_factor()
        units, freedom = self._units(len(r)), sums.weight - int(self.fit_intercept)
        if sums.count <= p:
            raise InvalidInputError(
                f"n_samples={sums.count}, {p} columns of X; expected more samples"
            )
        scaled = r / units
        fitted = total_least_squares(scaled, p)
        back = units[p:] / units[:p, None]
        left = max(freedom - p, 1.0)
        errors = None
        if len(r) == p + 1:
            covariance = coefficient_covariance(scaled, p, fitted.coef, freedom)
            errors = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))[:, None] * back
        mean = np.asarray(sums.mean) if self.fit_intercept else np.zeros(len(r))
        noise = fitted.correction / np.sqrt(left * (len(r) - p))
        return {
            "coef": fitted.coef * back,
            "ols_coef": ordinary_least_squares(r, p),
            "mean": mean[:p],
            "response_mean": mean[p:],
            "standard_errors": errors,
            "singular_values": fitted.values,
            "noise": float(noise),
            "freedom": left,
        }

    @property
    def standard_errors_(self) -> Array:
        """(p,) of the coefficients, of one response. Raises InvalidInputError of several."""
        errors = self.result_.standard_errors
        if errors is None:
            raise InvalidInputError("standard errors are known of one response; fit each apart")
        return np.asarray(errors[:, 0])

    def confidence_interval(self, level: float = 0.95) -> Array:
        """(p, 2) of the coefficients of one response, by Student's t of the rows that are left.

        95 % of the intervals of 12 to 200 samples hold the true coefficients, where the errors are
        at most half as large as what they hide (simulated).
        """
        quantile = scipy.special.stdtrit(self.result_.freedom, 0.5 + level / 2.0)
        reach = quantile * self.standard_errors_
        return np.stack([self.coef_ - reach, self.coef_ + reach], axis=1)

    @property
    def singular_values_(self) -> Array:
        """(p + q,) of [X, y], each column in units of its noise."""
        return self.result_.singular_values

    @property
    def noise_(self) -> float:
        """Standard deviation of the errors, in units of ``noise``."""
        return self.result_.noise


GENERIC = 1e-8  # least share of a response in the smallest singular vectors


@dataclass(frozen=True)
class TotalFit:
    """coef : (p, q) of columns in units of their noise.  values : (p + q,) singular values.

    correction : Frobenius norm of the least change of [X, Y] that makes the fit exact.
    gap : (sigma_p - sigma_(p + 1)) / sigma_1: how far the solution is from many.
    """

    coef: Array
    values: Array
    correction: float
    gap: float


def total_least_squares(r: Array, p: int) -> TotalFit:
    """The coefficients B that minimise |[E, F]| under (X + E) B = Y + F.

    r : (p + q, p + q) R factor of [X, Y], each column over the standard deviation of its noise.
    Raises InvalidInputError for the non-generic case, where no B attains the least change, and
    where X is so near to dependent columns that many do.
    Cost: 22 (p + q)^3 flops.
    Source: Golub and Van Loan 1980, SIAM J. Numer. Anal. 17(6), section 3; Van Huffel and
    Vandewalle 1991, "The Total Least Squares Problem", sections 2.2, 2.3 and 3.2.
    """
    _, values, vt = scipy.linalg.svd(r, check_finite=False)
    inner = scipy.linalg.svdvals(r[:, :p], check_finite=False)
    smallest = vt[p:].T  # (p + q, q)
    top, bottom = smallest[:p], smallest[p:]
    share = scipy.linalg.svdvals(bottom, check_finite=False).min(initial=1.0)
    largest = float(values[0]) if len(values) else 0.0
    gap = float(values[p - 1] - values[p]) / largest if largest > 0 else 0.0
    if largest == 0 or inner[-1] <= len(r) * np.finfo(np.float64).eps * inner[0]:
        raise InvalidInputError(
            "columns of X are constant, or depend on each other: many coefficients fit alike. "
            "Leave out what follows from others, or fit PrincipalComponentRegression"
        )
    if share < GENERIC or gap <= 16 * np.finfo(np.float64).eps:
        raise InvalidInputError(
            "no coefficients attain the least change (the non-generic case): the smallest "
            "singular vectors of [X, Y] lie in X alone, which happens where a column of X has "
            "next to no relation to Y and less spread than its residual. Leave that column out, "
            "give noise= in the units of each column, or use ordinary least squares"
        )
    coef = -top @ np.linalg.inv(bottom)
    return TotalFit(coef, values, float(np.linalg.norm(values[p:])), gap)


def ordinary_least_squares(r: Array, p: int) -> Array:
    """(p, q) coefficients of Y on X, from the same R factor."""
    return np.asarray(scipy.linalg.solve_triangular(r[:p, :p], r[:p, p:], check_finite=False))


def coefficient_covariance(r: Array, p: int, coef: Array, freedom: float) -> Array:
    """(p, p) covariance of the coefficients of one response, errors being alike and independent.

    r : as above.  freedom : rows, less one where their mean was subtracted.
    Source: Fuller 1987, "Measurement Error Models", theorem 2.3.2, with the noise of all columns
    known up to one factor. The p coefficients took their share of the residuals: their mean square
    divides by ``freedom - p``.
    """
    moments = r.T @ r / freedom
    least = float(np.linalg.eigvalsh(moments)[0])
    true = moments[:p, :p] - least * np.eye(p)
    noise = least * freedom / max(freedom - p, 1.0)
    b = coef[:, 0]
    of_residual = noise * (1.0 + b @ b)
    inner = true * of_residual + noise * (of_residual * np.eye(p) - noise * np.outer(b, b))
    inverse = np.linalg.inv(true)
    return np.asarray(inverse @ inner @ inverse / freedom)
