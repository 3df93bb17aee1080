"""Correlation maps of series with a field, with p-values that know of memory and of many tests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.stats

from streampca.accumulators.base import refuse_incomplete
from streampca.errors import InvalidInputError, NonFiniteError
from streampca.kernels import Array
from streampca.matrix import Block, ChunkedMatrix, Labels, Standardize
from streampca.matrix.alignment import by_dims, rows_along
from streampca.matrix.components import component_axis
from streampca.models.contract.request import array_of_numbers, side_data
from streampca.models.decompose.eigenproblem import RowsSink
from streampca.models.eof.time_lags import in_time, pairs_of
from streampca.passes import Candidate, Pass, PassSpec, Planned, Running, Steps, choose, execute
from streampca.report.presentation import FeatureMap, Presentation
from streampca.sources import as_matrix, counted

NAME = "correlation maps"
RATE = 0.1  # false discovery rate below which maps are in full colour (Wilks 2016)
STILL = 1e-12  # share of the variance of a feature below which nothing is left of it


@dataclass(frozen=True)
class CorrelationMaps:
    """Correlations of k series with p features; NaN for features that do not vary.

    correlations : (k, p).
    effective_sizes : (k, p) of independent samples, from the memory of the feature and the series.
    p_values : (k, p) of no correlation, two-sided, each by itself, by Student's t.
    adjusted_p_values : (k, p) the least false discovery rate at which a feature is significant in
        its map: take those below 0.05 or 0.1 as the significant ones.
    labels : of X.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import correlation_maps
    >>> X = np.random.default_rng(0).standard_normal((50, 3))
    >>> correlation_maps(X, X[:, :1]).correlations[0, 0].round(3)
    np.float64(1.0)
    """

    correlations: Array
    effective_sizes: Array
    p_values: Array
    adjusted_p_values: Array
    labels: Labels

    def presentation(self) -> Presentation:
        """What ``plots.map`` shows of them."""
        return Presentation(
            method=NAME,
            labels=self.labels,
            n_components=len(self.correlations),
            pictures="plots.map",
            component="Series ",
            makes_scores="",
            maps={
                "correlation": FeatureMap(self.correlations.__getitem__, lambda _: "Correlation")
            },
            insignificant=~(self.adjusted_p_values < RATE),
        )

    def to_xarray(self) -> Any:
        """All of these as an ``xarray.Dataset``."""
        from streampca.sources.labelled.to_xarray import to_dataset

        samples, features = self.labels.samples, self.labels.features
        axes = [component_axis(len(self.correlations), samples, features), features]
        names = ("correlations", "effective_sizes", "p_values", "adjusted_p_values")
        return to_dataset({name: (getattr(self, name), axes) for name in names}, {"method": NAME})


def correlation_maps(
    X: Any,
    scores: Any,
    *,
    dim: Any = None,
    remove: Any = None,
    missing_value: float | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
) -> CorrelationMaps:
    """Where a field correlates with series, and where that is more than chance.

    X : (n, p), anything that ``streampca.open`` takes; rows in the order of time.
    scores : (n,) or (n, k) series: PCs, scores of either view of a model of two views (homogeneous
        or heterogeneous maps), an index. Labelled ones go by their dates or names.
    remove : what is projected out of both, as for :class:`PCA`: "month", "trend", an array.
    dim, missing_value, memory_limit, scheduler, progress : as :class:`PCA`.

    A series with memory has fewer independent samples than rows: n (1 - r s) / (1 + r s), with the
    lag-one autocorrelations r and s of the feature and the series, across no gap in time, at most
    n. Of many features some pass a test by chance: ``adjusted_p_values`` control the false
    discovery rate of a map (Benjamini and Hochberg), also where neighbours are alike. The tests
    take scores as independent of X: scores that were fitted to these rows of X are not, and a true
    null is then rejected too often. Take other rows, or another field.

    Cost: one pass over X by features, 2 n p k flops; 8 n (k + r) bytes, r columns removed.
    Raises InvalidInputError, NonFiniteError (holes), MemoryLimitError.
    Source: Bretherton et al. 1999, Journal of Climate 12, eq. 31; Wilks 2016, Bulletin of the
    American Meteorological Society 97.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import correlation_maps
    >>> rng = np.random.default_rng(0)
    >>> index = rng.standard_normal(200)
    >>> X = rng.standard_normal((200, 5))
    >>> X[:, 2] += index
    >>> (correlation_maps(X, index).adjusted_p_values[0] < 0.05).tolist()
    [False, False, True, False, False]
    """
    matrix = as_matrix(counted(X), dim=dim, missing_value=missing_value)
    basis = side_data(matrix, remove=remove).basis
    n = matrix.shape[0]
    basis = np.zeros((n, 0)) if basis is None else basis
    left = n - basis.shape[1]
    if left < 4:
        raise InvalidInputError(f"{n} rows, of which {left} are left; expected at least 4")
    series = _standard(_series(scores, matrix), basis)
    if np.isnan(series).any():
        raise InvalidInputError("a series does not vary; expected scores that do")
    pairs = pairs_of(*in_time(matrix.labels.samples), lag=1)
    running = Running(memory_limit, scheduler, progress)
    planned = choose(matrix, NAME, [_candidate(matrix, series, basis, pairs)], memory_limit)
    products = execute(planned, running).answer
    found = np.clip(products[:, :-1].T, -1.0, 1.0)
    both = _memory(series, pairs)[:, None] * products[:, -1]
    sizes = np.clip(left * (1.0 - both) / (1.0 + both), 3.0, left)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.abs(found) * np.sqrt((sizes - 2.0) / (1.0 - found**2))
    p_values = 2.0 * scipy.stats.t.sf(t, sizes - 2.0)
    return CorrelationMaps(found, sizes, p_values, _adjusted(p_values), matrix.labels)


def feature_memory(X: Any, dim: Any = None, remove: Any = None) -> Array:
    """(p,) lag-one autocorrelations of the features, NaN where one does not vary: one pass.

    X, dim, remove : as for :func:`correlation_maps`.
    """
    matrix = as_matrix(counted(X), dim=dim)
    basis = side_data(matrix, remove=remove).basis
    basis = np.zeros((matrix.shape[0], 0)) if basis is None else basis
    pairs = pairs_of(*in_time(matrix.labels.samples), lag=1)
    one = _candidate(matrix, np.zeros((matrix.shape[0], 0)), basis, pairs)
    planned = choose(matrix, NAME, [one], None)
    return np.asarray(execute(planned, Running(None, None, None)).answer[:, 0])


def _series(scores: Any, matrix: ChunkedMatrix) -> Array:
    """(n, k) in the order of the samples of X."""
    samples = matrix.labels.samples
    lead = 1
    if hasattr(scores, "to_frame") and hasattr(scores, "iloc"):
        scores = scores.to_frame()
    elif by_dims(scores) and set(samples.dims) <= set(map(str, scores.dims)):
        lead = len(samples.dims)
        if scores.ndim == lead:
            scores = scores.expand_dims("series")
        scores = scores.transpose(*samples.dims, ...)
    values = rows_along(scores, samples, "scores")
    values = array_of_numbers(values, "scores", f"numbers, ({len(samples)}, k)")
    values = values.reshape(int(np.prod(values.shape[:lead])), -1)
    if len(values) != len(samples):
        raise InvalidInputError(
            f"scores of shape {np.shape(scores)}; expected ({len(samples)}, k), a row for each of X"
        )
    if not np.isfinite(values).all():
        raise NonFiniteError(
            "scores hold missing values; leave these rows out of both, such as "
            "scores = scores.dropna('time'); X = X.sel(time=scores.time)"
        )
    return values


def _standard(values: Array, basis: Array) -> Array:
    """(n, m) columns of length 1, centred, without what is removed; NaN where nothing is left."""
    centred = values - values.mean(axis=0)
    rest = centred - basis @ (basis.T @ centred)
    total, lengths = (np.sum(one**2, axis=0) for one in (centred, rest))
    lengths[lengths <= STILL * total] = np.nan
    return np.asarray(rest / np.sqrt(lengths))


def _memory(values: Array, pairs: tuple[Array, Array]) -> Array:
    """(m,) lag-one autocorrelations of columns of length 1."""
    products = np.einsum("ij,ij->j", values[pairs[0]], values[pairs[1]])
    return np.asarray(products * (len(values) / max(len(pairs[0]), 1)))


@dataclass(frozen=True)
class FeatureCorrelations:
    """(features, k + 1) correlations of a block's features with the series; their memory last."""

    def __call__(self, block: Block) -> Array:
        refuse_incomplete(block)
        series, basis = block.arrays["series"], block.arrays["basis"]
        pairs = block.arrays["earlier"], block.arrays["later"]
        scaling = Standardize(True, "std").resolve(block.stats, block.eps)
        out = np.empty((block.length, series.shape[1] + 1))
        for tile in block.tiles(np.dtype(np.float64), scaling.center, scaling.scale):
            rows = out[tile.start - block.start : tile.stop - block.start]
            values = _standard(tile.values, basis)
            rows[:, :-1], rows[:, -1] = values.T @ series, _memory(values, pairs)
        out[scaling.constant | (block.stats.count == 0)] = np.nan
        return out


