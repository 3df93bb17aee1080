"""The result of a sparse PCA: few loadings, adjusted variances, and the path of penalties."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.kernels import Array
from streampca.models.results.projection import Projection
from streampca.models.results.result import Result, places, shaped
from streampca.models.results.row_maps import RowMap, RowOptions
from streampca.report.presentation import FeatureMap, Presentation, carried_share, percentages


@dataclass(frozen=True)
class PathPoint:
    """What one penalty of a path gave: (k,) each, but for the objective at the end.

    explained_variance, explained_variance_ratio : adjusted.
    """

    alpha: Array
    objective: float
    nonzero: Array
    explained_variance: Array
    explained_variance_ratio: Array


@dataclass(frozen=True, repr=False, kw_only=True)
class SparseResult(Result, kind="sparse components"):
    """components : (k, p) of length 1; scores are their products with standardised rows.

    explained_variance : (k,) adjusted: of each score beyond those before it.
    objective : one entry for each iteration.  dropped : features without observation.
    path_alpha, path_nonzero, path_variance : (m, k), and path_objective (m,): of each penalty.
    """

    components: Array = shaped("k", "p")
    explained_variance: Array = shaped("k")
    mean: Array = shaped("p")
    scale: Array | None = shaped("p", optional=True)
    objective: Array = shaped(None)
    dropped: Array = places()
    total_variance: float
    converged: bool
    path_alpha: Array | None = shaped("m", "k", optional=True)
    path_nonzero: Array | None = shaped("m", "k", optional=True)
    path_variance: Array | None = shaped("m", "k", optional=True)
    path_objective: Array | None = shaped("m", optional=True)

    @property
    def n_components(self) -> int:
        return len(self.components)

    @property
    def nonzero(self) -> Array:
        """(k,) loadings that are not 0."""
        return np.asarray(np.count_nonzero(self.components, axis=1))

    @property
    def path(self) -> list[PathPoint]:
        """What each penalty of ``path=`` gave, in their order; empty without it."""
        if self.path_alpha is None:
            return []
        total = self.total_variance or 1.0
        tables = (self.path_alpha, self.path_objective, self.path_nonzero, self.path_variance)
        rows = zip(*(np.asarray(table) for table in tables), strict=True)
        return [
            PathPoint(alpha, float(objective), nonzero.astype(int), variance, variance / total)
            for alpha, objective, nonzero, variance in rows
        ]

    @property
    def explained_variance_ratio(self) -> Array:
        """(k,) of the total variance."""
        return self.explained_variance / (self.total_variance or 1.0)

    def scores_of(self, options: RowOptions) -> RowMap:
        absent = tuple(self.dropped.tolist())
        mean = np.asarray(self.mean)
        return Projection(self.components, mean, self.scale, None, options.missing, absent)

    def presentation(self) -> Presentation:
        shares = self.explained_variance_ratio
        found = np.array(self.components)
        found[:, self.dropped] = np.nan
        eof = FeatureMap(lambda indices: found[indices], lambda variable: "Loading (unit vector)")
        return replace(
            super().presentation(),
            pictures="plots.loadings, plots.scree or plots.scores",
            component="PC",
            remarks=percentages(shares),
            deviations=np.sqrt(self.explained_variance),
            shares=shares,
            carries=carried_share(shares),
            variances=self.explained_variance,
            mean=self.mean,
            components_of=lambda: self.components,
            maps={"eof": eof},
            left_out={"without observation": self.dropped},
        )

    def table(self, rows: int = 10) -> str:
        lines = [f"{'component':>9} {'variance':>12} {'share':>8} {'sum':>8} {'loadings':>9}"]
        shares = self.explained_variance_ratio
        for i, share in enumerate(shares[:rows]):
            lines.append(
                f"{i + 1:>9} {self.explained_variance[i]:>12.6g} {share:>8.2%} "
                f"{shares[: i + 1].sum():>8.2%} {self.nonzero[i]:>9}"
            )
        return "\n".join(lines)

    def to_xarray(self) -> Any:
        """A Dataset: components by the dimensions of the data, adjusted variances and shares."""
        from streampca.sources.labelled.to_xarray import to_dataset

        axis = self.component_axis
        tables: dict[str, Any] = {
            "components": (self.components, [axis, self.labels.features]),
            "explained_variance": (self.explained_variance, [axis]),
            "explained_variance_ratio": (self.explained_variance_ratio, [axis]),
        }
        return to_dataset(tables, {"method": self.method, "n_samples": self.n_samples})
