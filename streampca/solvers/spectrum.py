"""From accumulated sums to a spectrum: eigenvalues, signs, the number of components."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy

from streampca.errors import RESCALE, InvalidInputError, InvalidTypeError, NonFiniteError
from streampca.kernels import Array, lower_product, mirror_lower, probe
from streampca.kernels.band import leading_pairs
from streampca.solvers.minka import MLE, check_mle

# The one sign rule: a component v points so that v'h > 0, for a fixed pseudo-random h.
#
# Every route knows v'h after its first pass: directly where it has v, and as u'(Zh) / s where it
# has only the left vectors (Z v = s u). So signs do not change when loadings are computed later.
# A complex component is turned so that v'h is real and positive: sum of v times positive weights.


def signs_of_components(vectors: Array) -> Array:
    """(k,) of +1 and -1 for the columns of vectors (p, k); of complex ones, of modulus 1."""
    return signs(vectors.T @ probe(0, len(vectors))).conj()


def signs(projections: Array) -> Array:
    """(k,) of +1 and -1 from v'h; 0 counts as positive. Of complex ones v'h over its modulus."""
    if projections.dtype.kind == "c":
        size = np.abs(projections)
        return np.where(size > 0, projections / np.where(size > 0, size, 1.0), 1.0)
    return np.where(projections < 0, -1.0, 1.0)


# Eigenvalues and eigenvectors of accumulated matrices.

LEAST_BANDED = 1024  # rows: LAPACK's own reduction is as fast below
SHARE_BANDED = 8  # one in so many eigenpairs, at most
LARGEST = 1e140  # largest entry of a symmetric matrix: sums of its squares are still finite

LEAST_REST = 1e-12  # of the sum of all third powers: a smaller rest is rounding
SMALLEST = 1e-146  # smallest singular value whose square is a normal float64


@dataclass(frozen=True)
class Spectrum:
    """Leading eigenpairs of a symmetric positive semidefinite matrix.

    values : (k,) descending, not negative.  vectors : (m, k) orthonormal columns.
    next_value : the eigenvalue after the last one here, or 0 where there is none.
    total : sum of all eigenvalues (the trace).  squares : sum of their squares.
    rest_cubes : sum of the third powers of those that come after these; NaN where not known.
    """

    values: Array
    vectors: Array
    next_value: float
    total: float
    squares: float
    rest_cubes: float = math.nan

    def head(self, k: int) -> Spectrum:
        """The first k of these."""
        if k >= len(self.values):
            return self
        unit = float(self.values[0]) or 1.0
        more = float(np.sum((self.values[k:] / unit) ** 3)) * unit * unit * unit
        return replace(
            self,
            values=self.values[:k],
            vectors=self.vectors[:, :k],
            next_value=float(self.values[k]),
            rest_cubes=self.rest_cubes + more,
        )


def eigh_lower(lower: Array, k: int | None = None) -> Spectrum:
    """Eigenpairs of a symmetric matrix given by its lower triangle (C order).

    lower : (m, m), writable for a subset: the upper triangle is workspace, and zeroed then.
    k : how many, or None for all.
    Cost: 4/3 m^3 flops, and no copy; for all vectors a copy and 16 m^2 bytes more.
    Raises NonFiniteError where the sums overflowed.
    Source: LAPACK's dsyevr (subset; of large matrices :mod:`streampca.kernels.band`) and
    dsyevd (all).
    """
    m = len(lower)
    if not np.diagonal(lower).max(initial=0.0) <= LARGEST:  # nor is NaN
        raise NonFiniteError(
            f"sums of squares overflowed the working precision; {RESCALE}, or, of float32, convert "
            "with X.astype('float64')"
        )
    count = m if k is None else min(k + 1, m)
    total, squares = float(np.trace(lower)), _sum_of_squares(lower)
    if count >= m:
        upper = np.array(lower.T, order="F")  # lower in C order is upper in F order
        values, vectors = scipy.linalg.eigh(
            upper, lower=False, driver="evd", overwrite_a=True, check_finite=False
        )
        rest = 0.0
    else:
        values, vectors, rest = _leading_in_place(lower, count, squares)
    values = np.maximum(values[::-1], 0.0)
    vectors = np.ascontiguousarray(vectors[:, ::-1])
    whole = Spectrum(values, vectors, 0.0, total, squares, rest)
    return whole if k is None else whole.head(k)


FEW_ROWS = 256  # of a matrix that is copied rather than looked at row by row


def by_band(m: int, count: int) -> bool:
    """Whether ``count`` of m eigenpairs are found by way of a band."""
    return m >= LEAST_BANDED and SHARE_BANDED * count <= m


def _leading_in_place(lower: Array, count: int, squares: float) -> tuple[Array, Array, float]:
    """The last ``count`` eigenpairs, ascending, and the ``rest_cubes`` after those.

    A reduction destroys the triangle that it reads, and the diagonal. So it reads a mirror image of
    the valid triangle, stored in the other one.
    """
    if not (lower.flags.c_contiguous and lower.flags.writeable and lower.dtype == np.float64):
        lower = np.array(lower, dtype=np.float64, order="C")
    diagonal = np.diagonal(lower).copy()
    mirror_lower(lower)
    found = leading_pairs(lower, count) if by_band(len(lower), count) else None
    if found is None:
        np.fill_diagonal(lower, diagonal)
        mirror_lower(lower)
        values, vectors = _leading_by_lapack(lower, count)
        if len(values) < count:  # bisection loses some of a subset among equal eigenvalues
            np.fill_diagonal(lower, diagonal)
            mirror_lower(lower)
            values, vectors = _leading_by_lapack(lower, len(lower))
        cubes = _cubes_after_lapack(lower, float(values[-1]) or 1.0, squares)
        found = values[-count:], vectors[:, -count:], cubes
    for i, row in enumerate(lower):
        row[i + 1 :] = 0.0
    np.fill_diagonal(lower, diagonal)
    values, vectors, cubes = found
    unit = float(values[-1]) or 1.0
    rest = cubes - float(((values / unit) ** 3).sum())
    return values, vectors, rest * unit * unit * unit if rest > LEAST_REST * cubes else math.nan


def _leading_by_lapack(a: Array, count: int) -> tuple[Array, Array]:
    """Of a symmetric matrix, whose upper triangle is overwritten."""
    values, vectors = scipy.linalg.eigh(
        a.T,
        lower=True,
        driver="evr",
        overwrite_a=True,
        check_finite=False,
        subset_by_index=(len(a) - count, len(a) - 1) if count < len(a) else None,
    )
    return values, vectors


def _cubes_after_lapack(a: Array, unit: float, squares: float) -> float:
    """The sum of the third powers of all eigenvalues, entries in this unit; NaN if not known.

    dsyevr leaves in its argument the three diagonals that dsytrd makes of it. That is not in its
    contract, so their squares are compared with those of the matrix.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # where dsyevr rescaled, which shows below
        d, beside = np.diagonal(a) / unit, (np.diagonal(a, 1) / unit) ** 2
        found = float(d @ d + 2.0 * beside.sum())
    if not (math.isfinite(found) and math.isclose(found, squares / unit / unit, rel_tol=1e-9)):
        return math.nan
    return float((d**3).sum() + 3.0 * (beside @ (d[1:] + d[:-1])))


