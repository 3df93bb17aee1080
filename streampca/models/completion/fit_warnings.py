"""What the user of a completion should know: warnings, each of them once."""

from __future__ import annotations

import warnings

import numpy as np

from streampca.errors import (
    AccuracyWarning,
    ConvergenceWarning,
    DroppedFeaturesWarning,
    shorten,
)
from streampca.matrix import ChunkedMatrix
from streampca.models.completion.completed import Completed
from streampca.models.completion.extrapolation import Extrapolation, find_extrapolations
from streampca.models.completion.request import CompletionRequest

LEVEL = 3  # of the stack: the caller of fit


def tell(done: Completed, matrix: ChunkedMatrix, request: CompletionRequest) -> None:
    """Warn of columns without observations, of what has not converged, and of far estimates."""
    if len(dropped := np.flatnonzero(done.stats.count == 0)):
        value = "the mean of all cells" if request.standardize.center else "0"
        names = matrix.labels.features.names(dropped[:4].tolist())
        words = (
            f"{len(dropped)} of {matrix.shape[1]} features have no observation: their loadings "
            f"are 0, and they are predicted by {value}: {shorten(names, len(dropped))}"
        )
        warnings.warn(words, DroppedFeaturesWarning, stacklevel=LEVEL)
    if not done.converged:
        change = done.trace[-1].change[done.chosen]
        words = (
            f"not converged after max_passes={request.max_passes}: the last sweep changed the "
            f"estimate by {change:.2g} of its norm (tol={request.tol:g}). Go on with "
            "init=<this model>, or allow more passes."
        )
        warnings.warn(words, ConvergenceWarning, stacklevel=LEVEL)
    if done.effects is not None and done.effects.changes[-1] > request.tol:
        turns = done.effects.changes
        words = (
            f"means of rows and columns not converged in {len(turns)} turns: the last one moved "
            f"them by {turns[-1]:.2g} of what they leave (tol={request.tol:g}). Allow more: "
            f"max_passes={2 * request.max_passes}."
        )
        warnings.warn(words, ConvergenceWarning, stacklevel=LEVEL)
    if (far := find_extrapolations(done)) is not None:
        warnings.warn(_far_words(far, request, done.chosen), AccuracyWarning, stacklevel=LEVEL)


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
