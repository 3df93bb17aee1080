"""What a picture accepts, checked before anything is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError, not_fitted
from streampca.models.decomposition import Decomposition


def result_of(source: Any) -> Decomposition:
    """The Decomposition itself, or that of a fitted estimator."""
    if isinstance(source, Decomposition):
        return source
    result = getattr(source, "result_", None)
    if isinstance(result, Decomposition):
        return result
    if hasattr(source, "fit") and not isinstance(source, type):
        raise not_fitted(type(source).__name__)
    raise InvalidTypeError(
        f"got {_kind(source)}; expected a fitted estimator or a Decomposition: PCA().fit(X)"
    )


def has_result(source: Any) -> bool:
    """Whether ``result_of`` is the function to ask (an unfitted estimator included)."""
    return isinstance(source, Decomposition) or hasattr(source, "fit")


def component_index(number: Any, result: Decomposition) -> int:
    """Index (from 0) of the component that people number from 1."""
    k = result.n_components
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


def at_most(n: Any, available: int, what: str) -> int:
    """n, or all that there are where those are fewer."""
    if not _is_count(n) or n < 1:
        raise InvalidInputError(f"n={n!r}; expected how many {what} to show, 1 or more")
    return min(int(n), available)


def component_name(index: int, result: Decomposition) -> str:
    """``PC1 (12.3 %)``."""
    return f"PC{index + 1} ({100 * result.explained_variance_ratio[index]:.1f} %)"


def _is_count(number: Any) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool)


def _kind(source: Any) -> str:
    return f"the class {source.__name__}" if isinstance(source, type) else type(source).__name__
