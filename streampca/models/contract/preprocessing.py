"""Preprocessing of count matrices: totals, logarithms, term weights. Lazy, block by block.

Each class is fitted to some rows and then applied to these or others; sparse stays sparse. What it
gives is a matrix that every method takes, and that remembers the fitted steps: a model fitted to it
keeps them, saves them, and applies them to raw new rows. The functions fit and apply at once.
"""

from __future__ import annotations

import numbers
import os
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from streampca.errors import InvalidInputError, SourceError, not_fitted, warn_caller
from streampca.kernels import Array
from streampca.matrix import (
    ChosenFeatures,
    ChunkedMatrix,
    FeatureWeights,
    Logarithm,
    Preprocessing,
    RowLengths,
    RowTotals,
)
from streampca.matrix.derived import DerivedMatrix, Function, MatrixView
from streampca.matrix.kinds import is_sparse
from streampca.matrix.preprocessing import RowSums
from streampca.models.contract.parameters import Parameters
from streampca.models.rows.line_sums import column_stats, totals
from streampca.models.rows.new_rows import SumsByPass, prepared
from streampca.passes import PassCost, Running
from streampca.sources import as_matrix
from streampca.store import read_bundle, understood, write_bundle

LIMITS = ("memory_limit", "scheduler", "progress")  # of passes, which no result depends on


