"""How many dimensions data have: those of the flat space around them, and those of the data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from streampca.accumulators import NearestDistances
from streampca.errors import AccuracyWarning, DominantFeatureWarning, InvalidInputError
from streampca.kernels import Array
from streampca.kernels.columns import seeded
from streampca.matrix import ChunkedMatrix, select
from streampca.matrix.derived import Derivation, DerivedMatrix
from streampca.models.contract.request import seed_of, whole_number
from streampca.models.kernel.functions import Rows
from streampca.models.pca.pca import PCA
from streampca.models.results.decomposition import PrincipalComponents
from streampca.passes import PassCost, PassResult, PassSpec, Running, one_pass, pass_spec
from streampca.solvers import by_gap, by_share
from streampca.solvers.tracy_widom import count_significant, tracy_widom_test
from streampca.sources import as_matrix, counted
from streampca.store import MemorySink

QUERIES_NBYTES = 256 << 20  # of the rows whose neighbours are sought
COMPONENTS = 100  # at most, whose variances are computed
LOCAL = ("two-nn", "mle")  # by distances: they see whether data are curved
MUTUAL = 0.6  # part of the variance of two-nn that pairs of mutual neighbours add (simulated)
DISCARDED = 0.1  # share of the largest ratios that two-nn does not look at


@dataclass(frozen=True)
class Estimate:
    """A number of dimensions, and its spread over draws of the rows where the method has one.

    The spread is not the whole error: edges and curvature of the data bias "two-nn" and "mle" in
    one direction (of 2,000 uniform points in a cube of 5 dimensions two-nn finds 4.7, mle 4.5), and
    less the more rows there are. mle averages so many neighbours that its bias is all that counts.
    """

    dimension: float
    standard_error: float | None = None

    def __str__(self) -> str:
        return f"{self.dimension:.4g}" + (
            "" if self.standard_error is None else f" +- {self.standard_error:.2g}"
        )


@dataclass(frozen=True)
class IntrinsicDimension:
    """What :func:`intrinsic_dimension` returns.

    method : whose estimate ``dimension`` is.  estimates : by method.
    rank : of the centred data, above rounding; rank_is_exact : else it is at least that.
    explained_variance : (k,) variances of the leading components.
    n_queries : rows whose neighbours were sought.  n_repeated : of them, those that another row
        repeats exactly, or whose two nearest rows are equally far; they are left out.
    cost : of every pass.
    """

    method: str
    estimates: dict[str, Estimate]
    rank: int
    rank_is_exact: bool
    explained_variance: Array
    total_variance: float
    n_queries: int
    n_repeated: int
    cost: list[PassCost] = field(default_factory=list)
    picture: ClassVar[str] = "dimension"  # of ``streampca.plots``

    @property
    def dimension(self) -> float:
        """The estimate of ``method``."""
        return self.estimates[self.method].dimension

    @property
    def standard_error(self) -> float | None:
        """Of ``dimension``, where its method has one."""
        return self.estimates[self.method].standard_error

    @property
    def flat(self) -> float:
        """Dimensions of the flat space that the data fill: the rank, or, where noise makes that
        all there are, what holds 95 % of the variance."""
        full = not self.rank_is_exact or self.rank >= len(self.explained_variance)
        return self.estimates["share"].dimension if full else float(self.rank)

    @property
    def verdict(self) -> str:
        """What that says of the data, in a sentence."""
        found = self.estimates[self.method]
        if not np.isfinite(found.dimension):
            return f"{self.method} finds no number of dimensions for these data."
        if self.method not in LOCAL:
            return (
                f"The flat space around the data has {found} dimensions by {self.method}. "
                "Whether the data are curved within it, 'two-nn' can tell."
            )
        error = found.standard_error or 0.0
        if found.dimension + max(3.0 * error, 0.15 * found.dimension) >= self.flat:
            return (
                f"The data fill the {self.flat:g} dimensions of the flat space around them "
                f"(dimension {found}): PCA's coordinates suffice."
            )
        return (
            f"The data have about {found} dimensions in a flat space of {self.flat:g}: they are "
            "curved, and coordinates along the curve are fewer than PCA's. See KernelPCA."
        )

    def __repr__(self) -> str:
        rows = [f"{name:>14}  {value}" for name, value in self.estimates.items()]
        return "\n".join(["        method  dimension", *rows, self.verdict])


def intrinsic_dimension(
    X: Any,
    method: str | Sequence[str] = ("two-nn", "mle", "rank", "share", "participation"),
    *,
    dim: Any = None,
    n_queries: int = 2000,
    n_neighbors: int = 20,
    share: float = 0.95,
    random_state: Any = 0,
    missing_value: float | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
) -> IntrinsicDimension:
    """Estimate the number of dimensions of X (n, p); the first method named gives the answer.

    method : one or several. Local, by distances to near rows, of whatever is curved: "two-nn"
        (ratio of the distances to the second and the first neighbour) and "mle" (those of the
        ``n_neighbors`` nearest). Of the flat space, by the variances of a PCA: "rank"; "share"
        (components that hold ``share`` of the variance); "gap" (as PCA's n_components="gap");
        "participation" (squared sum over sum of squares); "tracy-widom" (components that stand
        above noise, p < 0.05); "parallel" (those above the largest of the same data with random
        signs: columns lose their correlation and keep their variance).
    n_queries : rows whose neighbours are sought, drawn by random_state; among ALL rows.

    "two-nn" has a standard error, which is its spread over draws of the rows; :class:`Estimate`
    says what is not in it. Noise in all p features adds dimensions at the scale of the nearest
    rows.
    Cost: the passes of a PCA of at most 100 components; one read for the queries (less where
    they lie in few chunks) and one for their neighbours, 2 n p n_queries flops, and up to
    n_neighbors p n_queries differences for each block, the larger part where rows are so wide
    that blocks are short; "parallel" fits one more PCA. Memory: the queries, at most 256 MiB.
    Raises InvalidInputError, NonFiniteError (missing cells), MemoryLimitError.
    Source: Facco, d'Errico, Rodriguez and Laio 2017, Sci. Rep. 7:12140, by its likelihood without
    the largest tenth of the ratios; Levina and Bickel 2004, NeurIPS 17, eq. 8, averaged as MacKay
    and Ghahramani 2005 do; Hong, Sheng and Dobriban 2020, arXiv:2012.02985, section 3 (signs).

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import intrinsic_dimension
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 6))
    >>> found = intrinsic_dimension(X, ['rank', 'two-nn'])
    >>> found.dimension, round(found.estimates['two-nn'].dimension)
    (2.0, 2)
    """
    names = [method] if isinstance(method, str) else list(method)
    if not names or (unknown := [name for name in names if name not in METHODS]):
        raise InvalidInputError(f"method={unknown or names}; expected some of {tuple(METHODS)}")
    for name, count in (("n_neighbors", n_neighbors), ("n_queries", n_queries)):
        whole_number(name, count, 2)
    if not 0.0 < share <= 1.0:
        raise InvalidInputError(f"share={share!r}; expected a share above 0, up to 1")
    matrix = as_matrix(counted(X), dim=dim, missing_value=missing_value)
    running = {"memory_limit": memory_limit, "scheduler": scheduler, "progress": progress}
    fitted = _pca(matrix, running)
    assert isinstance(fitted.result_, PrincipalComponents)  # of a PCA without completion
    seen = _Seen(fitted.result_, share, matrix, running, list(fitted.cost_))
    if set(LOCAL) & set(names):
        seed = seed_of(random_state)
        count = max(2, n_neighbors if "mle" in names else 2)
        seen.squares = _neighbours(seen, n_queries, count, seed)
    estimates = {name: METHODS[name](seen) for name in dict.fromkeys([*names, "share"])}
    return IntrinsicDimension(
        names[0],
        estimates,
        seen.result.rank,
        seen.result.rank_is_exact,
        seen.result.explained_variance,
        seen.result.total_variance,
        len(seen.squares),
        int(np.count_nonzero(seen.repeated)),
        seen.cost,
    )


def _pca(matrix: ChunkedMatrix, running: dict[str, Any]) -> PCA:
    """A PCA of as many components as are looked at: that some are rounding is an answer here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        warnings.simplefilter("ignore", DominantFeatureWarning)
        return PCA(min(COMPONENTS, *matrix.shape), **running).fit(matrix)


