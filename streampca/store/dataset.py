"""Labelled results (an ``xarray.Dataset``) into a NetCDF file or a Zarr group."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from streampca.errors import InvalidInputError, MissingDependencyError
from streampca.store.places import discard, exists_already, occupied, unfinished_name
from streampca.store.replacing import put_file, put_folder

SUFFIXES = (".nc", ".zarr")
ZARR_GROUP = ("zarr.json", ".zgroup")  # of formats 3 and 2


def write_dataset(dataset: Any, path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Write a Dataset, whole or not at all: under another name first.

    path : ends in ``.nc`` or ``.zarr``. Raises InvalidInputError where something is there and may
    not be replaced (only a file is by a file, and only a Zarr group by a Zarr group),
    MissingDependencyError where nothing writes NetCDF.
    """
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise InvalidInputError(f"{target}: expected a name that ends in {' or '.join(SUFFIXES)}")
    if os.path.lexists(target) and not overwrite:
        raise InvalidInputError(f"{target} exists already; add --overwrite to replace it")
    file = target.suffix == ".nc"
    may_go = _is_file if file else _is_group
    if occupied(str(target)) and not may_go(str(target)):
        raise exists_already(str(target))
    place = os.path.realpath(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(unfinished_name(str(target)))  # it is locked, and HDF5 locks its file itself
    may_go = may_go if overwrite else _nothing
    try:
        if file:
            made = folder / target.name
            dataset.to_netcdf(made, engine=_engine())
            put_file(str(made), place, may_go)
        else:
            dataset.to_zarr(folder, consolidated=False)
            put_folder(str(folder), str(target), may_go)
    finally:
        discard(str(folder))


def _is_file(path: str) -> bool:
    return os.path.isfile(path)


def _is_group(path: str) -> bool:
    return any(os.path.isfile(os.path.join(path, name)) for name in ZARR_GROUP)


def _nothing(path: str) -> bool:
    return False


def _engine() -> Any:
    try:
        import h5netcdf  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "nothing here writes NetCDF; pip install 'streampca[netcdf]', or name a .zarr"
        ) from None
    return "h5netcdf"
