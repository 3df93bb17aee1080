"""The request of a completion: ranks and penalties, solver, where to begin and when to stop.

Ridges to choose from are multiples of the noise level s (sqrt(N / n) + sqrt(N / p)): about the
largest singular value of N cells of noise of deviation s in an n x p matrix of zeros, below which
no component stands out. The ridge of the biases of rows is s^2 / v for biases of variance v, as for
random effects, where the posterior mean is the solution with that ridge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np

from streampca.accumulators import RowSpread
from streampca.accumulators.observed import RowSums
from streampca.errors import InvalidInputError
from streampca.kernels import Array, ColumnStats, side_by_side
from streampca.matrix import ChunkedMatrix, Scaling, Standardize
from streampca.matrix.alignment import refuse_masked
from streampca.models.contract.request import feature_weights, sample_weights, whole_number

SOLVERS = ("auto", "als", "impute", "exact")
AUTO = "auto"
FITTED = "fitted"  # means of the columns that belong to the model
BOTH = "both"  # rows and columns, before the sweeps
BIASES = "biases"  # of rows and columns, with the factors
OBSERVED = "observed"
LADDER = (1 / 128, 1 / 16, 1 / 4, 1 / 2, 1.0)  # penalties to choose from, by the noise level
LEAST = ((16, 1 / 4), (8, 1 / 16))  # so many components or more never win with less of a ridge
RATED_RANKS = ((2, 4, 8, 16), (20,))  # of ratings, by default: Hard- and Soft-Impute
RATED_TOL = 1e-3  # held-out errors do not resolve less
RATED_SHARE = 0.05  # of their cells, held out by default
LEAST_GIVING_BACK = 4  # passes: two looks, and a sweep after each
TURNS = 3  # share of the passes that their means and scales may take: a third
LEAST_NOISE = 0.05  # share of the variance of all cells that is left for noise
LARGEST = 1e4  # ridge of biases that differ by noise alone
REASONS = {
    "als": "rows and columns solved exactly in turn: the fewest passes, and no old factors needed",
    "impute": "one step of subspace iteration on the filled matrix per pass",
    "exact": "the leading eigenvectors of the filled matrix in every pass",
}


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """The checked parameters of a completion.

    ranks, ridges : of the candidates, all fitted in the same passes.
    relative : the ridges are multiples of the noise level, which the first look finds.
    biases : rows and columns have biases in addition to the factors.  bias_ridges : (of rows, of
        columns), which the look finds too.
    bounds : of predictions: "observed", None, or (low, high).
    gives_back : in the end the candidate that is kept is fitted to all cells; only where
        ``max_passes`` has room for two looks and two sweeps.
    soft : singular values are lowered by the ridge; else they are cut off at the rank.
    means : those of the columns are fitted too, so that the completed matrix has them.
    weights : (n,) of the samples, or None.  column_weights : (p,) of the features, or None.
    both : rows and columns are centred, by turns.  both_scaled : and scaled.
    init : (scores (n, r), loadings (p, r)) of a first estimate, either None; or None.
    """

    ranks: tuple[int, ...]
    ridges: tuple[float, ...]
    soft: bool
    solver: str
    standardize: Standardize
    means: bool
    tol: float
    max_passes: int
    seed: int
    validation: Any = None
    early_stop: bool = False
    init: tuple[Array | None, Array | None] | None = None
    both: bool = False
    both_scaled: bool = False
    weights: Array | None = None
    relative: bool = False
    biases: bool = False
    bias_ridges: tuple[float, float] = (0.0, 0.0)
    bounds: Any = OBSERVED
    gives_back: bool = False
    column_weights: Array | None = None

    missing: ClassVar[str] = "mean"  # holes are expected

    @property
    def roots(self) -> Array | None:
        """(n,) roots of the weights, by which the factors of the rows are multiplied."""
        return None if self.weights is None else np.sqrt(self.weights)

    @property
    def turns(self) -> int:
        """The most passes that find means and scales of rows and columns; 0 if not requested."""
        return self.max_passes // TURNS if self.both else 0

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of the factors of each candidate: with biases (u, a, 1), else its rank."""
        return tuple(rank + 2 * self.biases for rank in self.ranks)

    @property
    def total(self) -> int:
        """R, columns of the factors of all candidates side by side."""
        return sum(self.widths)

    @property
    def parts(self) -> list[slice]:
        """Where each candidate's factors lie."""
        return side_by_side(self.widths)

    @property
    def simplest(self) -> int | None:
        """Number of the candidate without components, or None."""
        return self.ranks.index(0) if 0 in self.ranks else None

    @property
    def filled(self) -> bool:
        """Whether sweeps fill the holes with the previous estimate."""
        return self.solver != "als"

    @property
    def penalties(self) -> dict[str, Any]:
        """Settings of a sweep that follow from the first look; none if sweeps fill the holes."""
        if self.filled:
            return {}
        biases = (self.bias_ridges[0],) * len(self.ranks) if self.biases else None
        return {"ridges": self.ridges, "biases": biases}

    def in_units_of(self, stats: ColumnStats, rows: RowSpread | None) -> CompletionRequest:
        """With its ridges in units of the data, after a look.  rows : of a request with biases."""
        made = self
        if rows is not None:
            made = replace(made, bias_ridges=_bias_ridges(stats, rows.sums()))
        if made.relative:
            level = noise_level(made, stats)
            ridges = tuple(ridge * level for ridge in made.ridges)
            made = replace(made, ridges=ridges, relative=False)
        return made

    def columns_outside(self, stats: ColumnStats, scaling: Scaling) -> Array:
        """(p,) True for columns without loadings: never observed, or fully explained by means."""
        alone = self.standardize.center and not self.means and not self.biases
        still = scaling.still & alone
        return np.asarray(still | (stats.count == 0))


