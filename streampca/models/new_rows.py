"""New rows made what the rows of a fit were: the steps of preprocessing that they lack."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streampca.errors import InvalidInputError, PreprocessingWarning
from streampca.kernels import Array
from streampca.matrix import RAW, ChosenFeatures, ChunkedMatrix, Preprocessing
from streampca.models.line_sums import row_sums, row_sums_in_memory
from streampca.sources import open


def prepared(
    matrix: ChunkedMatrix, fitted: Preprocessing, n_features: int | None = None, **running: Any
) -> ChunkedMatrix:
    """The matrix after those steps of a fit that it has not had, lazily.

    A matrix that remembers no step is raw. Of raw rows that hold the chosen features alone nothing
    has to be chosen.
    n_features : of the model.  running : memory_limit, scheduler, progress of passes that steps
        take.
    Raises InvalidInputError where the matrix had other steps, or the same with other numbers: its
    rows would not be comparable with those of the fit. Warns (PreprocessingWarning) where nothing
    is known of the fit.
    """
    done = matrix.preprocessing
    left = steps_left(done, fitted, matrix.shape[1], n_features)
    return left.apply(matrix, SumsByPass(running))


def steps_left(
    done: Preprocessing, fitted: Preprocessing, width: int, n_features: int | None = None
) -> Preprocessing:
    """What is to be done to rows of this width that have had ``done``; see :func:`prepared`."""
    left = fitted.after(done)
    if left is None and fitted:
        same = str(done) == str(fitted)
        how = "with numbers of its own" if same else f"in the fit: {fitted}"
        raise InvalidInputError(
            f"X was preprocessed otherwise than the rows of the fit ({done}; {how}), and the two "
            "are not comparable. Give the raw rows, model.transform(X): the fitted steps are "
            "applied to them. Or fit once and apply that to both, for example weighting = "
            "LogEntropy().fit(documents); weighting.transform(X)"
        )
    if left is None:
        if done.fitted:
            warnings.warn(
                f"X was preprocessed ({done}), and nothing is known of how the rows of this fit "
                "were: weights that X gave itself are not those of the fit. Fit the model to what "
                "streampca.preprocess gives, and pass raw rows",
                PreprocessingWarning,
                stacklevel=5,  # whoever called transform
            )
        return RAW
    narrow = width == n_features and width != left.width
    chosen = all(isinstance(step, ChosenFeatures) for step in left.steps)
    return RAW if narrow and chosen else left


@dataclass(frozen=True)
class SumsByPass:
    """Sums of rows, or of their squares, each by one pass; those of a matrix are made once.

    running : memory_limit, scheduler, progress.
    """

    running: Mapping[str, Any]
    made: list[tuple[ChunkedMatrix, bool, Array]] = field(default_factory=list)

    def __call__(self, matrix: ChunkedMatrix, squares: bool) -> Array:
        for known, squared, sums in self.made:
            if known is matrix and squared == squares:
                return sums
        sums = row_sums(matrix, squares=squares, **self.running)
        self.made.append((matrix, squares, sums))
        return sums


@dataclass(frozen=True)
class OfPrepared:
    """A function of rows in memory, applied to them after the steps of a fit."""

    function: Callable[..., Any]
    steps: Preprocessing
    missing_value: float | None

    def __call__(self, values: Any, *sides: Any) -> Any:
        matrix = open(values, missing_value=self.missing_value)
        made = self.steps.apply(matrix, row_sums_in_memory)
        return self.function(made.read(0, 0, made.shape[0]), *sides)