@dataclass
class _Seen:
    """What the methods look at.  squares : (queries, neighbours) squared distances, ascending."""

    result: PrincipalComponents
    share: float
    matrix: ChunkedMatrix
    running: dict[str, Any]
    cost: list[PassCost]
    squares: Array = field(default_factory=lambda: np.zeros((0, 1)))

    def sums_of(self, matrix: ChunkedMatrix, spec: PassSpec, **arrays: Any) -> PassResult:
        """The sums of one pass, whose cost is kept."""
        done = one_pass(matrix, spec, Running(**self.running), **arrays)
        self.cost.extend(done.costs)
        sums: PassResult = done.answer
        return sums

    @property
    def repeated(self) -> Array:
        """True for queries that another row repeats, or whose two nearest rows are one twice."""
        if self.squares.shape[1] < 2:
            return np.zeros(len(self.squares), bool)
        return np.asarray((self.squares[:, 0] == 0) | (self.squares[:, 0] == self.squares[:, 1]))

    def distances(self) -> Array:
        """Of the queries that are not repeated. Raises InvalidInputError where none is left."""
        found = np.sqrt(self.squares[~self.repeated])
        if len(found) < 2 or not np.isfinite(found).all():
            raise InvalidInputError(
                f"{len(self.squares)} rows have too few others at a distance: of "
                f"{self.matrix.shape[0]} rows, {len(self.squares) - len(found)} of those looked at "
                "are repeated. Give fewer n_neighbors, or method='rank'"
            )
        return found


