"""The result of two views of the same samples: pairs of directions, their scores and maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from streampca.errors import DamagedSourceError, InvalidInputError
from streampca.kernels import Array
from streampca.matrix import RAW, VIEWS, Labels
from streampca.matrix.join import PartsBeside
from streampca.models.results.linear_result import ResidualResult
from streampca.models.results.projection import Projection
from streampca.models.results.result import places, shaped
from streampca.models.results.row_maps import RowMap, RowOptions
from streampca.report.presentation import (
    Bars,
    Certainty,
    FeatureMap,
    Presentation,
    carried_share,
    percentages,
)


class Redundancy(NamedTuple):
    """(k,) mean shares of the variance of the features of a view: of X by scores of X, ...

    Source: Stewart and Love 1968, Psychological Bulletin 70(3).
    """

    x_by_x: Array
    x_by_y: Array
    y_by_y: Array
    y_by_x: Array


@dataclass(frozen=True, repr=False, kw_only=True)
class ViewResult(ResidualResult):
    """One view of a result: scores of its rows are ((x - mean) / scale) vectors."""

    vectors: Array = shaped("p", "k")
    scale: Array | None = shaped("p", optional=True)
    absent: Array = places()

    @property
    def n_components(self) -> int:
        return int(self.vectors.shape[1])

    def scores_of(self, options: RowOptions) -> RowMap:
        absent = tuple(self.absent.tolist())
        vectors = np.ascontiguousarray(self.vectors.T)
        mean = self.mean if options.centre else np.zeros(self.n_features)
        return Projection(vectors, mean, self.scale, None, options.missing, absent)


@dataclass(frozen=True, repr=False, kw_only=True)
class ViewsResult(ResidualResult):
    """Combinations of several views. Arrays of features are those of one view after the other.

    vectors : of the centred and divided features; scores are their products.
    loadings : correlations of features with scores of the same view.
    """

    vectors: Array = shaped("p", "k")
    loadings: Array = shaped("p", "k")
    scale: Array | None = shaped("p", optional=True)
    absent: Array = places()

    @property
    def names(self) -> list[str]:
        """Of the views."""
        return list(self.labels.features.parts)

    @property
    def kept_nbytes(self) -> int:
        return 8 * (self.n_components + 2) * self.n_features

    def part(self, name: str, values: Array) -> Array:
        """The entries (p_i, ...) of one view, of an array (p, ...) of all features."""
        return np.asarray(values[self.labels.features.slices[name]])

    def view(self, name: str) -> ViewResult:
        """One view alone.  name : such as "x" or "y"."""
        where = self.labels.features.slices[name]
        inside = (self.absent >= where.start) & (self.absent < where.stop)
        return ViewResult(
            method=self.method,
            n_samples=self.n_samples,
            labels=self.labels_of(name),
            vectors=self.vectors[where],
            mean=self.mean[where],
            scale=None if self.scale is None else self.scale[where],
            absent=self.absent[inside] - where.start,
            removal=self.removal
            and replace(self.removal, coefficients=self.removal.coefficients[:, where]),
        )

    def labels_of(self, name: str) -> Labels:
        """Of one view."""
        labels, number = self.labels, self.names.index(name)
        steps = labels.preprocessing.steps
        own = RAW
        if steps and isinstance(steps[0], PartsBeside):
            own = steps[0].parts[number]
        attrs = labels.attrs_of(name)
        return Labels(labels.samples, labels.features.parts[name], None, attrs, own)

    def scores_of(self, options: RowOptions) -> RowMap:
        """A view has scores, not all of them together. Raises InvalidInputError."""
        known = " or ".join(f"view({name!r})" for name in self.names)
        raise InvalidInputError(f"a {self.method} has {len(self.names)} views; use {known}")


@dataclass(frozen=True, repr=False, kw_only=True)
class TwoViewResult(ViewsResult, kind="two-view"):
    """Pairs of directions. Arrays of features are those of X, then those of Y (p + q in all).

    values : (k,) canonical correlations, or singular values of the cross-covariance.
    vectors : of the centred and divided features; scores are their products.
    patterns : what a score of 1 adds to these, the part of the rows that pairs describe is scores
        times patterns'; None where they are the vectors.
    loadings : correlations of features with scores of the same view; cross_loadings : of the other.
    x_covariance, y_covariance : (k, k) of the scores of each view.
    spectrum : all values.  bound : (k,) of the error of values; inf where it is not determined.
    x_scores, y_scores : (n, k) of the rows of the fit, where it has them.
    left_out_x, left_out_y : rows without a partner.  total : squared covariance of all pairs, NaN
        of correlations.  estimated : it is an estimate: an iteration knows the leading pairs
        alone, and ranks are lower bounds where ``spectrum`` is not complete.
    removal : what was projected out of the samples of both, or None.  weight : of the samples, in
        sum; None where each counts once.
    """

    values: Array = shaped("k")
    cross_loadings: Array = shaped("p", "k")
    x_covariance: Array = shaped("k", "k")
    y_covariance: Array = shaped("k", "k")
    patterns: Array | None = shaped("p", "k", optional=True)
    spectrum: Array = shaped(None)
    bound: Array = shaped("k")
    x_scores: Array | None = shaped(None, "k", optional=True)
    y_scores: Array | None = shaped(None, "k", optional=True)
    penalties: Array = shaped(None, empty=2)
    held_out: Array | None = shaped(None, None, optional=True)
    weight: float | None = None
    x_rank: int
    y_rank: int
    left_out_x: int
    left_out_y: int
    total: float
    estimated: bool = False

    @property
    def n_components(self) -> int:
        return len(self.values)

    @property
    def free_rows(self) -> float:
        """The rows that tests count: the sum of their weights, less what was removed."""
        rows = float(self.n_samples) if self.weight is None else self.weight
        return rows - (0 if self.removal is None else self.removal.design.rank)

    @property
    def adding(self) -> Array:
        """(p, k) the patterns, whether or not they are the vectors."""
        return self.vectors if self.patterns is None else self.patterns

    def rotate(self, method: str = "varimax", k: int | None = None, **options: Any) -> Any:
        """The first k pairs rotated by "varimax" or "promax": ``streampca.rotate``."""
        rotated: Any = self.kinds["rotated two-view"]
        return rotated.of(self, method, k, **options)

    @property
    def correlates(self) -> bool:
        """Whether values are correlations, not covariances."""
        return not np.isfinite(self.total)

    def presentation(self) -> Presentation:
        """What pictures and reports show of it; see the base class."""
        return replace(self._side("x"), other=self._side("y"))

    def _side(self, name: str) -> Presentation:
        """One view: its loadings are correlations.  name : "x" or "y"."""
        values, absent = np.asarray(self.values), self.view(name).absent
        own, other = name.upper(), VIEWS[1 - VIEWS.index(name)].upper()
        squares = values**2 / (self.total or 1.0)
        certain = np.asarray(self.bound) < np.maximum(values, 1e-300)

        def field(table: Array, what: str) -> FeatureMap:
            found = np.array(self.part(name, table).T, dtype=np.float64)
            found[:, absent] = np.nan
            return FeatureMap(lambda indices: found[indices], lambda variable: what)

        maps = {
            "homogeneous": field(self.loadings, f"Correlation with scores of {own}"),
            "heterogeneous": field(self.cross_loadings, f"Correlation with scores of {other}"),
            "weights": field(self.vectors, "Weight"),
        }

        def correlations(indices: list[int]) -> Array:
            return maps["homogeneous"].values(indices)

        def in_words(indices: Sequence[int]) -> str:
            return "canonical correlations " + ", ".join(f"{values[i]:.2f}" for i in indices)

        of_first = f", the first of {values[0]:.3g}" if len(values) else ""
        words = f"{self.method}: {len(values) or 'no'} pairs of combinations{of_first}"
        named = [f"r = {r:.2f}" for r in values] if self.correlates else percentages(squares)
        return Presentation(
            method=self.method,
            labels=self.labels_of(name),
            n_components=self.n_components,
            pictures="plots.scores (X against Y), plots.pcs, plots.loadings(model, view='x'), "
            "plots.map(model, kind='heterogeneous', view='y'), plots.correlation_circle or "
            "plots.scree",
            component="Pair ",
            remarks=tuple(named),
            scores=self.x_scores if name == "x" else self.y_scores,
            makes_scores="scores=model.transform(X, Y)",
            bars=Bars(values, "Canonical correlation", False)
            if self.correlates
            else Bars(squares, "Share of the squared covariance", True),
            carries=in_words
            if self.correlates
            else carried_share(squares, "of the squared covariance"),
            variances=values,
            variances_name="Canonical correlation"
            if self.correlates
            else "Singular value of the covariance",
            certainty=Certainty(certain, np.where(certain, self.bound, 0.0), 0.0, words),
            own_loadings=np.nan_to_num(correlations(list(range(len(values))))),
            loadings_name=f"{own}: correlation with",
            correlations=correlations,
            maps=maps,
            left_out={"without observation": absent},
            view=name,
        )

    @property
    def redundancy(self) -> Redundancy:
        """Mean squares of loadings; features that do not vary do not count."""
        found = []
        for name in VIEWS:
            for loadings in (self.loadings, self.cross_loadings):
                found.append(np.nanmean(self.part(name, loadings) ** 2, axis=0))
        return Redundancy(*found)

    def tables_of_features(self) -> dict[str, Array]:
        """Arrays (p, k) of features by what they are in the Dataset."""
        return {
            "weights": self.vectors,
            **({} if self.patterns is None else {"patterns": self.patterns}),
            "loadings": self.loadings,
            "cross_loadings": self.cross_loadings,
        }

    def to_xarray(self) -> Any:
        """All of it as one Dataset: ``values``, ``squared_covariance_fraction`` (where values are
        covariances), ``variance_fraction_x_by_y`` and so on (``redundancy``), ``scores_x`` and
        ``scores_y`` where the fit kept them; and ``weights_x``, ``patterns_x`` where they differ
        from these, ``loadings_x`` (homogeneous maps), ``cross_loadings_x`` (heterogeneous maps) and
        those of ``y``, by the dimensions of the data.

        Where X and Y have a dimension of the same name and it differs, such as two grids, these
        are called ``lat_x`` and ``lat_y``. There are no p-values: scores were chosen to correlate
        on these rows, and tests that take them as fixed reject a true null four times too often.
        On rows that the fit has not seen they hold: ``streampca.correlation_maps``.
        """
        from streampca.models.two_views.labelled import to_dataset_of_views

        return to_dataset_of_views(self)

    def summary(self) -> dict[str, Any]:
        return super().summary() | {
            "x_features": len(self.labels.features.parts["x"]),
            "y_features": len(self.labels.features.parts["y"]),
            "values": self.values.tolist(),
            "bound": self.bound.tolist(),
            "x_rank": self.x_rank,
            "y_rank": self.y_rank,
            "squared_covariance": None if self.correlates else self.total,
            "squared_covariance_is_estimate": self.estimated,
            "rows_without_partner": [self.left_out_x, self.left_out_y],
        }

    def table(self, rows: int = 10) -> str:
        own = self.redundancy
        head = f"{'pair':>9} {'value':>12} {'+-':>14} {'X by Y':>9} {'Y by X':>9}"
        lines = [head]
        for i, value in enumerate(self.values[:rows]):
            bound = self.bound[i]
            stated = f"{bound:>14.1e}" if bound < max(value, 1e-300) else f"{'not determined':>14}"
            lines.append(
                f"{i + 1:>9} {value:>12.6g} {stated} {own.x_by_y[i]:>9.2%} {own.y_by_x[i]:>9.2%}"
            )
        return "\n".join(lines)

    def notes(self) -> list[str]:
        x, y = (len(self.labels.features.parts[name]) for name in VIEWS)
        rank = f"of rank {self.x_rank} and {self.y_rank}"
        if not self.correlates:
            least = "at least " if len(self.spectrum) < min(x, y) else ""
            rank = f"which covary in {least}{self.x_rank} directions"
        found = [f"views      {x} and {y} features, {rank}"]
        if self.estimated:
            found.append("shares     of an estimate of the squared covariance of all pairs")
        if self.left_out_x or self.left_out_y:
            found.append(
                f"rows       {self.left_out_x} of X and {self.left_out_y} of Y had no partner"
            )
        return found

    def check(self, where: str) -> None:
        super().check(where)
        if sorted(self.labels.features.parts) != sorted(VIEWS):
            raise DamagedSourceError(f"{where} is damaged: it names no two views")
