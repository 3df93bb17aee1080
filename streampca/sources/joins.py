"""``streampca.concat_features`` and ``concat_samples``: matrices joined where names allow it."""

from __future__ import annotations

from collections.abc import Sequence

from streampca import matrix as matrices
from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.matrix.names import reordered_numbers
from streampca.sources.several import other_field
from streampca.sources.tables.row_keys import named_rows


def concat_features(*parts: ChunkedMatrix, variables: Sequence[str] = ()) -> ChunkedMatrix:
    """[X, Y, ...]: the same samples, the features of all. Lazy.

    parts : matrices as ``streampca.open`` returns them.

    variables : a name for each part. Labelled results then have one variable for each, with its
        own dimensions; otherwise the features become one axis.

    **Cost:** none of its own, but for tables that do not name their rows: the columns that may.
    Raises InvalidInputError, also where the parts, or columns of tables that name their rows, have
    other samples or another order; InvalidTypeError.
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
    """
    if all(isinstance(part, ChunkedMatrix) for part in parts):
        _refuse_numbers(parts, 1)
        _refuse_turned(parts, 1)
        if told := other_field(_titles(parts), parts, ("standard_name", "units")):
            raise InvalidInputError(
                f"{told}, so that their rows are not more samples of one field. Convert them to "
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
