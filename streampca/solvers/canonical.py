"""Canonical correlations of two views, from their joint sums, and the tests of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import scipy

from streampca.errors import RESCALE, NonFiniteError
from streampca.kernels import Array, lower_product, norm_estimate
from streampca.solvers.spectrum import LARGEST, eigh_lower

TOLERANCE = 1e-7  # share of the norm of a column that is left of a dependent one, as in R's cancor
EPS = float(np.finfo(np.float64).eps)


class Whitening(NamedTuple):
    """A basis of one view in which its scatter is the identity.

    matrix : (p, r).  unsure : columns of which rounding decides whether they depend on others.
    """

    matrix: Array
    unsure: int = 0

    @property
    def rank(self) -> int:
        return int(self.matrix.shape[1])


class Joint(Protocol):
    """The centred rows of both views, as far as sums tell.  p : columns of the first view."""

    @property
    def p(self) -> int: ...

    def whitening(self, view: slice, ridge: float) -> Whitening:
        """Of the scatter plus ridge times the identity.

        Columns that depend on columns before them are left out (their weights are 0), as in R.
        """

    def principal(self, view: slice, count: int) -> Whitening:
        """Of the ``count`` leading principal components of the view, or as many as stand above
        rounding."""

    def between(self, x: Array, y: Array) -> Array:
        """(k, l) x' S_xy y for x (p, k) and y (q, l)."""

    def times(self, vectors: Array) -> Array:
        """S v for (p + q, k) vectors."""


@dataclass(frozen=True)
class JointScatter:
    """Joint scatter S of [X, Y].

    lower : (p + q, p + q), its lower triangle valid.
    level : (p + q,) rounding of the variances, relative to them.
    """

    lower: Array
    p: int
    level: Array

    def whitening(self, view: slice, ridge: float) -> Whitening:
        scatter = self.lower[view, view].copy()
        scatter[np.diag_indices_from(scatter)] += ridge
        found = independent(scatter, 10.0 * self.level[view])
        unsure = (found.left > TOLERANCE**2) & (found.left <= found.rounding)
        matrix = _spread(found.inverse, found.kept, len(scatter))
        return Whitening(matrix, int(np.count_nonzero(unsure)))

    def principal(self, view: slice, count: int) -> Whitening:
        scatter = self.lower[view, view].copy()
        spectrum = eigh_lower(scatter, min(count, len(scatter)))
        least = len(scatter) * max(EPS, float(self.level[view].max(initial=0.0)))
        return _of_components(spectrum.vectors, np.sqrt(spectrum.values), np.sqrt(least))

    def between(self, x: Array, y: Array) -> Array:
        return np.asarray(x.T @ (self.lower[self.p :, : self.p].T @ y))

    def times(self, vectors: Array) -> Array:
        return np.asarray(lower_product(self.lower, vectors))


@dataclass(frozen=True)
class JointFactor:
    """R factor of [X, Y] centred, (p + q, p + q): R'R is the scatter, which is not formed."""

    factor: Array
    p: int

    def whitening(self, view: slice, ridge: float) -> Whitening:
        rows = self.factor[:, view]
        if ridge > 0.0:
            rows = np.vstack([rows, np.sqrt(ridge) * np.eye(rows.shape[1])])
        kept, root = independent_columns(rows)
        return Whitening(_spread(_inverse(root.T), kept, rows.shape[1]))

    def principal(self, view: slice, count: int) -> Whitening:
        rows = self.factor[:, view]
        _, singular, right = scipy.linalg.svd(rows, full_matrices=False)
        return _of_components(right.T[:, :count], singular[:count], len(rows) * EPS)

    def between(self, x: Array, y: Array) -> Array:
        return np.asarray((self.factor[:, : self.p] @ x).T @ (self.factor[:, self.p :] @ y))

    def times(self, vectors: Array) -> Array:
        return np.asarray(self.factor.T @ (self.factor @ vectors))


class Independent(NamedTuple):
    """Columns that do not depend on those before them.

    kept : (r,) their numbers.  inverse : (r, r) L^-1 for the Cholesky factor of their scatter.
    left : (p,) share of each variance that the kept ones before leave.  rounding : (p,) of these.
    """

    kept: Array
    inverse: Array
    left: Array
    rounding: Array


