"""Text tables in the layout of PLINK's .eigenvec, .eigenval, .afreq, .smiss and the like."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from streampca.errors import SourceError
from streampca.kernels import Array
from streampca.sources.text_files import read_text
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
    lines = [line for line in read_text(path).splitlines() if line.strip()]
    tab = "\t" if lines and "\t" in lines[0] else None  # names may hold blanks then
    head, *rows = [line.split(tab) for line in lines] or [[]]
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


def read_evec(path: str | os.PathLike[str]) -> tuple[dict[str, list[str]], Array]:
    """(ids by column: FID and IID, or IID; (n, k) float64 values) of smartpca's ``evecoutname``.

    A line has a sample, as IID or FID:IID, its values and its population. Raises SourceError.
    """
    lines = [line.split() for line in read_text(path).splitlines() if line.strip()]
    rows = [line for line in lines if not line[0].startswith("#")]
    k = len(rows[0]) - 2 if rows else 0
    try:
        if k < 1 or any(len(row) != k + 2 for row in rows):
            raise ValueError("expected an id, values and a population in each line")
        values = np.array([[float(one) for one in row[1:-1]] for row in rows])
    except ValueError as error:
        raise SourceError(f"{path}: {error}; smartpca's evecoutname was expected") from None
    names = [row[0] for row in rows]
    if all(name.count(":") == 1 for name in names):
        family, individual = zip(*(name.split(":") for name in names), strict=True)
        return {"FID": [*family], "IID": [*individual]}, values
    return {"IID": names}, values


def write_eigenval(
    path: str | os.PathLike[str], values: np.ndarray[Any, Any], overwrite: bool = True
) -> None:
    """One eigenvalue a line, as PLINK writes them.  overwrite : see :func:`write_lines`."""
    lines = (f"{value:.9g}\n" for value in np.asarray(values).tolist())
    write_lines(path, lines, overwrite)


def eigensoft_eigenvalues(result: Any) -> Array:
    """(k,) in the scale of smartpca's evaloutname: all n - 1 of them would add up to n - 1."""
    return np.asarray(result.explained_variance_ratio * (result.n_samples - 1))


def allele_weights(result: Any, part: slice, columns: Any) -> Array:
    """(m, k) loadings of some variants per copy standardised by 2 f (1 - f), whatever the scale.

    columns : (p, k) components, an array or in Zarr. Scores are the sums that ``plink2 --score
    variance-standardize`` forms with them; a variant that the fit did not use gets 0.
    """
    frequency = np.asarray(result.mean[part]) / 2.0
    deviation = np.sqrt(np.maximum(2.0 * frequency * (1.0 - frequency), 0.0))
    if result.scale is not None:
        scale = np.asarray(result.scale[part])
        deviation = np.divide(deviation, scale, out=np.zeros_like(deviation), where=scale > 0)
    return np.asarray(columns[part]) * deviation[:, None]


def identifiers(samples: Any) -> list[tuple[str, Any]]:
    """The columns FID and IID; only IID without families, and numbers from 1 without names."""
    if "family" in samples.extra:
        return [("FID", samples.extra["family"]), ("IID", samples.extra["individual"])]
    if not samples.named:
        return [("IID", range(1, len(samples) + 1))]
    return [("IID", [name.replace(" ", "_") for name in samples.names()])]


def six_digits(values: Array) -> Array:
    """Values (m,) rounded to six significant digits as PLINK 2 prints them: ties to the even digit,
    also those that binary numbers only approach, such as 0.02265625."""
    with np.errstate(divide="ignore", invalid="ignore"):
        power = 10.0 ** (5 - np.floor(np.log10(np.abs(values))))
        digits = np.abs(values) * power
        rounded = np.floor(digits + np.where(np.floor(digits) % 2 == 0, 0.499999995, 0.500000005))
        return np.where(np.isfinite(rounded), np.copysign(rounded / power, values), values)


# Tables of variants and samples: columns by their heading, each a function of a slice of rows.

Columns = Mapping[str, Callable[[slice], Sequence[Any]]]
ALLELES = {"REF": "other_allele", "ALT": "counted_allele", "A1": "counted_allele"}


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
    columns = {
        **_of_variants(variants, "ID", "REF", "ALT"),
        "ALT_FREQS": lambda part: [f"{share:.6g}" for share in frequencies[part].tolist()],
        "OBS_CT": lambda part: observed[part].tolist(),
    }
    write_lines(path, _table(columns, len(variants)), overwrite)


