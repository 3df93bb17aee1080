"""Absent chunks as missing cells: what Zarr is to put where a chunk is not there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import zarr
from zarr.storage import StorePath

from streampca.errors import InvalidInputError
from streampca.sources.cf import Packing


def absent_value(stored: np.dtype[Any], packing: Packing | None, hole: float | None) -> Any:
    """The stored number that means missing: NaN, a code of the packing, or ``hole``.

    Raises InvalidInputError where integers have none.
    """
    if stored.kind == "f":
        return stored.type(np.nan)
    codes = packing.stored_codes(stored) if packing is not None else np.array([])
    if not codes.size and hole is not None and packing is None and stored.kind in "iu":
        info = np.iinfo(stored)
        if hole == int(hole) and info.min <= hole <= info.max:
            codes = np.array([int(hole)], stored)
    if not codes.size:
        raise InvalidInputError(
            f"missing_chunks='mask' of {stored}: no number means missing. Name one that {stored} "
            "holds: streampca.open(..., missing_value=-9); or missing_chunks='fill'."
        )
    return codes[0]


def with_fill(array: Any, value: Any) -> Any:
    """The same ``zarr.Array`` with another fill value; nothing is written."""
    one = array.async_array
    metadata = replace(one.metadata, fill_value=value)
    return zarr.Array(zarr.AsyncArray(metadata, one.store_path, one.config))


def on_store(array: Any, store: Any) -> Any:
    """The same ``zarr.Array``, read by way of another store."""
    one = array.async_array
    place = StorePath(store, one.store_path.path)
    return zarr.Array(zarr.AsyncArray(one.metadata, place, one.config))
