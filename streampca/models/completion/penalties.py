"""Penalties in units of the data: what a first look says of noise, and of rows and columns.

Ridges to choose from are multiples of the noise level s (sqrt(N / n) + sqrt(N / p)): about the
largest singular value of N cells of noise of deviation s in an n x p matrix of zeros, below which
no component stands out. The ridge of the biases of rows is s^2 / v for biases of variance v, as for
random effects, where the posterior mean is the solution with that ridge.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampca.accumulators import RowSpread
from streampca.accumulators.observed import RowSums
from streampca.kernels import ColumnStats
from streampca.models.completion.request import CompletionRequest

LEAST_NOISE = 0.05  # of the variance of all cells, that is left for noise
LARGEST = 1e4  # ridge of biases: they differ by noise alone


def with_penalties(
    request: CompletionRequest, stats: ColumnStats, rows: RowSpread | None
) -> CompletionRequest:
    """The request with its ridges in units of the data. rows : of a request with biases."""
    if rows is not None:
        request = replace(request, bias_ridges=_bias_ridges(stats, rows.sums()))
    if request.relative:
        level = noise_level(request, stats)
        ridges = tuple(one * level for one in request.ridges)
        request = replace(request, ridges=ridges, relative=False)
    return request


def noise_level(request: CompletionRequest, stats: ColumnStats) -> float:
    """About the largest singular value of noise alone, in standardised units."""
    cells = float(stats.weight.sum())
    if cells == 0.0:
        return 0.0
    if request.standardize.scale is not None or request.both_scaled:
        variance = 1.0
    else:
        squares = stats.m2
        if not request.standardize.center:
            squares = squares + stats.weight * stats.mean**2
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
