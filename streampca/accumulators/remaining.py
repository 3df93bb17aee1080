"""Whether what remains when rows are removed from sums can be the sums of rows at all."""

from __future__ import annotations

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array

EIGENVALUES = 2048  # features up to which the rank of what remains is looked at: 4/3 p^3 flops
DEFINITE = 4096  # features up to which all directions are: p^3 / 3 flops
BEYOND = 4.0  # estimated errors: rows that are there are not refused for what an estimate missed


def refuse_impossible_missing(missing: Array, rows: int) -> None:
    """Raise where a column of what remains is neither observed throughout nor missing throughout.

    missing : (p,) missing cells of each column that would remain.  rows : that would.
    """
    odd = np.flatnonzero((missing != 0) & (missing != rows))
    if odd.size:
        raise never_taken_in(
            f"column {int(odd[0])} would have {int(missing[odd[0]])} missing cells in {rows} rows"
        )


def refuse_impossible_scatter(scatter: Array, rows: int, error: float) -> None:
    """Raise where no rows have this scatter about their mean.

    scatter : (p, p), the lower triangle valid; changed.  rows : behind it; they span rows - 1
        directions.  error : estimate of the error of every entry, so that p times it is one of
        that of every eigenvalue (Weyl). Looks at variances alone beyond DEFINITE features.
    """
    p, diagonal = len(scatter), np.diagonal(scatter)
    own = p * float(np.finfo(np.float64).eps) * float(np.max(np.abs(diagonal), initial=0.0))
    error = BEYOND * error
    slack = p * (error + own)  # and the rounding of LAPACK
    if np.min(diagonal, initial=0.0) < -error:
        raise never_taken_in("a variance would become negative")
    if rows == 1 and np.max(diagonal, initial=0.0) > error:
        raise never_taken_in("the one row that would remain would vary")
    if rows <= p <= EIGENVALUES:
        values = np.linalg.eigvalsh(scatter)  # increasing
        if values[0] < -slack:
            raise never_taken_in("the variance of a direction would become negative")
        if values[p - rows] > slack:
            raise never_taken_in(f"{rows} rows would span more than {rows - 1} directions")
    elif 0 < p <= DEFINITE:
        np.fill_diagonal(scatter, diagonal + slack)
        try:
            if slack > 0:
                np.linalg.cholesky(scatter)
        except np.linalg.LinAlgError:
            raise never_taken_in("the variance of a direction would become negative") from None


def refuse_other_rows(difference: Array, delta: Array, weight: float, error: float) -> None:
    """Raise where two sums over as many rows are not those of the same rows.

    difference : (p, p) of the sums, the lower triangle valid.  delta : (p,) of the means, beyond
        their rounding.  weight : of the rows.  error : as for :func:`refuse_impossible_scatter`.
    """
    lower, error = np.tril(difference), BEYOND * error
    apart = max(float(lower.max(initial=0.0)), -float(lower.min(initial=0.0)))
    if apart > error or np.max(weight * delta**2, initial=0.0) > error:
        raise never_taken_in("they are as many as there are, and have another mean or variance")


def never_taken_in(why: str) -> InvalidInputError:
    """The error for rows that cannot be among those that were taken in."""
    return InvalidInputError(
        f"these rows were never taken in, or were forgotten before: {why}. Expected rows that are "
        "among those of this state, each of them forgotten once"
    )