def independent(scatter: Array, level: Array, least: float = TOLERANCE**2) -> Independent:
    """The columns of which more than ``least`` of their variance, and of rounding, is left.

    What is left of a column is the scatter of [-c, 1] times the columns, c being coefficients on
    those before it: its rounding is that of an entry times (sum_i |c_i| d_i + d)^2, for deviations
    d. Row j of L^-1 is [-c, 1] over the root of what is left.
    scatter : (p, p), its lower triangle valid.  level : (p,) rounding of variances, relative.
    Source: Golub and Van Loan 2013, section 4.2.5, without a step for a dependent column; Higham
    2002, "Accuracy and Stability of Numerical Algorithms", section 10.3.1.
    """
    variance, p = np.diagonal(scatter).copy(), len(scatter)
    if not variance.max(initial=0.0) <= LARGEST:
        raise NonFiniteError(f"sums of squares overflowed; {RESCALE}")
    safe, roots = np.where(variance > 0.0, variance, 1.0), np.sqrt(variance * level)
    try:
        whole = scipy.linalg.cholesky(scatter, lower=True, check_finite=False)
        pivots, inverse = np.diagonal(whole) ** 2, _inverse(whole)
        rounding = pivots * (np.abs(inverse) @ roots) ** 2 / safe
        if np.all(pivots / safe > np.maximum(rounding, least)):
            return Independent(np.arange(p), inverse, pivots / safe, rounding)
    except np.linalg.LinAlgError:
        pass
    kept: list[int] = []
    inverse, left, rounding = np.zeros((p, p)), np.zeros(p), np.zeros(p)
    for j in range(p):
        r = len(kept)
        before = inverse[:r, :r]
        row = before @ scatter[j, kept]
        coefficients = row @ before
        rest = max(variance[j] - row @ row, 0.0)
        left[j] = rest / safe[j]
        rounding[j] = (np.abs(coefficients) @ roots[kept] + roots[j]) ** 2 / safe[j]
        if left[j] > max(rounding[j], least):
            inverse[r, :r], inverse[r, r] = -coefficients / np.sqrt(rest), 1.0 / np.sqrt(rest)
            kept.append(j)
    r = len(kept)
    return Independent(np.array(kept, np.int64), inverse[:r, :r], left, rounding)


def independent_columns(rows: Array) -> tuple[Array, Array]:
    """(numbers (r,) of columns that do not depend on those before them, R (r, r) of their QR).

    A column counts as dependent as in R's ``qr``: less than TOLERANCE of its norm is left.
    """
    norms = np.linalg.norm(rows, axis=0)
    upper = scipy.linalg.qr(rows, mode="r", check_finite=False)[0][: rows.shape[1]]
    if len(upper) == rows.shape[1] and np.all(np.abs(np.diagonal(upper)) > TOLERANCE * norms):
        return np.arange(rows.shape[1]), upper
    kept: list[int] = []
    basis = np.zeros((len(rows), min(rows.shape)))
    for j, column in enumerate(rows.T):
        q = basis[:, : len(kept)]
        rest = column - q @ (q.T @ column)
        rest = rest - q @ (q.T @ rest)
        size = float(np.linalg.norm(rest))
        if size > TOLERANCE * norms[j] and len(kept) < basis.shape[1]:
            basis[:, len(kept)] = rest / size
            kept.append(j)
    chosen = np.array(kept, np.int64)
    return chosen, scipy.linalg.qr(rows[:, chosen], mode="r")[0][: len(chosen)]


def _inverse(root: Array) -> Array:
    """L^-1 (r, r) for L lower, without 0 on its diagonal."""
    if not len(root):
        return np.zeros((0, 0))
    return np.tril(scipy.linalg.lapack.dtrtri(root, lower=1)[0])


def _spread(inverse: Array, kept: Array, p: int) -> Array:
    """(p, r) L^-T in the rows that are kept, 0 in the others."""
    whole = np.zeros((p, len(kept)))
    whole[kept] = inverse.T
    return whole


def _of_components(vectors: Array, roots: Array, least: float) -> Whitening:
    """Whitening by principal components: vectors over the roots of their sums of squares."""
    kept = roots > least * float(roots[:1].max(initial=0.0))
    return Whitening(vectors[:, kept] / roots[kept])


# The pairs: singular vectors of what lies between the two bases.


class Pairs(NamedTuple):
    """values : all singular values, descending.  left, right : (r, k) singular vectors."""

    values: Array
    left: Array
    right: Array


def singular_pairs(between: Array, count: int | None) -> Pairs:
    """The leading ``count`` singular pairs of a matrix (p, q), and all of its singular values."""
    left, values, right = scipy.linalg.svd(between, full_matrices=False, check_finite=False)
    return Pairs(values, left[:, :count], right[:count].T)


