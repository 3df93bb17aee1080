"""Text tables in the layout of PLINK's .eigenvec, .eigenval and .afreq."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from streampca.errors import SourceError
from streampca.kernels import Array
from streampca.sources.encodings import read_text
from streampca.store.bundle import whole_file

ROWS = 4096  # formatted at once


def write_eigenvec(
    path: str | os.PathLike[str],
    identifiers: Sequence[tuple[str, Sequence[Any]]],
    values: np.ndarray[Any, Any],
    overwrite: bool = True,
) -> None:
    """Samples x components as tab-separated text in PLINK 2's layout, whole or not at all.

    identifiers : (column name, one entry per sample), such as ("FID", ...), ("IID", ...).
    values : (n, k).  overwrite : see :func:`write_lines`.
    """
    n, k = values.shape
    head = [name for name, _ in identifiers] + [f"PC{i + 1}" for i in range(k)]
    columns = [entries for _, entries in identifiers]

    def lines() -> Iterable[str]:
        yield "#" + "\t".join(head) + "\n"
        for start in range(0, n, ROWS):
            for i in range(start, min(start + ROWS, n)):
                numbers = "\t".join(f"{x:.9g}" for x in values[i].tolist())
                yield "\t".join([*(str(c[i]) for c in columns), numbers]) + "\n"

    write_lines(path, lines(), overwrite)


def read_eigenvec(path: str | os.PathLike[str]) -> tuple[dict[str, list[str]], Array]:
    """(ids by column: FID, IID, ...; (n, k) float64 values) of a table with columns PC1, PC2, ...

    As ``write_eigenvec``, ``streampca project`` and PLINK 2 write it. Raises SourceError.
    """
    lines = read_text(path).splitlines()
    head, *rows = [line.split() for line in lines if line.strip()] or [[]]
    names = [name.lstrip("#") for name in head]
    scores = [i for i, name in enumerate(names) if name.startswith("PC") and name[2:].isdigit()]
    if not scores or not rows or any(len(row) != len(names) for row in rows):
        raise SourceError(
            f"{path}: expected a header with columns PC1, PC2, ... and as many fields in each "
            "line, as streampca project writes"
        )
    try:
        values = np.array([[float(row[i]) for i in scores] for row in rows])
    except ValueError as error:
        raise SourceError(f"{path}: {error}") from None
    ids = {name: [row[i] for row in rows] for i, name in enumerate(names) if i not in scores}
    return ids, values


def write_eigenval(
    path: str | os.PathLike[str], values: np.ndarray[Any, Any], overwrite: bool = True
) -> None:
    """One eigenvalue a line, as PLINK writes them.  overwrite : see :func:`write_lines`."""
    lines = (f"{value:.9g}\n" for value in np.asarray(values).tolist())
    write_lines(path, lines, overwrite)


def write_afreq(
    path: str | os.PathLike[str],
    variants: Any,
    frequencies: np.ndarray[Any, Any],
    observed: np.ndarray[Any, Any],
    overwrite: bool = True,
) -> None:
    """Allele frequencies, one line a variant: ``#CHROM ID REF ALT ALT_FREQS OBS_CT``, as PLINK 2's.

    variants : labels, with the extra columns chromosome, counted_allele (ALT, the one whose
        frequency it is) and other_allele (REF); "." stands for what is not known, PLINK 1's "0".
    frequencies : (p,), nan for a variant without calls.  observed : (p,) alleles behind them.
    overwrite : see :func:`write_lines`.
    """

    def column(name: str, part: slice) -> list[str]:
        if name not in variants.extra:
            return ["."] * (part.stop - part.start)
        return [str(entry) for entry in variants.extra[name][part].tolist()]

    def lines() -> Iterable[str]:
        yield "#CHROM\tID\tREF\tALT\tALT_FREQS\tOBS_CT\n"
        for start in range(0, len(frequencies), ROWS):
            part = slice(start, min(start + ROWS, len(frequencies)))
            names = ["_".join(one.split()) for one in variants.names(range(start, part.stop))]
            alleles = [
                ["." if one == "0" else one for one in column(name, part)]
                for name in ("other_allele", "counted_allele")
            ]
            numbers = (frequencies[part].tolist(), observed[part].tolist())
            rows = zip(column("chromosome", part), names, *alleles, *numbers, strict=True)
            for *words, share, count in rows:
                yield "\t".join([*words, f"{share:.6g}", f"{count}\n"])

    write_lines(path, lines(), overwrite)


def write_lines(path: str | os.PathLike[str], lines: Iterable[str], overwrite: bool = True) -> None:
    """Write a text file, complete or not at all. Its folder is made if there is none.

    overwrite : replace an existing file, also one that was written meanwhile. Raises
        InvalidInputError if it is False, or if what exists is not a file; nothing is changed then.
    """
    with whole_file(path, overwrite) as file:
        file.writelines(line.encode() for line in lines)
