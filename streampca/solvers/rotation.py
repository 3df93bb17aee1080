"""Rotations of loadings towards simple structure: varimax, quartimax and promax."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array

METHODS = ("varimax", "promax", "quartimax")
QUARTIMAX = 0.0  # times the squared means that varimax takes from the sums of fourth powers
TOLERANCE = 1e-9  # radians: converged when a sweep turns no plane further
MAX_SWEEPS = 200
RESTARTS = 8  # random starts in addition to the loadings as they are
PLANES = 1520  # of all restarts in a sweep: 8 of 20 components, fewer of more
EXPLORED = 2048  # rows that restarts turn, of more a random sample
NEAR = 1e-4  # radians to which restarts converge: 1e-8 of the criterion
SAME_OPTIMUM = 1e-6  # of the criterion
FLAT = 64 * float(np.finfo(np.float64).eps)  # of the sum of fourth powers: rounding only


@dataclass(frozen=True)
class Rotation:
    """The result of a rotation.

    matrix : (k, k), rotated loadings = loadings @ matrix; orthogonal but for promax.
    loadings : (p, k) rotated (for promax the pattern). Complex ones have a unitary rotation, and
        squares stand for squared moduli everywhere.
    sweeps : over all pairs of columns.  angle : largest turn of the last sweep, radians.
    converged : whether that is within the tolerance.
    starts : from which it was looked for.  reached : of these, how many ended in this optimum.
    optima : different ones that they ended in; more than 1 where another rotation is nearly as
        simple.
    """

    matrix: Array
    loadings: Array
    sweeps: int
    converged: bool
    angle: float
    starts: int = 1
    reached: int = 1
    optima: int = 1

    @property
    def correlations(self) -> Array:
        """(k, k) correlations of the rotated factors, the identity but for promax."""
        inverse = np.linalg.inv(self.matrix)
        return np.asarray(inverse @ inverse.conj().T)


def rotate_loadings(
    loadings: Array,
    method: str = "varimax",
    *,
    normalize: bool = True,
    power: float = 4.0,
    growth: float = 0.0,
    restarts: int = RESTARTS,
) -> Rotation:
    """Rotate loadings (p, k) by a method of METHODS.

    growth : 0 finds the optimum; otherwise R's iteration and stopping rule (:func:`varimax_of_r`),
        from the loadings as they are.
    restarts : as :func:`best_varimax`.

    Raises InvalidInputError.
    """
    if method not in METHODS:
        raise InvalidInputError(f"method={method!r}; expected one of {', '.join(METHODS)}")
    weight = QUARTIMAX if method == "quartimax" else 1.0
    if growth and np.iscomplexobj(loadings):
        raise InvalidInputError("R's stopping rule is for real loadings; expected growth=0")
    if growth:
        simple = varimax_of_r(loadings, normalize=normalize, growth=growth, weight=weight)
    else:
        simple = best_varimax(loadings, normalize=normalize, weight=weight, restarts=restarts)
    return promax(simple, power) if method == "promax" else simple


def best_varimax(
    loadings: Array, *, normalize: bool = True, weight: float = 1.0, restarts: int = RESTARTS
) -> Rotation:
    """The best of :func:`varimax` from the loadings as they are, and from random rotations of them.

    The criterion has several optima where loadings have no simple structure. Starts are the same
    each time. The first one is kept, to the last bit, unless another is better by more than 1e-6.
    restarts : random starts of up to 20 components; of more so many fewer. Of 1 or 2 components the
        optimum is the only one.

    Cost: that of :func:`varimax` for each start, those of more than 2048 rows on a sample of these.
    """
    first = varimax(loadings, normalize=normalize, weight=weight)
    k = loadings.shape[1]
    count = min(restarts, max(1, PLANES // max(k * (k - 1) // 2, 1))) if k > 2 else 0
    if not count:
        return first
    work, rng = _work(loadings, normalize), np.random.default_rng(0)
    few = work
    if work.shape[1] > EXPLORED:
        few = work[:, np.sort(rng.choice(work.shape[1], EXPLORED, replace=False))]
    turns = [first.matrix]
    for _ in range(count):
        start = np.linalg.qr(_normal(rng, k, work.dtype))[0]
        turns.append(_turn_all(start.T @ few, start, weight, MAX_SWEEPS, NEAR)[0])
    values = np.array([_criterion(turn.T @ few, weight) for turn in turns])
    ends = values >= values.max() * (1 - SAME_OPTIMUM)
    found, best = first, int(values.argmax())
    if not ends[0]:
        other = varimax(loadings, normalize=normalize, weight=weight, start=turns[best])
        least = _criterion(first.matrix.T @ work, weight) * (1 + SAME_OPTIMUM)
        found = other if _criterion(other.matrix.T @ work, weight) > least else first
    steps = np.diff(np.sort(values)) > values.max() * SAME_OPTIMUM
    return replace(
        found, starts=len(turns), reached=int(ends.sum()), optima=1 + int(np.count_nonzero(steps))
    )


def varimax(
    loadings: Array,
    *,
    normalize: bool = True,
    max_sweeps: int = MAX_SWEEPS,
    weight: float = 1.0,
    start: Array | None = None,
) -> Rotation:
    """Orthogonal rotation that makes the variance of the squared loadings largest.

    loadings : (p, k). Rows of zeros (features without observations) take no part.
    normalize : divide rows by the root of their communality before, and multiply after (Kaiser).
    weight : of the squared mean squares; 0 (QUARTIMAX) makes the sum of fourth powers largest.

    Every pair of columns is turned to the optimum of its plane, in a fixed order, until a sweep
    over all pairs turns none by more than TOLERANCE. The result is the local optimum reached
    from the start. Columns are not reordered, and signs are not changed.
    Cost: k^2 / 2 times about 20 p flops a sweep, 5 to 20 sweeps; one copy of the loadings.
    Source: Kaiser 1958, "The varimax criterion for analytic rotation in factor analysis",
    Psychometrika 23, section 4. Of complex loadings the optimum of a plane is the leading
    eigenvector of a 3 x 3 matrix: Cardoso and Souloumiac 1993, "Blind beamforming for non-Gaussian
    signals", IEE Proceedings F 140, appendix.
    """
    work = _work(loadings, normalize)
    matrix = np.eye(len(work), dtype=work.dtype)
    if start is not None:
        work, matrix = start.T @ work, np.array(start)
    matrix, sweeps, largest = _turn_all(work, matrix, weight, max_sweeps)
    return Rotation(matrix, _times(loadings, matrix), sweeps, largest <= TOLERANCE, largest)


def _work(loadings: Array, normalize: bool) -> Array:
    """(k, rows) a copy of the rows that are not zero, of length 1 where ``normalize``."""
    work = _rows_used(loadings)
    if normalize:
        work /= np.sqrt(np.einsum("kp,kp->p", work, work.conj()).real)
    return work


def _normal(rng: np.random.Generator, k: int, dtype: Any) -> Array:
    """(k, k) standard normal numbers."""
    real = rng.normal(size=(k, k))
    return real + 1j * rng.normal(size=(k, k)) if dtype.kind == "c" else real


def _turn_all(
    work: Array, matrix: Array, weight: float, max_sweeps: int, tolerance: float = TOLERANCE
) -> tuple[Array, int, float]:
    """(matrix, sweeps, largest angle of the last): turn pairs of (k, rows) in place until none
    turns further."""
    sweeps, largest = 0, np.inf
    find = _complex_turn if work.dtype.kind == "c" else _real_turn
    while sweeps < max_sweeps and largest > tolerance:
        sweeps, largest = sweeps + 1, 0.0
        for i, j in itertools.combinations(range(len(work)), 2):
            angle, turn = find(work[i], work[j], weight)
            if abs(angle) > tolerance:
                work[[i, j]] = turn @ work[[i, j]]
                matrix[:, [i, j]] = matrix[:, [i, j]] @ turn.T
            largest = max(largest, abs(angle))
    return matrix, sweeps, largest


def _criterion(work: Array, weight: float) -> float:
    """What a rotation makes largest, of (k, rows) turned loadings."""
    squares = np.abs(work) ** 2
    return float(np.sum(squares**2) - weight * np.sum(squares.sum(axis=1) ** 2) / work.shape[1])


def varimax_of_r(
    loadings: Array, *, normalize: bool = True, growth: float = 1e-5, weight: float = 1.0
) -> Rotation:
    """Varimax of all planes at once with R's stopping rule: reproduces what R prints.

    loadings : (p, k).
    growth : stop when the sum of singular values, which tracks the criterion, grows by less than
        this share (R's ``eps``). The criterion is flat near its optimum: for loadings without
        simple structure the result can be 0.01 radians away from it, as in R.
    weight : as :func:`varimax`.

    Cost: 6 p k^2 flops a sweep, 5 to 1000 sweeps.
    Source: Lawley and Maxwell 1971, "Factor Analysis as a Statistical Method", section 6.5; R's
    manual of ``varimax`` for where it stops.
    """
    work = _rows_used(loadings).T
    if normalize:
        work /= np.sqrt(np.einsum("pk,pk->p", work, work))[:, None]
    matrix = np.eye(work.shape[1])
    sweeps, before, grown = 0, 0.0, True
    while grown and sweeps < 1000:
        turned = work @ matrix
        target = turned**3 - weight * (turned * np.mean(turned**2, axis=0))
        u, values, v = np.linalg.svd(work.T @ target)
        matrix, last = u @ v, matrix
        sweeps, grown = sweeps + 1, float(values.sum()) > before * (1.0 + growth)
        before = float(values.sum())
    angle = float(np.abs(matrix - last).max())
    return Rotation(matrix, _times(loadings, matrix), sweeps, not grown, angle)


def promax(simple: Rotation, power: float = 4.0) -> Rotation:
    """Oblique rotation of a varimax solution towards its own powers; factors of variance 1.

    power : exponent of the target, signs kept; 1 gives the varimax solution, 3 or 4 are usual.

    Cost: 4 p k^2 flops, one copy of the loadings. Raises InvalidInputError for another power.
    Source: Hendrickson and White 1964, "Promax: a quick method for rotation to oblique simple
    structure", Brit. J. Stat. Psych. 17, 65-70.
    """
    if not np.isfinite(power) or power < 1:
        raise InvalidInputError(f"power={power!r}; expected 1 or more, such as 4")
    x = simple.loadings
    back = x.conj().T
    turn = np.linalg.solve(back @ x, back @ (x * np.abs(x) ** (power - 1.0)))
    turn = turn * np.sqrt(np.diagonal(np.linalg.inv(turn.conj().T @ turn)).real)
    return replace(simple, matrix=simple.matrix @ turn, loadings=_times(x, turn))


def _rows_used(loadings: Array) -> Array:
    """(k, rows) float64 or complex128 copy of the rows that are not zero."""
    if loadings.ndim != 2 or not loadings.shape[1] or not np.all(np.isfinite(loadings)):
        raise InvalidInputError(
            f"loadings have shape {loadings.shape}; expected finite numbers (features, components)"
        )
    used = loadings[np.any(loadings != 0, axis=1)]
    if not len(used):
        raise InvalidInputError("all loadings are zero: there is nothing to rotate")
    return np.array(used.T, dtype=np.result_type(used, np.float64), order="C")


def _plane_angle(x: Array, y: Array, weight: float) -> float:
    """The angle of the largest criterion in the plane of x and y; 0 where it is flat."""
    both, apart = x * y, x * x - y * y
    a, b = float(apart.sum()), 2.0 * float(both.sum())
    c = float(apart @ apart) - 4.0 * float(both @ both)
    d = 4.0 * float(apart @ both)
    rows = len(x) / weight if weight else np.inf
    above, below = d - 2.0 * a * b / rows, c - (a * a - b * b) / rows
    fourth = float(apart @ apart) + 4.0 * float(both @ both)  # sum of (x^2 + y^2)^2
    if abs(above) + abs(below) <= FLAT * fourth:
        return 0.0
    return float(np.arctan2(above, below)) / 4.0


def _real_turn(x: Array, y: Array, weight: float) -> tuple[float, Array]:
    """The angle of x and y, and (2, 2): (x, y) to (x cos + y sin, y cos - x sin)."""
    angle = _plane_angle(x, y, weight)
    cosine, sine = np.cos(angle), np.sin(angle)
    return angle, np.array([[cosine, sine], [-sine, cosine]])


def _complex_turn(x: Array, y: Array, weight: float) -> tuple[float, Array]:
    """The same of complex x and y: the angle, and (2, 2) unitary.

    Turned by angle t and phase f, |x|^2 - |y|^2 is cos 2t (|x|^2 - |y|^2) + sin 2t (cos f Re 2x'y +
    sin f Im 2x'y), linear in a unit vector of three entries, and |x|^2 + |y|^2 remains.
    """
    both = 2.0 * x.conj() * y
    apart = np.stack([np.abs(x) ** 2 - np.abs(y) ** 2, both.real, both.imag])
    sums = apart.sum(axis=1)
    values, vectors = np.linalg.eigh(
        apart @ apart.T - weight * np.multiply.outer(sums, sums) / len(x)
    )
    fourth = float(np.sum((np.abs(x) ** 2 + np.abs(y) ** 2) ** 2))
    if values[2] - values[1] <= FLAT * fourth:
        return 0.0, np.eye(2, dtype=complex)
    first, second, third = vectors[:, 2] * (-1.0 if vectors[0, 2] < 0 else 1.0)
    angle = float(np.arctan2(np.hypot(second, third), first)) / 2.0
    phase = np.exp(-1j * np.arctan2(third, second))
    cosine, sine = np.cos(angle), np.sin(angle) * phase
    return angle, np.array([[cosine, sine], [-sine.conjugate(), cosine]])


def _times(loadings: Array, matrix: Array) -> Array:
    return np.asarray(loadings @ matrix, dtype=np.result_type(loadings, matrix, np.float64))