def correlation_bound(
    values: Array,
    x: Array,
    y: Array,
    deviations: Array,
    probed: Array | None,
    drift: float,
    entry: float,
) -> Array:
    """(k,) bounds of the errors of canonical correlations from a joint scatter S + E.

    To first order the error of one is u'E v less value / 2 (u'E u + v'E v). |E u| was measured by
    random vectors, or follows from the error of an entry; the smaller of both counts.
    values : (k,).  x (p, k), y (q, k) : weights u and v with u'S u = v'S v = 1.
    deviations : (p + q,) roots of the diagonal of S.
    probed : (p + q, probes) E H, or None.  drift : norm of the error in S due to errors of means.
    entry : error of an entry of S, relative to the deviations of its row and column.
    Source: Stewart and Sun 1990, "Matrix Perturbation Theory", section VI.3.
    """
    p = len(x)
    a, b = np.abs(x).T @ deviations[:p], np.abs(y).T @ deviations[p:]
    spread = a * b + values / 2.0 * (a * a + b * b)
    bound = entry * spread
    if probed is not None:
        lengths = np.linalg.norm(x, axis=0), np.linalg.norm(y, axis=0)
        errors = [
            norm_estimate(one.T @ part) + drift * length
            for one, part, length in zip((x, y), (probed[:p], probed[p:]), lengths, strict=True)
        ]
        cross = np.minimum(lengths[1] * errors[0], lengths[0] * errors[1])
        own = values / 2.0 * (lengths[0] * errors[0] + lengths[1] * errors[1])
        bound = np.minimum(bound, cross + own)
    return np.asarray(bound + 4.0 * EPS * spread)


def factor_bound(values: Array, x: Array, y: Array, deviations: Array) -> Array:
    """(k,) the same from an R factor, whose columns are right to a few roundings of their norm."""
    a, b = np.abs(x).T @ deviations[: len(x)], np.abs(y).T @ deviations[len(x) :]
    return np.asarray(8.0 * EPS * np.sqrt(len(deviations)) * (1.0 + values) * (a + b))


# Tests: whether a root, and all after it, are 0.


class CanonicalTests(NamedTuple):
    """Tests that root i and all after it are 0, (r,) each, and statistics of the whole set.

    wilks : product of 1 - value^2 from root i on.
    f, df1, df2, f_p_value : Rao's F approximation.  chi2, df, chi2_p_value : Bartlett's.
    pillai, hotelling_lawley, roy : of all roots (roy is value^2 / (1 - value^2) of the first).
    """

    wilks: Array
    f: Array
    df1: Array
    df2: Array
    f_p_value: Array
    chi2: Array
    df: Array
    chi2_p_value: Array
    pillai: float
    hotelling_lawley: float
    roy: float

    def __str__(self) -> str:
        head = f"{'root':>5} {'Wilks':>9} {'F':>10} {'df1':>6} {'df2':>9} {'p':>9}"
        lines = [f"{head} {'chi2':>10} {'df':>5} {'p':>9}"]
        for i, row in enumerate(zip(*self[:8], strict=True), 1):
            wilks, f, df1, df2, p, chi2, df, q = row
            lines.append(
                f"{i:>5} {wilks:>9.5f} {f:>10.5g} {df1:>6g} {df2:>9.6g} {p:>9.3g} "
                f"{chi2:>10.5g} {df:>5g} {q:>9.3g}"
            )
        return "\n".join(lines)


def canonical_tests(values: Array, n: float, p: int, q: int) -> CanonicalTests:
    """Wilks' lambda of every root with both approximations in use; NaN where n is too small.

    values : (min(p, q),) canonical correlations of n rows, of views of rank p and q.
    Source: Rao 1973, "Linear Statistical Inference", 8c.5; Bartlett 1941, Biometrika 32.
    """
    i = np.arange(len(values))
    left = np.clip(1.0 - values**2, 0.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.cumsum(np.log(left)[::-1])[::-1]
        a, b = p - i, q - i
        df1 = (a * b).astype(np.float64)
        squares = a * a + b * b - 5.0
        nu = np.where(squares > 0, np.sqrt((df1**2 - 4.0) / np.where(squares > 0, squares, 1)), 1)
        nu = np.where((a == 1) | (b == 1), 1.0, nu)
        df2 = (n - 1.5 - (p + q) / 2.0) * nu - df1 / 2.0 + 1.0
        root = np.exp(logs / nu)
        f = np.where(df2 > 0, (1.0 - root) / root * df2 / df1, np.nan)
        factor = n - 1.0 - (p + q + 1.0) / 2.0
        chi2 = np.where(factor > 0, -factor * logs, np.nan)
        ratios = values**2 / left
        f_p = np.where(
            np.isinf(f), 0.0, scipy.special.fdtrc(df1, np.where(df2 > 0, df2, np.nan), f)
        )
        chi2_p = np.where(np.isinf(chi2), 0.0, scipy.special.chdtrc(df1, chi2))
    return CanonicalTests(
        np.exp(logs),
        f,
        df1,
        df2,
        f_p,
        chi2,
        df1,
        chi2_p,
        float(np.sum(values**2)),
        float(np.sum(ratios)),
        float(ratios[:1].max(initial=0.0)),
    )
