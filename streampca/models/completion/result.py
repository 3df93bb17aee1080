"""From the last sweep of a completion to a Decomposition: singular form, signs, provenance."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.models.completion.fit import Completed
from streampca.models.completion.request import (
    AUTO,
    BIASES,
    CompletionRequest,
    mean_of_all,
    observed_range,
)
from streampca.models.completion.row_solve import ObservedErrors, RowSolve
from streampca.models.completion.trace import Sweep, judged
from streampca.models.results.decomposition import Decomposition
from streampca.models.results.projection import BackProjection
from streampca.models.results.result import shaped
from streampca.models.results.row_maps import RowOptions, RowPasses
from streampca.report.presentation import Presentation, carried_share
from streampca.solvers import numerical_rank, signs_of_components
from streampca.store import ZarrSink

NO_MODEL = "a {method} of data with holes has no covariance and no likelihood; fit streampca.PPCA"
PENALTIES = ("alpha", "lambda_")  # parameters: of HardImpute, of SoftImpute


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
    def trace(self) -> list[Sweep]:
        """Objective, change and held-out error of every sweep."""
        return [Sweep.from_dict(sweep) for sweep in self.provenance["trace"]]

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

    def in_dataset(self) -> tuple[dict[str, tuple[Array, list[AxisLabels]]], dict[str, Any]]:
        """The means and scales of the rows, (n,), where they have any."""
        of_rows = {"row_mean": self.row_mean, "row_scale": self.row_scale}
        known = {name: values for name, values in of_rows.items() if values is not None}
        return {name: (values, [self.labels.samples]) for name, values in known.items()}, {}

    def presentation(self) -> Presentation:
        """What pictures and reports show of it; see the base class."""
        shown = super().presentation()
        if self.row_mean is not None:
            left = "of the variance that levels of rows and columns leave"
            shown = replace(shown, carries=carried_share(self.explained_variance_ratio, left))
        return replace(shown, chosen=(self.n_components, self.penalty))

    def rows_of(self, whiten: bool) -> BackProjection:
        """The map from scores to rows; refused where rows have means of their own."""
        if self.row_mean is not None:
            raise InvalidInputError(
                "scores alone do not hold the mean of a row; after "
                f"center={self.settings.get('center')!r} use predict(X), "
                "predict(rows, columns) or impute(X)"
            )
        return super().rows_of(whiten)

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
    done: Completed, matrix: ChunkedMatrix, described: Mapping[str, Any]
) -> tuple[CompletedDecomposition, Any]:
    """The frozen result, and the scores where they lie in a scratch store.

    described : the fields of every result: method, labels, settings and so on.
    """
    fit = done.fit
    request, stats, scaling, effects = fit.request, fit.stats, fit.scaling, fit.effects
    (n, _), values = matrix.shape, done.values
    components, scores = _singular(done)
    signs = signs_of_components(components.T)
    components *= signs[:, None]
    stored = None
    if scores is None:
        stored = _write_scores(done, signs, n)
    else:
        scores *= signs
    weight = float(n) if request.weights is None else float(request.weights.sum())
    ddof = 1 if weight > 1 else 0
    freedom = max(weight - ddof, 1e-300)
    left = fit.trace[-1].objective[done.chosen]  # unexplained by the estimate
    dropped = np.flatnonzero(stats.count == 0)
    seen_starts, seen_items = matrix.seen() if matrix.rated else (None, None)
    found = {
        **described,
        "settings": _stored_parameters(described["settings"], request, done.chosen),
        "provenance": {**described["provenance"], **_provenance(done)},
    }
    result = CompletedDecomposition(
        **found,
        penalty=request.ridges[done.chosen],
        explained_variance=values**2 / freedom,
        total_variance=(float(np.sum(values**2)) + left) / freedom,
        mean=np.array(done.center),
        ddof=ddof,
        rank=int(numerical_rank(values, max(matrix.shape))),
        components=components,
        scale=scaling.scale if request.column_weights is None else scaling.deviation,
        weights=request.column_weights,
        filtered=np.flatnonzero(scaling.filtered),
        scores=scores,
        dropped=dropped,
        constant=np.setdiff1d(np.flatnonzero(scaling.constant), dropped),
        missing=stats.missing,
        weight=weight,
        feature_variance=stats.m2 / np.maximum(stats.weight - 1.0, 1.0),
        row_mean=done.row_mean,
        row_scale=effects.row_scale if effects is not None and effects.scaled else None,
        seen_starts=seen_starts,
        seen_items=seen_items,
    )
    return result, stored


def _singular(done: Completed) -> tuple[Array, Array | None]:
    """(components (r, p), scores (n, r) or None where they lie in a scratch store)."""
    fit, values = done.fit, done.values
    lines = None if fit.factors.folder is not None else done.rows(0, fit.factors.length)
    if fit.axis == 0:
        components, scores = np.array(done.vectors.T, order="C"), lines
    else:
        assert lines is not None
        lengths = np.maximum(values, np.linalg.norm(lines, axis=0))  # rounding divided by less
        components = np.array((lines / np.where(lengths > 0, lengths, 1.0)).T, order="C")
        scores = done.unweighted(done.vectors * values, 0, len(done.vectors))
    components[:, fit.request.columns_outside(fit.stats, fit.scaling)] = 0.0
    return components, scores


def _write_scores(done: Completed, signs: Array, n: int) -> Any:
    """The scores of a fit whose factors lie in a scratch store, written next to them; opened."""
    factors = done.fit.factors
    path = os.path.join(str(factors.folder), "scores.zarr")
    sink = ZarrSink(path, n, len(signs), factors.dtype, factors.chunk, overwrite=True)
    for start in range(0, n, sink.chunk):
        sink.write(start, done.rows(start, min(start + sink.chunk, n)) * signs)
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


def _provenance(done: Completed) -> dict[str, Any]:
    """Range and mean of the data, trace, turns, and held-out errors of all candidates."""
    fit = done.fit
    found: dict[str, Any] = {"observed": observed_range(fit.stats), "mean": mean_of_all(fit.stats)}
    if fit.request.biases:
        found["bias_ridges"] = list(fit.request.bias_ridges)
    found["trace"] = [sweep.to_dict() for sweep in fit.trace]
    found["validation"] = _curve(fit.request, fit.trace)
    if fit.effects is not None:
        found["turns"] = fit.effects.changes.tolist()
    return found


def _curve(request: CompletionRequest, trace: list[Sweep]) -> list[dict[str, Any]]:
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


def warn_of_completion(done: Completed) -> None:
    """Warn of columns without observations, lack of convergence, and extrapolation."""
    fit, request, effects = done.fit, done.fit.request, done.fit.effects
    if len(dropped := np.flatnonzero(fit.stats.count == 0)):
        value = "the mean of all cells" if request.standardize.center else "0"
        names = fit.matrix.labels.features.names(dropped[:4].tolist())
        warn_caller(
            f"{len(dropped)} of {fit.matrix.shape[1]} features have no observation: their loadings "
            f"are 0, and they are predicted by {value}: {shorten(names, len(dropped))}",
            DroppedFeaturesWarning,
        )
    if not fit.stopped:
        change = fit.trace[-1].change[done.chosen]
        warn_caller(
            f"not converged after max_passes={request.max_passes}: the last sweep changed the "
            f"estimate by {change:.2g} of its norm (tol={request.tol:g}). Go on with "
            "init=<this model>, or allow more passes.",
            convergence_warning(),
        )
    if effects is not None and effects.changes[-1] > request.tol:
        warn_caller(
            f"means of rows and columns not converged in {len(effects.changes)} turns: the last "
            f"one moved them by {effects.changes[-1]:.2g} of what they leave "
            f"(tol={request.tol:g}). Allow more: max_passes={2 * request.max_passes}.",
            convergence_warning(),
        )
    if (found := find_extrapolations(done)) is not None:
        warn_caller(found.described(request, done.chosen), AccuracyWarning)


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

    def described(self, request: CompletionRequest, chosen: int) -> str:
        """The message, with what helps."""
        rank, penalty = request.ranks[chosen], PENALTIES[request.soft]
        more = f"a larger {penalty}=, for example {penalty}={request.ridges[chosen] * 10 or 1.0:g}"
        if not request.soft and request.solver != "als":
            more = f"{PENALTIES[0]}=1.0 with solver='als', SoftImpute(lambda_=)"
        lower = f", or a lower rank than {rank}" if rank > 1 else ""
        return (
            f"{self.rows} rows and {self.columns} columns are estimated beyond anything observed: "
            f"their values are up to {self.ratio:.3g} times the largest observed one. Too few "
            f"cells determine them: use {more}{lower}; validation=0.05 shows what predicts best."
        )


def find_extrapolations(done: Completed) -> Extrapolation | None:
    """The extrapolation in the estimate of the last sweep; None if there is none. Reads no data."""
    reach, vectors = _largest_observed(done), done.vectors
    if not reach > 0.0 or not done.values.any():
        return None
    length, m = done.fit.factors.length, len(vectors)
    far_lines, worst, size = 0, np.zeros(len(done.values)), 0.0
    for lines in done.pieces():
        s = done.rows(lines.start, lines.stop)
        root = np.sqrt(np.einsum("ij,ij->i", s, s) / m)
        far_lines += int(np.count_nonzero(root > reach))
        if len(root) and root.max() > size:
            size, worst = float(root.max()), s[int(root.argmax())]
    across = vectors * done.values
    if done.fit.axis:
        across = done.unweighted(across, 0, m)
    root = np.sqrt(np.einsum("ij,ij->i", across, across) / length)
    far_across = int(np.count_nonzero(root > reach))
    if not far_lines + far_across:
        return None
    ratio = max(float(np.abs(vectors @ worst).max()), float(root.max())) / reach
    rows, columns = (far_across, far_lines) if done.fit.axis else (far_lines, far_across)
    return Extrapolation(rows, columns, ratio)


def _largest_observed(done: Completed) -> float:
    """The largest observed |z|."""
    fit = done.fit
    if fit.effects is not None:
        return float(fit.effects.largest)
    stats, scale = fit.stats, fit.scaling.scale
    seen = stats.count > 0 if scale is None else (stats.count > 0) & (scale > 0)
    ends: Array = np.maximum(stats.maximum - done.center, done.center - stats.minimum)[seen]
    reach = float((ends if scale is None else ends / scale[seen]).max(initial=0.0))
    rows = done.row_mean
    return reach if rows is None else reach + float(np.abs(rows).max(initial=0.0))
