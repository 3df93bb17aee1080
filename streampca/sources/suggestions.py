"""What to open instead of a path that is not a matrix: files in it, or next to it."""

from __future__ import annotations

import os

from streampca.sources.genotypes.formats import CALLS

OPENED = (
    *CALLS,
    *"""
    .zarr .vcz .zarr.zip .nc .nc4 .h5ad .h5 .npy .npz .mtx .mtx.gz .parquet .feather .arrow
    .csv .tsv .csv.gz .hdf5
    """.split(),
)
CONVERSIONS = {
    ".ped": "plink1.9 --file {stem} --make-bed --out {stem}",
    **dict.fromkeys((".geno.gz", ".bed.gz"), "gunzip {path}, and the tables next to it"),
    ".ancestrymapgeno": "convertf with outputformat: PACKEDANCESTRYMAP",
}
JOINED = (*CALLS, ".zarr", ".vcz")  # several of these are opened as one, by a pattern
SHOWN = 5  # names of a folder that a message repeats


def how_to_convert(path: str) -> str:
    """The command that converts or loads a file of an unsupported format."""
    for suffix, command in CONVERSIONS.items():
        if path.lower().endswith(suffix):
            stem = path[: -len(suffix)]
            made = command.format(path=path, stem=stem)
            return f"a {suffix} is not read directly; convert it: {made}"
    known = f"{', '.join(CALLS)}, .nc, .npy, .npz, .h5, .h5ad, .mtx, .parquet, .feather or .csv"
    found = suggestion(os.path.splitext(path)[0])
    return f"not a format that streampca opens; expected a Zarr directory, {known}{found}"


def suggestion(path: str) -> str:
    """``; did you mean data.bed?`` if such files are next to ``data``; else ""."""
    stem = path.rstrip("/")
    found = [stem + suffix for suffix in (*OPENED, *CONVERSIONS) if os.path.exists(stem + suffix)]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def folder_contents(path: str) -> str:
    """What a folder without a Zarr store contains, and the line that opens it; "" for others."""
    if "://" in path or not os.path.isdir(path):
        return ""
    names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    if not names:
        return f": the folder is empty; expected a store, images or tables{suggestion(path)}"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    held = f": the folder holds {', '.join(names[:SHOWN])}{more}"
    return held + _line_for(path, names) + suggestion(path)


def _line_for(path: str, names: list[str]) -> str:
    """``. Use streampca.open(...)``, for the first kind of file that is known."""
    for suffix in (*OPENED, *CONVERSIONS):
        found = [name for name in names if name.endswith(suffix)]
        if not found:
            continue
        one = os.path.join(path, found[0])
        if suffix not in OPENED:
            return f". {one}: {how_to_convert(one)}"
        if suffix in JOINED and len(found) > 1:
            return f". Use streampca.open({os.path.join(path, '*' + suffix)!r}), or one of them"
        return f". Use streampca.open({one!r})"
    if any(name.endswith((".txt", ".md")) for name in names):
        return f". For texts: streampca.LSA().fit({path!r}), or streampca lsa fit {path}"
    return ""