def _candidate(
    matrix: ChunkedMatrix, series: Array, basis: Array, pairs: tuple[Array, Array]
) -> Candidate[Array]:
    """The one pass over features."""
    (n, p), k = matrix.shape, series.shape[1]
    spec = PassSpec(
        "correlations",
        1,
        scratch=lambda length: 8 * length * (6 * n + 2 * k),
        kept_nbytes=8 * (n * (k + basis.shape[1] + 2) + 6 * p * (k + 1)),
        flops=2.0 * n * p * (k + 2 * basis.shape[1] + 4),
        matrix=matrix,
    )
    operands = {"series": series, "basis": basis, "earlier": pairs[0], "later": pairs[1]}
    solver = partial(_solve, spec=spec, operands=operands, width=k + 1)
    return Candidate("correlations", "one pass over features", (spec,), solve=solver)


def _solve(
    planned: Planned[Array], *, spec: PassSpec, operands: dict[str, Array], width: int
) -> Steps[Array]:
    products = np.empty((planned.matrix.shape[1], width))
    yield Pass(
        spec,
        operands=operands,
        maps={"rows": FeatureCorrelations()},
        sinks={"rows": RowsSink(products, 0)},
    )
    return products


def _adjusted(p_values: Array) -> Array:
    """(k, p) of the false discovery rate of each row, its NaN left out."""
    adjusted = np.full_like(p_values, np.nan)
    for i, known in enumerate(np.isfinite(p_values)):
        if known.any():
            adjusted[i, known] = scipy.stats.false_discovery_control(p_values[i, known])
    return adjusted
