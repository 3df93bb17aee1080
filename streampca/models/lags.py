"""Extended EOFs: the rows of a matrix beside earlier and later ones, for any method."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.matrix.lagged import lagged_rows
from streampca.sources import as_matrix, counted


def lagged(X: Any, lags: Iterable[int], *, dim: Any = None) -> ChunkedMatrix:
    """Each row of X beside those of other times, lazily: a matrix for any method.

    X : (n, p), anything that ``streampca.open`` takes; rows in order of time.  dim : as there.
    lags : (L,) distinct integers. Row t of the result holds x[t - lag] for each, in this order:
        (0, 1, 2) is a row and the two before it; negative lags are later rows.

    Rows t for which some x[t - lag] is not there are left out: n - (max(lags, 0) - min(lags, 0))
    are left, with the labels of t. Features are (lag, those of X). A PCA of this is an extended
    EOF analysis (multichannel singular spectrum analysis), its patterns (component, lag, ...)::

        model = PCA(4).fit(streampca.lagged(sst, range(0, 60, 5), dim="time"))
        model.result_.to_xarray().components  # (component, lag, lat, lon)

    New rows are lagged alike before ``transform``. xeofs' ``ExtendedEOF(tau=5, embedding=12)`` has
    ``lags=range(0, -60, -5)``: it labels rows by the first time of each.

    Cost: nothing here. A pass over samples reads each chunk once, and again what lies before the
    first row of a span; one over features reads each L times. A pass takes L times the flops or
    more of one over X: a scatter is (L p) x (L p), a Gram matrix n x n.
    Raises InvalidInputError.
    Source: Weare and Nasstrom 1982, Monthly Weather Review 110, section 2.
    """
    wanted = [_lag(one) for one in ([lags] if isinstance(lags, (int, str)) else lags)]
    if not wanted or len(set(wanted)) < len(wanted):
        raise InvalidInputError(f"lags={wanted!r}; expected distinct integers, such as (0, 1, 2)")
    return lagged_rows(as_matrix(counted(X), dim=dim), wanted)


def _lag(value: Any) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise InvalidInputError(f"lags has {value!r}; expected integers, such as range(0, 12, 3)")
    return int(value)
