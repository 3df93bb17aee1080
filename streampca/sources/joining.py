"""Several files as one matrix: which paths are meant, and along which axis they are joined."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from streampca import matrix as matrices
from streampca.errors import (
    IncompleteSourceWarning,
    InvalidInputError,
    SourceError,
    hide_secrets,
    shorten,
    warn_caller,
)
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.matrix.names import difference, reordered_numbers
from streampca.paths import without_braces
from streampca.sources.genotypes.variants import refuse_shared_variants
from streampca.sources.tables.row_names import named_rows

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
            if named and all(part.labels.features.dims == ("variant",) for part in parts):
                raise SourceError(
                    f"{apart}. Files of genotypes that are opened together need the same samples "
                    "in the same order: plink2 --indiv-sort file IDS writes them in that of a list"
                )
            raise (SourceError if named else InvalidInputError)(
                f"{apart}. {'' if unlike else twice}{unlike}, so that they are not more samples of "
                "one table either. Say which is meant: join='samples' or join='features'"
            )
        join, other = ("samples", "") if apart else ("features", "" if unlike else "samples")
    else:
        other = ""
        _check(join, apart if named else "", unlike)
    how = matrices.concat_samples if join == "samples" else _side_by_side
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


def _side_by_side(*parts: ChunkedMatrix) -> ChunkedMatrix:
    joined = matrices.concat_features(*parts)
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
        one, other = first.labels.axis(axis), part.labels.axis(axis)
        if where := difference(one, other, kind) or _other_family(one, other):
            return f"{paths[0]} and {path} differ: {where}"
    return ""


def _other_family(one: AxisLabels, other: AxisLabels) -> str:
    """The first sample of the same id in another family; "" where there is none."""
    if "family" not in one.extra or "family" not in other.extra:
        return ""
    mine, theirs = (np.asarray(axis.extra["family"]) for axis in (one, other))
    if not len(apart := np.flatnonzero(mine != theirs)):
        return ""
    i = int(apart[0])
    return f"sample {i} ({one.name(i)}) is of family {mine[i]} in one and {theirs[i]} in the other"


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
    """Paths of a list or a glob pattern; "{1..22}" and "{1,X}" stand for names, as in a shell.

    Raises SourceError where nothing matches.
    Warns IncompleteSourceWarning where the files of a pattern are numbered, with a few left out.
    """
    listed = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    paths: list[str] = []
    for source in chain.from_iterable(without_braces(os.fspath(one)) for one in listed):
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
    """A sort key that puts chr2 before chr10, and chrX after all numbers."""
    digits = "".join(c if c.isdigit() else " " for c in Path(path).name).split()
    numbers = [(int(d), "") for d in digits] or [(sys.maxsize, "")]
    return [*numbers, (0, path)]


def concat_features(*parts: ChunkedMatrix, variables: Sequence[str] = ()) -> ChunkedMatrix:
    """[X, Y, ...]: the same samples, the features of all. Lazy.

    parts : matrices as ``streampca.open`` returns them.

    variables : a name for each part. Labelled results then have one variable for each, with its
        own dimensions; otherwise the features become one axis.

    **Cost:** none of its own, but for tables that do not name their rows: the columns that may.
    Raises InvalidInputError, also where the parts, or columns of tables that name their rows, have
    other samples or another order; InvalidTypeError.

    Examples:
        >>> import numpy as np
        >>> x, y = streampca.open(np.ones((5, 2))), streampca.open(np.ones((5, 3)))
        >>> streampca.concat_features(x, y).shape
        (5, 5)
    """
    if all(isinstance(part, ChunkedMatrix) for part in parts) and len(parts) > 1:
        parts = tuple(named_rows(parts, _titles(parts)))
        _refuse_numbers(parts, 0)
        _refuse_turned(parts, 0)
    return matrices.concat_features(*parts, variables=variables)


def concat_samples(*parts: ChunkedMatrix) -> ChunkedMatrix:
    """X on top of Y ...: the same features, the samples of all. Lazy.

    parts : matrices as ``streampca.open`` returns them.
    Raises InvalidInputError, also where the parts name other features, or in another order, or
    another unit; InvalidTypeError.

    Examples:
        >>> import numpy as np
        >>> x, y = streampca.open(np.ones((5, 2))), streampca.open(np.ones((4, 2)))
        >>> streampca.concat_samples(x, y).shape
        (9, 2)
    """
    if all(isinstance(part, ChunkedMatrix) for part in parts):
        _refuse_numbers(parts, 1)
        _refuse_turned(parts, 1)
        if other := other_field(_titles(parts), parts, ("standard_name", "units")):
            raise InvalidInputError(
                f"{other}, so that their rows are not more samples of one field. Convert them to "
                "one, or join their features, streampca.concat_features(...)"
            )
    return matrices.concat_samples(*parts)


def _titles(parts: Sequence[ChunkedMatrix]) -> list[str]:
    return [f"part {i + 1}" for i in range(len(parts))]


def _refuse_numbers(parts: Sequence[ChunkedMatrix], axis: int) -> None:
    """Refuse the numbers from 0 in another order as names of one part, where another has none."""
    axes = [part.labels.axis(axis) for part in parts]
    if all(one.named for one in axes):
        return
    kind, repair = (("sample", "sort_index()"), ("feature", "sort_index(axis=1)"))[axis]
    for title, one in zip(_titles(parts), axes, strict=True):
        if len(one.dims) == 1 and reordered_numbers(one.coords.get(one.dims[0])):
            raise InvalidInputError(
                f"the {kind}s of {title} are named by the numbers from 0 in another order, and "
                "another part counts from 0: expected one order. By these numbers: open "
                f"X.{repair}; by position: X.to_numpy()"
            )


def _refuse_turned(parts: Sequence[ChunkedMatrix], axis: int) -> None:
    """Refuse the same dimensions that are stacked in another order."""
    kind, dims = ("samples", "features")[axis], parts[0].labels.axis(axis).dims
    for part in parts[1:]:
        found = part.labels.axis(axis).dims
        if found != dims and set(found) == set(dims):
            shown = ", ".join(map(repr, dims))
            raise InvalidInputError(
                f"the {kind} are stacked as {found} in one and as {dims} in the other: "
                f"X.transpose({f'..., {shown}' if axis else f'{shown}, ...'})"
            )
