"""Several stores as one matrix, such as the chromosomes of one set of samples."""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import IncompleteSourceWarning, InvalidInputError, SourceError, shorten
from streampca.matrix import AxisLabels, ChunkedMatrix, concat_features
from streampca.sources.variants import refuse_duplicates


def several_paths(source: Any) -> list[str] | None:
    """The paths that a list of paths, or a pattern such as "chr*.zarr", stands for; else None.

    Those of a pattern come in the order of the numbers in their names.
    """
    if isinstance(source, (list, tuple)):
        named = bool(source) and all(isinstance(one, (str, os.PathLike)) for one in source)
        return expand(source) if named else None
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = os.fspath(source)
    pattern = glob.has_magic(path) and "://" not in path and not os.path.exists(path)
    return expand(path) if pattern else None


def join_stores(paths: Sequence[str], parts: Sequence[ChunkedMatrix]) -> ChunkedMatrix:
    """The features of all, side by side. The samples must have names, the same in the same order.

    Raises SourceError where samples differ, InvalidInputError where a variant occurs twice.
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0].labels.samples
    for path, part in zip(paths, parts, strict=True):
        if not part.labels.samples.named:
            raise InvalidInputError(
                f"{path} does not name its samples, so that nothing tells whether those of "
                f"{len(paths)} stores are the same. Open them one by one and say how they belong "
                "together: streampca.concat_features(streampca.open(...), ...)"
            )
        _check_same(first, part.labels.samples, paths[0], path)
    joined = concat_features(*parts)
    features = joined.labels.features
    if features.dims == ("variant",) and features.named:
        names = np.asarray(features.coords["variant"])
        refuse_duplicates(names, "variant ids", "a variant may lie in one of the stores only")
    return joined


def _check_same(first: AxisLabels, other: AxisLabels, one: str, two: str) -> None:
    if len(first) != len(other):
        where = f"{len(first)} and {len(other)} samples"
    else:
        names, others = first.names(), other.names()
        if names == others:
            return
        at = next(i for i, (a, b) in enumerate(zip(names, others, strict=True)) if a != b)
        where = f"sample {at + 1} is {names[at]} in one and {others[at]} in the other"
    raise SourceError(
        f"{one} and {two} differ: {where}. Stores that are opened together need the same samples "
        "in the same order."
    )


# --------------------------------------------------------------------------------------------------
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
            warnings.warn(
                f"{pattern}: {len(there)} files from {there[0]} to {there[-1]} of the form "
                f"{'*'.join(text)}, without {shorten([str(i) for i in holes], len(holes))}. If "
                "that is meant, give a list of the files.",
                IncompleteSourceWarning,
                stacklevel=5,
            )


def _natural(path: str) -> list[tuple[int, str]]:
    """A sort key that puts chr2 before chr10."""
    digits = "".join(c if c.isdigit() else " " for c in Path(path).name).split()
    return [*((int(d), "") for d in digits), (0, path)]