def completion_request(
    model: Any, matrix: ChunkedMatrix, sample_weight: Any, seed: int
) -> CompletionRequest:
    """The request of an estimator's parameters for this matrix. Raises InvalidInputError."""
    soft, solver = model._soft, model.solver
    if solver not in SOLVERS:
        raise InvalidInputError(f"solver={solver!r}; expected one of {SOLVERS}")
    solver = "als" if solver == AUTO else solver
    _check_limits(model, solver)
    _refuse_constant(model, matrix)
    ranks, validation = _ranks_and_cells(model, matrix)
    by_default = matrix.rated and (model.rank == AUTO or validation is not model.validation)
    held_out, center = validation is not None, model.center
    if center == AUTO:
        center = _usual_center(solver, model, ranks, held_out)
    chooses = held_out and center != FITTED
    ridges, relative = _ridges(model, solver, chooses)
    pairs = _candidates(ranks, ridges, chooses, relative and not soft)
    _check_candidates(model, pairs, center, held_out)
    enough = int(model.max_passes) >= LEAST_GIVING_BACK
    return CompletionRequest(
        ranks=tuple(int(rank) for rank, _ in pairs),
        ridges=tuple(float(ridge) for _, ridge in pairs),
        soft=soft,
        solver=solver,
        standardize=Standardize(center=bool(center), scale=None if center == BOTH else model.scale),
        means=center == FITTED,
        tol=max(float(model.tol), RATED_TOL if by_default else 0.0),
        max_passes=int(model.max_passes),
        seed=seed,
        validation=validation,
        early_stop=bool(model.early_stop),
        init=_initial(model.init, matrix.shape),
        both=center == BOTH,
        both_scaled=model.scale == BOTH,
        weights=sample_weights(sample_weight, matrix),
        relative=relative,
        biases=center == BIASES,
        bounds=_bounds(model.bounds),
        gives_back=by_default and model.validation is None and center == BIASES and enough,
        column_weights=_column_weights(model.weights, matrix, center),
    )


