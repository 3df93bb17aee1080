"""Outputs are looked at before anything is read: what is in the way, what cannot be written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from streampca.errors import InvalidInputError, StreamPCAError
from streampca.store import is_bundle
from streampca.store.places import refuse_inside
from streampca.store.sinks import ZarrSink, refuse_occupied

Paths = Iterable[str | None]


class OutputError(StreamPCAError, OSError):
    """A place where nothing can be written."""


def check_outputs(
    *, models: Paths = (), arrays: Paths = (), tables: Paths = (), datasets: Paths = (),
    new: Paths = (), sources: Paths = (), overwrite: bool = False,
) -> None:  # fmt: skip
    """Raise InvalidInputError for what is in the way, OutputError for what cannot be written.

    models : folders of saved models.  arrays : Zarr arrays.  tables : text files.
    sources : what is read: an output within one would become a part of it.
    datasets : NetCDF files or Zarr groups, written beside and put in place.  new : what is
    never replaced. None stands for an output that is not asked for.
    """
    groups = [[one for one in paths if one] for paths in (models, arrays, tables, datasets, new)]
    models, arrays, tables, _, new = groups
    local = [one for paths in groups for one in paths if "://" not in one]
    places = [Path(one).resolve() for one in local]
    for one, place in zip(local, places, strict=True):
        if places.count(place) > 1:
            raise InvalidInputError(f"{one} is named for two outputs; choose another for one")
        if os.path.lexists(one) and not overwrite and one not in new:
            raise InvalidInputError(f"{one} exists already; add --overwrite to replace it")
    folders = [one for one in sources if one and Path(one).is_dir()]
    for one in local:
        refuse_inside(one, folders, "the output")
    for one in models:
        if Path(one).exists() and not is_bundle(one):
            raise InvalidInputError(f"{one} is not a model; choose another output")
    for one in tables:
        if os.path.lexists(one) and not Path(one).is_file():
            raise InvalidInputError(f"{one} is not a file; choose another output")
    for one in arrays:
        refuse_occupied(one, overwrite)
    for one in new:
        refuse_occupied(one, False)
    for one in local:
        check_writable(Path(one))


def check_writable(path: Path) -> None:
    """Raise OutputError where a file or folder of this name could not be made."""
    folder = path.absolute().parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        if not folder.is_dir():
            raise NotADirectoryError(0, "is not a folder")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {folder}: {error.strerror or error}"
        ) from None


def write_scores(model: Any, matrix: Any, path: str, overwrite: bool, remove: Any = None) -> None:
    """The scores of the rows of a fit, as a Zarr array: those it has, or by another pass."""
    scores = model.result_.scores
    if scores is None or model.whiten:
        model.transform(matrix, out=path, overwrite=overwrite, remove=remove)
        return
    n, k = scores.shape
    sink = ZarrSink(path, n, k, overwrite=overwrite)
    sink.write(0, scores)
    sink.finish()
