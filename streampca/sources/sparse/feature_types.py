"""Kinds of features other than genes: antibodies, guides, peaks of a 10x file or an AnnData.

Each has its own scale, so components of all of them together are those of the largest. A 10x file
is read as scanpy reads it: genes only, unless the caller names others.
Source: 10x Genomics, "Feature-Barcode Matrices"; scanpy's ``read_10x_h5``, ``gex_only``.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, warn_caller
from streampca.matrix import ChunkedMatrix, select
from streampca.matrix.columns import as_text, numbered
from streampca.sources.annotations import Annotations

COLUMN = "feature_types"  # of var, as scanpy names it
GENES = "Gene Expression"
EVERY = "all"


class TenxColumns(Annotations):
    """The types of the features of a 10x file, as a column.  types : (p,) text."""

    def __init__(self, types: Any) -> None:
        self.types = types

    def column(self, axis: int, name: str) -> Any:
        """(p,) the types; None for another name."""
        return self.types if (axis, name) == (1, COLUMN) else None

    def names(self, axis: int) -> list[str]:
        return [COLUMN] * axis


def of_feature_types(
    matrix: ChunkedMatrix, wanted: str | Sequence[str] | None, shown: str
) -> ChunkedMatrix:
    """The features of some types, read lazily.

    wanted : a type, or several; "all"; None: of a 10x file the genes, of others all.
    shown : the source, for messages.
    Raises InvalidInputError for types that are not there. Warns UserWarning where an AnnData has
    features of other types than genes and nothing says which are meant.
    """
    if wanted is not None and not isinstance(wanted, str) and EVERY in wanted:
        wanted = EVERY
    found = None
    with contextlib.suppress(InvalidInputError):  # some are missing: no column to go by
        found = matrix.column(1, COLUMN)
    if found is None or found.shape != matrix.shape[1:]:
        if wanted not in (None, EVERY):
            raise InvalidInputError(
                f"{shown} does not say of what type its features are (10x files and AnnData with "
                "var['feature_types'] do); leave feature_types= out"
            )
        return matrix
    types, codes = numbered(as_text(found))
    if wanted == EVERY or (wanted is None and len(types) < 2):
        return matrix
    meant = _usual(matrix, types, codes, shown) if wanted is None else wanted
    if meant == EVERY:
        return matrix
    chosen = [meant] if isinstance(meant, str) else list(meant)
    if absent := [one for one in chosen if one not in types]:
        raise InvalidInputError(
            f"feature_types={absent[0]!r}; {shown} has {_counted(types, codes)}. "
            f"Use feature_types={types[0]!r}"
        )
    if {*types} <= {*chosen}:
        return matrix
    kept = np.isin(codes, [types.index(one) for one in chosen])
    left = select(matrix, features=kept)
    note = f"{kept.sum()} features of {', '.join(chosen)} out of {_counted(types, codes)}"
    left.note = f"{note}; {matrix.note}" if matrix.note else note
    return left


def _usual(matrix: ChunkedMatrix, types: list[str], codes: Any, shown: str) -> str:
    """What is meant where nothing says so."""
    held = _counted(types, codes)
    if not isinstance(matrix.annotations, TenxColumns):
        if GENES in types:
            warn_caller(
                f"{shown} has {held}, and all are taken: the largest lead the components. For "
                f"genes only: streampca.open(X, feature_types={GENES!r}); for all of them without "
                f"this warning: streampca.open(X, feature_types={EVERY!r})",
                UserWarning,
            )
        return EVERY
    if GENES not in types:
        raise InvalidInputError(
            f"{shown} has {held}, and no {GENES}: say which are meant, feature_types={types[0]!r}"
        )
    return GENES


def _counted(types: list[str], codes: Any) -> str:
    """ "33538 Gene Expression, 17 Antibody Capture"."""
    counts = np.bincount(codes, minlength=len(types)).tolist()
    return ", ".join(f"{count} {name}" for name, count in zip(types, counts, strict=True))


def unique_names(names: Any) -> Any:
    """Names of which a repeated one gets -1, -2, ..., as by anndata's ``var_names_make_unique``."""
    there, seen, repeats, found = set(names), set(), Counter[str](), []
    for name in names:
        one = name
        while one in seen or (one is not name and one in there):
            repeats[name] += 1
            one = f"{name}-{repeats[name]}"
        seen.add(one)
        found.append(one)
    return as_text(np.array(found, object))
