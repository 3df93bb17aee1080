"""Features with a large variance for their mean: scanpy's highly variable genes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, select
from streampca.matrix.derived import DerivedMatrix, Function
from streampca.models.rows.line_sums import column_stats
from streampca.passes import Running
from streampca.sources import as_matrix

FLAVORS = ("seurat", "cell_ranger")
MAD_OF_NORMAL = 0.6744897501960817  # median absolute deviation of a standard normal
CHOSEN_BY = "highly variable"  # the description of the choice in a matrix of these features
NOTHING = 1e-12  # the mean of a feature of zeros, so that the dispersion is 0


@dataclass(frozen=True)
class HighlyVariable:
    """One entry per feature.

    means, dispersions : variance / mean; the logarithms of both (of 1 + mean) for "seurat".
    dispersions_norm : the dispersion among features of about the same mean.
    highly_variable : True where chosen.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca.preprocess import highly_variable
    >>> X = np.log1p(np.random.default_rng(0).poisson(1.0, (200, 30)))
    >>> highly_variable(X, n_top=3).of(X).shape
    (200, 3)
    """

    means: Array
    dispersions: Array
    dispersions_norm: Array
    highly_variable: Array

    def __repr__(self) -> str:
        chosen, features = int(np.count_nonzero(self.highly_variable)), len(self.means)
        return f"<HighlyVariable: {chosen} of {features} features>"

    def of(self, X: Any) -> ChunkedMatrix:
        """The chosen features of a matrix, read lazily; the matrix remembers the choice.

        X : the rows of the fit or others: never choose features anew for rows that a model of
            these is to score. The model chooses them itself in rows that have all features.
        """
        return select(as_matrix(X), features=self.highly_variable, chosen_by=CHOSEN_BY)


def highly_variable(
    X: Any,
    *,
    n_top: int | None = None,
    flavor: str = "seurat",
    n_bins: int = 20,
    min_mean: float = 0.0125,
    max_mean: float = 3.0,
    min_disp: float = 0.5,
    max_disp: float = np.inf,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
) -> HighlyVariable:
    """Choose features by their normalised dispersion, which depends on all rows of X.

    X : (n, p) log1p of normalised counts, samples x features. Raises InvalidInputError.
    n_top : how many; None takes those within the limits of mean and normalised dispersion.
    flavor : "seurat" (dispersions of the counts, z-scores in ``n_bins`` bins of the mean) or
        "cell_ranger" (of the logarithms; medians in bins of percentiles).
    memory_limit, scheduler, progress : of the pass, as :class:`PCA`.

    Cost: one pass. Numbers equal scanpy's ``pp.highly_variable_genes`` to rounding.
    Source: Satija et al. 2015, Nat. Biotechnol. 33:495; Zheng et al. 2017, Nat. Commun. 8:14049.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca.preprocess import highly_variable
    >>> X = np.log1p(np.random.default_rng(0).poisson(1.0, (200, 30)))
    >>> X[::50, 4] += 3
    >>> highly_variable(X, n_top=3)
    <HighlyVariable: 3 of 30 features>
    """
    if flavor not in FLAVORS:
        raise InvalidInputError(f"flavor={flavor!r}; expected one of {FLAVORS}")
    matrix = as_matrix(X)
    if n_top is not None and not 1 <= n_top <= matrix.shape[1]:
        raise InvalidInputError(f"n_top={n_top!r}; expected 1 to {matrix.shape[1]}")
    if flavor == "seurat":
        matrix = DerivedMatrix(matrix, Function("expm1"))
    running = Running(memory_limit, scheduler, progress)
    stats = column_stats(matrix, "highly variable", running)
    freedom = stats.weight - 1
    variance = stats.m2 / np.where(freedom > 0, freedom, 1.0)
    mean = np.where(stats.mean == 0, NOTHING, stats.mean)
    dispersion = variance / mean
    if flavor == "seurat":
        dispersion = np.log(np.where(dispersion == 0, np.nan, dispersion))
        mean = np.log1p(mean)
        norm = _z_scores(dispersion, _equal_bins(mean, n_bins))
    else:
        norm = _by_medians(dispersion, _percentile_bins(mean))
    if n_top is not None:
        chosen = _largest(norm, n_top)
    else:
        known = np.nan_to_num(norm)
        chosen = (mean > min_mean) & (mean < max_mean) & (known > min_disp) & (known < max_disp)
    return HighlyVariable(mean, dispersion, norm, chosen)


def _equal_bins(mean: Array, count: int) -> Array:
    """Numbers of bins of equal width; each includes its upper end, the first its lower one too."""
    low, high = float(mean.min()), float(mean.max())
    if low == high:
        return np.zeros(len(mean), np.int64)
    edges = np.linspace(low, high, count + 1)
    return np.clip(np.searchsorted(edges, mean, side="left") - 1, 0, count - 1)


def _percentile_bins(mean: Array) -> Array:
    edges = np.percentile(mean, np.arange(10, 105, 5))
    return np.asarray(np.searchsorted(np.unique(edges), mean, side="left"))


def _z_scores(dispersion: Array, bins: Array) -> Array:
    """Z-scores of the dispersions within their bin; 1 for a single known one."""
    norm = np.full(len(dispersion), np.nan)
    for one in np.unique(bins):
        inside = np.flatnonzero((bins == one) & ~np.isnan(dispersion))
        some = dispersion[inside]
        if len(some) == 1:
            norm[inside] = 1.0
        elif len(some):
            with np.errstate(divide="ignore", invalid="ignore"):
                norm[inside] = (some - some.mean()) / some.std(ddof=1)
    return norm


def _by_medians(dispersion: Array, bins: Array) -> Array:
    """Distance from the median of the bin, in units of its median absolute deviation."""
    norm = np.empty(len(dispersion))
    for one in np.unique(bins):
        inside = bins == one
        apart = dispersion[inside] - np.median(dispersion[inside])
        with np.errstate(divide="ignore", invalid="ignore"):
            norm[inside] = apart / (np.median(np.abs(apart)) / MAD_OF_NORMAL)
    return norm


def _largest(norm: Array, count: int) -> Array:
    """True for values not smaller than the ``count``-th largest known one."""
    known = np.sort(norm[~np.isnan(norm)])[::-1]
    if not len(known):
        return np.zeros(len(norm), bool)
    return np.asarray(np.nan_to_num(norm, nan=-np.inf) >= known[min(count, len(known)) - 1])