def _ridges(model: Any, solver: str, chooses: bool) -> tuple[tuple[float, ...], bool]:
    """(the penalties, whether they are multiples of the noise level)."""
    name, penalty = ("lambda_", model.lambda_) if model._soft else ("alpha", model.alpha)
    if isinstance(penalty, str) and penalty == AUTO:
        relative = chooses and (model._soft or solver == "als")
        return LADDER if relative else (0.0,), relative
    ridges = _several(penalty, name, Real, "'auto', ")
    if not model._soft and solver != "als" and any(ridges):
        raise InvalidInputError(
            f"alpha={model.alpha!r} with solver={solver!r}: only solver='als' has this penalty; "
            "SoftImpute(lambda_=) shrinks with every solver"
        )
    return ridges, False


def _refuse_constant(model: Any, matrix: ChunkedMatrix) -> None:
    """Refuse ratings that are all equal (implicit feedback), unless absent ones are zeros.

    Source: Cremonesi, Koren and Turrin 2010, "Performance of recommender algorithms on top-N
    recommendation tasks", RecSys, section 3.2 (PureSVD), for what is offered.
    """
    constant = getattr(matrix, "constant", None)
    if constant is not None and model.absent == "missing":
        raise InvalidInputError(
            f"all ratings are {constant:g}: they say who took what, not how it was liked, and a "
            f"completion of them is {constant:g} everywhere. Take what is absent as 0, which ranks "
            "items by the components: HardImpute(rank=20, absent='zero')"
        )


def _column_weights(weights: Any, matrix: ChunkedMatrix, center: Any) -> Array | None:
    """(p,) weights of the features, or None. Raises InvalidInputError."""
    if weights is not None and center in (BOTH, BIASES):
        raise InvalidInputError(
            f"weights= with center={center!r}, whose levels of rows know of no weights; use "
            f"center=True or center={FITTED!r}"
        )
    return feature_weights(weights, matrix)


def _usual_center(solver: str, model: Any, ranks: tuple[int, ...], held_out: bool) -> Any:
    """What ``center="auto"`` is.

    Means over observed cells are not those of the completed matrix: where the model can have means
    of its own, it has.
    """
    if solver != "als" or model.scale == BOTH:
        return True
    if held_out:
        return BIASES if model.scale is None and model.weights is None else True
    alone = not model._soft and len(ranks) == 1 and ranks[0] > 0 and model.alpha in (AUTO, 0)
    return FITTED if alone else True


def _ranks_and_cells(model: Any, matrix: ChunkedMatrix) -> tuple[tuple[int, ...], Any]:
    """The ranks to fit, and the cells to hold out; several of ratings are judged by 5 %."""
    if not isinstance(model.rank, str):
        ranks = _several(model.rank, "rank", Integral, "'auto', ")
    elif model.rank == AUTO:
        ranks = RATED_RANKS[model._soft] if matrix.rated else (1,)
    else:
        raise InvalidInputError(
            f"rank={model.rank!r}; expected 'auto', a whole number from 0, or a list of such"
        )
    if (most := min(matrix.shape)) < max(ranks):
        raise InvalidInputError(
            f"rank={max(ranks)} for a matrix of {matrix.shape[0]} x {matrix.shape[1]}; expected at "
            f"most {most}, and less where anything is to be completed"
        )
    judged = matrix.rated and (model.rank == AUTO or len(ranks) > 1)
    by_default = judged and model.validation is None
    return ranks, RATED_SHARE if by_default else model.validation


def _candidates(
    ranks: tuple[int, ...], ridges: tuple[float, ...], chooses: bool, spares: bool
) -> list[tuple[int, float]]:
    """(rank, ridge) of all; no components need no ridge, and stand first where cells choose.

    spares : of the ladder, leave out ridges that are too small for a rank.
    """
    pairs = [(rank, ridge) for rank, ridge in product(ranks, ridges) if rank]
    if spares:
        least = {rank: next((low for many, low in LEAST if rank >= many), 0.0) for rank in ranks}
        pairs = [(rank, ridge) for rank, ridge in pairs if ridge >= least[rank]]
    return [(0, 0.0), *pairs] if chooses or 0 in ranks else pairs


