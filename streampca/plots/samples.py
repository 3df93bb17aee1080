"""The scores of samples that a picture draws: those of the fit, or given ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.plots.subjects import VIEWS, Subject, result_of

COMPLEX = "these scores are complex; draw plots.pcs(modes) or plots.map(modes, kind='phase')"


def has_scores(found: Any) -> Any:
    """The found, if such a model has scores, and real ones. Raises InvalidInputError."""
    if np.iscomplexobj(found.scores):
        raise InvalidInputError(COMPLEX)
    return found


def scores_of(found: Any, scores: Any, name: str = "scores") -> Any:
    """The scores as an object of shape (..., k) whose columns can be taken one by one.

    name : of the argument, for messages.
    """
    if scores is None:
        if found.scores is None:
            given = "scores=model.transform(X)"
            given = found.scores_from if isinstance(found, Subject) else given
            if not given.startswith("scores="):
                raise InvalidInputError(f"these modes have no scores. Make them so: {given}")
            raise InvalidInputError(
                "this fit keeps no scores (it streamed the samples). Pass them: "
                f"streampca.plots.scores(model, {given}); on the command line fit and plot have "
                "--scores FILE"
            )
        return found.scores
    if not isinstance(found, Subject):
        scores = found.given_scores(scores)
    if hasattr(scores, "columns") and hasattr(scores, "to_numpy"):
        scores = scores.to_numpy()
    elif not hasattr(scores, "shape"):
        scores = np.asarray(scores)
    shape = scores.shape
    if len(shape) < 2 or shape[-1] != found.n_components:
        raise InvalidInputError(
            f"{name} has shape {tuple(shape)}; expected (n, {found.n_components}), one column per "
            f"component: {name}=model.transform(X)"
        )
    if any(length != length for length in shape):  # NaN: Dask has not counted the rows
        raise InvalidInputError(
            f"{name} has an unknown number of rows; expected a known one: "
            f"{name}.compute_chunk_sizes()"
        )
    if np.dtype(scores.dtype).kind not in "iufc":
        raise InvalidTypeError(f"{name} has dtype {scores.dtype}; expected numbers")
    return scores


def column_of(source: Any, index: int) -> np.ndarray[Any, Any]:
    """One component, (n,) float64; several sample dimensions are flattened."""
    if np.iscomplexobj(source):
        raise InvalidInputError(COMPLEX)
    return np.asarray(source[..., index], dtype=np.float64).ravel()


def both_scores(model: Any, scores: Any) -> list[Any]:
    """Scores of X and of Y, as objects whose columns can be taken one by one."""
    if scores is None:
        return [scores_of(result_of(model, one), None) for one in VIEWS]
    if not isinstance(scores, (tuple, list)) or len(scores) != 2:
        raise InvalidInputError(
            "scores of a model of two views are those of X and of Y: scores=model.transform(X, Y); "
            "or draw one of them, view='x'"
        )
    found = [scores_of(result_of(model, v), one) for v, one in zip(VIEWS, scores, strict=True)]
    if found[0].shape != found[1].shape:
        raise InvalidInputError(
            f"scores of X have shape {found[0].shape} and those of Y {found[1].shape}; expected "
            "the same samples"
        )
    return found
