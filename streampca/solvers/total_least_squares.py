"""Total least squares from the R factor of [X, Y]: the fit with errors in both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from streampca.errors import InvalidInputError
from streampca.kernels import Array

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


def coefficient_covariance(r: Array, p: int, coef: Array, n: float, freedom: float) -> Array:
    """(p, p) covariance of the coefficients of one response, errors being alike and independent.

    r : as above.  n : rows.  freedom : n less what was fitted.
    Source: Fuller 1987, "Measurement Error Models", theorem 2.3.2, with the noise of all columns
    known up to one factor, which is estimated by the smallest eigenvalue.
    """
    moments = r.T @ r / freedom
    noise = float(np.linalg.eigvalsh(moments)[0])
    true = moments[:p, :p] - noise * np.eye(p)
    b = coef[:, 0]
    of_residual = noise * (1.0 + b @ b)
    inner = true * of_residual + noise * (of_residual * np.eye(p) - noise * np.outer(b, b))
    inverse = np.linalg.inv(true)
    return np.asarray(inverse @ inner @ inverse / n)