def _check_candidates(
    model: Any, pairs: list[tuple[int, float]], center: Any, held_out: bool
) -> None:
    if len(pairs) > 1 and not held_out:
        raise InvalidInputError(
            f"{len(pairs)} candidates and no cells to judge them by; add "
            "validation=0.05, a share of the observed cells that is held out"
        )
    if model.early_stop and not held_out:
        raise InvalidInputError("early_stop=True needs cells to judge by; add validation=0.05")
    alone = model.solver in (AUTO, "als") and len(pairs) == 1 and not pairs[0][1]
    if center == FITTED and not alone:
        raise InvalidInputError(
            f"center={FITTED!r} takes solver='als', one rank and no penalty; else center=True"
        )


def _bounds(wanted: Any) -> Any:
    """The parameter, checked: "observed", None, or (low, high) as floats."""
    if wanted is None or (isinstance(wanted, str) and wanted == OBSERVED):
        return wanted
    pair = tuple(wanted) if isinstance(wanted, (tuple, list, np.ndarray)) else ()
    if len(pair) == 2 and all(isinstance(one, Real) and one == one for one in pair):
        low, high = float(pair[0]), float(pair[1])
        if low <= high:
            return low, high
    raise InvalidInputError(
        f"bounds={wanted!r}; expected 'observed', None, or (low, high) such as (1, 5)"
    )


def bounds_of(wanted: Any, observed: Any) -> tuple[float, float] | None:
    """(low, high) of predictions; None where there are none. Raises InvalidInputError.

    observed : the least and the largest cell of the fit, or None where that is not known.
    """
    wanted = _bounds(wanted)
    if isinstance(wanted, str):
        return None if observed is None else (float(observed[0]), float(observed[1]))
    result: tuple[float, float] | None = wanted
    return result


def _several(value: Any, name: str, kind: type, choice: str = "") -> tuple[Any, ...]:
    """A number from 0, or a list of them, as a tuple.  choice : other accepted values."""
    several = tuple(value) if isinstance(value, (list, tuple, np.ndarray)) else (value,)
    for one in several:
        wrong = isinstance(one, bool) or not isinstance(one, kind)
        if wrong or not 0 <= one < np.inf:
            words = "a whole number from 0" if kind is Integral else "a number from 0"
            raise InvalidInputError(
                f"{name}={value!r}; expected {choice}{words}, or a list of such"
            )
    if not several:
        raise InvalidInputError(f"{name}={value!r}; expected one or more")
    return several


def _check_limits(model: Any, solver: str) -> None:
    tol, most = model.tol, model.max_passes
    if isinstance(tol, bool) or not isinstance(tol, (int, float, np.number)) or not 0 <= tol < 1:
        raise InvalidInputError(f"tol={tol!r}; expected a relative change, 0 <= tol < 1")
    whole_number("max_passes", most, 3, why=": a look and two sweeps")
    center, scale = model.center, model.scale
    if scale not in (None, "std", BOTH):
        raise InvalidInputError(f"scale={scale!r}; expected None, 'std' or {BOTH!r}")
    if center not in (True, False, AUTO, BIASES, FITTED, BOTH):
        raise InvalidInputError(
            f"center={center!r}; expected True, False, {AUTO!r}, {BIASES!r}, {FITTED!r} or {BOTH!r}"
        )
    if center == BIASES and (solver != "als" or scale is not None):
        raise InvalidInputError(
            f"center={BIASES!r} takes solver='als' and scale=None; with solver={solver!r}, "
            f"scale={scale!r} use center=True or center={BOTH!r}"
        )
    if (scale == BOTH) > (center == BOTH) or (center == BOTH and scale == "std"):
        raise InvalidInputError(
            f"scale={scale!r} with center={center!r}: deviations of rows and columns are about "
            f"the means of both, those of columns about theirs; use center={BOTH!r} with "
            f"scale={BOTH!r} or None, or center=True with scale='std'"
        )
    if center == BOTH and most < 2 * TURNS:
        raise InvalidInputError(
            f"max_passes={most} with center={BOTH!r}; expected {2 * TURNS} or more: two turns for "
            "the means of rows and columns, then sweeps"
        )


