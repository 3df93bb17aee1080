"""Files of scores: the end of an output's name decides its format, or is refused."""

from __future__ import annotations

import contextlib
import csv
import os
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix.labels import AxisLabels
from streampca.sources.tables.writing import write_parquet
from streampca.store.bundle import put_file
from streampca.store.places import discard, unfinished_name, writing
from streampca.store.sinks import open_written

ZARR = (".zarr",)
COLUMNS = "columns"  # attribute of an array whose columns are no components: their names
SCORES = "ZARR|TSV|CSV|PARQUET|NPY"
OF_SCORES = "the end of the name decides the format (none: Zarr)"
END = re.compile(r"\.[A-Za-z]\w*$")  # "scores.12" and "scores" are names without one


def ending(path: str, allowed: tuple[str, ...] | None = None) -> str:
    """The end of an output's name, "" without one. Raises InvalidInputError for another.

    allowed : default: those of scores, ``.zarr`` and the keys of ``WRITERS``.
    """
    found = END.search(os.path.basename(path.rstrip("/")))
    end, allowed = found[0].lower() if found else "", allowed or (*ZARR, *WRITERS)
    if end and end not in allowed:
        raise InvalidInputError(
            f"{path}: {end} is not written here; expected a name that ends in "
            f"{' or '.join([', '.join(allowed[:-1])] * (len(allowed) > 1) + [allowed[-1]])}"
        )
    if end in WRITERS and "://" in path:
        raise InvalidInputError(f"{path}: a {end} is written to disk; give a path, or a .zarr")
    return end


def is_file(path: str) -> bool:
    """Whether scores at this path are one file, and not a Zarr array."""
    return ending(path) in WRITERS


@contextlib.contextmanager
def scores_in(path: str, samples: AxisLabels | None, overwrite: bool) -> Iterator[tuple[str, bool]]:
    """(where to write a Zarr array of scores, whether to replace one): then ``path`` is made of it.

    samples : their labels, for a column of tables; without names they are numbered from 0.
    Cost: scores are held by chunks; the array is removed.
    """
    end = ending(path)
    if end not in WRITERS:
        yield path, overwrite
        return
    folder = Path(unfinished_name(path))
    try:
        place, made = str(folder / "scores.zarr"), str(folder / Path(path).name)
        yield place, False
        with writing(path):
            WRITERS[end](made, open_written(place), samples)
        put_file(made, os.path.realpath(path), os.path.isfile if overwrite else lambda path: False)
    finally:
        discard(str(folder))


def _parts(scores: Any) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    step = scores.chunks[0]
    return ((start, scores[start : start + step]) for start in range(0, scores.shape[0], step))


def _names(samples: AxisLabels | None, n: int) -> list[tuple[str, list[str]]]:
    """(column, one entry of each sample): FID and IID, or names, or numbers from 0, as
    they are printed."""
    if samples is not None and "family" in samples.extra:
        columns = (("FID", "family"), ("IID", "individual"))
        return [(name, [*map(str, samples.extra[one])]) for name, one in columns]
    named = samples is not None and samples.named
    return [("sample", samples.names() if samples and named else [*map(str, range(n))])]


def _components(scores: Any) -> list[str]:
    """The names of columns; of complex components those of both parts."""
    named = scores.attrs.get(COLUMNS) or [f"PC{i + 1}" for i in range(scores.shape[1])]
    if scores.dtype.kind != "c":
        return list(named)
    return [f"{name}_{part}" for name in named for part in ("real", "imag")]


def _columns(scores: Any) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """The parts of real columns."""
    for start, part in _parts(scores):
        yield start, np.ascontiguousarray(part).view(part.real.dtype)


def _text(path: str, scores: Any, samples: AxisLabels | None) -> None:
    """Numbers are written so that they are read as they were."""
    names = _names(samples, scores.shape[0])
    with open(path, "w", newline="", encoding="utf-8") as file:
        lines = csv.writer(
            file, delimiter="," if path.lower().endswith(".csv") else "\t", lineterminator="\n"
        )
        lines.writerow([*(name for name, _ in names), *_components(scores)])
        rows = chain.from_iterable(part.tolist() for _, part in _columns(scores))
        for *ids, row in zip(*(entries for _, entries in names), rows, strict=True):
            lines.writerow([*ids, *row])


def _npy(path: str, scores: Any, samples: AxisLabels | None) -> None:
    out = np.lib.format.open_memmap(path, "w+", scores.dtype, scores.shape)
    for start, part in _parts(scores):
        out[start : start + len(part)] = part
    out.flush()


def _parquet(path: str, scores: Any, samples: AxisLabels | None) -> None:
    names = _names(samples, scores.shape[0])
    columns = {name: np.dtype(str) for name, _ in names}
    columns |= dict.fromkeys(_components(scores), np.empty(0, scores.dtype).real.dtype)
    parts = (
        [*(entries[start : start + len(part)] for _, entries in names), *part.T]
        for start, part in _columns(scores)
    )
    write_parquet(path, columns, parts)


WRITERS: dict[str, Callable[[str, Any, AxisLabels | None], None]] = {
    ".tsv": _text,
    ".csv": _text,
    ".parquet": _parquet,
    ".npy": _npy,
}
