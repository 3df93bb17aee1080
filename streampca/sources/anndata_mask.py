"""Which variables of an AnnData a column of var marks: ``var["highly_variable"]``."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.sources.hdf5 import open_hdf5
from streampca.sources.zarr_opening import open_array
from streampca.sources.zarr_whole import whole


def variable_mask(target: Any, name: str) -> Any:
    """(variables,) bool column ``name`` of var of an AnnData, by its path or in memory, or None.

    Raises InvalidInputError where the column holds something else than booleans.
    """
    if not isinstance(target, (str, os.PathLike)):
        return _as_mask(target.var[name], name) if name in target.var else None
    path = os.fspath(target)
    if os.path.isfile(path) and not path.endswith(".zip"):
        with open_hdf5(path) as file:
            return _column(file["var"], name)
    return _column(open_array(path)["var"], name)


def _column(frame: Any, name: str) -> Any:
    """Of a group of columns, or of one table, as before version 0.7."""
    if hasattr(frame, "dtype"):
        return _as_mask(frame[...][name], name) if name in (frame.dtype.names or ()) else None
    if name not in frame:
        return None
    column = frame[name]
    if hasattr(column, "shape"):
        return _as_mask(whole(column), name)
    if "mask" not in column or "values" not in column:
        raise InvalidInputError(f"var[{name!r}] holds no booleans; use another mask_var=")
    return _as_mask(whole(column["values"]), name) & ~whole(column["mask"]).astype(bool)


def _as_mask(values: Any, name: str) -> Any:
    array = np.asarray(values)
    if array.dtype.kind not in "biu":
        raise InvalidInputError(f"var[{name!r}] holds {array.dtype}, no booleans; use another "
                                "mask_var=")  # fmt: skip
    return array.astype(bool)