def _initial(init: Any, shape: tuple[int, int]) -> tuple[Array | None, Array | None] | None:
    """(scores, loadings) of a first estimate, from arrays or from something fitted."""
    if init is None:
        return None
    result = getattr(init, "result_", init)
    if hasattr(result, "require_components"):
        scores, loadings = result.scores, result.require_components().T
    elif isinstance(init, tuple) and len(init) == 2:
        for one in init:
            refuse_masked(one, "init")
        scores, loadings = (np.asarray(one, np.float64) for one in init)
    else:
        raise InvalidInputError(
            f"init of {type(init).__name__}; expected (scores (n, r), loadings (p, r)), or a "
            "fitted model"
        )
    for name, one, length in (("scores", scores, shape[0]), ("loadings", loadings, shape[1])):
        if one is not None and (one.ndim != 2 or len(one) != length):
            raise InvalidInputError(f"init: {name} of shape {one.shape}; expected {length} rows")
    return scores, loadings


# What the first look makes of it.


def noise_level(request: CompletionRequest, stats: ColumnStats) -> float:
    """The expected largest singular value of pure noise, in standardised units."""
    cells = float(stats.weight.sum())
    if cells == 0.0:
        return 0.0
    if request.standardize.scale is not None or request.both_scaled:
        squares = stats.weight
    else:
        squares = stats.m2
        if not request.standardize.center:
            squares = squares + stats.weight * stats.mean**2
    if request.column_weights is not None:
        squares = squares * request.column_weights**2
    variance = float(squares.sum()) / cells
    rows = float(np.max(stats.count + stats.missing, initial=0))
    if request.weights is not None:
        rows = float(request.weights.sum())
    columns = len(stats.mean)
    return float(np.sqrt(variance) * (np.sqrt(cells / rows) + np.sqrt(cells / columns)))


def _bias_ridges(stats: ColumnStats, rows: RowSums) -> tuple[float, float]:
    """(of rows, of columns): noise over the variances of their biases."""
    cells = float(stats.weight.sum())
    if cells == 0.0:
        return LARGEST, LARGEST
    seen = stats.weight > 0
    each, means = stats.weight[seen], stats.mean[seen]
    mean = float(np.average(means, weights=each))
    between = float(each @ (means - mean) ** 2)
    total = float(stats.m2.sum()) + between
    of_rows = _variance_of_means(rows.rows, cells, rows.cells_squared, rows.between, total)
    columns = float(np.count_nonzero(seen))
    of_columns = _variance_of_means(columns, cells, float(each @ each), between, total)
    noise = max(total / cells - of_rows - of_columns, LEAST_NOISE * total / cells)
    ridges = (noise / max(one, noise / LARGEST, 1e-300) for one in (of_rows, of_columns))
    return tuple(ridges)  # type: ignore[return-value]


def _variance_of_means(
    groups: float, cells: float, cells_squared: float, between: float, total: float
) -> float:
    """The variance of the true means of groups, by equating sums of squares to what is expected.

    Source: Searle, Casella and McCulloch 1992, "Variance Components", section 3.6.
    """
    within = (total - between) / max(cells - groups, 1.0)
    freedom = cells - cells_squared / cells
    return max(between - (groups - 1.0) * within, 0.0) / freedom if freedom > 0 else 0.0


def mean_of_all(stats: ColumnStats) -> float:
    """The mean of all observed cells; 0 if there are none."""
    return float(np.average(stats.mean, weights=stats.weight)) if stats.weight.any() else 0.0


def observed_range(stats: ColumnStats) -> list[float] | None:
    """The smallest and largest cell that the fit has read; None if there was none."""
    if not (stats.count > 0).any():
        return None
    return [float(stats.minimum.min()), float(stats.maximum.max())]
