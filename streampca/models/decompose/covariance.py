"""Covariance and correlation matrices of streamed data, and PCA of a covariance alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.accumulators import MeanImputedScatter, Scatter
from streampca.errors import InvalidInputError, NoGapWarning, warn_caller
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix, Labels
from streampca.matrix.alignment import along, refuse_masked
from streampca.matrix.block import refuse_complex
from streampca.matrix.columns import label_array
from streampca.matrix.names import match
from streampca.models.contract.estimator import attach
from streampca.models.contract.request import (
    Request,
    check_ddof,
    degrees_of_freedom,
    sample_weights,
)
from streampca.models.decompose.assemble import NO_GAP
from streampca.models.decompose.eigenproblem import count_components
from streampca.models.results.decomposition import PrincipalComponents
from streampca.models.side_data.row_weights import refuse_few
from streampca.passes import (
    Candidate,
    PassResult,
    Running,
    choose,
    execute,
    pass_spec,
    single_threaded_blas,
)
from streampca.solvers import (
    certify,
    check_n_components,
    eigh_lower,
    numerical_rank,
    residual_norms,
    signs_of_components,
)
from streampca.sources import as_matrix


def covariance(
    X: Any,
    *,
    ddof: int = 1,
    missing: str = "raise",
    dim: Any = None,
    missing_value: float | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
    sample_weight: Any = None,
) -> Any:
    """Covariance matrix of the features of X, (p, p) float64.

    X, dim, missing, missing_value, memory_limit, scheduler, progress : as :class:`PCA`.
    sample_weight : (n,) as :meth:`PCA.fit`; the divisor is sum w - ddof.
    Labelled xarray where the features have names, else NumPy.

    Cost: one pass, n p^2 flops, 3 p^2 float64.
    Source: Chan, Golub and LeVeque 1983, eq. 2.1.

    Examples
    --------
    >>> streampca.covariance(np.array([[1.0, 2.0], [3.0, 6.0]])).tolist()
    [[2.0, 4.0], [4.0, 8.0]]
    """
    check_ddof(ddof)
    matrix = as_matrix(X, dim=dim, missing_value=missing_value)
    weights = sample_weights(sample_weight, matrix)
    refuse_few(weights, ddof, f"ddof={ddof}")
    degrees_of_freedom(matrix.shape[0] if weights is None else float(weights.sum()), ddof)
    scatter = _scatter(matrix, missing, Running(memory_limit, scheduler, progress), weights)
    values = scatter.covariance(ddof)
    return _labelled(values, matrix, "covariance")


def correlation(
    X: Any,
    *,
    missing: str = "raise",
    dim: Any = None,
    missing_value: float | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
    sample_weight: Any = None,
) -> Any:
    """Correlation matrix of the features of X, (p, p) float64; NaN beside constant features.

    Parameters and source as :func:`covariance`. Cost: one pass, n p^2 flops.
    Raises InvalidInputError for a single row: correlations need two.

    Examples
    --------
    >>> X = np.array([[1.0, 2.0], [3.0, 6.0], [2.0, 4.0]])
    >>> streampca.correlation(X).round(6).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    matrix = as_matrix(X, dim=dim, missing_value=missing_value)
    weights = sample_weights(sample_weight, matrix)
    refuse_single(matrix.shape[0] if weights is None else int(np.count_nonzero(weights)))
    values = _scatter(
        matrix, missing, Running(memory_limit, scheduler, progress), weights
    ).scatter()
    deviation = np.sqrt(np.diagonal(values))
    with np.errstate(divide="ignore", invalid="ignore"):
        values /= deviation[:, None] * deviation[None, :]
    np.clip(values, -1.0, 1.0, out=values)
    values[np.diag_indices_from(values)] = np.where(deviation > 0, 1.0, np.nan)
    return _labelled(values, matrix, "correlation")


def refuse_single(rows: int) -> None:
    """Refuse to correlate fewer than two rows."""
    if rows < 2:
        raise InvalidInputError(f"got {rows} row that counts; a correlation needs at least 2")


def _scatter(matrix: ChunkedMatrix, missing: str, running: Running, weights: Array | None) -> Any:
    if missing not in ("raise", "mean"):
        raise InvalidInputError(f"missing={missing!r}; expected 'raise' or 'mean'")
    accumulator: Any = Scatter() if missing == "raise" else MeanImputedScatter()
    n, p = matrix.shape
    spec = pass_spec("scatter", matrix, 0, {"s": accumulator}, flops=float(n) * p**2)
    solve = {"covariances": 3 * matrix.shape[1] ** 2 * 8}
    candidate: Candidate[PassResult] = Candidate("scatter", "one pass", (spec,), solve)
    candidates = [candidate.weighted(weights)]
    planned = choose(matrix, "covariance", candidates, running.memory_limit)
    return execute(planned, running).answer["s"]


