"""From the last sweep of a completion to a Decomposition: singular form, signs, provenance."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from streampca.errors import (
    AccuracyWarning,
    DamagedSourceError,
    DroppedFeaturesWarning,
    InvalidInputError,
    convergence_warning,
    shorten,
    warn_caller,
)
from streampca.kernels import Array, row_pieces
from streampca.matrix import ChunkedMatrix
from streampca.models.completion.filled import PIECE_NBYTES, Completed
from streampca.models.completion.plan import columns_outside, mean_of_all, observed_range
from streampca.models.completion.request import AUTO, BIASES, CompletionRequest
from streampca.models.completion.row_solve import ObservedErrors, RowSolve
from streampca.models.completion.trace import Sweep, judged
from streampca.models.decompose.assemble import provenance
from streampca.models.results.decomposition import Decomposition
from streampca.models.results.projection import BackProjection
from streampca.models.results.result import shaped
from streampca.models.results.row_maps import RowOptions, RowPasses
from streampca.passes import Outcome
from streampca.solvers import numerical_rank, signs_of_components
from streampca.store import ZarrSink

NO_MODEL = "a {method} of data with holes has no covariance and no likelihood; fit streampca.PPCA"
PENALTIES = ("ridge", "lambda_")  # the parameter that holds it: of rank, of singular values


@dataclass(frozen=True, repr=False, kw_only=True)
class CompletedDecomposition(Decomposition, kind="completed model"):
    """Components of a matrix with holes: rows are scored by least squares over what they observe.

    penalty : of the factors of a row.
    row_mean, row_scale : (n,) of the rows of the fit, or None; after them scores alone do not make
        rows.
    seen_starts, seen_items : of a fit of ratings (n + 1,) where the items that each user has rated
        begin, and these, by number.
    """

    instead: ClassVar[Mapping[str, str]] = {
        "likelihood_of": NO_MODEL,
        "covariance": NO_MODEL,
        "precision": NO_MODEL,
        "r2_of": "r2_curve(X) of a {method} with holes: the components of an estimate are fitted "
        "together; use r2_curve(), or reconstruction_error(X)",
    }

    penalty: float = 0.0
    row_mean: Array | None = shaped(None, optional=True)
    row_scale: Array | None = shaped(None, optional=True)
    seen_starts: Array | None = shaped(None, optional=True)
    seen_items: Array | None = shaped(None, optional=True)

    @property
    def of_ratings(self) -> bool:
        """Whether this is a fit of ``open_ratings``, which knows what each user has rated."""
        return self.seen_starts is not None and self.seen_items is not None

    def check(self, where: str) -> None:
        """Check types and shapes after loading. Raises DamagedSourceError."""
        super().check(where)
        if self.seen_starts is None or self.seen_items is None:
            return
        starts, items = self.seen_starts, self.seen_items
        ordered = len(starts) == self.n_samples + 1 and starts.dtype.kind in "iu"
        ordered = ordered and items.dtype.kind in "iu" and not (np.diff(starts) < 0).any()
        inside = ordered and starts[0] == 0 and starts[-1] == len(items)
        if not inside or (len(items) and not 0 <= items.min() <= items.max() < self.n_features):
            raise DamagedSourceError(f"{where} is damaged: seen_items are not those of its users")

    @property
    def _absent(self) -> bool:
        """Whether cells that sparse data do not store are missing."""
        return bool(self.settings.get("absent", "missing") == "missing")

    def as_rows(self, matrix: ChunkedMatrix) -> ChunkedMatrix:
        """A sparse matrix whose absent cells are missing, unless they mean 0."""
        return matrix.observed_only() if matrix.sparse and self._absent else matrix

    def scores_of(self, options: RowOptions) -> RowSolve:
        """The map from rows to their scores, (rows, r)."""
        means, scales = self.row_mean is not None, self.row_scale is not None
        return RowSolve.of(self, self.penalty, self._absent, means, scales)

    def of_samples(self) -> dict[str, Array]:
        """The means and scales of the rows, (n,), where they have any."""
        found = {"row_mean": self.row_mean, "row_scale": self.row_scale}
        return {name: values for name, values in found.items() if values is not None}

    def rows_of(self, whiten: bool, again: bool = False) -> BackProjection:
        """The map from scores to rows; refused where rows have means of their own."""
        if self.row_mean is not None:
            raise InvalidInputError(
                "scores alone do not hold the mean of a row; after "
                f"center={self.settings.get('center')!r} use predict(X), "
                "predict(rows, columns) or impute(X)"
            )
        return super().rows_of(whiten, again)

    def cells(self, rows: Array, columns: Array, scores_at: Callable[[Array], Array]) -> Array:
        """(cells,) values of the model at cells of the fit.  scores_at : scores of some rows."""
        n, p = self.n_samples, self.n_features
        if rows.shape != columns.shape or rows.ndim != 1:
            raise InvalidInputError(f"rows {rows.shape} and columns {columns.shape} must be alike")
        if len(rows) and (
            rows.min() < 0 or columns.min() < 0 or rows.max() >= n or columns.max() >= p
        ):
            raise InvalidInputError(f"cells outside the {n} x {p} matrix of the fit")
        components = self.require_components()[:, columns]
        values = np.einsum("ij,ji->i", scores_at(rows), components)
        if (scale := self.divisors) is not None:
            values = values * scale[columns]
        if self.row_scale is not None:
            values = values * self.row_scale[rows]
        if self.row_mean is not None:
            values = values + self.row_mean[rows]
        return np.asarray(values + self.mean[columns])

    def reconstruction_error(self, rows: RowPasses) -> float:
        """Mean over rows of the squared errors of the observed cells."""
        errors = ObservedErrors(self.scores_of(rows.options))
        return float(np.mean(rows.mapped("errors", errors).in_memory(1)))


def result_of(
    done: Completed,
    matrix: ChunkedMatrix,
    request: CompletionRequest,
    method: str,
    parameters: Mapping[str, Any],
    outcome: Outcome[Completed],
) -> tuple[CompletedDecomposition, Any]:
    """The frozen result, and the scores where they lie in a scratch store."""
    (n, _), values, stats = matrix.shape, done.values, done.stats
    components, scores = _singular(done, request)
    turn = signs_of_components(components.T)
    components *= turn[:, None]
    stored = None
    if scores is None:
        stored = _write_scores(done, turn, n)
    else:
        scores *= turn
    weight = float(n) if request.weights is None else float(request.weights.sum())
    ddof = 1 if weight > 1 else 0
    freedom = max(weight - ddof, 1e-300)
    left = done.trace[-1].objective[done.chosen]  # unexplained by the estimate
    dropped = np.flatnonzero(stats.count == 0)
    effects, row_mean = done.effects, done.row_mean
    seen_starts, seen_items = matrix.seen() if matrix.rated else (None, None)
    result = CompletedDecomposition(
        method=method,
        penalty=request.ridges[done.chosen],
        explained_variance=values**2 / freedom,
        total_variance=(float(np.sum(values**2)) + left) / freedom,
        mean=np.array(done.center),
        n_samples=n,
        ddof=ddof,
        rank=int(numerical_rank(values, max(matrix.shape))),
        components=components,
        scale=done.scaling.scale if request.column_weights is None else done.scaling.deviation,
        weights=request.column_weights,
        filtered=np.flatnonzero(done.scaling.filtered),
        scores=scores,
        dropped=dropped,
        constant=np.setdiff1d(np.flatnonzero(done.scaling.constant), dropped),
        missing=stats.missing,
        labels=matrix.labels,
        settings=_stored_parameters(parameters, request, done.chosen),
        provenance=_provenance(done, matrix, request, outcome),
        plan=outcome.plan.to_dict(),
        weight=weight,
        feature_variance=stats.m2 / np.maximum(stats.weight - 1.0, 1.0),
        row_mean=row_mean,
        row_scale=effects.row_scale if effects is not None and effects.scaled else None,
        seen_starts=seen_starts,
        seen_items=seen_items,
    )
    return result, stored


def _singular(done: Completed, request: CompletionRequest) -> tuple[Array, Array | None]:
    """(components (r, p), scores (n, r) or None where they lie in a scratch store)."""
    values = done.values
    lines = None if done.factors.folder is not None else done.line_factors()
    if done.axis == 0:
        components, scores = np.array(done.vectors.T, order="C"), lines
    else:
        assert lines is not None
        lengths = np.maximum(values, np.linalg.norm(lines, axis=0))  # rounding divided by less
        components = np.array((lines / np.where(lengths > 0, lengths, 1.0)).T, order="C")
        scores = done.unweighted(done.vectors * values, 0, len(done.vectors))
    components[:, columns_outside(done.stats, done.scaling, request)] = 0.0
    return components, scores


def _write_scores(done: Completed, turn: Array, n: int) -> Any:
    """The scores of a fit whose factors lie in a scratch store, written beside them; opened."""
    folder = str(done.factors.folder)
    sink = ZarrSink(
        os.path.join(folder, "scores.zarr"),
        n,
        len(turn),
        done.factors.dtype,
        done.factors.chunk,
        overwrite=True,
    )
    for start in range(0, n, sink.chunk):
        sink.write(start, done.rows(start, min(start + sink.chunk, n)) * turn)
    sink.finish()
    return sink.array


def _stored_parameters(
    parameters: Mapping[str, Any], request: CompletionRequest, chosen: int
) -> dict[str, Any]:
    """The parameters, with the rank and penalty of the best candidate."""
    penalty = PENALTIES[request.soft]
    known = {**parameters, "rank": request.ranks[chosen], penalty: request.ridges[chosen]}
    if known["center"] == AUTO:
        known["center"] = BIASES if request.biases else True
    return known


def _provenance(
    done: Completed, matrix: ChunkedMatrix, request: CompletionRequest, outcome: Outcome[Completed]
) -> dict[str, Any]:
    """Where the result came from: passes, trace, turns, held-out curve, range of the data."""
    made = provenance(outcome.costs, matrix.fingerprint(), outcome.memory)
    made["observed"], made["mean"] = observed_range(done.stats), mean_of_all(done.stats)
    if request.biases:
        made["bias_ridges"] = list(request.bias_ridges)
    made["trace"] = [one.to_dict() for one in done.trace]
    made["validation"] = curve(request, done.trace)
    if done.effects is not None:
        made["turns"] = done.effects.changes.tolist()
    return made


def turns_of(result: Decomposition) -> list[float]:
    """The change of row and column effects in each turn; empty if there was no turn."""
    return [float(one) for one in result.provenance.get("turns", [])]


def curve(request: CompletionRequest, trace: list[Sweep]) -> list[dict[str, Any]]:
    """Held-out error and objective of every candidate after its last sweep with held-out cells."""
    last = judged(trace)[-1]
    return [
        {
            "rank": rank,
            "penalty": ridge,
            "held_out": last.held_out[c],
            "objective": last.objective[c],
        }
        for c, (rank, ridge) in enumerate(zip(request.ranks, request.ridges, strict=True))
    ]


def warn_of_completion(done: Completed, matrix: ChunkedMatrix, request: CompletionRequest) -> None:
    """Warn of columns without observations, lack of convergence, and extrapolation."""
    if len(dropped := np.flatnonzero(done.stats.count == 0)):
        value = "the mean of all cells" if request.standardize.center else "0"
        names = matrix.labels.features.names(dropped[:4].tolist())
        words = (
            f"{len(dropped)} of {matrix.shape[1]} features have no observation: their loadings "
            f"are 0, and they are predicted by {value}: {shorten(names, len(dropped))}"
        )
        warn_caller(words, DroppedFeaturesWarning)
    if not done.converged:
        change = done.trace[-1].change[done.chosen]
        words = (
            f"not converged after max_passes={request.max_passes}: the last sweep changed the "
            f"estimate by {change:.2g} of its norm (tol={request.tol:g}). Go on with "
            "init=<this model>, or allow more passes."
        )
        warn_caller(words, convergence_warning())
    if done.effects is not None and done.effects.changes[-1] > request.tol:
        turns = done.effects.changes
        words = (
            f"means of rows and columns not converged in {len(turns)} turns: the last one moved "
            f"them by {turns[-1]:.2g} of what they leave (tol={request.tol:g}). Allow more: "
            f"max_passes={2 * request.max_passes}."
        )
        warn_caller(words, convergence_warning())
    if (far := find_extrapolations(done)) is not None:
        warn_caller(_far_words(far, request, done.chosen), AccuracyWarning)


def _far_words(far: Extrapolation, request: CompletionRequest, chosen: int) -> str:
    rank, penalty = request.ranks[chosen], "lambda_" if request.soft else "ridge"
    more = f"a larger {penalty}=, for example {penalty}={request.ridges[chosen] * 10 or 1.0:g}"
    if not request.soft and request.solver != "als":
        more = "ridge=1.0 with solver='als', SoftImpute(lambda_=)"
    lower = f", or a lower rank than {rank}" if rank > 1 else ""
    return (
        f"{far.rows} rows and {far.columns} columns are estimated beyond anything observed: their "
        f"values are up to {far.ratio:.3g} times the largest observed one. Too few cells determine "
        f"them: use {more}{lower}; validation=0.05 shows what predicts best."
    )


@dataclass(frozen=True)
class Extrapolation:
    """How many rows and columns are estimated beyond the data, on the root mean square.

    Where a row has hardly more observations than components, or such that are hardly independent,
    least squares without a penalty may send all of its other cells anywhere. The last sweep knows
    it: the root mean square of a whole row of the estimate, |s_i| / sqrt(p), is then more than the
    largest observed value.

    ratio : of the largest value in the worst of them to the largest observed one, standardised.
    """

    rows: int
    columns: int
    ratio: float


def find_extrapolations(done: Completed) -> Extrapolation | None:
    """The extrapolation in the estimate of the last sweep; None if there is none. Reads no data."""
    reach, vectors = _reach(done), done.vectors
    if not reach > 0.0 or not done.values.any():
        return None
    length, m = done.factors.length, len(vectors)
    far_lines, worst, size = 0, np.zeros(len(done.values)), 0.0
    for lines in row_pieces(length, 8 * done.factors.width, PIECE_NBYTES):
        s = done.rows(lines.start, lines.stop)
        root = np.sqrt(np.einsum("ij,ij->i", s, s) / m)
        far_lines += int(np.count_nonzero(root > reach))
        if len(root) and root.max() > size:
            size, worst = float(root.max()), s[int(root.argmax())]
    across = vectors * done.values
    if done.axis:
        across = done.unweighted(across, 0, m)
    root = np.sqrt(np.einsum("ij,ij->i", across, across) / length)
    far_across = int(np.count_nonzero(root > reach))
    if not far_lines + far_across:
        return None
    ratio = max(float(np.abs(vectors @ worst).max()), float(root.max())) / reach
    rows, columns = (far_across, far_lines) if done.axis else (far_lines, far_across)
    return Extrapolation(rows, columns, ratio)


def _reach(done: Completed) -> float:
    """The largest observed |z|."""
    if done.effects is not None:
        return float(done.effects.largest)
    stats, scale = done.stats, done.scaling.scale
    seen = stats.count > 0 if scale is None else (stats.count > 0) & (scale > 0)
    ends: Array = np.maximum(stats.maximum - done.center, done.center - stats.minimum)[seen]
    reach = float((ends if scale is None else ends / scale[seen]).max(initial=0.0))
    rows = done.row_mean
    return reach if rows is None else reach + float(np.abs(rows).max(initial=0.0))