# -- local ----------------------------------------------------------------------------------------


def _neighbours(seen: _Seen, n_queries: int, count: int, seed: int) -> Array:
    """(queries, count) squared distances to the nearest of all rows."""
    (n, p), rng = seen.matrix.shape, np.random.default_rng(seed)
    if n <= count:
        raise InvalidInputError(f"{n} rows have no {count} neighbours; give fewer n_neighbors")
    m = min(n, n_queries, max(2, QUERIES_NBYTES // (8 * p)))
    numbers = np.sort(rng.choice(n, m, replace=False))
    origin = np.asarray(seen.result.mean)
    some, rows = select(seen.matrix, samples=numbers), Rows(np.zeros(p), np.dtype(np.float64))
    sink = MemorySink(m, p, np.float64)
    spec = PassSpec("queries", 0, 0, 0, rows.scratch_nbytes(some), kept_nbytes=8 * m * p)
    seen.sums_of(some, spec, maps={"rows": rows}, sinks={"rows": sink})
    sums = {"nearest": NearestDistances(nearest=count, m=m)}
    spec = pass_spec("neighbours", seen.matrix, 0, sums, kept_nbytes=8 * m * p)
    operands = {"queries": sink.values, "numbers": numbers, "origin": origin}
    done = seen.sums_of(seen.matrix, spec, operands=operands)
    return np.asarray(done["nearest"].nearest_squares())


def two_nn(ratios: Array, n: int) -> Estimate:
    """From ratios r2 / r1 >= 1: they follow 1 - r^-d. The largest tenth counts as "at least".

    n : rows among which the neighbours are. Rows that are each other's nearest share a distance,
    so that queries of all rows spread as independent ones of fewer would.
    """
    logs = np.sort(np.log(ratios))
    seen = max(1, int(np.ceil((1.0 - DISCARDED) * len(logs))))
    total = logs[:seen].sum() + (len(logs) - seen) * logs[seen - 1]
    if not total > 0:
        raise InvalidInputError("all first and second neighbours are equally far: a lattice")
    dimension = max(seen - 1, 1) / total
    alike = 1.0 + MUTUAL * len(logs) / n
    return Estimate(float(dimension), float(dimension * np.sqrt(alike / max(seen - 2, 1))))


def levina_bickel(distances: Array) -> Estimate:
    """From (queries, k) distances to the k nearest: the inverse of the mean of 1 / d."""
    k = distances.shape[1]
    mean = np.log(distances[:, -1:] / distances[:, :-1]).sum(axis=1).mean() / (k - 1)
    if not mean > 0:
        raise InvalidInputError("all neighbours are equally far: a lattice")
    return Estimate(float(1.0 / mean))


def _two_nn(seen: _Seen) -> Estimate:
    found = seen.distances()
    return two_nn(found[:, 1] / found[:, 0], seen.matrix.shape[0])


# -- of the flat space ----------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomSigns(Derivation):
    """Centred cells times random signs, which follow from the seed and the place of the cell.

    They stand in for permutations of the columns. A permutation brings a cell together with cells
    of any other row, so that blocks of rows cannot be permuted in one pass. A sign needs its cell
    alone. Both keep the variance of every column and make the expected covariance of two columns
    0; signs keep the norm of every row, too, so that rows of unequal noise count as they are.
    """

    center: Array
    seed: int

    def dense(self, values: Array, rows: slice, columns: slice) -> Array:
        i = np.arange(rows.start, rows.stop, dtype=np.uint64)[:, None]
        j = np.arange(columns.start, columns.stop, dtype=np.uint64)
        odd = seeded(self.seed, (i << np.uint64(32)) + j) >> np.uint64(63)
        values -= self.center[columns].astype(values.dtype)
        return np.asarray(np.where(odd, values, -values))

    def stored(self, data: Array, rows: Array, columns: Array) -> Array:
        raise InvalidInputError("method='parallel' of a sparse matrix would make it dense")


def _parallel(seen: _Seen) -> Estimate:
    result = seen.result
    flipped = DerivedMatrix(seen.matrix, RandomSigns(np.asarray(result.mean), 0))
    noise = PCA(1, center=False, **seen.running).fit(flipped)
    seen.cost.extend(noise.cost_)
    above = result.explained_variance > noise.explained_variance_[0]
    return Estimate(float(np.count_nonzero(np.logical_and.accumulate(above))))


def _participation(seen: _Seen) -> Estimate:
    squares = seen.result.total_squares
    if not np.isfinite(squares):  # of those that are known, which is close where they hold most
        squares = float(np.sum(seen.result.explained_variance**2))
    return Estimate(seen.result.total_variance**2 / squares if squares > 0 else 0.0)


def _gap(seen: _Seen) -> Estimate:
    result = seen.result
    known = result.explained_variance[: result.rank]
    whole = result.rank_is_exact and result.rank == len(known)
    room = min(result.n_samples - 1, result.n_features_used) if whole else len(known)
    found = by_gap(known, result.n_samples, room)
    return Estimate(float("nan") if found is None else float(found))


def _tracy_widom(seen: _Seen) -> Estimate:
    result = seen.result
    known = result.rank_is_exact and len(result.explained_variance) >= result.rank
    beyond: dict[str, Any] = (
        {}
        if known
        else {
            "total": result.total_variance,
            "squares": result.total_squares,
            "count": min(result.n_samples - 1, result.n_features_used),
        }
    )
    unknown = not known and not np.isfinite(result.total_squares)  # of an iterated fit
    if unknown or (result.rank_is_exact and result.rank < 10):
        return Estimate(float("nan"))
    test = tracy_widom_test(result.explained_variance, **beyond)
    tested = not np.isnan(test.p_value[:1]).any()  # ten values must remain
    return Estimate(float(count_significant(test)) if tested else float("nan"))


def _share(seen: _Seen) -> Estimate:
    result = seen.result
    count = by_share(result.explained_variance, result.total_variance, seen.share)
    reached = result.explained_variance[:count].sum() / max(result.total_variance, 1e-300)
    return Estimate(float(count) if reached >= seen.share - 1e-9 else float("inf"))


METHODS: dict[str, Callable[[_Seen], Estimate]] = {
    "two-nn": _two_nn,
    "mle": lambda seen: levina_bickel(seen.distances()),
    "rank": lambda seen: Estimate(float(seen.result.rank)),
    "share": _share,
    "gap": _gap,
    "participation": _participation,
    "tracy-widom": _tracy_widom,
    "parallel": _parallel,
}
