"""Warnings about a completion, each given once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streampca.errors import (
    AccuracyWarning,
    DroppedFeaturesWarning,
    convergence_warning,
    shorten,
    warn_caller,
)
from streampca.kernels import Array, row_pieces
from streampca.matrix import ChunkedMatrix
from streampca.models.completion.filled import PIECE_NBYTES, Completed
from streampca.models.completion.request import CompletionRequest

LEVEL = 3  # stack level of the caller of fit


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
