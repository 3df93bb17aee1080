"""What to open instead of a path that is no matrix: what lies in it, or beside it."""

from __future__ import annotations

import os

OPENED = (
    ".bed", ".zarr", ".vcz", ".zarr.zip", ".nc", ".nc4", ".h5ad", ".h5", ".npy", ".npz", ".mtx",
    ".mtx.gz",
)  # fmt: skip
CONVERSIONS = {
    ".pgen": "plink2 --pfile {stem} --make-bed --out {stem}",
    ".bgen": "plink2 --bgen {path} ref-first --make-bed --out {stem}",
    ".ped": "plink1.9 --file {stem} --make-bed --out {stem}",
    **{
        suffix: "vcf2zarr convert {path} {stem}.vcz, or plink2 --vcf {path} --make-bed --out {stem}"
        for suffix in (".vcf", ".vcf.gz", ".bcf")
    },
}
TABLES = {".csv": "read_csv", ".tsv": "read_table", ".parquet": "read_parquet"}
JOINED = (".bed", ".zarr", ".vcz")  # several of these are opened as one, by a pattern
SHOWN = 5  # names of a folder that a message repeats


def how_to_convert(path: str) -> str:
    """What to do with a file that is not opened here."""
    for suffix, command in CONVERSIONS.items():
        if path.endswith(suffix):
            stem = path.removesuffix(suffix)
            made = command.format(path=path, stem=stem)
            return f"a {suffix} is not read directly; convert it: {made}"
    if (reader := TABLES.get(os.path.splitext(path)[1])) is not None:
        return f"not a format that streampca opens; load it first: X = pandas.{reader}({path!r})"
    known = ".bed, .nc, .npy, .npz, .h5ad or .mtx"
    found = instead_of(os.path.splitext(path)[0])
    return f"not a format that streampca opens; expected a Zarr directory, {known}{found}"


def instead_of(path: str) -> str:
    """``; did you mean data.bed?`` where such files lie beside ``data``; else nothing."""
    stem = path.rstrip("/")
    found = [stem + suffix for suffix in (*OPENED, *CONVERSIONS) if os.path.exists(stem + suffix)]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def in_folder(path: str) -> str:
    """What a folder that is no Zarr store holds, and the line that opens it; "" for others."""
    if "://" in path or not os.path.isdir(path):
        return ""
    names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    if not names:
        return f": the folder is empty{instead_of(path)}"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    held = f": the folder holds {', '.join(names[:SHOWN])}{more}"
    return held + _line_for(path, names) + instead_of(path)


def _line_for(path: str, names: list[str]) -> str:
    """``. Use streampca.open(...)``, for the first kind of file that is known."""
    for suffix in (*OPENED, *CONVERSIONS, *TABLES):
        found = [name for name in names if name.endswith(suffix)]
        if not found:
            continue
        one = os.path.join(path, found[0])
        if suffix not in OPENED:
            return f". {one}: {how_to_convert(one)}"
        if suffix in JOINED and len(found) > 1:
            return f". Use streampca.open({os.path.join(path, '*' + suffix)!r}), or one of them"
        return f". Use streampca.open({one!r})"
    return ""
