"""Ratings, simulated and real, and the model of biases alone in plain NumPy."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

Cells = tuple[np.ndarray, np.ndarray, np.ndarray]  # rows, columns, values


def movielens_like(
    rank: int = 4, seed: int = 0, n: int = 943, p: int = 1682, cells: int = 100_000
) -> Any:
    """Integers from 1 to 5, few active users and popular items, strong biases, ``rank`` tastes."""
    rng = np.random.default_rng(seed)
    chance = (rng.pareto(1.2, n) + 0.3)[:, None] / np.arange(1, p + 1) ** 0.9
    factor = cells / chance.sum()
    for _ in range(30):  # popular cells are all rated, and the others make up for it
        factor *= cells / np.minimum(chance * factor, 0.95).sum()
    seen = rng.random((n, p)) < np.minimum(chance * factor, 0.95)
    x = 3.5 + rng.normal(0.0, 0.42, (n, 1)) + rng.normal(0.0, 0.55, p)
    if rank:
        taste = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, p))
        x = x + 0.45 / np.sqrt(rank) * taste
    x = np.clip(np.round(x + 0.8 * rng.normal(size=(n, p))), 1, 5)
    return scipy.sparse.csr_matrix((x[seen], np.nonzero(seen)), (n, p))


def jester(folder: Path) -> Any:
    """5,000 people, 100 jokes, from -10 to 10."""
    found = np.load(folder / "jester5k" / "Jester5k.npz")
    parts = (found["data"], found["indices"], found["indptr"])
    return scipy.sparse.csc_matrix(parts, tuple(found["shape"])).tocsr()


def bfi(folder: Path) -> Any:
    """2,800 people, 25 questions about themselves, from 1 to 6."""
    with (folder / "r_datasets" / "bfi.csv").open() as file:
        head, *rows = csv.reader(file)
    asked = [i for i, name in enumerate(head) if name[:1] in set("ACENO") and name[1:].isdigit()]
    x = np.array(
        [[float(row[i]) if row[i] not in ("", "NA") else np.nan for i in asked] for row in rows]
    )
    seen = ~np.isnan(x)
    return scipy.sparse.csr_matrix((x[seen], np.nonzero(seen)), x.shape)


def parted(ratings: Any, share: float = 0.1, seed: int = 1) -> tuple[Any, Cells]:
    """(those to fit to, those that nobody is given)."""
    every = ratings.tocoo()
    kept = np.random.default_rng(seed).random(every.nnz) >= share
    given = scipy.sparse.csr_matrix(
        (every.data[kept], (every.row[kept], every.col[kept])), every.shape
    )
    given.sort_indices()
    return given, (every.row[~kept], every.col[~kept], every.data[~kept])


def biases_of(ratings: Any, ridges: tuple[float, float], turns: int = 200) -> Any:
    """(m, a, b) of least |x_ij - m - a_i - b_j|^2 + ridges[0] |a|^2 + ridges[1] |b|^2."""
    every, (n, p) = ratings.tocoo(), ratings.shape
    i, j, x = every.row, every.col, every.data
    count = [np.bincount(one, minlength=m) for one, m in ((i, n), (j, p))]
    mean, a, b = float(x.mean()), np.zeros(n), np.zeros(p)
    for _ in range(turns):
        a = np.bincount(i, x - mean - b[j], n) / np.maximum(count[0] + ridges[0], 1e-12)
        b = np.bincount(j, x - mean - a[i], p) / np.maximum(count[1] + ridges[1], 1e-12)
        mean += float(np.mean(x - mean - a[i] - b[j]))
    return mean, a, b


def bias_only(given: Any, unseen: Cells, ridge: float = 5.0) -> float:
    """Root mean square error of biases alone in unseen cells."""
    mean, a, b = biases_of(given, (ridge, ridge))
    rows, columns, values = unseen
    return float(np.sqrt(np.mean((mean + a[rows] + b[columns] - values) ** 2)))


def error_of(model: Any, unseen: Cells) -> float:
    """The same of a fitted completion."""
    rows, columns, values = unseen
    return float(np.sqrt(np.mean((model.predict(rows, columns) - values) ** 2)))
