"""Labelled results (an ``xarray.Dataset``) into a NetCDF file or a Zarr group."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from streampca.errors import InvalidInputError, MissingDependencyError
from streampca.store.places import discard, unfinished_name

SUFFIXES = (".nc", ".zarr")


def write_dataset(dataset: Any, path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Write a Dataset, whole or not at all: under another name first.

    path : ends in ``.nc`` or ``.zarr``. Raises InvalidInputError where something is there and may
    not be replaced, MissingDependencyError where nothing writes NetCDF.
    """
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise InvalidInputError(f"{target}: expected a name that ends in {' or '.join(SUFFIXES)}")
    if target.exists() and not overwrite:
        raise InvalidInputError(f"{target} exists already; add --overwrite to replace it")
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(unfinished_name(str(target)))  # it is locked, and HDF5 locks its file itself
    made = folder / target.name if target.suffix == ".nc" else folder
    try:
        if target.suffix == ".nc":
            dataset.to_netcdf(made, engine=_engine())
        else:
            dataset.to_zarr(made, consolidated=False)
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(made, target)
    finally:
        discard(str(folder))


def _engine() -> Any:
    try:
        import h5netcdf  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "nothing here writes NetCDF; pip install 'streampca[netcdf]', or name a .zarr"
        ) from None
    return "h5netcdf"
