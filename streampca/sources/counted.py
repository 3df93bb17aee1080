"""Dask arrays that do not know how many rows they have."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

from streampca.errors import UncountedRowsWarning


def counted(X: Any) -> Any:
    """X; where it is a Dask array without chunk sizes, one that has them. X is left as it was.

    Cost: all of such an array is computed once, by Dask, chunk by chunk, and dropped.
    Warns (UncountedRowsWarning) of that.
    """
    if not hasattr(X, "compute_chunk_sizes") or not any(math.isnan(n) for n in X.shape):
        return X
    warnings.warn(
        f"the chunk sizes of this Dask array are not known (shape {X.shape}): it is computed once "
        "more to count its rows. X = X.compute_chunk_sizes(), or to_dask_array(lengths=True) of a "
        "data frame, does that once for all fits.",
        UncountedRowsWarning,
        stacklevel=3,
    )
    return copy.copy(X).compute_chunk_sizes()
