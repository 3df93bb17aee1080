"""Optimally persistent patterns: combinations of the PCs of a fit that stay alike for longest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal
from streampca.matrix.components import component_axis
from streampca.models.contract.request import whole_number
from streampca.models.eof.time_lags import PCSeries, in_units_of_data
from streampca.models.results.decomposition import Decomposition
from streampca.models.results.value_attributes import of_pattern
from streampca.report.presentation import FeatureMap, Presentation
from streampca.solvers import signs_of_components

EXAMPLE = "pca = PCA(5).fit(X); persistent_patterns(pca, max_lag=24, scores=pca.project(X))"


@dataclass(frozen=True)
class PersistentPatterns:
    """k patterns, the most persistent first, with uncorrelated scores of variance 1.

    decorrelation_times : (k,) in steps of time, 1/2 + r(1) + ... + r(L - 1) + r(L) / 2 of the
        autocorrelations r of the scores, L = max_lag.
    explained_variance_ratio : (k,) shares of the total variance.
    patterns : (k, p) covariances of the data with the scores, in the units of the data; NaN for
        features that the fit left out.
    filters : (k, p) such that scores = (X - mean) filters', of rows from which nothing is removed.
    scores : (n, k).  pc_filters : (k, k), scores = PCs times these.
    result : of the fit whose PCs these are.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, persistent_patterns
    >>> X = np.random.default_rng(0).normal(size=(50, 6))
    >>> pca = PCA(3).fit(X)
    >>> opps = persistent_patterns(pca, max_lag=5, scores=pca.project(X))
    >>> np.allclose(np.cov(opps.scores.T), np.eye(3))
    True
    """

    decorrelation_times: Array
    explained_variance_ratio: Array
    patterns: Array
    filters: Array
    scores: Array
    pc_filters: Array
    result: Decomposition

    def transform(self, pcs: Any) -> Array:
        """(rows, k) scores of other rows, of their PCs (rows, >= k): ``pca.project(X)``."""
        return np.asarray(pcs)[..., : len(self.pc_filters)] @ self.pc_filters

    def presentation(self) -> Presentation:
        """What pictures show of them."""
        times, result = self.decorrelation_times, self.result

        def pattern(indices: list[int]) -> Array:
            return self.patterns[indices]

        return Presentation(
            method="OPA",
            labels=result.labels,
            n_components=len(times),
            pictures="plots.map or plots.pcs",
            component="OPP ",
            remarks=tuple(f"{one:.3g} steps" for one in times),
            scores=self.scores,
            deviations=np.ones(len(times)),
            maps={"pattern": FeatureMap(pattern, lambda variable: "Covariance with the score")},
            left_out={"without observation": result.dropped},
        )

    def to_xarray(self) -> Any:
        """All of these as an ``xarray.Dataset``."""
        from streampca.sources.labelled.to_xarray import to_dataset

        result, labels = self.result, self.result.labels
        modes = component_axis(len(self.patterns), labels.samples, labels.features)
        tables = {
            "decorrelation_times": (self.decorrelation_times, [modes]),
            "explained_variance_ratio": (self.explained_variance_ratio, [modes]),
            "patterns": (self.patterns, [modes, labels.features]),
            "filters": (self.filters, [modes, labels.features]),
            "scores": (self.scores, [labels.samples, modes]),
        }
        attrs = {"patterns": partial(of_pattern, result, what="optimally persistent patterns of")}
        return to_dataset(tables, {"method": "OPA"}, attrs)


def persistent_patterns(
    source: Any, max_lag: int, k: int | None = None, *, scores: Any = None
) -> PersistentPatterns:
    """OPA: the patterns in a field with the longest decorrelation times, from its PCs.

    source : a fitted PCA (or another estimator with EOFs), or its Decomposition; samples in the
        order of time.
    max_lag : the largest lag of the autocorrelations, in steps of time: beyond the memory of the
        patterns, and short against the series.
    k : leading PCs that are used, None: all that vary. Times grow with k, by chance too: compare
        several.
    scores : (n, k) PCs of the rows of the fit, where it kept none: ``pca.project(X)``.

    Pairs do not reach across a gap in the dates (or numbers) of the samples, nor over a sample
    without observations. Several dimensions of samples (members) are as many series. Weights of
    samples do not count. The trapezoidal sum is that of xeofs' ``OPA``; a series of time T has
    about n / (2 T) independent samples.
    Cost: nothing is read; max_lag n k^2 + p k^2 multiplications, 16 p k bytes.
    Raises InvalidInputError: rotated components, times that are not evenly spaced, too few pairs.
    Source: DelSole 2001, Journal of the Atmospheric Sciences 58, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, persistent_patterns
    >>> rng = np.random.default_rng(0)
    >>> slow = np.sin(np.arange(400.0) / 30)[:, None] * np.ones(6)
    >>> X = slow + rng.normal(size=(400, 6))
    >>> pca = PCA(4).fit(X)
    >>> opps = persistent_patterns(pca, max_lag=20, scores=pca.project(X))
    >>> bool(opps.decorrelation_times[0] > 5 * opps.decorrelation_times[1])
    True
    """
    series = PCSeries.of(source, k, scores, EXAMPLE)
    result, width = series.result, series.scores.shape[1]
    pcs = series.observed
    if len(pcs) <= width:
        raise InvalidInputError(
            f"{len(pcs)} samples for {width} PCs; expected more: k={width // 2}"
        )
    covariance = pcs.T @ pcs / (len(pcs) - 1)
    values, vectors = np.linalg.eigh(covariance)
    whitening = vectors / np.sqrt(values)
    memory = 0.5 * np.eye(width)
    for lag in range(1, whole_number("max_lag", max_lag) + 1):
        before, after = (one @ whitening for one in series.pairs(lag, 2))
        memory += before.T @ after / (len(before) - 1) * (0.5 if lag == max_lag else 1.0)
    times, turned = np.linalg.eigh((memory + memory.T) / 2)
    pc_filters = whitening @ turned[:, ::-1]
    eofs = result.require_components()[:width]
    maps = (covariance @ pc_filters).T @ eofs
    sign = signs_of_components(maps.T)
    pc_filters, maps = pc_filters * sign, maps * sign[:, None]
    filters = pc_filters.T @ eofs
    if result.divisors is not None:
        filters *= reciprocal(result.divisors)
    return PersistentPatterns(
        times[::-1].copy(),
        np.sum(maps**2, axis=1) / result.total_variance,
        in_units_of_data(result, maps),
        filters,
        series.scores @ pc_filters,
        pc_filters,
        result,
    )
