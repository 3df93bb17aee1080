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
from streampca.models.completion.far import Far, far_estimates
from streampca.models.completion.task import Task

LEVEL = 3  # of the stack: the caller of fit


def tell(done: Completed, matrix: ChunkedMatrix, task: Task) -> None:
    """Warn of columns without observations, of what has not converged, and of far estimates."""
    if len(dropped := np.flatnonzero(done.stats.count == 0)):
        value = "the mean of all cells" if task.standardize.center else "0"
        names = matrix.labels.features.names(dropped[:4].tolist())
        words = (
            f"{len(dropped)} of {matrix.shape[1]} features have no observation: their loadings "
            f"are 0, and they are predicted by {value}: {shorten(names, len(dropped))}"
        )
        warnings.warn(words, DroppedFeaturesWarning, stacklevel=LEVEL)
    if not done.converged:
        change = done.trace[-1].change[done.chosen]
        words = (
            f"not converged after max_passes={task.max_passes}: the last sweep changed the "
            f"estimate by {change:.2g} of its norm (tol={task.tol:g}). Go on with "
            "init=<this model>, or allow more passes."
        )
        warnings.warn(words, ConvergenceWarning, stacklevel=LEVEL)
    if done.effects is not None and done.effects.changes[-1] > task.tol:
        turns = done.effects.changes
        words = (
            f"means of rows and columns not converged in {len(turns)} turns: the last one moved "
            f"them by {turns[-1]:.2g} of what they leave (tol={task.tol:g}). Allow more: "
            f"max_passes={2 * task.max_passes}."
        )
        warnings.warn(words, ConvergenceWarning, stacklevel=LEVEL)
    if (far := far_estimates(done)) is not None:
        warnings.warn(_far_words(far, task, done.chosen), AccuracyWarning, stacklevel=LEVEL)


def _far_words(far: Far, task: Task, chosen: int) -> str:
    rank, penalty = task.ranks[chosen], "lambda_" if task.soft else "ridge"
    more = f"a larger {penalty}=, for example {penalty}={task.ridges[chosen] * 10 or 1.0:g}"
    if not task.soft and task.solver != "als":
        more = "ridge=1.0 with solver='als', SoftImpute(lambda_=)"
    lower = f", or a lower rank than {rank}" if rank > 1 else ""
    return (
        f"{far.rows} rows and {far.columns} columns are estimated beyond anything observed: their "
        f"values are up to {far.ratio:.3g} times the largest observed one. Too few cells determine "
        f"them: use {more}{lower}; validation=0.05 shows what predicts best."
    )
