"""Weights of samples: how often each counts, or how much compared with the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array


def relative_weights(values: Any) -> RelativeWeights:
    """Weights that only compare samples, for any ``sample_weight``: probabilities, precisions.

    A plain ``sample_weight`` says how often each row counts: a weight of 2 is the row twice, and
    the sum plays the part of n in variances, tests and criteria. These are scaled to sum to the
    effective number of samples, (sum w)^2 / sum w^2, so that their unit does not count: equal ones
    are no weights, and a few large ones leave few degrees of freedom.

    values : (n,) finite and not negative: what ``sample_weight`` takes, a name of a column too.
        ``IncrementalPCA.partial_fit`` refuses them, since it does not know the other batches.

    Source: Kish 1965, "Survey Sampling", section 11.7.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, relative_weights
    >>> X = np.random.default_rng(0).normal(size=(30, 4))
    >>> equal = PCA(2).fit(X, sample_weight=relative_weights(np.full(30, 0.1)))
    >>> bool(np.allclose(equal.explained_variance_, PCA(2).fit(X).explained_variance_))
    True
    """
    return RelativeWeights(values)


@dataclass(frozen=True, eq=False)
class RelativeWeights:
    """Weights by :func:`relative_weights`: they select like an array, for cross-validation."""

    values: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """(n,)."""
        return np.shape(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> RelativeWeights:
        return RelativeWeights(np.asarray(self.values)[rows])


def split(weights: Any) -> tuple[Any, bool]:
    """(the values, whether they are relative) of a ``sample_weight``."""
    if isinstance(weights, RelativeWeights):
        return weights.values, True
    return weights, False


def refuse_relative(weights: Any) -> None:
    """Refuse relative weights of one batch of several. Raises InvalidInputError.

    Plain ones, multiplied by sum(w) / sum(w^2) over all rows, are what they would be.
    """
    if split(weights)[1]:
        raise InvalidInputError(
            "partial_fit with relative_weights: they compare the rows of one fit, and those of "
            "other batches are not known. Scale the weights of all batches by one number, "
            "sample_weight=w * c, where c = w.sum() / (w @ w) of the weights of all rows; or "
            "fit(X, sample_weight=streampca.relative_weights(w)) to all rows at once"
        )


def of_some(weights: Any, checked: Array | None, rows: Array) -> Any:
    """The ``sample_weight`` of some rows, of the kind of that of all.  checked : (n,), or None."""
    if checked is None:
        return None
    return RelativeWeights(checked[rows]) if split(weights)[1] else checked[rows]


def as_counts(weights: Array) -> Array:
    """(n,) relative weights, scaled to sum to the effective number of samples."""
    unit = weights / weights.max()
    return np.asarray(unit * (unit.sum() / (unit @ unit)))


def refuse_few(weights: Array | None, least: float, why: str) -> None:
    """Refuse weights that count too few rows.  least : that the sum must exceed.

    Raises InvalidInputError.
    """
    if weights is not None and (total := float(weights.sum())) <= least:
        raise InvalidInputError(
            f"sample_weight sums to {total:g} and leaves no degree of freedom; expected more than "
            f"{least:g} ({why}), since it says how often each row counts. Weights that only "
            "compare rows, such as probabilities: sample_weight=streampca.relative_weights(w)"
        )
