"""The tables of EIGENSOFT's formats, .snp and .ind, and the digests of their ids in a .geno.

Source: EIGENSOFT, CONVERTF/README; the digests are those of its ``hasharr``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from streampca.errors import SourceError
from streampca.matrix.columns import Mapped, Runs, Text, as_text, compact
from streampca.sources.genotypes.plink_tables import Layout, Scan, VariantTable
from streampca.sources.text_files import marked, read_text

WITH_ALLELES = Layout(".snp", 6, (1, 0, 3, 4, 5))
WITHOUT = Layout(".snp", 4, (1, 0, 3, 0, 0))  # alleles are then unknown
CODES = {"90": "MT", "91": "XY"}  # EIGENSOFT's numbers of chromosomes that are not PLINK's
UNKNOWN_ALLELE = "X"  # convertf's; PLINK's is "0"
NOT_KNOWN = "0"
SEXES = {"M": "male", "F": "female"}
IGNORED = "Ignore"  # the population of individuals that EIGENSOFT leaves out
BITS = 0xFFFFFFFF


class Digest:
    """EIGENSOFT's digest of a list of names, 32 bits."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, names: Iterable[bytes]) -> None:
        """The next names."""
        value = self.value
        for one in _of_names(list(names)).tolist():
            value = ((value * 17) & BITS) ^ one
        self.value = value


def _of_names(names: list[bytes]) -> np.ndarray[Any, Any]:
    """(names,) uint32, of each name alone: its bytes as digits of a number of base 23."""
    if not names:
        return np.zeros(0, np.uint32)
    table = np.array(names)  # padded with zeros
    signed = table.view(np.int8).reshape(len(names), -1).astype(np.int32).view(np.uint32)
    ends = np.fromiter(map(len, names), np.int64, len(names))
    found = np.zeros(len(names), np.uint32)
    for place in range(signed.shape[1]):
        found = np.where(place < ends, found * np.uint32(23) + signed[:, place], found)
    return found


class _SnpScan(Scan):
    """A scan that takes the digest of the ids."""

    def __init__(self, path: str, layout: Layout) -> None:
        super().__init__(path, layout, marked(path))
        self.digest = Digest()

    def add(self, lines: list[bytes]) -> None:
        super().add(lines)
        self.digest.add(b"".join(lines).split()[:: self.layout.width])


def read_snp(path: str) -> tuple[VariantTable, int]:
    """(the table of a .snp, the digest of its ids). One read of the file.

    Its alleles are the reference allele, whose copies are counted, and the variant one; without
    them both are "0". Chromosomes 90 and 91 are MT and XY.
    Raises SourceError as ``read_bim``.
    """
    with open(path, "rb") as file:
        file.seek(marked(path))
        first = next((line for line in file if line.strip()), b"")
        layout = WITHOUT if len(first.split()) == WITHOUT.width else WITH_ALLELES
        scan = _SnpScan(path, layout)
        file.seek(marked(path))
        table = scan.all(file)
    columns = table.columns
    columns[0] = _mapped(_chromosomes, columns[0])
    if layout is WITHOUT:
        unknown = Runs(compact([NOT_KNOWN]), np.zeros(1, np.int64), table.count)
        columns[3:] = [unknown, unknown]
    else:
        columns[3:] = [_mapped(_alleles, column) for column in columns[3:]]
    return table, scan.digest.value


def _mapped(of: Any, column: Any) -> Any:
    """A column, an array or lazy, through a function of its values."""
    if isinstance(column, Runs):
        return column.mapped(of)
    return of(column) if isinstance(column, np.ndarray) else Mapped(of, column.dtype, column)


def _chromosomes(names: Text) -> Text:
    return compact([CODES.get(name, name) for name in names.tolist()])


def _alleles(names: Text) -> Text:
    known = names.copy()
    known[names == UNKNOWN_ALLELE] = NOT_KNOWN
    return known


def read_ind(path: str) -> tuple[Text, dict[str, Text], int]:
    """(ids, "population" and "sex" where known, the digest of the ids) of a .ind.

    Raises SourceError for lines of fewer than 3 fields, and an empty table.
    """
    rows = [line.split() for line in read_text(path).splitlines() if line.strip()]
    if not rows:
        raise SourceError(f"{path} is empty")
    for i, row in enumerate(rows):
        if len(row) < 3:
            raise SourceError(f"{path}, line {i + 1}: {len(row)} fields, a .ind has 3")
    digest = Digest()
    digest.add(row[0].encode() for row in rows)
    extra = {"population": as_text([row[2] for row in rows])}
    sexes = [SEXES.get(row[1].upper(), "unknown") for row in rows]
    if {*sexes} - {"unknown"}:
        extra["sex"] = as_text(sexes)
    return as_text([row[0] for row in rows]), extra, digest.value
