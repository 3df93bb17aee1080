"""Explicit features of rows, for methods that are linear in them: functions, random Fourier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, FourierFeatures, MappedMatrix, RowFunction
from streampca.matrix.mapped import FOURIER, names_of
from streampca.models.contract.request import seed_of, whole_number
from streampca.sources import as_matrix, counted


def map_features(
    X: Any, function: Callable[[Array], Any], n_features: int, *, dim: Any = None
) -> ChunkedMatrix:
    """The features that a function makes of the rows of X, lazily: a matrix for any method.

    X : (n, p), anything that ``streampca.open`` takes.  dim : as there.
    function : of whole rows, a dense float32 or float64 array (m, p) with NaN for missing cells;
        gives (m, n_features) real numbers. It is called for each block that is read, in any order
        and in several threads, and on workers of a cluster. A row's features are its own: they
        depend on no other row.
    n_features : columns that it gives.

    A model that is fitted to this applies the function to raw new rows too. A saved model knows
    the function by its name alone: load it and give rows that are mapped, as here.
    PCA of (f1, f2, f1 f2, f1^2, f2^2), say, is a kernel PCA without a kernel matrix, for any n. ::

        quadratic = lambda x: numpy.hstack([x, x**2])
        PCA(2).fit(streampca.map_features(X, quadratic, 4))

    Cost: nothing here; in a pass, one call for each block. Rows must be stored so that some can be
    read without all (``streampca convert`` a matrix in chunks of features first).
    Raises InvalidInputError; of a function that gives another shape, when the first block is read.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca
    >>> X = np.random.default_rng(0).standard_normal((30, 2))
    >>> matrix = streampca.map_features(X, lambda rows: np.hstack([rows, rows**2]), 4)
    >>> streampca.PCA(2).fit(matrix).components_.shape
    (2, 4)
    """
    if not callable(function):
        raise InvalidInputError(f"function={function!r:.80}; expected a function of rows (m, p)")
    matrix = as_matrix(counted(X), dim=dim)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    name = f"{getattr(function, '__module__', '')}.{name}"
    count, names = whole_number("n_features", n_features), names_of(matrix.labels.features)
    return MappedMatrix(matrix, RowFunction(name, matrix.shape[1], count, names, function))


def random_fourier(
    X: Any,
    n_features: int,
    *,
    kernel: str = "rbf",
    gamma: float | None = None,
    random_state: Any = 0,
    dim: Any = None,
) -> ChunkedMatrix:
    """Random Fourier features of the rows of X, lazily: a matrix for any method.

    X : (n, p), anything that ``streampca.open`` takes.  dim : as there.
    n_features : even; half of them are cosines, half sines, of the same random phases.
    kernel : that their products approximate: "rbf", exp(-gamma |x - y|^2), or "laplacian",
        exp(-gamma |x - y|_1).  gamma : None is 1 / p.

    A product of two rows is the kernel, on average over seeds, with a standard deviation of at most
    1 / sqrt(n_features); of a row with itself it is 1. The frequencies follow from the seed:
    a model that is fitted to this holds no more of them than the seed, and maps raw new rows alike.
    Cost: nothing here; in a pass, n p n_features flops, and n n_features cosines and sines. PCA of
    D of them is one pass and a D x D scatter. More than 32 MiB of frequencies are drawn again for
    every block, about 20 ns each.
    Raises InvalidInputError; NonFiniteError where a missing cell is read.
    Source: Rahimi and Recht 2007, NeurIPS 20, section 3; the paired form, whose variance is less
    for rbf, Sutherland and Schneider 2015, UAI, section 2.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca
    >>> X = np.random.default_rng(0).standard_normal((30, 2))
    >>> features = streampca.random_fourier(X, 1000, gamma=0.5)
    >>> streampca.PCA(2).fit(features).transform(X).shape
    (30, 2)
    """
    if kernel not in FOURIER:
        raise InvalidInputError(f"kernel={kernel!r}; expected one of {FOURIER}")
    matrix = as_matrix(counted(X), dim=dim)
    count, p = whole_number("n_features", n_features), matrix.shape[1]
    if count % 2:
        raise InvalidInputError(
            f"n_features={count}; expected an even number, half cosines and half sines"
        )
    width = 1.0 / p if gamma is None else gamma
    if not isinstance(width, (int, float, np.floating, np.integer)) or not 0 < width < np.inf:
        raise InvalidInputError(f"gamma={gamma!r}; expected a positive number, or None for 1 / p")
    seed = seed_of(random_state) % 2**63
    names = names_of(matrix.labels.features)
    return MappedMatrix(matrix, FourierFeatures(kernel, float(width), p, count, seed, names))
