"""Embeddings beside the plain pipelines, in one run: ``python -m tests.benchmarks.embed``.

Proves what README says of ``embed``. Every candidate runs in a fresh process.

- digits (1,797 x 64): ours beside scikit-learn's PCA and UMAP, and UMAP of the raw pixels.
- 50,000 x 2,000 float32, 40 groups: ours beside PCA and UMAP of the matrix in memory.
- 1,000,000 x 2,000 float32 (8 GB) in 2 GiB, with landmarks, to the picture; no peer, which would
  hold 8 GB.

Simulated values are rounded to 1/16, so that the store takes a quarter of what is read from it.
Trustworthiness and k-NN preservation (15 neighbours) are those of the raw data, by 1,000 rows (by
all digits). Seconds are of processors: wall times mean little on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from tests.benchmarks.measure import measure, record, recordable

Array = np.ndarray[Any, Any]

P, K, GROUPS, FACTORS = 2000, 50, 40, 30
ROWS = 2000  # of a chunk
ROWS_OF = {"digits": 1797, "rows": 50_000, "million": 1_000_000}


# -- data ---------------------------------------------------------------------------


def write(path: Path, n: int) -> None:
    """(n, P) float32 in Zarr: groups in a space of few factors, and noise."""
    rng = np.random.default_rng(0)
    loadings = rng.standard_normal((FACTORS, P), "f4") * np.linspace(2, 0.2, P, dtype="f4")
    centres = 5 * rng.standard_normal((GROUPS, FACTORS), "f4")
    out = zarr.create_array(
        str(path),
        shape=(n, P),
        chunks=(ROWS, P),
        dtype="f4",
        compressors=zarr.codecs.BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle"),
    )
    for start in range(0, n, ROWS):
        rows = min(ROWS, n - start)
        scores = centres[rng.integers(0, GROUPS, rows)] + rng.standard_normal((rows, FACTORS), "f4")
        x = scores @ loadings + rng.standard_normal((rows, P), "f4")
        out[start : start + rows] = np.rint(x * 16) / 16


def in_memory(path: str) -> Array:
    if Path(path).name == "digits":
        from sklearn.datasets import load_digits

        return np.asarray(load_digits().data, "f4")
    return np.asarray(zarr.open_array(path, mode="r")[:])


# -- tools --------------------------------------------------------------------------


def used() -> dict[str, Any]:
    """Processor seconds and the largest memory of this process so far."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu": spent.ru_utime + spent.ru_stime, "peak_mb": spent.ru_maxrss * 1024 / 1e6}


def kept(told: dict[str, Any], rows: Array, picture: Array) -> dict[str, Any]:
    """What was used, and what a picture keeps of the neighbourhoods of the raw rows."""
    from streampca.embedding import quality

    n = len(picture)
    some = np.arange(n) if n < 5000 else np.random.default_rng(1).choice(n, 1000, replace=False)
    found = quality(rows, picture, np.sort(some))
    return told | {"trust": found.trustworthiness, "near": found.knn_preservation}


def ours(path: str, limit: str | None = None) -> dict[str, Any]:
    """``streampca.embed`` of half of the features, and in 2 GiB its own judgement."""
    import streampca

    wanted = None if Path(path).name == "digits" else f"variance:{P // 2}"
    source = in_memory(path) if wanted is None else path
    found = streampca.embed(
        source, filter=wanted, n_components=K, memory_limit=limit, progress=False
    )
    told = {"planned_mb": found.plan.peak_nbytes / 1e6}
    if limit is None:
        return kept(used() | told, in_memory(path), found.coordinates)
    drawn = streampca.plots.embedding(found).get_figure()
    drawn.savefig(f"{path}.png", dpi=150, bbox_inches="tight")
    return (
        used()
        | told
        | {
            "trust": found.quality.trustworthiness,
            "near": found.quality.knn_preservation,
            "note": f"{len(found.landmarks):,} landmarks; kept of the {K} components",
        }
    )


def plain(path: str) -> dict[str, Any]:
    """scikit-learn's PCA, then UMAP, of the matrix in memory."""
    from sklearn.decomposition import PCA
    from umap import UMAP

    rows = in_memory(path)
    scores = PCA(K, random_state=0).fit_transform(rows)
    picture = UMAP(random_state=0).fit_transform(scores)
    return kept(used(), rows, picture)


def raw(path: str) -> dict[str, Any]:
    """UMAP of the matrix itself."""
    from umap import UMAP

    rows = in_memory(path)
    picture = UMAP(random_state=0).fit_transform(rows)
    return kept(used(), rows, picture)


CANDIDATES: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "streampca.embed, digits": ("digits", ours),
    "PCA + UMAP, digits": ("digits", plain),
    "UMAP, raw digits": ("digits", raw),
    "streampca.embed, 50,000 x 2,000": ("rows", ours),
    "PCA + UMAP in memory, 50,000 x 2,000": ("rows", plain),
    "streampca.embed, 1,000,000 x 2,000, 2 GiB": ("million", partial(ours, limit="2GiB")),
}


# -- measuring ----------------------------------------------------------------------


def main() -> None:
    """Write the data once, run every candidate, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=[*ROWS_OF], default=[*ROWS_OF])
    parser.add_argument("--folder", help="keep data and picture here, and use the data again")
    parser.add_argument("--timeout", type=float, default=3600)
    recordable(parser, __file__)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        name, path = arguments.child
        print("RESULT " + json.dumps(CANDIDATES[name][1](path)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        for name, (data, _) in CANDIDATES.items():
            if data not in arguments.only:
                continue
            path = folder / data
            if data != "digits" and not path.exists():
                write(path, ROWS_OF[data])
            found = measure("tests.benchmarks.embed", name, str(path), timeout=arguments.timeout)
            found.pop("all_seconds", None)
            rows.append({"name": name, "data": f"{ROWS_OF[data]:,} rows", **found})
            print(f"{name:<42}", json.dumps(found), flush=True)
    record(arguments.record, rows, "scikit-learn", "umap-learn")


if __name__ == "__main__":
    main()
