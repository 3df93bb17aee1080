"""The samples of a BGEN: its ``.sample`` file, or the identifiers within it.

Source: Oxford's "Sample file format", versions 1 (ID_1 ID_2 missing ...) and 2 (ID ...).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from streampca.errors import SourceError
from streampca.matrix import AxisLabels
from streampca.matrix.columns import Text, as_text
from streampca.sources.genotypes.variants import NO_PARENT, sample_labels
from streampca.sources.text_files import read_text

SAMPLE = ".sample"
TYPES = frozenset("0DCPB")  # of columns, in the second line; version 2 has more letters
PARENTS = ("father", "mother")


def labels_of_samples(
    path: str, n_samples: int, within: Sequence[str] | None, sample_file: str | None
) -> tuple[AxisLabels, str | None]:
    """(the samples of a BGEN, the .sample file that names them or None).

    within : the identifiers in the BGEN, or None.  sample_file : as of ``open_bgen``.
    Raises SourceError where neither names the samples, or they do not fit each other.
    """
    stem = path[: -len(".bgen")] if path.lower().endswith(".bgen") else path
    beside = stem + SAMPLE
    chosen = sample_file or (beside if os.path.isfile(beside) else None)
    if chosen is None:
        if within is None:
            raise SourceError(
                f"{path} does not name its samples, and {beside} does not exist; name its sample "
                "file: sample_file='x.sample'"
            )
        return sample_labels(None, as_text(list(within))), None
    family, individual, parents = read_sample_file(chosen)
    if len(individual) != n_samples:
        raise SourceError(
            f"{chosen} names {len(individual)} samples, and {path} has {n_samples}; expected the "
            "sample file of this BGEN"
        )
    if within is not None:
        _refuse_others(path, chosen, within, family, individual, named=sample_file is not None)
    if np.all(family == NO_PARENT):
        return sample_labels(None, individual), chosen
    return sample_labels(family, individual, parents), chosen


def read_sample_file(path: str) -> tuple[Text, Text, dict[str, Text]]:
    """(ID_1, ID_2, father and mother where the file has them) of a sample file.

    Of version 2, whose ID is one column, both are that one.
    """
    lines = [line.split() for line in read_text(path).splitlines() if line.strip()]
    if len(lines) < 2 or not lines[0] or not {kind.upper() for kind in lines[1]} <= TYPES:
        raise SourceError(
            f"{path} is no sample file: expected a line of names such as 'ID_1 ID_2 missing sex', "
            "and one of types such as '0 0 0 D'"
        )
    names, kinds, rows = [name.lower() for name in lines[0]], lines[1], lines[2:]
    for i, row in enumerate(rows):
        if len(row) != len(names):
            raise SourceError(
                f"{path}, line {i + 3}: {len(row)} fields, its first has {len(names)}"
            )
    two = len(names) > 1 and kinds[1] == "0" and names[1] != "missing"
    family, individual = (as_text([row[i] for row in rows]) for i in (0, int(two)))
    places = [names.index(name) for name in PARENTS if name in names]
    if not two or len(places) < 2:
        return family, individual, {}
    known = {
        name: as_text(["0" if row[at] == "NA" else row[at] for row in rows])
        for name, at in zip(PARENTS, places, strict=True)
    }
    return family, individual, known if any(np.any(p != NO_PARENT) for p in known.values()) else {}


def _refuse_others(
    path: str, chosen: str, within: Sequence[str], family: Text, individual: Text, named: bool
) -> None:
    """Refuse a sample file of other samples than the BGEN names, or in another order.

    named : by the caller: then it may rename all of them, but not reorder them.
    """
    pairs = [(str(f), str(i)) for f, i in zip(family, individual, strict=True)]
    forms = [(i, f"{f}_{i}", f"{f}:{i}", f"{f} {i}", f) for f, i in pairs]
    wrong = next((j for j, name in enumerate(within) if name not in forms[j]), None)
    if wrong is None:
        return
    same = sorted(within) in (sorted(form[k] for form in forms) for k in range(4))
    if named and not same:
        return
    how = "in another order" if same else "under other names"
    repair = "" if same else f", or that its names are meant: sample_file={chosen!r}"
    raise SourceError(
        f"{chosen} has the samples of {path} {how}: sample {wrong + 1} is {within[wrong]} in the "
        f"BGEN and {' '.join(pairs[wrong])} there. Expected the sample file of this BGEN{repair}"
    )