def write_acount(
    path: str | os.PathLike[str],
    variants: Any,
    frequencies: Any,
    observed: Any,
    overwrite: bool = True,
) -> None:
    """The same with the exact counts, ``ALT_CTS``, as ``plink2 --read-freq`` takes them."""

    def copies(part: slice) -> list[int]:
        found: list[int] = np.rint(np.nan_to_num(frequencies[part]) * observed[part]).tolist()
        return [int(one) for one in found]

    columns = {
        **_of_variants(variants, "ID", "REF", "ALT"),
        "ALT_CTS": copies,
        "OBS_CT": lambda part: observed[part].tolist(),
    }
    write_lines(path, _table(columns, len(variants)), overwrite)


def write_allele_weights(
    path: str | os.PathLike[str],
    variants: Any,
    used: Any,
    weights: Callable[[slice], Array],
    k: int,
    overwrite: bool = True,
) -> None:
    """Loadings, a line for each used variant: ``#CHROM ID REF ALT A1 PC1 ...``, as PLINK 2's
    .eigenvec.allele.

    used : (p,) bool.  weights : (m, k) of the copies of A1, the counted allele, in a slice.
    """

    def numbers(part: slice) -> list[str]:
        return ["\t".join(f"{x:.9g}" for x in row) for row in weights(part).tolist()]

    heading = "\t".join(f"PC{i + 1}" for i in range(k))
    columns = {**_of_variants(variants, "ID", "REF", "ALT", "A1"), heading: numbers}
    write_lines(path, _table(columns, len(variants), used), overwrite)


def write_vmiss(
    path: str | os.PathLike[str], variants: Any, missing: Any, samples: int, overwrite: bool = True
) -> None:
    """Missing calls of variants, ``#CHROM ID MISSING_CT OBS_CT F_MISS``, as PLINK 2's.

    missing : (p,) calls that are missing, of so many ``samples``.
    """
    columns = {**_of_variants(variants, "ID"), **_shares(missing, samples)}
    write_lines(path, _table(columns, len(variants)), overwrite)


def write_smiss(
    path: str | os.PathLike[str],
    identifiers: Sequence[tuple[str, Sequence[Any]]],
    missing: Any,
    variants: int,
    overwrite: bool = True,
) -> None:
    """Missing calls of samples, ``#FID IID MISSING_CT OBS_CT F_MISS``, as PLINK 2's.

    identifiers : as :func:`write_eigenvec`.  missing : (n,), of so many ``variants``.
    """
    columns = {name: entries.__getitem__ for name, entries in identifiers}
    write_lines(path, _table({**columns, **_shares(missing, variants)}, len(missing)), overwrite)


def _table(columns: Columns, rows: int, used: Any = None) -> Iterable[str]:
    """The lines of a table.  used : (rows,) bool; the others are left out."""
    yield "#" + "\t".join(columns) + "\n"
    for start in range(0, rows, ROWS):
        part = slice(start, min(start + ROWS, rows))
        values = [[*map(str, made(part))] for made in columns.values()]
        kept = [True] * len(values[0]) if used is None else used[part].tolist()
        for keep, *row in zip(kept, *values, strict=True):
            if keep:
                yield "\t".join(row) + "\n"


def _of_variants(variants: Any, *names: str) -> dict[str, Any]:
    """The columns CHROM, ID, REF, ALT and A1 of variants."""

    def entries(name: str, part: slice) -> list[str]:
        if name not in variants.extra:
            return ["."] * (part.stop - part.start)
        return [str(entry) for entry in variants.extra[name][part].tolist()]

    def ids(part: slice) -> list[str]:
        return ["_".join(one.split()) for one in variants.names(range(part.start, part.stop))]

    def alleles(name: str, part: slice) -> list[str]:
        return ["." if entry == "0" else entry for entry in entries(name, part)]

    made = {name: partial(alleles, column) for name, column in ALLELES.items()}
    every = {"CHROM": partial(entries, "chromosome"), "ID": ids, **made}
    return {name: every[name] for name in ("CHROM", *names)}


def _shares(missing: Any, calls: int) -> dict[str, Any]:
    return {
        "MISSING_CT": lambda part: missing[part].tolist(),
        "OBS_CT": lambda part: [calls] * (part.stop - part.start),
        "F_MISS": lambda part: [f"{lost / calls:.6g}" for lost in missing[part].tolist()],
    }


def write_lines(path: str | os.PathLike[str], lines: Iterable[str], overwrite: bool = True) -> None:
    """Write a text file, complete or not at all. Its folder is made if there is none.

    overwrite : replace an existing file, also one that was written meanwhile. Raises
        InvalidInputError if it is False, or if what exists is not a file; nothing is changed then.
    """
    with whole_file(path, overwrite) as file:
        file.writelines(line.encode() for line in lines)
