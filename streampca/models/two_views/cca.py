"""Canonical correlation analysis of two views in one read of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import CONFIDENCE, Array, reciprocal, symmetrize
from streampca.matrix import Pair
from streampca.models.contract.parameters import parameter
from streampca.models.contract.registry import estimator
from streampca.models.contract.request import whole_number
from streampca.models.two_views.request import (
    Fold,
    Found,
    Method,
    Samples,
    Solved,
    Sums,
    ViewRequest,
)
from streampca.models.two_views.rotated_views import RotatedTwoViewResult
from streampca.models.two_views.two_views import TwoViewModel
from streampca.solvers import (
    CanonicalTests,
    JointScatter,
    canonical_tests,
    correlation_bound,
    factor_bound,
    singular_pairs,
)

FOLDS = 5
GRID = (0.001, 0.01, 0.1, 0.3, 1.0)  # penalties that are tried, in mean variances of their view
CERTIFIED = 1e-5  # error of a correlation beyond which the R factor is read
Numbers = tuple[float, float]


@dataclass(frozen=True)
class Canonical:
    """CCA as the ways ask for it: see :class:`streampca.models.two_views.request.Method`.

    ridges : added to the variances of X and of Y.  pca : components of each, or None.
    """

    n_components: int | None
    scale: str | None
    ridges: Numbers = (0.0, 0.0)
    pca: tuple[int, int] | None = None
    folds: int = 0
    weighs: bool = True
    shapes: bool = False

    @property
    def bounded(self) -> bool:
        """Whether sample space can give the answer."""
        return not self.folds and (self.pca is not None or min(self.ridges) > 0.0)

    def of_sums(self, sums: Sums) -> Solved:
        joint, p, m = sums.joint, sums.joint.p, len(sums.deviations)
        x_view, y_view = slice(0, p), slice(p, m)
        ridges, held_out = self.ridges, None
        if self.folds:
            ridges, held_out = _chosen(sums, self.n_components)
        penalty = [ridge * sums.freedom for ridge in ridges]
        if self.pca is not None:
            x, y = (
                joint.principal(one, k) for one, k in zip((x_view, y_view), self.pca, strict=True)
            )
        else:
            x, y = (
                joint.whitening(one, ridge)
                for one, ridge in zip((x_view, y_view), penalty, strict=True)
            )
        values, left, right = singular_pairs(joint.between(x.matrix, y.matrix), self.n_components)
        to_x, to_y = x.matrix @ left, y.matrix @ right
        kept = values[: left.shape[1]]
        bound = self._bound(sums, kept, to_x, to_y)
        more: dict[str, Any] = {"penalties": np.array(ridges)}
        if held_out is not None:
            more["held_out"] = held_out
        known = "" if held_out is None else f"alpha=({ridges[0]:.3g}, {ridges[1]:.3g}), "
        doubt = _doubt(bound, x.unsure + y.unsure, known) if self.pca is None else ""
        if x.unsure + y.unsure:
            bound = np.full(len(kept), np.inf)
        return Solved(
            np.minimum(values, 1.0), to_x, to_y, bound, (x.rank, y.rank), doubt, more=more
        )

    def _bound(self, sums: Sums, values: Array, x: Array, y: Array) -> Array:
        """(k,) of the errors of correlations; after a PCA they are not determined."""
        if self.pca is not None:
            return np.full(len(values), np.inf)
        if not isinstance(sums.joint, JointScatter):
            read = sums.read if sums.scale is None else sums.read * reciprocal(sums.scale)
            return factor_bound(values, x, y, read)
        p = len(x)
        weights = sums.raw(x, slice(0, p)), sums.raw(y, slice(p, None))
        return correlation_bound(values, *weights, sums.read, sums.probed, sums.drift, sums.entry)

    def of_samples(self, x: Samples, y: Samples, freedom: float) -> Solved:
        filters = [self._filter(one, i, freedom) for i, one in enumerate((x, y))]
        between = filters[0][:, None] * (x.u.T @ y.u) * filters[1]
        values, left, right = singular_pairs(between, self.n_components)
        turned = ((filters[0] / x.s)[:, None] * left, (filters[1] / y.s)[:, None] * right)
        kept = values[: left.shape[1]]
        bound = np.full(len(kept), np.inf)
        if self.pca is None:
            errors = x.error / (self.ridges[0] * freedom) + y.error / (self.ridges[1] * freedom)
            bound = CONFIDENCE * errors / (2.0 * np.maximum(kept, 1e-300))
        ranks = [int(np.count_nonzero(one)) for one in filters]
        more = {"penalties": np.array(self.ridges)}
        return Solved(np.minimum(values, 1.0), *turned, bound, (ranks[0], ranks[1]), more=more)

    def _filter(self, one: Samples, i: int, freedom: float) -> Array:
        """(r,) what whitening leaves of each principal component: 1, 0, or a share by the ridge."""
        if self.pca is not None:
            return (np.arange(len(one.s)) < self.pca[i]).astype(np.float64)
        return np.asarray(one.s / np.sqrt(one.s**2 + self.ridges[i] * freedom))


def _doubt(bound: Array, unsure: int, known: str) -> str:
    """Why sums of squares are not accurate enough, in words; "" where they do.

    known : the penalties that they gave, as parameters.
    """
    remedy = f"Fit with CCA({known}solver='tsqr')"
    if unsure:
        return (
            f"{unsure} features depend on others to within the rounding of the sums, and which "
            f"were left out is chance. {remedy}, or leave out what follows from others"
        )
    if (worst := float(np.max(bound, initial=0.0))) <= CERTIFIED:
        return ""
    return (
        f"correlations may be off by {worst:.1g}: features of a view nearly depend on each other, "
        f"and sums of squares lose half the digits. {remedy}, or with larger penalties"
    )


def _chosen(sums: Sums, count: int | None) -> tuple[Numbers, Array]:
    """(the penalties of the largest held-out correlation, (trials, 3): both and that mean)."""
    p, m = sums.joint.p, len(sums.deviations)
    views = slice(0, p), slice(p, m)
    units = [float(np.mean(sums.deviations[view] ** 2)) / sums.freedom for view in views]
    tried = [(a * units[0], b * units[1]) for a in GRID for b in GRID]
    products = np.zeros((len(tried), 3, min(count or m, p, m - p)))
    for fold in sums.folds():
        products += _of_fold(fold, p, tried, products.shape[2])
    with np.errstate(divide="ignore", invalid="ignore"):
        held_out = products[:, 0] / np.sqrt(products[:, 1] * products[:, 2])
    score = np.nan_to_num(held_out).mean(axis=1)
    return tried[int(np.argmax(score))], np.column_stack([np.array(tried), score])


def _of_fold(fold: Fold, p: int, tried: Sequence[Numbers], count: int) -> Array:
    """(trials, 3, count) sums over a fold of products of scores: X Y, X X, Y Y."""
    others = fold.others
    x_values, x = np.linalg.eigh(symmetrize(others[:p, :p].copy()))
    y_values, y = np.linalg.eigh(symmetrize(others[p:, p:].copy()))
    between = x.T @ others[p:, :p].T @ y
    found = np.zeros((len(tried), 3, count))
    for i, (a, b) in enumerate(tried):
        rows = 1.0 / np.sqrt(np.maximum(x_values, 0.0) + a * fold.freedom)
        columns = 1.0 / np.sqrt(np.maximum(y_values, 0.0) + b * fold.freedom)
        _, left, right = singular_pairs(rows[:, None] * between * columns, count)
        to_x, to_y = x @ (rows[:, None] * left), y @ (columns[:, None] * right)
        k = left.shape[1]
        padded = np.zeros((len(others), 2 * k))
        padded[:p, :k], padded[p:, k:] = to_x, to_y
        images = fold.joint.times(padded)
        found[i, 0, :k] = np.sum(to_x * images[:p, k:], axis=0)
        found[i, 1, :k] = np.sum(to_x * images[:p, :k], axis=0)
        found[i, 2, :k] = np.sum(to_y * images[p:, k:], axis=0)
    return found * fold.freedom  # weights of scores of variance 1


@estimator
class CCA(TwoViewModel):
    """Canonical correlations of two views: ``CCA(2).fit(X, Y)``, rows paired by label.

    Attributes
    ----------
    correlations_ (k,); x_weights_ (p, k) and y_weights_ (q, k): scores are (X - mean) weights, of
    variance 1 (with ``scale`` and ``alpha`` see there); x_loadings_ and y_loadings_,
    x_cross_loadings_ and y_cross_loadings_: correlations of features with scores of their own and
    of the other view; redundancy_; test_: Wilks' lambda of each root with Rao's F and Bartlett's
    chi-square; alpha_; held_out_; correlation_bound_: certificate; plan_, cost_, result_.

    Features that depend on features before them are left out, with weights of 0, as by R's
    ``cancor``. More features than rows are refused, unless ``alpha`` or ``pca`` says how.
    ``view("x").transform(X)`` scores one view, ``result_.to_xarray()`` has labelled maps.
    Cost: one read of both, and n (p + q)^2 flops, 4 (p + q)^2 float64; one more read for the R
    factor where features of a view nearly depend on each other. With ``pca`` or ``alpha``
    and few rows instead: n x n matrices, a read of each view, and one more for the weights.
    With ``remove`` they are partial correlations, of what the covariates leave; weights of samples
    and tests count as for repeated rows, less what was removed.
    Raises InvalidInputError, NonFiniteError (holes), MemoryLimitError.
    Source: Bjoerck and Golub 1973, Mathematics of Computation 27(123), section 3; Vinod 1976,
    Journal of Econometrics 4(2), for the penalties.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import CCA
    >>> rng = np.random.default_rng(0)
    >>> shared = rng.standard_normal((500, 1))
    >>> X = shared + rng.standard_normal((500, 3))
    >>> Y = shared + rng.standard_normal((500, 2))
    >>> CCA(1).fit(X, Y).correlations_.round(1)
    array([0.7])
    """

    alpha: Any = parameter(
        default=None,
        meaning="""penalties (a1, a2), or one number for both: a1 is added to the variances of the
            features of X, a2 to those of Y, as ``lambda1`` and ``lambda2`` of R's ``rcc``; with
            scale="std" these variances are 1, else penalties have their unit. "cv": those of a
            grid of shares of the mean variance whose pairs correlate best on held-out rows (5 folds
            by a hash of the row number, summed apart in the same read); ``alpha_`` has them,
            ``held_out_`` what each gave.""",
    )
    pca: Any = parameter(
        default=None,
        meaning="(k1, k2): of the leading principal components of X and Y, in the same read.",
    )
    solver: str = parameter(
        default="auto",
        choices=("auto", "scatter", "tsqr", "samples"),
        meaning=""""scatter" (joint scatter), "tsqr" (R factor of [X, Y], whose condition is not
            squared), "samples" (n x n; with ``pca`` or ``alpha``). "auto" takes the
            quicker of the first and the last, and goes over to "tsqr" where correlations are not
            certain to 1e-5, or which features depend on others is not.""",
    )

    def _method(self, pair: Pair) -> Method:
        (n, p), q = pair.x.shape, pair.y.shape[1]
        ridges, pca = _ridges(self.alpha), principal_counts(self.pca, n, (p, q))
        if pca is not None and self.alpha is not None:
            raise InvalidInputError("pca= and alpha= exclude each other; leave one out")
        folds = FOLDS if isinstance(self.alpha, str) else 0
        method = Canonical(self.n_components, self.scale, ridges, pca, folds)
        if self.solver == "samples" and not method.bounded:
            raise InvalidInputError(
                "solver='samples' needs pca=(k1, k2), or two penalties above 0 as numbers"
            )
        if folds and (n < 4 * FOLDS or self.solver == "tsqr"):
            raise InvalidInputError(
                f"alpha='cv' needs at least {4 * FOLDS} rows, here {n}, and the scatter; "
                "give numbers: alpha=(0.1, 0.1)"
            )
        for name, width, ridge in zip("XY", (p, q), ridges, strict=True):
            if width >= n and not ridge and pca is None and not folds:
                raise InvalidInputError(
                    f"{name} has {width} features and {n} rows, with which all correlations are 1: "
                    "penalise, CCA(alpha='cv') or =(0.1, 0.1), or CCA(pca=(10, 10))"
                )
        return method

    def _ways(self, method: Any) -> dict[str, str | None]:
        if self.solver != "auto":
            return {self.solver: None}
        certain = method.folds or method.pca is not None
        ways = {"scatter": None if certain else "tsqr"}
        return {**ways, "samples": None} if method.bounded else ways

    def _patterns(self, found: Found, request: ViewRequest) -> Array:
        """Covariances with the scores, and the penalties times the weights."""
        sizes = request.p, len(found.vectors) - request.p
        penalties = np.repeat(found.solved.more["penalties"], sizes)[:, None]
        return np.asarray(found.covariances + penalties * found.vectors)

    def _remarks(self, found: Found, n: float) -> Iterator[str]:
        yield from super()._remarks(found, n)
        (x, y), penalised = found.solved.ranks, bool(np.any(found.solved.more["penalties"]))
        if x + y > n - 1 and not penalised:
            yield (
                f"{n:g} rows for views of rank {x} and {y}: {x + y - n + 1:g} correlations are 1 "
                "whatever the data say. Penalise, or take pca= of fewer components"
            )

    @property
    def correlations_(self) -> Array:
        """(k,) canonical correlations, descending."""
        return self.result_.values

    @property
    def correlation_bound_(self) -> Array:
        """(k,) bounds of the error of each by rounding; inf where it is not determined."""
        return self.result_.bound

    @property
    def alpha_(self) -> Array:
        """(2,) the penalties, in units of variance."""
        return self.result_.penalties

    @property
    def held_out_(self) -> Array | None:
        """(trials, 3): both penalties, and the mean held-out correlation of the pairs."""
        return self.result_.held_out

    @property
    def test_(self) -> CanonicalTests:
        """Tests that each root and all after it are 0. Raises AttributeError after a penalty."""
        result = self.result_
        if isinstance(result, RotatedTwoViewResult):
            raise AttributeError("tests are of roots that are not rotated: model.unrotated().test_")
        if np.any(result.penalties):
            raise AttributeError("a penalised CCA has no test: its roots are no correlations")
        return canonical_tests(result.spectrum, result.free_rows, result.x_rank, result.y_rank)


def _ridges(value: Any) -> Numbers:
    """The two penalties; 0 where there are none, or they are to be chosen."""
    if value is None or (isinstance(value, str) and value == "cv"):
        return 0.0, 0.0
    pair = value if isinstance(value, (tuple, list, np.ndarray)) else (value, value)
    try:
        numbers = [float(one) for one in pair]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != 2 or not all(np.isfinite(number) and number >= 0 for number in numbers):
        raise InvalidInputError(
            f"alpha={value!r}; expected None, 'cv', a number from 0, or two: (0.1, 0.2)"
        )
    return numbers[0], numbers[1]


def principal_counts(value: Any, n: int, widths: tuple[int, int]) -> tuple[int, int] | None:
    """The numbers of principal components of both views."""
    if value is None:
        return None
    pair = list(value) if isinstance(value, (tuple, list, np.ndarray)) else [value, value]
    if len(pair) != 2:
        raise InvalidInputError(f"pca={value!r}; expected two numbers of components, (10, 10)")
    a, b = (
        whole_number(f"pca={value!r}: that of {name}", one, 1, min(n - 1, width))
        for name, one, width in zip("XY", pair, widths, strict=True)
    )
    return a, b
