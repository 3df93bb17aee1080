"""Lists of ids of samples and variants: read, and found among the labels of a matrix."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from streampca.errors import AbsentNamesWarning, InvalidInputError, shorten, warn_caller
from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.matrix.columns import as_text, is_among, pieces, repeated, textual
from streampca.sources.text_files import read_text

Names = Iterable[str] | str | os.PathLike[str]


def sample_mask(labels: AxisLabels, names: Names, option: str = "samples") -> Array:
    """(n,) True for the named samples: individual ids, or family and individual.

    names : a sequence of "IID", "FID IID" or "FID:IID", or a file with one of these a line. A
        sample whose own name holds a blank is named by all of it.
    Raises InvalidInputError where none of them is there, and for an IID that several samples
    have.
    """
    columns = [names_of(labels)]
    wanted = read_names(names, columns=2)
    if "family" in labels.extra:
        family, individual = (as_text(labels.extra[name]) for name in ("family", "individual"))
        both = [np.strings.add(np.strings.add(family, sign), individual) for sign in " :"]
        _refuse_ambiguous(individual, both, wanted, option)
        columns += [individual, *both]
    else:  # a family may be part of the name, as FID:IID
        wanted = [name.removeprefix("0 ") for name in wanted]  # PLINK's "no family"
        blank = set(columns[0][np.strings.find(columns[0], " ") >= 0].tolist())
        wanted = [name if name in blank else name.replace(" ", ":") for name in wanted]
    chosen = np.zeros(len(labels), dtype=bool)
    for column in columns:
        chosen |= is_among(column, wanted)
    if not chosen.any():
        marks = [mark for mark in ",;\"'" if all(mark in name for name in wanted)]
        advice = f". Separate ids by blanks or tabs, without {marks[0]}" if marks else ""
        raise InvalidInputError(
            f"{option}: none of {shorten(wanted[:4], len(wanted))} is a sample of the data; its "
            f"samples are {shorten(labels.names(range(min(4, len(labels)))), len(labels))}{advice}"
        )
    warn_of_absent(wanted, [column[chosen] for column in columns], option)
    return chosen


def _refuse_ambiguous(
    individual: Any, both: Sequence[Any], wanted: Sequence[str], option: str
) -> None:
    """Refuse names that several samples have, of which nothing says who is meant.

    both : the ids of family and individual, joined by " " and by ":".
    """
    like_pairs = sum(np.strings.find(individual, sign) >= 0 for sign in " :") > 0
    unsure = {*wanted} & {*repeated(individual), *individual[like_pairs].tolist()}
    owners = dict[str, set[int]]()
    for column in (individual, *both):
        for i in np.flatnonzero(is_among(column, unsure)).tolist():
            owners.setdefault(str(column[i]), set()).add(i)
    several = [name for name in dict.fromkeys(wanted) if len(owners.get(name, ())) > 1]
    if not several:
        return
    whom = sorted(owners[several[0]])
    shown = shorten([str(both[1][i]) for i in whom[:4]], len(whom))
    raise InvalidInputError(
        f"{option}: {len(several)} of {len({*wanted})} ids are of several samples: {several[0]} is "
        f"{shown}. Name family and individual: {both[1][whom[0]]}, or in a file "
        f"'{both[0][whom[0]]}'"
    )


def sample_keys(labels: AxisLabels) -> dict[str, int]:
    """The samples by their names, IID and FID:IID; ids that several samples have are left out."""
    columns = [[str(name) for name in labels.names()]]
    if "family" in labels.extra:
        family, individual = (as_text(labels.extra[name]) for name in ("family", "individual"))
        columns.append([str(name) for name in individual])
        columns.append([f"{f}:{i}" for f, i in zip(family, individual, strict=True)])
    keys: dict[str, int] = {}
    for column in columns:
        for i, name in enumerate(column):
            keys[name] = i if keys.get(name, i) == i else -1
    return {name: i for name, i in keys.items() if i >= 0}


def warn_of_absent(wanted: Iterable[str], columns: Sequence[Array], option: str) -> None:
    """Warn of names in a list that the data do not have."""
    absent = dict.fromkeys(wanted)
    asked = len(absent)
    for column in columns:
        for piece in pieces(column):
            for name in piece:
                absent.pop(name, None)
    if absent:
        few = [name.replace(" ", ":") for name in islice(absent, 4)]
        warn_caller(
            f"{option}: {len(absent)} of {asked} names are not in the data: "
            f"{shorten(few, len(absent))}",
            AbsentNamesWarning,
        )


def read_names(names: Names, columns: int | None = None) -> list[str]:
    """Names of a sequence or a file: all its words (PLINK's --extract), or one name a line.

    columns : words of a line that make up the name; further words are ignored.
    """
    if not isinstance(names, (str, os.PathLike)):
        return [str(name) for name in names]
    lines = read_text(names).splitlines()
    if lines and lines[0].startswith("#IID"):  # PLINK 2: no family, and further columns
        columns = columns and 1
    if columns and lines and lines[0].upper().split()[:2] == ["FID", "IID"]:
        del lines[0]
    words = [line.split() for line in lines if line.strip() and line[0] != "#"]
    if not words:
        raise InvalidInputError(f"{names} is empty; expected ids, one or more in a line")
    if columns is None:
        return [word for line in words for word in line]
    return [" ".join(line[:columns]) for line in words]


def names_of(labels: AxisLabels) -> Any:
    if len(labels.dims) != 1 or labels.dims[0] not in labels.coords:
        raise InvalidInputError(
            "ids were given, and this source has none; open one that has, such as a .bed or a VCF "
            "Zarr"
        )
    return textual(labels.coords[labels.dims[0]])
