"""Data of the everyday benchmark and of the grid of choices: seeded, in memory or in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

FACTORS = 10
WORDS, TOPICS = 60, 30  # of a document, and of all documents
STORED = 0.01  # share of the cells of a sparse matrix


def dense(n: int, p: int, dtype: str = "f4", spectrum: str = "spiked") -> Any:
    """(n, p) with a spectrum: ten spikes over noise, steep (a power of the number), or flat.

    Columns have means near 5. int8 holds values that are rounded to eighths of a unit.
    """
    rng = np.random.default_rng([n, p])
    x = rng.standard_normal((n, p), dtype=np.float32)
    if spectrum == "steep":
        r = min(n, p, 400)
        strength = np.arange(1, r + 1, dtype=np.float32) ** np.float32(-1.0)
        x *= np.float32(1e-3)
        x += (x[:, :r] * (strength * 1e3)) @ rng.standard_normal((r, p), dtype=np.float32)
    if spectrum == "spiked":
        u = rng.standard_normal((n, FACTORS), dtype=np.float32)
        u *= 2 * 0.8 ** np.arange(FACTORS, dtype=np.float32)
        x += u @ rng.standard_normal((FACTORS, p), dtype=np.float32)
    if dtype == "i1":
        return np.clip(np.rint(8 * x), -128, 127).astype("i1")
    x += rng.normal(5.0, 1.0, p).astype(np.float32)
    return x.astype(dtype)


def sparse(n: int, p: int, spectrum: str, stored: float = STORED) -> Any:
    """(n, p) CSR float32: steep (columns of falling strength), flat (alike), or counts of topics.

    "spiked" is another word for topics.
    """
    rng = np.random.default_rng([n, p])
    if spectrum in ("topics", "spiked"):
        return topics(n, p, max(2, round(1.2 * stored * p)), rng)
    x = scipy.sparse.random_array(
        (n, p), density=stored, format="csr", rng=rng, data_sampler=rng.standard_normal
    ).astype(np.float32)
    if spectrum == "steep":
        x.data *= (np.arange(1, p + 1) ** -0.5).astype(np.float32)[x.indices]
    return x


def topics(n: int, p: int, words: int, rng: Any) -> Any:
    """(n, p) CSR: counts of the words of documents, each of which has one topic."""
    chances = np.stack([rng.permutation(1.0 / np.arange(1, p + 1)) for _ in range(TOPICS)])
    below = np.cumsum(chances, axis=1)
    below /= below[:, -1:]
    topic = rng.integers(0, TOPICS, n)
    column = np.empty((n, words), np.int64)
    for number in range(TOPICS):
        mine = topic == number
        column[mine] = np.searchsorted(below[number], rng.random((int(mine.sum()), words)))
    places = np.repeat(np.arange(n), words), np.minimum(column.ravel(), p - 1)
    return scipy.sparse.coo_array((np.ones(n * words, "f4"), places), shape=(n, p)).tocsr()


def zarr_store(path: Path, x: Any, chunks: tuple[int, int], codec: str = "blosc") -> str:
    """Write x; the path.  codec : "raw", or "blosc" (lz4 with shuffle)."""
    import zarr

    compressors = (
        zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")
        if codec == "blosc"
        else None
    )
    array = zarr.create_array(
        str(path), shape=x.shape, chunks=chunks, dtype=x.dtype, compressors=compressors
    )
    array[...] = x
    return str(path)


def h5ad(path: Path, x: Any, chunk: int = 1 << 16) -> str:
    """Write x, dense or CSR, as anndata does; the path."""
    import h5py

    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        for name, length in zip(("obs", "var"), x.shape, strict=True):
            _frame(file.create_group(name), length)
        if not scipy.sparse.issparse(x):
            file.create_dataset("X", data=x).attrs.update(_encoding("array"))
            return str(path)
        group = file.create_group("X")
        group.attrs.update({**_encoding("csr_matrix"), "shape": x.shape})
        for name in ("data", "indices", "indptr"):
            values = getattr(x, name)
            group.create_dataset(name, data=values, chunks=(min(chunk, len(values)),))
    return str(path)


def h5ad_in_memory(path: str) -> Any:
    """The CSR matrix of an .h5ad, as a stranger reads it."""
    import h5py

    with h5py.File(path) as file:
        x = file["X"]
        parts = tuple(x[name][...] for name in ("data", "indices", "indptr"))
        return scipy.sparse.csr_array(parts, shape=tuple(x.attrs["shape"]))


def _frame(group: Any, length: int) -> None:
    group.attrs.update({**_encoding("dataframe", "0.2.0"), "_index": "_index"})
    group.attrs["column-order"] = np.array((), "S1")
    group.create_dataset("_index", data=[f"{i}".encode() for i in range(length)])


def _encoding(kind: str, version: str = "0.1.0") -> dict[str, str]:
    return {"encoding-type": kind, "encoding-version": version}