def svd_of_r(r: Array) -> Spectrum:
    """Eigenpairs of R'R from the singular values of R, without forming R'R.

    r : (p, p) upper triangular, or a complex factor of any height. Values are squared singular
        values.
    """
    if not np.isfinite(r).all():
        raise NonFiniteError(f"the R factor overflowed; {RESCALE}")
    _, singular, vt = scipy.linalg.svd(r, full_matrices=False, check_finite=False)
    if singular[:1].max(initial=0.0) > np.sqrt(LARGEST):
        raise NonFiniteError(f"the R factor overflowed when squared; {RESCALE}")
    if 0.0 < singular[:1].max(initial=0.0) < SMALLEST:
        raise NonFiniteError(f"the squares of the R factor are too small for float64; {RESCALE}")
    values = singular**2
    vectors = np.ascontiguousarray(vt.conj().T)
    return Spectrum(values, vectors, 0.0, float(np.sum(values)), float(np.sum(values**2)), 0.0)


PROBES, TOGETHER = 128, 32  # random vectors for a trace, and how many are held at a time


def with_rest_cubes(lower: Array, spectrum: Spectrum) -> Spectrum:
    """The spectrum, with an estimate of ``rest_cubes`` where the decomposition leaves it unknown.

    That is where the rest is so small that it is rounding of the sum over all.
    lower : (m, m) the matrix, as for :func:`eigh_lower`. Exact where m <= 128; else the standard
    error is the share sqrt(2 / 128) of the root of their sixth powers.
    Cost: none, or 512 m^2 flops and 1,024 m bytes.
    Source: Hutchinson 1990, "A stochastic estimator of the trace of the influence matrix for
    Laplacian smoothing splines", eq. 2.
    """
    if not math.isnan(spectrum.rest_cubes):
        return spectrum
    m, (values, v) = len(lower), (spectrum.values, spectrum.vectors)
    unit, total = float(values[:1].max(initial=0.0)) or 1.0, 0.0
    rng = np.random.default_rng(0)
    for start in range(0, min(m, PROBES), TOGETHER):
        stop = min(start + TOGETHER, m)
        probes = rng.integers(0, 2, (m, stop - start)) * 2.0 - 1.0
        w = np.eye(m)[:, start:stop] if m <= PROBES else probes
        w = w - v @ (v.T @ w)
        image = (lower_product(lower, w) - (v * values) @ (v.T @ w)) / unit
        total += float(np.vdot(image, lower_product(lower, image))) / unit
    mean = max(total, 0.0) if m <= PROBES else max(total / PROBES, 0.0)
    return replace(spectrum, rest_cubes=mean * unit * unit * unit)


