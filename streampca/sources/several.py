"""Several stores as one matrix: the chromosomes of one set of samples, side by side."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, SourceError
from streampca.matrix import AxisLabels, ChunkedMatrix, concat_features
from streampca.sources.path_patterns import expand
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
