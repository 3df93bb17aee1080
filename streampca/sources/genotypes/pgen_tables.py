"""The tables of a PLINK 2 fileset: .pvar (variants; .zst too) and .psam (samples).

Source: PLINK 2, "File format reference": .pvar, .psam.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from itertools import chain
from typing import Any

import numpy as np

from streampca.errors import MissingDependencyError, SourceError
from streampca.matrix.columns import Text, as_text
from streampca.sources.genotypes.plink_tables import Layout, Scan, VariantTable
from streampca.sources.genotypes.variants import NO_PARENT
from streampca.sources.text_files import marked, read_text

ZST = ".zst"
NEEDED = (b"CHROM", b"ID", b"POS", b"ALT", b"REF")  # a matrix counts copies of ALT
FIVE = (b"CHROM", b"ID", b"POS", b"ALT", b"REF")  # columns of a table without a header
SIX = (b"CHROM", b"ID", b"CM", b"POS", b"ALT", b"REF")  # those of a .bim
FAM = ("FID", "IID", "PAT", "MAT", "SEX", "PHENO1")  # columns of a .psam without a header
SEXES = {"1": "male", "M": "male", "m": "male", "2": "female", "F": "female", "f": "female"}
UNKNOWN = "unknown"


def read_pvar(path: str) -> VariantTable:
    """Scan a .pvar, .pvar.zst or .bim of a PLINK 2 fileset: one read of the file.

    Without a header line, columns are those of a .bim, with or without the third.
    Raises SourceError for a table without a column that is needed, and as ``read_bim``;
    MissingDependencyError where nothing decompresses it.
    """
    packed = path.lower().endswith(ZST)
    with _opened(path) as file:
        start = 0 if packed else marked(path)
        if not packed:
            file.seek(start)
        line = file.readline()
        while line.lstrip().startswith(b"##") or (line and line.isspace()):
            start += len(line)
            line = file.readline()
        first = [line] if line.strip() else []
        if line.lstrip().startswith(b"#"):
            start, first = start + len(line), []
            layout = _layout(path, tuple(line.lstrip()[1:].split()))
        else:
            width = len(line.split())
            layout = _layout(path, FIVE if width == len(FIVE) else SIX, width)
        return Scan(path, layout, start, packed=packed).all(chain(first, file))


def _layout(path: str, columns: tuple[bytes, ...], width: int | None = None) -> Layout:
    """Which columns hold what.  width : fields of a line, if the columns may be fewer."""
    if lacking := [name.decode() for name in NEEDED if name not in columns]:
        raise SourceError(
            f"{path}: the header line names no {', '.join(lacking)}; expected #CHROM POS ID REF ALT"
        )
    chromosome, name, position, counted, other = (columns.index(one) for one in NEEDED)
    return Layout(".pvar", width or len(columns), (chromosome, name, position, counted, other))


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """The bytes of a file, decompressed as they are read."""
    try:
        if not path.lower().endswith(ZST):
            with open(path, "rb") as file:
                yield file
            return
        try:
            import pyarrow as pa
        except ImportError:
            raise MissingDependencyError(
                f"{path} needs pyarrow to be decompressed: pip install 'streampca[pgen]'"
            ) from None
        with pa.OSFile(path) as raw, pa.CompressedInputStream(raw, "zstd") as stream:
            yield BufferedReader(stream)
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None


def read_psam(path: str) -> tuple[Text | None, Text, dict[str, Text]]:
    """(family ids or None, individual ids, further columns where any is known) of a .psam or .fam.

    The further ones are "father", "mother", "sex" ("male", "female" or "unknown"), "source" (SID).
    Raises SourceError for lines of another number of fields than the header, for a table without
    IID and for an empty one.
    """
    rows = [line.split() for line in read_text(path).splitlines() if line.strip()]
    rows = [row for row in rows if not row[0].startswith("##")]
    if not rows:
        raise SourceError(f"{path} is empty")
    names: tuple[str, ...] = FAM
    least, most = 5, 1 << 20
    if rows[0][0].startswith("#"):
        names = tuple(name.lstrip("#") for name in rows.pop(0))
        least = most = len(names)
    if "IID" not in names:
        raise SourceError(f"{path}: the header line names no IID; expected #FID IID, or #IID")
    for i, row in enumerate(rows):
        if not least <= len(row) <= most:
            raise SourceError(f"{path}, sample {i + 1}: {len(row)} fields, expected {least}")
    if not rows:
        raise SourceError(f"{path} names no sample")
    every = zip(*rows, strict=False)
    found = {name: as_text(values) for name, values in zip(names, every, strict=False)}
    extra: dict[str, Text] = {}
    parents = [found[name] for name in ("PAT", "MAT") if name in found]
    if len(parents) == 2 and any(np.any(one != NO_PARENT) for one in parents):
        extra = {"father": parents[0], "mother": parents[1]}
    if "SID" in found and np.any(found["SID"] != NO_PARENT):
        extra["source"] = found["SID"]
    sexes = [SEXES.get(code, UNKNOWN) for code in found["SEX"].tolist()] if "SEX" in found else []
    if {*sexes} - {UNKNOWN}:
        extra["sex"] = as_text(sexes)
    return found.get("FID"), found["IID"], extra