def _sum_of_squares(lower: Array) -> float:
    """Squared Frobenius norm of a symmetric matrix given by its lower triangle."""
    if len(lower) <= FEW_ROWS:
        below, diagonal = np.tril(lower, -1), np.diagonal(lower)
        return 2.0 * float(np.vdot(below, below)) + float(diagonal @ diagonal)
    total = 0.0
    for i, row in enumerate(lower):
        total += 2.0 * float(row[:i] @ row[:i]) + float(row[i]) ** 2
    return total


def orthonormal_columns(v: Array, rank: int, dead: Array) -> None:
    """Make the columns of v orthonormal in their order, in place; complete those after ``rank``.

    v : (p, k) float64 or complex128 in Fortran order, p >= k. Needed where columns carry the
    rounding of long sums.
    dead : rows that are exactly 0 in every column (constant or dropped features).
    Source: LAPACK's dgeqrf and dorgqr.
    """
    rng = np.random.default_rng(0)
    for j in range(rank, v.shape[1]):
        v[:, j] = rng.standard_normal(len(v))
    v[dead] = 0.0
    room = 64 * v.shape[1]
    lapack, name = scipy.linalg.lapack, "zungqr" if v.dtype.kind == "c" else "dorgqr"
    q, tau, _, _ = getattr(lapack, f"{name[0]}geqrf")(v, lwork=room, overwrite_a=1)
    turned = np.diagonal(q).real < 0  # R gets a positive diagonal, so that no column changes sign
    q, _, _ = getattr(lapack, name)(q, tau, lwork=room, overwrite_a=1)
    if not np.shares_memory(q, v):
        raise InvalidInputError(f"v is {v.dtype}, strides {v.strides}; expected Fortran order")
    for j in np.flatnonzero(turned).tolist():  # at once, this would copy half of v
        v[:, j] *= -1.0
    v[dead] = 0.0


def complete_columns(v: Array, rank: int, dead: Array) -> None:
    """``orthonormal_columns`` of v (p, k), with the sign rule of components after ``rank``."""
    if v.shape[1]:
        orthonormal_columns(v, rank, dead)
        v[:, rank:] *= signs_of_components(v[:, rank:])


# Vectors that few rows make: outliers, repeated rows, families.

LOOKED_AT = 20  # leading vectors
HALF = 0.5  # of the sum of squares
TIMES = 5  # and at least this multiple of their share of the rows
CHANCE = 1e-3  # of one such vector among random ones
ALIKE = 0.1  # of a root mean square, and half as much of a value: entries of repeated rows
LEAST_ALIKE = 4  # vectors in which rows are compared


