"""What a picture draws: a model, its components by number, and scores of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError, not_fitted
from streampca.report.presentation import Presentable, Presentation

Array = np.ndarray[Any, Any]
VIEWS = ("x", "y")
COMPLEX = "these scores are complex; draw plots.pcs(model) or plots.map(model, kind='phase')"


def presented(source: Any, view: str | None = None) -> Presentation:
    """What there is to show of a result, a fitted estimator or patterns.

    view : "x" or "y" of a model of two views; None takes both, X first.
    Raises NotFittedError, InvalidInputError, InvalidTypeError.
    """
    if isinstance(source, type):
        raise InvalidTypeError(
            f"got the class {source.__name__}; expected a fitted estimator or a Decomposition: "
            "PCA().fit(X)"
        )
    name = type(source).__name__
    result = getattr(source, "result_", source)
    if isinstance(result, Presentable):
        return _of_view(result.presentation(), view)
    if hasattr(source, "fit"):
        raise not_fitted(name)
    if hasattr(source, "picture"):
        raise InvalidTypeError(f"this picture shows no {name}; draw plots.{source.picture}(found)")
    raise InvalidTypeError(
        f"got {name}; expected a fitted estimator or a Decomposition: PCA().fit(X)"
    )


def _of_view(shown: Presentation, view: str | None) -> Presentation:
    if view is None:
        return shown
    if shown.other is None:
        raise InvalidInputError(f"view={view!r}: a {shown.method} has one view; leave it out")
    if view not in VIEWS:
        raise InvalidInputError(f"view={view!r}; expected 'x' or 'y'")
    return shown.other if view == "y" else replace(shown, other=None)


def is_model(source: Any) -> bool:
    """Whether ``presented`` applies, if only to refuse it: to anything but numbers."""
    return any(hasattr(source, one) for one in ("fit", "presentation", "picture"))


def refuse_other(found: Any, picture: str, made_by: str) -> None:
    """Refuse what this picture does not show.  made_by : the call that returns what it does.

    Raises InvalidTypeError.
    """
    if getattr(found, "picture", None) != picture:
        raise InvalidTypeError(f"got a {type(found).__name__}; expected what {made_by} returns")


def certain_of(shown: Presentation, certainty: Any) -> Any:
    """What says how sure the sample makes these components; None where nothing was handed over.

    Raises InvalidTypeError for anything else, InvalidInputError where it is of another model.
    """
    if certainty is None:
        return None
    values = getattr(getattr(certainty, "variances", None), "values", None)
    if values is None or not hasattr(certainty, "component_errors"):
        raise InvalidTypeError(
            f"certainty is a {type(certainty).__name__}; expected what streampca.bootstrap(model, "
            "X), jackknife or sampling_errors returns"
        )
    if shown.variances is None or not np.array_equal(values, shown.variances[: len(values)]):
        raise InvalidInputError("certainty is of another model than the picture")
    return certainty


def component_errors(shown: Presentation, certainty: Any, indices: list[int]) -> Array:
    """(len(indices), p) standard errors of components. Raises as :func:`certain_of`."""
    sure, last = certain_of(shown, certainty), max(indices) + 1
    if last > sure.n_components:
        raise InvalidInputError(
            f"certainty is of {sure.n_components} components, and the picture of component {last}: "
            f"streampca.bootstrap(model, X, n_components={last})"
        )
    return np.asarray(sure.component_errors(indices))


# Components, which are numbered from 1, and counts.


def component_index(number: Any, shown: Presentation) -> int:
    """Index from 0 of a component that is numbered from 1. Raises InvalidInputError."""
    k = shown.n_components
    have = "1 component" if k == 1 else f"components 1 to {k}"
    if not _is_count(number):
        raise InvalidInputError(f"component={number!r}; expected a whole number from 1")
    if number < 1:
        raise InvalidInputError(
            f"component={number}; components are numbered from 1, and the result has {have}"
        )
    if number > k:
        raise InvalidInputError(
            f"component={number} is not there; the result has {have}. "
            f"Fit again with n_components={number}, or choose another."
        )
    return int(number) - 1


def plane_of(components: Sequence[int], shown: Presentation, most: int = 2) -> list[int]:
    """Indices of two different components, or of up to ``most``. Raises InvalidInputError."""
    wanted = {2: "two", 3: "two or three"}.get(most, f"2 to {most}")
    if isinstance(components, str) or not hasattr(components, "__len__"):
        raise InvalidTypeError(f"components={components!r}; expected {wanted} numbers: (1, 2)")
    if not 2 <= len(components) <= most or len(set(components)) != len(components):
        raise InvalidInputError(
            f"components={tuple(components)}; expected {wanted} different numbers: (1, 2)"
        )
    return [component_index(number, shown) for number in components]


def indices_of(numbers: int | Sequence[int], shown: Presentation) -> list[int]:
    """Indices of one component or several. Raises InvalidInputError."""
    each = np.atleast_1d(np.asarray(numbers)).tolist()
    return [component_index(number, shown) for number in each]


def at_most(n: Any, available: int, what: str) -> int:
    """The smaller of n and what is available. Raises InvalidInputError."""
    if not _is_count(n) or n < 1:
        raise InvalidInputError(f"n={n!r}; expected how many {what} to show, 1 or more")
    return min(int(n), available)


def _is_count(number: Any) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool)


# Scores of samples.


def scores_of(shown: Presentation, scores: Any = None, name: str = "scores") -> Any:
    """Scores as an object of shape (..., k) whose columns can be taken one by one: these, or those
    that the fit kept.

    name : of the argument, for messages. Raises InvalidInputError, InvalidTypeError.
    """
    made = shown.makes_scores
    if scores is None:
        if not made:
            raise InvalidInputError(
                f"a {shown.method} has no single scores to draw; draw {shown.pictures}"
            )
        if shown.scores is not None:
            return shown.scores
        if not made.startswith("scores="):
            raise InvalidInputError(f"these modes have no scores. Make them so: {made}")
        raise InvalidInputError(
            "this fit keeps no scores (it streamed the samples). Pass them: "
            f"streampca.plots.scores(model, {made}); on the command line fit and plot have "
            "--scores FILE"
        )
    scores = shown.arrange(scores)
    if hasattr(scores, "columns") and hasattr(scores, "to_numpy"):
        scores = scores.to_numpy()
    elif not hasattr(scores, "shape"):
        scores = np.asarray(scores)
    shape = scores.shape
    if len(shape) < 2 or shape[-1] != shown.n_components:
        raise InvalidInputError(
            f"{name} has shape {tuple(shape)}; expected (n, {shown.n_components}), one column per "
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


def scores_of_views(shown: Presentation, scores: Any) -> list[Any]:
    """Scores of all that is shown: of one view, or of X and of Y. Raises InvalidInputError."""
    if shown.other is None:
        return [scores_of(shown, scores)]
    if scores is None:
        return [scores_of(shown), scores_of(shown.other)]
    if not isinstance(scores, (tuple, list)) or len(scores) != 2:
        raise InvalidInputError(
            "scores of a model of two views are those of X and of Y: scores=model.transform(X, Y); "
            "or draw one of them, view='x'"
        )
    found = [scores_of(shown, scores[0]), scores_of(shown.other, scores[1])]
    if found[0].shape != found[1].shape:
        raise InvalidInputError(
            f"scores of X have shape {found[0].shape} and those of Y {found[1].shape}; expected "
            "the same samples"
        )
    return found


def column_of(scores: Any, index: int) -> Array:
    """One component, (n,) float64; several sample dimensions are flattened."""
    if np.iscomplexobj(scores):
        raise InvalidInputError(COMPLEX)
    return np.asarray(scores[..., index], dtype=np.float64).ravel()


def points_of(sources: Sequence[Any], indices: Sequence[int]) -> Array:
    """(d, n) the components of all sources, one after the other."""
    return np.stack([column_of(source, index) for source in sources for index in indices])


def count_of(scores: Any) -> int:
    """n, of scores (..., k)."""
    return int(np.prod(scores.shape[:-1]))
