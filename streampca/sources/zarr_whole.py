"""Small arrays that lie beside the data in a Zarr group: labels, coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr

from streampca.sources.zarr_frames import FrameLimit
from streampca.sources.zarr_guard import GuardedStore, default_timeout


def whole(array: Any) -> np.ndarray[Any, Any]:
    """A small array that lies beside the data, whole; absent chunks are fill values.

    Of what is no ``zarr.Array`` (HDF5) simply its values. Raises DamagedSourceError.
    """
    limit = FrameLimit.of(array) if isinstance(array, zarr.Array) else None
    if limit is None:
        return np.asarray(array[...])
    guard = GuardedStore(array.store, "fill", default_timeout(), frames=limit)
    zarr_format = array.metadata.zarr_format
    again = zarr.open_array(guard, path=array.path, mode="r", zarr_format=zarr_format)
    return np.asarray(again[...])