@dataclass(frozen=True)
class Concentration:
    """A vector (0 = the first) whose sum of squares is mostly that of a few rows."""

    component: int
    rows: Array
    share: float


def concentrations(vectors: Array, group: Array | None = None) -> list[Concentration]:
    """The leading columns of which one row, or one group of rows, has more than half.

    vectors : (n, k), of any lengths.  group : (n,) a number for each row; None: rows that are
    alike in all of four or more columns are a group.
    Groups count that have five times their share of the rows, and more than a random direction
    would give to one of n rows with probability .001.
    Cost: n k operations, and n k more for each column that is found.
    """
    squares = np.abs(vectors[:, :LOOKED_AT]) ** 2
    n, k = squares.shape
    if n < 3 or not k:
        return []
    squares = squares / np.maximum(squares.sum(axis=0), np.finfo(np.float64).tiny)
    found = []
    for j in range(k):
        shares = squares[:, j] if group is None else np.bincount(group, squares[:, j])
        largest = int(np.argmax(shares))
        rows = _alike(vectors, largest) if group is None else np.flatnonzero(group == largest)
        share = min(float(squares[rows, j].sum()), 1.0 - 1e-16)
        by_chance = 0.5 * (n - 1 - len(rows)) * math.log1p(-share) + math.log(n * k)
        if share > max(HALF, TIMES * len(rows) / n) and by_chance < math.log(CHANCE):
            found.append(Concentration(j, rows, share))
    return found


def _alike(vectors: Array, row: int) -> Array:
    """The rows that repeat a row, itself among them."""
    if vectors.shape[1] < LEAST_ALIKE:
        return np.array([row])
    size = np.sqrt(np.mean(np.abs(vectors) ** 2, axis=0)) + np.abs(vectors[row]) / 2.0
    return np.flatnonzero(np.all(np.abs(vectors - vectors[row]) <= ALIKE * size, axis=1))


# A low-rank estimate U V', known by U'U and V: its singular form, and the change of a step.

LEAST = 1e-6  # least weight of a direction in balanced factors, of the first singular value


def singular_form(gram: Array, v: Array) -> tuple[Array, Array, Array]:
    """(values (r,) descending, vectors (m, r) orthonormal, turn (r, r)) of U V'.

    gram : (r, r) U'U.  v : (m, r).  U V' = (U turn) vectors', and the columns of U turn are
    orthogonal with norms ``values``. Values are resolved to about 1e-8 of the largest.
    """
    q, upper = np.linalg.qr(np.asarray(v, np.float64))
    spread, e = np.linalg.eigh(gram)
    root = np.sqrt(np.maximum(spread, 0.0))[:, None] * e.T
    _, values, right = np.linalg.svd(root @ upper.T)
    return values, q @ right.T, upper.T @ right.T


def balanced(values: Array, vectors: Array) -> Array:
    """(m, r) V S^(1/2): with it, ridge (|U|^2 + |V|^2) / 2 is ridge times the nuclear norm."""
    floor = LEAST * float(values[0]) if len(values) and values[0] > 0 else 1.0
    return np.asarray(vectors * np.sqrt(np.maximum(values, floor)))


def relative_change(gram: Array, before: Array, after: Array) -> float:
    """|U (after - before)'| / |U after'|, (m, r) each; gram : U'U (r, r). 0 where both are 0."""
    difference = after - before
    moved = float(np.sum((difference @ gram) * difference))
    size = float(np.sum((after @ gram) * after))
    return float(np.sqrt(max(moved, 0.0) / size)) if size > 0 else float(moved > 0)


def change_of_both(old: tuple[Array, Array], new: tuple[Array, Array], cross: Array) -> float:
    """|U_new V_new' - U_old V_old'| / |U_new V_new'| from (U'U, V) of both and U_old'U_new.

    The squares of two estimates are subtracted: changes below 1e-8 come out as noise.
    """
    (old_gram, old_v), (new_gram, new_v) = old, new
    size = float(np.sum((new_v @ new_gram) * new_v))
    before = float(np.sum((old_v @ old_gram) * old_v))
    joint = float(np.sum((old_v @ cross) * new_v))
    moved = max(size + before - 2.0 * joint, 0.0)
    return float(np.sqrt(moved / size)) if size > 0 else float(moved > 0)