def _labelled(values: Array, matrix: ChunkedMatrix, name: str) -> Any:
    features = matrix.labels.features
    if not features.named:
        return values
    from streampca.sources.labelled.to_xarray import to_dataarray

    names = label_array(features.names())
    axes = [
        AxisLabels(("feature",), (len(names),), {"feature": names}),
        AxisLabels(("feature_",), (len(names),), {"feature_": names}),
    ]
    return to_dataarray(values, axes, name, {})


def pca_from_covariance(model: Any, S: Any, mean: Any, n: int | None, names: Any) -> Any:
    """Fit ``model`` from a covariance or correlation matrix (see ``PCA.from_covariance``)."""
    matrix, center, names = checked_covariance(S, mean, names)
    p, largest = len(matrix), np.abs(matrix).max()
    check_n_components(model.n_components, p, p)
    with single_threaded_blas():
        spectrum = eigh_lower(matrix)
        residual = residual_norms(matrix, spectrum)
    negative = float(np.sum(spectrum.values)) - spectrum.total  # which are 0 in the values
    if negative > 1e-8 * largest * p:
        raise InvalidInputError("S has a negative eigenvalue; expected a covariance matrix")
    rank = numerical_rank(spectrum.values, p)
    request = Request(n_components=model.n_components)
    k, gap = count_components(request, spectrum.values, spectrum, n, p, rank)
    if model.n_components == "gap" and gap is None:
        warn_caller(NO_GAP, NoGapWarning)
    kept = spectrum.head(k)
    floor = float(np.finfo(np.float64).eps * spectrum.values[0])
    orientation = signs_of_components(kept.vectors)
    result = PrincipalComponents(
        method="PCA from covariance",
        explained_variance=kept.values,
        total_variance=spectrum.total,
        mean=center,
        n_samples=n or 0,
        ddof=1 if n else 0,
        rank=rank,
        components=np.ascontiguousarray((kept.vectors * orientation).T),
        spectrum=spectrum.values,
        labels=Labels.plain((0, p), None if names is None else list(names)),
        certificate=certify(residual[:k], kept, floor, 1.0, 0, rank),
        weight=float(n) if n else float("nan"),
        settings={"n_components": model.n_components},
        total_squares=spectrum.squares,
        rest_cubes=kept.rest_cubes,
    )
    model.gap_ = gap
    return attach(model, result)


def checked_covariance(S: Any, mean: Any, names: Any) -> tuple[Array, Array, Any]:
    """(S as a new (p, p) float64 array, the mean (p,), names of the features or None).

    Raises InvalidInputError if its entries cannot be those of a covariance matrix.
    """
    names = _names(S) if names is None else names
    for name, one in (("S", S), ("mean", mean)):
        refuse_masked(one, name)
    values = np.asarray(_rows_in_order(S))
    refuse_complex(values.dtype, "S")
    matrix = np.array(values, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise InvalidInputError(f"S has shape {matrix.shape}; expected a square matrix")
    if not np.isfinite(matrix).all():
        raise InvalidInputError("S contains NaN or infinity; expected a covariance matrix")
    if np.abs(matrix - matrix.T).max() > 1e-8 * np.abs(matrix).max():
        raise InvalidInputError("S is not symmetric; expected a covariance matrix, (S + S.T) / 2")
    features = AxisLabels.plain("feature", len(matrix), None if names is None else list(names))
    center = np.zeros(len(matrix)) if mean is None else along(mean, features, "mean")
    return matrix, center.astype(np.float64), names


def _rows_in_order(S: Any) -> Any:
    """S with its rows in the order of its columns, where both have names."""
    if hasattr(S, "columns") and hasattr(S, "index"):
        return S.iloc[match(S.columns, S.index, "the index of S")]
    dims = [dim for dim in getattr(S, "dims", ()) if dim in S.coords]
    if len(dims) < 2 or S.ndim != 2:
        return S
    return S[match(S.coords[dims[1]], S.coords[dims[0]], f"S along {dims[0]!r}")]


def _names(S: Any) -> Any:
    """The names of the rows of a data frame or labelled array, or None."""
    if (dims := getattr(S, "dims", None)) is None:
        return getattr(S, "columns", None)
    return S.coords[dims[0]].values if dims[0] in S.coords else None
