"""How many components stand above noise: EIGENSOFT's sequential Tracy-Widom test."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy
from numpy.typing import ArrayLike

from streampca.errors import InvalidInputError, NonFiniteError
from streampca.kernels import Array
from streampca.solvers.spectrum import numerical_rank

_FEWEST = 10  # eigenvalues that must remain; twstats prints NA below this number (option -m)
_LEFT, _RIGHT = -10.0, 16.0  # 1 - sf < 1e-18 on the left; sf < 1e-20 on the right
_NODES = 40  # 32 would suffice
SLACK = 1e-9  # relative error of sums in float64
_AT_ONCE = 256  # points whose quadrature matrices (3 MiB) are held at a time


@dataclass(frozen=True)
class TracyWidom:
    """The test of each leading component after removing those before it.

    statistic : (k,) normalised leading eigenvalue of what remains (twstats' ``twstat``).
    p_value : (k,) its right tail under noise alone.
    effective_features : (k,) independent features that would spread the remaining eigenvalues
        as widely (twstats' ``effect. n``; linkage makes it smaller than the number of markers).

    NaN in all three where fewer than 10 non-zero eigenvalues remain, or all of them are equal.
    """

    statistic: Array
    p_value: Array
    effective_features: Array


def tracy_widom_sf(x: ArrayLike) -> Array:
    """P(TW1 > x): the right tail of the Tracy-Widom distribution with beta = 1.

    x : any shape; the result has it too, float64. NaN stays NaN. Absolute error under 1e-13;
    relative error about 1e-13 in the right tail down to 1e-307 (x near 103); 0 beyond x = 107,
    where the value is smaller than any float64.
    Cost: 2 ms for each x between -10 and 16 (820 Airy values, eigenvalues of a 40 x 40 matrix).
    Source: Ferrari and Spohn 2005, J. Phys. A 38, L557, section 1: F1(s) = det(1 - B) with
    B(u, v) = Ai(u + v + s) on L2(0, inf); by Gauss-Legendre quadrature as in Bornemann 2010,
    Math. Comp. 79, 871-915.
    """
    points = np.asarray(x, dtype=np.float64)
    flat = points.ravel()
    out = np.where(np.isnan(flat), np.nan, np.where(flat < 0.0, 1.0, 0.0))
    middle = np.flatnonzero((flat >= _LEFT) & (flat <= _RIGHT))
    for start in range(0, len(middle), _AT_ONCE):
        part = middle[start : start + _AT_ONCE]
        out[part] = _by_determinant(flat[part])
    right = (flat > _RIGHT) & (flat < 1e3)
    out[right] = _by_trace(flat[right])
    return out.reshape(points.shape)


def tracy_widom_test(
    values: ArrayLike,
    *,
    total: float | None = None,
    squares: float | None = None,
    count: int | None = None,
    rounding: float = 0.0,
) -> TracyWidom:
    """Test the leading eigenvalues of a Gram or covariance matrix one after another.

    values : (k,) descending eigenvalues, in any unit; all of them, or the k leading ones with
    total, squares, count : sum, sum of squares and number of all non-zero eigenvalues (trace and
        squared Frobenius norm of the matrix; n - 1 for a centred n x n Gram with n <= p). All
        three or none. Without them, values under the rounding of the largest count as zero.
    rounding : relative error of these sums. Where the values contradict them by no more, what
        remains is rounding, and the answer NaN.

    The answers are those of EIGENSOFT's ``twstats`` up to the three decimals it prints and its
    table; beyond the table's end (x >= 8) it prints the density's asymptote as the p-value,
    about sqrt(x) times this one.
    Cost: one ``tracy_widom_sf`` per component. Raises InvalidInputError where the values cannot
    be a leading part of such a spectrum, or fewer than 10 eigenvalues are not zero.
    Source: Patterson, Price and Reich 2006, PLoS Genetics 2, e190, "A test for population
    structure", eq. 10; as in twstats, m is the number of eigenvalues that remain (its m' - 1).
    """
    leading = _checked(values)
    known = [total is not None, squares is not None, count is not None]
    if any(known) and not all(known):
        raise InvalidInputError(
            "total, squares and count describe the whole spectrum together; got "
            f"total={total}, squares={squares}, count={count}. Give all three, or all eigenvalues"
        )
    if total is None or squares is None or count is None:
        count = numerical_rank(leading, len(leading))
        rest = rest_squares = 0.0
    else:
        rest, rest_squares = _beyond(leading, float(total), float(squares), int(count), rounding)
    if count < _FEWEST:
        raise InvalidInputError(
            f"{count} eigenvalues are not zero; the Tracy-Widom test needs {_FEWEST} or more"
        )
    tested = leading[:count]
    # from the smallest upwards, so that the remainder after large components keeps its digits
    sums = rest + np.cumsum(tested[::-1])[::-1]
    sums_of_squares = rest_squares + np.cumsum(tested[::-1] ** 2)[::-1]
    m = (count - np.arange(len(tested))).astype(np.float64)
    columns = np.full((2, len(leading)), np.nan)
    columns[:, : len(tested)] = _normalised(tested, sums, sums_of_squares, m)
    statistic, effective = columns
    return TracyWidom(statistic, tracy_widom_sf(statistic), effective)


def count_significant(test: TracyWidom, level: float = 0.05) -> int:
    """How many leading components come before the first whose p-value is not below ``level``.

    All k where every one is significant (there may be more); a NaN ends the count. Strong
    components of similar size can mask each other: the later ones count as noise, lower the
    effective number of features and can make the first one less significant than the second.
    Inspect all p-values where the count is surprising.
    """
    if not 0.0 < level < 1.0:
        raise InvalidInputError(f"level={level!r}; a significance level lies between 0 and 1")
    stops = np.flatnonzero(~(test.p_value < level))  # not >=: NaN stops too
    return int(stops[0]) if len(stops) else len(test.p_value)


def _normalised(values: Array, sums: Array, squares: Array, m: Array) -> tuple[Array, Array]:
    """(statistic, effective features) of leading values among the m that remain with them."""
    spread = m * squares - sums**2
    usable = (m >= _FEWEST) & (spread > 8.0 * np.finfo(np.float64).eps * m * squares)
    with np.errstate(divide="ignore", invalid="ignore"):
        effective = np.where(usable, (m + 2.0) * sums**2 / spread, np.nan)
        # twstats subtracts 1 from the larger of the two
        a = np.sqrt(np.maximum(effective, m) - 1.0)
        b = np.sqrt(np.minimum(effective, m))
        scaled = effective * m * values / sums
        return (scaled - (a + b) ** 2) / ((a + b) * np.cbrt(1.0 / a + 1.0 / b)), effective


def _checked(values: ArrayLike) -> Array:
    """(k,) float64, finite, descending and not negative beyond rounding."""
    leading = np.asarray(values, dtype=np.float64)
    if leading.ndim != 1 or not len(leading):
        raise InvalidInputError(f"values of shape {leading.shape}; expected (k,) eigenvalues")
    if not np.isfinite(leading).all():
        raise NonFiniteError("values hold NaN or infinity; eigenvalues are finite")
    if (np.diff(leading) > 0.0).any():
        raise InvalidInputError("values must be descending: np.sort(values)[::-1]")
    if leading[-1] < -len(leading) * np.finfo(np.float64).eps * leading[0]:
        raise InvalidInputError(
            f"an eigenvalue is {leading[-1]:g}; those of a Gram or covariance matrix are not "
            "negative"
        )
    return leading


def _beyond(
    values: Array, total: float, squares: float, count: int, rounding: float
) -> tuple[float, float]:
    """Sum and sum of squares of the eigenvalues that come after ``values``."""
    if not np.isfinite([total, squares]).all():
        raise NonFiniteError(f"total={total}, squares={squares}; expected finite numbers")
    after = count - len(values)
    if after <= 0:
        return 0.0, 0.0
    rest = total - float(values.sum())
    rest_squares = squares - float((values**2).sum())
    smallest = float(values[-1])

    def contradict(slack: float) -> bool:
        return (
            rest < -slack * total
            or rest_squares < -slack * squares
            or rest > after * smallest + slack * total
            or rest**2 > after * rest_squares + slack * (total**2 + after * squares)
            or rest_squares > rest * smallest + slack * squares
        )

    if contradict(max(SLACK, rounding)):
        raise InvalidInputError(
            f"total={total:g} and squares={squares:g} leave {rest:g} and {rest_squares:g} to the "
            f"{after} eigenvalues after the {len(values)} given, which end with {smallest:g}: no "
            "spectrum has these sums. Expected trace(G) and (G * G).sum() of the matrix whose "
            "eigenvalues these are, in the same unit, and the number that are not zero"
        )
    if contradict(SLACK):
        return np.nan, np.nan
    return max(rest, 0.0), max(rest_squares, 0.0)


@cache
def _rule() -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return (nodes + 1.0) / 2.0, weights / 2.0


def _quadrature(s: Array) -> tuple[Array, Array]:
    """(len(s), nodes) nodes and weights on (0, L), where Ai(s + L) is e^-40 of the largest."""
    nodes, weights = _rule()
    length = (60.0 + np.maximum(s, 0.0) ** 1.5) ** (2.0 / 3.0) - s
    return length[:, None] * nodes, length[:, None] * weights


def _by_determinant(s: Array) -> Array:
    """1 - det(1 - B), as an expm1 of the eigenvalues of B so that small values keep digits."""
    x, w = _quadrature(s)
    i, j = np.tril_indices(_NODES)
    kernel = np.zeros((len(s), _NODES, _NODES))
    kernel[:, i, j] = (
        np.sqrt(w[:, i] * w[:, j]) * scipy.special.airy(x[:, i] + x[:, j] + s[:, None])[0]
    )
    eigenvalues = np.minimum(np.linalg.eigvalsh(kernel, UPLO="L"), 1.0)
    with np.errstate(divide="ignore"):
        return np.asarray(-np.expm1(np.log1p(-eigenvalues).sum(axis=1)))


def _by_trace(s: Array) -> Array:
    """Trace of B: all of 1 - det(1 - B) to rounding where it is small; underflows last."""
    x, w = _quadrature(s)
    at = s[:, None] + 2.0 * x
    exponent = 2.0 / 3.0 * (s[:, None] ** 1.5 - at**1.5)
    inner = (w * scipy.special.airye(at)[0] * np.exp(exponent)).sum(axis=1)
    return np.asarray(np.exp(-2.0 / 3.0 * s**1.5) * inner)
