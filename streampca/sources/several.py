"""Several files as one matrix: which paths are meant, and along which axis they are joined."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from streampca.errors import (
    IncompleteSourceWarning,
    InvalidInputError,
    MissingDependencyError,
    SourceError,
    hide_secrets,
    shorten,
    warn_caller,
)
from streampca.matrix import ChunkedMatrix, concat_features, concat_samples
from streampca.matrix.names import difference
from streampca.paths import PARQUET, PLINK, TEXTS, paths_end
from streampca.sources.genotypes.variants import refuse_shared_variants
from streampca.sources.tables.frames import is_frame
from streampca.sources.tables.row_keys import named_rows
from streampca.sources.tables.written import TEXT_OPTIONS

TABULAR = ("columns", "index", "categorical", *TEXT_OPTIONS)  # options of tables
TABLES = (*PARQUET, ".arrow", ".feather", ".ipc", *TEXTS)
STORES = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")


def holds_parquet(path: str) -> bool:
    """Whether a folder holds Parquet files, or folders of them."""
    for _, folders, names in os.walk(path):
        if any(name.lower().endswith(PARQUET) for name in names):
            return True
        folders[:] = [name for name in sorted(folders) if "=" in name]
    return False


def table_of(source: Any, paths: list[str] | None, options: dict[str, Any]) -> Any:
    """The paths of a table, or a query or frame to be read as one; None for other sources.

    paths : that the source stands for, if several.
    """
    if paths is not None:
        one_table = all(path.lower().endswith(PARQUET) for path in paths)
        return paths if one_table and options["join"] != "features" else None
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        stored = "://" in path or any(os.path.exists(os.path.join(path, one)) for one in STORES)
        folder = not stored and os.path.isdir(path) and holds_parquet(path)
        return [path] if folder or path.rstrip("/").lower().endswith(TABLES) else None
    kind, asked = type(source), any(options[name] is not None for name in TABULAR)
    query = kind.__module__.split(".")[0] in ("pyarrow", "polars") and (
        kind.__name__.endswith(("Dataset", "LazyFrame"))
    )
    return source if query or (asked and is_frame(source)) else None


def refuse_options(source: Any, options: dict[str, Any]) -> None:
    """Refuse options of tables, and of files with groups, for anything else."""
    if given := [name for name in TABULAR if options[name] is not None]:
        what = source if isinstance(source, (str, os.PathLike)) else f"a {type(source).__name__}"
        why = f"{hide_secrets(str(what))} is no table (Parquet, Arrow, CSV, data frame)"
        raise InvalidInputError(f"{given[0]}=: {why}; leave {given[0]}= out")
    files = isinstance(source, (str, os.PathLike, zarr.Group)) and not paths_end(source, PLINK)
    if options["group"] is not None and not files:
        raise InvalidInputError(f"group=: a {type(source).__name__} has none; leave group= out")


def from_table(table: Any, options: dict[str, Any]) -> ChunkedMatrix:
    """The matrix of a table, by its paths or in memory.  options : of ``streampca.open``."""
    try:
        from streampca.sources.tables.opening import open_table
    except ImportError as error:
        if "pyarrow" not in str(error):
            raise
        raise MissingDependencyError(
            "tables (Parquet, Arrow, CSV) need pyarrow: pip install 'streampca[tables]'"
        ) from None
    wanted = {name: options[name] for name in TABULAR}
    matrix = open_table(table, **wanted, dim=options["dim"], options=options["storage_options"])
    matrix.missing_value = options["missing_value"]
    return matrix


# Several files, such as the chromosomes of one set of samples, or the years of one grid.

JOINS = ("samples", "features")


def join_files(
    paths: Sequence[str], parts: Sequence[ChunkedMatrix], join: str | None = None
) -> ChunkedMatrix:
    """The files as one matrix: the features of all side by side, or the samples of all in order.

    join : "samples" or "features". None: the features are joined where the samples have names, the
    same in the same order; else the samples, where the features are the same and none is twice.
    Raises SourceError or InvalidInputError where neither fits, with what differs.
    """
    if join not in (None, *JOINS):
        raise InvalidInputError(f"join={join!r}; expected {' or '.join(map(repr, JOINS))}")
    if len(parts) == 1:
        return parts[0]
    shown = [hide_secrets(path) for path in paths]
    parts = named_rows(parts, shown) if join == "features" else parts
    named = all(part.labels.samples.named for part in parts)
    apart = _difference(shown, parts, 0) if named else _unnamed(shown, parts)
    unlike = _difference(shown, parts, 1)
    described = other_field(shown, parts, ("standard_name", "units"))
    field = described or ("" if join == "samples" else other_field(shown, parts, ("variable",)))
    if field and (join == "samples" or (join is None and apart)):
        advice = "" if described else "; one field under several names needs join='samples'"
        raise InvalidInputError(
            f"{field}, so that their rows are not more samples of one field. Name the files of one "
            f"field, or its variable=...{advice}; several fields of the same samples need "
            "join='features'"
        )
    unlike = unlike or field
    if join is None:
        twice = "" if unlike or not apart else _twice(parts) if named else _calls(parts)
        if apart and (unlike or twice):
            raise (SourceError if named else InvalidInputError)(
                f"{apart}. {'' if unlike else twice}{unlike}, so that they are not more samples of "
                "one table either. Say which is meant: join='samples' or join='features'"
            )
        join, other = ("samples", "") if apart else ("features", "" if unlike else "samples")
    else:
        other = ""
        _check(join, apart if named else "", unlike)
    how = concat_samples if join == "samples" else _beside
    return _noted(how(*parts), parts, join, other)


def _check(join: str, apart: str, unlike: str) -> None:
    """Refuse what the caller asks for where it cannot be."""
    if join == "samples" and unlike:
        raise InvalidInputError(f"join='samples': {unlike}; expected the same features in each")
    if join == "features" and apart:
        raise SourceError(
            f"{apart}. Stores that are joined along their features need the same samples in the "
            "same order."
        )


def _beside(*parts: ChunkedMatrix) -> ChunkedMatrix:
    joined = concat_features(*parts)
    features = joined.labels.features
    if features.dims == ("variant",) and features.named:
        refuse_shared_variants(features, [part.shape[1] for part in parts])
    return joined


def _noted(
    joined: ChunkedMatrix, parts: Sequence[ChunkedMatrix], join: str, other: str
) -> ChunkedMatrix:
    """The matrix with a remark on how it was joined.  other : the way that fits too, or ""."""
    note = f"{len(parts)} files joined along their {join}"
    note += f" (join={other!r} joins their {other})" if other else ""
    first = parts[0].note
    joined.note = f"{note}; {first}" if first else note
    return joined


def _unnamed(paths: Sequence[str], parts: Sequence[ChunkedMatrix]) -> str:
    path = next(p for p, part in zip(paths, parts, strict=True) if not part.labels.samples.named)
    return (
        f"{path} does not name its samples, so that nothing tells whether those of {len(paths)} "
        "stores are the same"
    )


def _difference(paths: Sequence[str], parts: Sequence[ChunkedMatrix], axis: int) -> str:
    """The first difference between the labels of an axis; "" where they are the same."""
    first, kind = parts[0], ("sample", "feature")[axis]
    for path, part in zip(paths[1:], parts[1:], strict=True):
        where = difference(first.labels.axis(axis), part.labels.axis(axis), kind)
        if where:
            return f"{paths[0]} and {path} differ: {where}"
    return ""


def other_field(paths: Sequence[str], parts: Sequence[ChunkedMatrix], names: Sequence[str]) -> str:
    """The first file of another field than the first, by "variable" or these attributes; or ""."""
    first = parts[0].labels
    for path, part in zip(paths[1:], parts[1:], strict=True):
        for name in names:
            one, other = (
                labels.name if name == "variable" else labels.attrs.get(name)
                for labels in (first, part.labels)
            )
            if None not in (one, other) and one != other:
                return f"{paths[0]} has {name} {one!r} and {path} has {other!r}"
    return ""


def _calls(parts: Sequence[ChunkedMatrix]) -> str:
    """Why nothing tells of stores without names, such as chromosomes of the same samples."""
    small = all(part.dtype.itemsize == 1 for part in parts)
    same = len({part.shape for part in parts}) == 1
    return "They have the same shape, and hold calls of genotypes or the like" * (small and same)


def _twice(parts: Sequence[ChunkedMatrix]) -> str:
    """The name of a sample that is in two of the files, as text; "" if there is none."""
    seen: set[str] = set()
    for part in parts:
        names = part.labels.samples.names()
        if again := seen.intersection(names):
            return f"Sample {min(again)} is in two of them"
        seen.update(names)
    return ""


# Paths of a list or a glob pattern, in the order of the numbers in their names.


def expand(sources: str | Sequence[str]) -> list[str]:
    """Paths of a list or a glob pattern. Raises SourceError where nothing matches.

    Warns IncompleteSourceWarning where the files of a pattern are numbered, with a few left out.
    """
    listed = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    paths: list[str] = []
    for source in map(os.fspath, listed):
        if not glob.has_magic(source) or os.path.exists(source):
            paths.append(source)
        elif found := sorted(glob.glob(source), key=_natural):
            _warn_of_holes(source, found)
            paths += found
        else:
            raise SourceError(f"{source}: no file matches")
    if not paths:
        raise SourceError("an empty list of paths; name at least one file")
    if len(set(paths)) < len(paths):
        twice = sorted({path for path in paths if paths.count(path) > 1})
        raise InvalidInputError(f"{shorten(twice)} is named twice")
    return paths


def _warn_of_holes(pattern: str, paths: Sequence[str]) -> None:
    """Name the numbers that are left out, unless they are many or left out at even steps."""
    families: dict[tuple[str, ...], list[list[int]]] = {}
    for path in paths:
        parts = re.split(r"([0-9]+)", Path(path).name)
        families.setdefault(tuple(parts[::2]), []).append([int(d) for d in parts[1::2]])
    for text, numbers in families.items():
        varying = [sorted(set(one)) for one in zip(*numbers, strict=True) if len(set(one)) > 1]
        if len(varying) != 1 or varying[0][-1] - varying[0][0] >= 2 * len(varying[0]):
            continue
        there = varying[0]
        if len(there) > 2 and len(set(np.diff(there).tolist())) == 1:
            continue  # every second year, say
        if holes := sorted(set(range(there[0], there[-1] + 1)) - set(there)):
            warn_caller(
                f"{pattern}: {len(there)} files from {there[0]} to {there[-1]} of the form "
                f"{'*'.join(text)}, without {shorten([str(i) for i in holes], len(holes))}. If "
                "that is meant, give a list of the files.",
                IncompleteSourceWarning,
            )


def _natural(path: str) -> list[tuple[int, str]]:
    """A sort key that puts chr2 before chr10."""
    digits = "".join(c if c.isdigit() else " " for c in Path(path).name).split()
    return [*((int(d), "") for d in digits), (0, path)]
