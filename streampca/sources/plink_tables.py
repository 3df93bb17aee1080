"""The tables beside a PLINK 1 .bed: .bim (variants) and .fam (samples)."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import SourceError, shorten
from streampca.matrix.text import Text, as_text, compact, joined
from streampca.sources.variants import NO_PARENT

LINES = 8192  # of a .bim that are split at once


def read_fam(path: str) -> tuple[Text, Text, dict[str, Text]]:
    """(family ids, individual ids, ids of father and mother where any are known)."""
    rows = [line.split() for line in Path(path).read_text().splitlines() if line.strip()]
    for i, row in enumerate(rows):
        if len(row) < 6:
            raise SourceError(f"{path}, line {i + 1}: {len(row)} fields, a .fam has 6")
    if not rows:
        raise SourceError(f"{path} is empty")
    family, individual, father, mother = (as_text([row[i] for row in rows]) for i in range(4))
    known = np.any((father != NO_PARENT) | (mother != NO_PARENT))
    return family, individual, {"father": father, "mother": mother} if known else {}


def read_bim(path: str) -> list[np.ndarray[Any, Any]]:
    """[chromosome, id, position, A1, A2] of every variant."""
    parts: list[list[Any]] = []
    with open(path) as file:
        while lines := list(islice(file, LINES)):
            tokens = "".join(lines).split()
            if len(tokens) != 6 * len(lines):
                _refuse_line(path, len(parts) * LINES, lines)
            try:
                position = np.array(tokens[3::6], dtype=np.int64)
            except (ValueError, OverflowError):
                raise SourceError(f"{path}: a position (column 4) is not a number") from None
            named = [compact(tokens[i::6]) for i in (0, 1, 4, 5)]
            parts.append([*named[:2], position, *named[2:]])
    if not parts:
        raise SourceError(f"{path} is empty")
    table = []
    for i in range(5):  # one column at a time: the pieces of each are freed as it is joined
        table.append(joined([part[i] for part in parts]))
        for part in parts:
            part[i] = None
    commas = [np.strings.find(alleles, ",") >= 0 for alleles in table[3:]]
    several = np.flatnonzero(commas[0] | commas[1])
    if several.size:
        names = shorten([str(table[1][i]) for i in several[:4]], len(several))
        raise SourceError(
            f"{path}: {len(several)} variants have more than two alleles ({names}); a .bed holds "
            "two. Split or drop them: plink2 --max-alleles 2 --make-bed"
        )
    return table


def _refuse_line(path: str, before: int, lines: list[str]) -> None:
    for i, line in enumerate(lines):
        if len(line.split()) != 6:
            raise SourceError(
                f"{path}, line {before + i + 1}: {len(line.split())} fields, a .bim has 6"
            )