# The number of components: a number, a share of the variance, the largest gap, or all.

TRACY_WIDOM = "tracy-widom"  # the components that are significant by that test


def check_n_components(n_components: Any, n: int, p: int, least: int = 1) -> None:
    """Raises InvalidInputError where no data of shape (n, p) satisfy it, or below ``least``."""
    limit = min(n, p)
    if n_components is None or n_components in ("gap", TRACY_WIDOM):
        return
    if n_components == MLE:
        check_mle(p, n, p)
        return
    if isinstance(n_components, bool) or not isinstance(n_components, numbers.Real):
        raise InvalidTypeError(
            f"n_components={n_components!r}; expected an integer, a share between 0 and 1, "
            "'gap', 'mle', 'tracy-widom' or None"
        )
    if isinstance(n_components, numbers.Integral):
        if not least <= int(n_components) <= limit:
            raise InvalidInputError(
                f"n_components={n_components} must be between {least} and "
                f"min(n_samples, n_features)={limit}"
            )
    elif not 0.0 < float(n_components) < 1.0:
        raise InvalidInputError(
            f"n_components={n_components!r}; a share of variance lies between 0 and 1, a number "
            "of components is an integer"
        )


def known_count(n_components: Any, n: int, p: int) -> int | None:
    """The number of components to keep, or None where it depends on the spectrum."""
    if n_components is None:
        return min(n, p)
    return int(n_components) if isinstance(n_components, numbers.Integral) else None


def by_share(values: Array, total: float, share: float) -> int:
    """The smallest k whose first k values (m,) reach ``share`` of the total (>=, to rounding)."""
    if total <= 0:
        return 1
    reached = np.cumsum(values) / total
    slack = 4.0 * np.finfo(np.float64).eps * len(values)
    return min(int(np.searchsorted(reached, share - slack, side="left")) + 1, len(values))


CLEAR_RATIO = 2.0  # of a gap where no sampling error is known


def by_gap(values: Array, n: int | None, room: int) -> int | None:
    """The k before the largest gap, value k over value k + 1; None where there is none.

    values : all that are not 0, or the leading ones of them.  room : the most of them that data of
    this shape can have.
    The ratio, not the difference, which a dominant first component always wins. A drop counts only
    when it exceeds four standard errors, each value k times sqrt(2 / (n - k)): sample values of
    equal eigenvalues differ by two or three, and by more where the k components before them have
    used up the rows. Where n is not known, it counts from CLEAR_RATIO on. A drop to 0 is taken for
    a ratio of CLEAR_RATIO: a single repeated column makes one.
    Source: Ahn and Horenstein 2013, Econometrica 81, section 2 (eigenvalue ratio); North, Bell,
    Cahalan and Moeng 1982, eq. 24 (standard error), with the rows that remain.
    """
    if not len(values):
        return None
    ratios = values[:-1] / values[1:]
    k = np.arange(1, len(values))
    noise = 4.0 * np.sqrt(2.0 / np.maximum(n - k, 1)) if n else 1.0 - 1.0 / CLEAR_RATIO
    ratios[1.0 - 1.0 / ratios <= noise] = 0.0
    ratios = np.append(ratios, CLEAR_RATIO if len(values) < room else 0.0)
    best = int(np.argmax(ratios))
    return best + 1 if ratios[best] else None


def numerical_rank(values: Array, size: int, floor: float | Array = 0.0) -> int:
    """The number of leading (eigen- or singular) values above rounding.

    values : (m,) decreasing.
    size : of the decomposed matrix; float64 decompositions leave up to size eps values[0].
    floor : estimated rounding of the matrix itself (:func:`rank_floor`), for all values or for
        each. Ten times this estimate counts as rounding.
    """
    if not len(values) or values[0] <= 0:
        return 0
    rounding = size * float(np.finfo(np.float64).eps) * float(values[0]) + 10.0 * floor
    return int(np.count_nonzero(np.logical_and.accumulate(values > rounding)))