class Preprocessor(Parameters):
    """A step fitted to some rows and applied to any: ``fit``, ``transform``, ``save``, ``load``.

    memory_limit, scheduler, progress : of the passes, as :class:`streampca.PCA` takes them.

    After ``fit`` ``preprocessing_`` holds the steps, those of X before it included, and ``cost_``
    what the passes took. In a scikit-learn pipeline it stands before the model.
    """

    memory_limit: int | str | None
    scheduler: Any
    progress: Any
    preprocessing_: Preprocessing
    cost_: list[PassCost]
    n_features_in_: int
    classes: ClassVar[dict[str, type[Preprocessor]]] = {}

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.classes[cls.__name__] = cls

    @abstractmethod
    def _steps(self, matrix: ChunkedMatrix, row_sums: RowSums) -> Preprocessing:
        """The steps fitted to these rows."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the numbers in X, (n, p): anything that ``streampca.open`` takes."""
        self.cost_ = []
        self._fit(as_matrix(X), SumsByPass(self._running, costs=self.cost_))
        return self

    def _fit(self, matrix: ChunkedMatrix, row_sums: RowSums) -> Preprocessing:
        """Fit to these rows; the steps that they lack."""
        steps = self._steps(matrix, row_sums)
        self.n_features_in_ = matrix.shape[1]
        self.preprocessing_ = matrix.preprocessing.then(*steps.steps)
        return steps

    def transform(self, X: Any) -> ChunkedMatrix:
        """X with the fitted numbers, lazily: X may be other rows than those of the fit.

        Raises InvalidInputError where X has other features, or was preprocessed otherwise.
        """
        if not self.__sklearn_is_fitted__():
            raise not_fitted(type(self).__name__)
        return prepared(as_matrix(X), self.preprocessing_, running=self._running)

    def fit_transform(self, X: Any, y: Any = None) -> ChunkedMatrix:
        """Fit to X, and X with what was found, lazily; no sum of its rows is made twice."""
        self.cost_ = []
        matrix, row_sums = as_matrix(X), SumsByPass(self._running, costs=self.cost_)
        return self._fit(matrix, row_sums).apply(matrix, row_sums)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write parameters and fitted numbers to a directory, checksummed."""
        if not self.__sklearn_is_fitted__():
            raise not_fitted(type(self).__name__)
        arrays, steps = self.preprocessing_.to_saved()
        kept = {name: v for name, v in self.get_params().items() if name not in LIMITS}
        document = {"kind": "preprocessor", "class": type(self).__name__, "params": kept}
        return write_bundle(path, arrays, document | {"steps": steps, "p": self.n_features_in_})

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Preprocessor:
        """The fitted preprocessor that ``save`` wrote. Raises SourceError.

        Examples
        --------
        >>> path = streampca.preprocess.Log1p().fit(np.ones((3, 2))).save("log1p")
        >>> streampca.preprocess.load(path)
        Log1p()
        """
        arrays, document = read_bundle(path)
        found = Preprocessor.classes.get(str(document.get("class")))
        if document.get("kind") != "preprocessor" or found is None:
            raise SourceError(f"{path} is not a saved preprocessor")
        with understood(str(path)):
            kept = {name: v for name, v in document["params"].items() if name not in LIMITS}
            made = found(**kept)
            made.preprocessing_ = Preprocessing.from_saved(document["steps"], arrays)
            made.n_features_in_ = int(document["p"])
        return made

    @property
    def _running(self) -> Running:
        """How its passes run."""
        return Running(self.memory_limit, self.scheduler, self.progress)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "preprocessing_")

    @property
    def _weights(self) -> Array:
        if not self.__sklearn_is_fitted__():
            raise not_fitted(type(self).__name__)
        return next(
            step.weights
            for step in self.preprocessing_.steps[::-1]
            if isinstance(step, FeatureWeights)
        )


class NormalizeTotal(Preprocessor):
    """Every row times target_sum / its sum, as scanpy's ``normalize_total``. Rows of zeros stay.

    target_sum : None takes the median of the sums that are not 0. That depends on the rows of the
        fit: new rows get the same total. A number depends on none, and ``fit`` then reads nothing.

    Cost: one pass for the sums of the rows in ``transform`` and ``fit_transform``; in ``fit`` one
    where target_sum is None.

    Examples
    --------
    >>> cells = np.array([[1.0, 3.0], [2.0, 2.0], [4.0, 4.0]])
    >>> shares = streampca.preprocess.NormalizeTotal(target_sum=100).fit_transform(cells)
    >>> streampca.PCA(1).fit(shares).mean_.round(1)
    array([41.7, 58.3])
    """

    def __init__(
        self,
        target_sum: float | None = None,
        *,
        memory_limit: int | str | None = None,
        scheduler: Any = None,
        progress: Any = None,
    ) -> None:
        self.target_sum = target_sum
        self.memory_limit = memory_limit
        self.scheduler = scheduler
        self.progress = progress

    def _steps(self, matrix: ChunkedMatrix, row_sums: RowSums) -> Preprocessing:
        target = self.target_sum
        number = isinstance(target, numbers.Real) and not isinstance(target, bool)
        if target is not None and not (number and 0 < float(target) < np.inf):
            raise InvalidInputError(f"target_sum={target!r}; expected a positive number, or None")
        if target is not None:
            return Preprocessing((RowTotals(float(target)),))
        sums = row_sums(matrix, False)
        counted = sums[sums > 0]
        median = float(np.median(counted)) if counted.size else 1.0
        return Preprocessing((RowTotals(median, from_rows=True),))


class Log1p(Preprocessor):
    """log(1 + x) of every cell, to that base (e). It depends on no row.

    Cost: no pass. Raises InvalidInputError when a block with a value below 0 is read.

    Examples
    --------
    >>> logs = streampca.preprocess.Log1p(base=2).fit_transform(np.array([[0.0, 1.0], [1.0, 7.0]]))
    >>> streampca.PCA(1).fit(logs).mean_
    array([0.5, 2. ])
    """

    def __init__(
        self,
        base: float | None = None,
        *,
        memory_limit: int | str | None = None,
        scheduler: Any = None,
        progress: Any = None,
    ) -> None:
        self.base = base
        self.memory_limit = memory_limit
        self.scheduler = scheduler
        self.progress = progress

    def _steps(self, matrix: ChunkedMatrix, row_sums: RowSums) -> Preprocessing:
        if self.base is not None and not (self.base > 0 and self.base != 1):
            raise InvalidInputError(
                f"base={self.base!r}; expected a positive number, or None for e"
            )
        return Preprocessing(
            (Logarithm(1.0 if self.base is None else 1.0 / float(np.log(self.base))),)
        )


class TermWeights(Preprocessor):
    """Weights of terms, from sums over the documents of the fit."""

    @abstractmethod
    def summed(self, matrix: ChunkedMatrix) -> list[tuple[str, ChunkedMatrix]]:
        """(name of a pass, matrix whose columns it sums), once this can be fitted to the matrix."""

    @abstractmethod
    def steps_of(self, n: int, *sums: Array) -> Preprocessing:
        """The steps for n documents, from these sums, (p,) each."""

    def _steps(self, matrix: ChunkedMatrix, row_sums: RowSums) -> Preprocessing:
        running = (self._running, self.cost_)
        sums = [totals(column_stats(one, name, *running)) for name, one in self.summed(matrix)]
        return self.steps_of(matrix.shape[0], *sums)


class TfIdf(TermWeights):
    """Counts of terms times log inverse document frequency, as scikit-learn's TfidfTransformer.

    idf_ : (p,) log((1 + n) / (1 + df)) + 1 of the documents of the fit; without ``smooth`` no 1 is
        added to the counts.  norm : "l2" gives documents length 1, which depends on no other
        document; None leaves them.

    Cost: one pass in ``fit`` for the document frequencies, one in ``transform`` for the lengths.

    Examples
    --------
    >>> counts = np.array([[1.0, 0.0], [1.0, 2.0]])
    >>> streampca.preprocess.TfIdf().fit(counts).idf_.round(3)
    array([1.   , 1.405])
    """

    def __init__(
        self,
        *,
        smooth: bool = True,
        norm: str | None = "l2",
        memory_limit: int | str | None = None,
        scheduler: Any = None,
        progress: Any = None,
    ) -> None:
        self.smooth = smooth
        self.norm = norm
        self.memory_limit = memory_limit
        self.scheduler = scheduler
        self.progress = progress

    @property
    def idf_(self) -> Array:
        """(p,) weights of the terms."""
        return self._weights

    def summed(self, matrix: ChunkedMatrix) -> list[tuple[str, ChunkedMatrix]]:
        if self.norm not in ("l2", None):
            raise InvalidInputError(f"norm={self.norm!r}; expected 'l2' or None")
        return [("document frequencies", DerivedMatrix(matrix, Function("sign")))]

    def steps_of(self, n: int, *sums: Array) -> Preprocessing:
        documents = np.rint(sums[0])
        with np.errstate(divide="ignore"):
            weight = np.log((n + self.smooth) / (documents + self.smooth)) + 1.0
        weights = FeatureWeights(np.where(np.isfinite(weight), weight, 0.0), "tf-idf")
        return Preprocessing((weights,) if self.norm is None else (weights, RowLengths()))


class LogEntropy(TermWeights):
    """log(1 + count) times the term's 1 + sum_i p_i log p_i / log n, p_i = count / its total.

    weights_ : (p,) of the terms, from the documents of the fit. Queries and later documents are
        weighted by these: weights of their own would not be comparable.

    Cost: two passes in ``fit``, none in ``transform``. Source: Dumais 1991, "Improving the
    retrieval of information from external sources", eq. 1 (entropy).

    Examples
    --------
    >>> counts = np.array([[1.0, 0.0], [1.0, 2.0]])  # a term of all documents tells nothing
    >>> streampca.preprocess.LogEntropy().fit(counts).weights_.round(3)
    array([0., 1.])
    """

    def __init__(
        self, *, memory_limit: int | str | None = None, scheduler: Any = None, progress: Any = None
    ) -> None:
        self.memory_limit = memory_limit
        self.scheduler = scheduler
        self.progress = progress

    @property
    def weights_(self) -> Array:
        """(p,) global weights of the terms, 0 for one of no document."""
        return self._weights

    def summed(self, matrix: ChunkedMatrix) -> list[tuple[str, ChunkedMatrix]]:
        if matrix.shape[0] < 2:
            raise InvalidInputError(
                "log_entropy of n_samples = 1; it needs two documents or more: log n is its divisor"
            )
        information = DerivedMatrix(matrix, Function("x log x"))
        return [("term totals", matrix), ("term entropies", information)]

    def steps_of(self, n: int, *sums: Array) -> Preprocessing:
        total, logs = sums
        safe = np.where(total > 0, total, 1.0)
        weight = 1.0 + (logs / safe - np.log(safe)) / np.log(n)
        weights = np.where(total > 0, weight, 0.0)
        return Preprocessing((Logarithm(), FeatureWeights(weights, "log-entropy")))


# -- fit and apply in one call


def normalize_total(
    X: Any,
    target_sum: float | None = None,
    *,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
) -> ChunkedMatrix:
    """X, (n, p), after :class:`NormalizeTotal`. A model of it gives raw new rows the same total.

    Cost: one pass.

    Examples
    --------
    >>> cells = np.array([[1.0, 3.0], [2.0, 2.0], [4.0, 4.0]])
    >>> streampca.PCA(1).fit(streampca.preprocess.normalize_total(cells, 100)).mean_.round(1)
    array([41.7, 58.3])
    """
    return NormalizeTotal(
        target_sum, memory_limit=memory_limit, scheduler=scheduler, progress=progress
    ).fit_transform(X)


def log1p(X: Any, base: float | None = None) -> ChunkedMatrix:
    """X, (n, p), after :class:`Log1p`. Cost: no pass.

    Examples
    --------
    >>> logs = streampca.preprocess.log1p(np.array([[0.0, 1.0], [1.0, 7.0]]), base=2)
    >>> streampca.PCA(1).fit(logs).mean_
    array([0.5, 2. ])
    """
    return Log1p(base).fit_transform(X)


def tf_idf(
    X: Any,
    *,
    smooth: bool = True,
    norm: str | None = "l2",
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
) -> ChunkedMatrix:
    """X, (documents, terms), weighted by itself: see :class:`TfIdf`. Cost: two passes.

    Of new documents do not call this: a model fitted to the result weights raw ones as its own.

    Examples
    --------
    >>> counts = np.array([[1.0, 0.0], [1.0, 2.0], [3.0, 1.0]])
    >>> streampca.TruncatedSVD(1).fit(streampca.preprocess.tf_idf(counts)).transform(counts).shape
    (3, 1)
    """
    return TfIdf(
        smooth=smooth, norm=norm, memory_limit=memory_limit, scheduler=scheduler, progress=progress
    ).fit_transform(X)


def log_entropy(
    X: Any, *, memory_limit: int | str | None = None, scheduler: Any = None, progress: Any = None
) -> ChunkedMatrix:
    """X, (documents, terms), weighted by itself: see :class:`LogEntropy`. Cost: two passes.

    Of new documents do not call this: a model fitted to the result weights raw ones as its own.

    Examples
    --------
    >>> counts = np.array([[1.0, 0.0, 1.0], [1.0, 2.0, 0.0], [1.0, 1.0, 4.0]])
    >>> svd = streampca.TruncatedSVD(1).fit(streampca.preprocess.log_entropy(counts))
    >>> svd.transform(counts).shape
    (3, 1)
    """
    return LogEntropy(
        memory_limit=memory_limit, scheduler=scheduler, progress=progress
    ).fit_transform(X)


# A look at cells that are about to be fitted.

LOOKED_AT = 64  # cells


def warn_of_counts(cells: ChunkedMatrix) -> None:
    """Warn of counts of cells that are to be fitted without logarithms. Reads a few cells."""
    kept = all(isinstance(step, (RowTotals, ChosenFeatures)) for step in cells.preprocessing.steps)
    if kept and _holds_counts(cells):
        warn_caller(
            "these cells have raw counts: the first components will be the depth of the cells and "
            "the most abundant genes. Scanpy's steps before a PCA are those of "
            "streampca.preprocess: normalize_total, log1p, highly_variable; on the command line "
            "--normalize-total --log1p --highly-variable 2000",
            UserWarning,
        )


def _holds_counts(matrix: ChunkedMatrix) -> bool:
    while isinstance(matrix, MatrixView):
        matrix = matrix.base
    first = getattr(matrix, "parts", (matrix,))[0]  # of several files
    axis = getattr(first, "stored", 0)
    values = first.read(axis, 0, min(LOOKED_AT, first.shape[axis]))
    first.restart_counts()
    cells = np.asarray(getattr(values, "data", values) if is_sparse(values) else values)
    return bool(
        cells.size and np.all(cells >= 0) and np.all(cells == np.floor(cells)) and cells.max() > 1
    )
