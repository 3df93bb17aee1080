"""The .fam of a PLINK 1 fileset: its samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from streampca.errors import SourceError
from streampca.matrix.text import Text, as_text
from streampca.sources.variants import NO_PARENT


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
