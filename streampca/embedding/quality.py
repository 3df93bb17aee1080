"""How much of the neighbourhoods of the components a picture keeps, by some of its rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streampca.kernels import Array
from streampca.passes import single_threaded_blas

NEIGHBOURS = 15
DISTANCES_NBYTES = 128 << 20  # of one space, at a time
SPARSER = 64  # one row of so many bounds where the nearest are
ROWS = 16384  # whose differences to the queries are formed at a time


@dataclass(frozen=True)
class Quality:
    """What a picture keeps of the neighbourhoods in the space that was laid out.

    trustworthiness : 1 where no row is near in the picture that is far in the data, about 0.5 where
        the picture is random.
    knn_preservation : share of the nearest neighbours that are still among the nearest.
    trustworthiness_error, knn_error : standard errors, by the rows that were looked at.
    n_neighbors : how many are nearest.  n_queries : rows whose neighbours were compared, among all
        n_rows.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca.embedding import quality
    >>> rows = np.random.default_rng(0).standard_normal((50, 2))
    >>> found = quality(rows, rows, np.arange(50))
    >>> found.trustworthiness, found.knn_preservation
    (1.0, 1.0)
    """

    trustworthiness: float
    knn_preservation: float
    trustworthiness_error: float
    knn_error: float
    n_neighbors: int
    n_queries: int
    n_rows: int

    @property
    def chance(self) -> float:
        """k-NN preservation of a random picture."""
        return self.n_neighbors / (self.n_rows - 1)

    def __str__(self) -> str:
        return (
            f"trustworthiness {self.trustworthiness:.4f} +- {self.trustworthiness_error:.4f}, "
            f"k-NN preservation {self.knn_preservation:.3f} +- {self.knn_error:.3f} "
            f"(by chance {self.chance:.2g}) of {self.n_neighbors} neighbours, "
            f"{self.n_queries:,} of {self.n_rows:,} rows"
        )


@single_threaded_blas()
def quality(rows: Array, picture: Array, queries: Array, n_neighbors: int = NEIGHBOURS) -> Quality:
    """Trustworthiness and k-NN preservation of a picture of rows.

    rows : (n, k).  picture : (n, 2).  queries : numbers of the rows to look at; with all of them
        the trustworthiness is scikit-learn's. Neighbours are sought among all rows.
    Cost: n q (k + 2) differences, n q n_neighbors comparisons; :func:`judging_nbytes`.
    Source: Venna and Kaski 2001, ICANN, LNCS 2130:485, eq. 1 (trustworthiness).

    Examples
    --------
    >>> import numpy as np
    >>> from streampca.embedding import quality
    >>> rows = np.random.default_rng(0).standard_normal((50, 3))
    >>> quality(rows, rows[:, :2], np.arange(50)).n_neighbors
    15
    """
    n, near = len(rows), min(n_neighbors, (len(rows) - 1) // 2)
    batch = min(len(queries), max(1, DISTANCES_NBYTES // (8 * (n + min(n, ROWS)))))
    penalty, kept = np.empty(len(queries)), np.empty(len(queries))
    squares = np.empty((batch, n))  # of one space after the other
    for start in range(0, len(queries), batch):
        some = queries[start : start + batch]
        _fill(squares, picture, some)
        drawn = [_nearest(line, near) for line in squares[: len(some)]]
        _fill(squares, rows, some)
        for i, in_picture in enumerate(drawn, start):
            line = squares[i - start]
            new = np.setdiff1d(in_picture, _nearest(line, near))
            nearer = line[line < line[new].max(initial=0.0)]
            ranks = np.array([np.count_nonzero(nearer < line[j]) + 1 for j in new])
            penalty[i] = np.maximum(ranks - near, 0).sum()
            kept[i] = 1.0 - len(new) / near
    each = 1.0 - penalty * 2.0 / (near * (2.0 * n - 3.0 * near - 1.0))
    root = np.sqrt(max(len(queries), 1))
    unseen = np.sqrt(1.0 - len(queries) / n)  # of a sample without replacement
    means = [float(one.mean()) for one in (each, kept)]
    errors = [float(one.std() / root * unseen) for one in (each, kept)]
    return Quality(means[0], means[1], errors[0], errors[1], near, len(queries), n)


def judging_nbytes(n: int, k: int) -> int:
    """Bytes that :func:`quality` takes for (n, k) rows, without them and the picture."""
    return max(DISTANCES_NBYTES, 8 * (n + min(n, ROWS))) + 16 * n + 4 * 8 * min(n, ROWS) * (k + 2)


def _nearest(squares: Array, near: int) -> Array:
    """The numbers of the nearest rows: none is farther than the nearest of some of them."""
    some = squares[::SPARSER]
    farthest = np.partition(some, near - 1)[near - 1] if len(some) >= near else np.inf
    inside = np.flatnonzero(squares <= farthest)
    return np.asarray(inside[np.argpartition(squares[inside], near - 1)[:near]])


def _fill(out: Array, rows: Array, queries: Array) -> None:
    """The first lines of out: squared distances of queries to all rows, inf to themselves."""
    out = out[: len(queries)]
    sought = np.asarray(rows[queries], dtype=np.float64)
    for start in range(0, len(rows), ROWS):
        part = np.asarray(rows[start : start + ROWS], dtype=np.float64)
        # differences about a row of the part: a common offset costs no digits
        origin = part[0]
        here, there = sought - origin, part - origin
        found = (-2.0 * here) @ there.T
        found += np.einsum("ij,ij->i", here, here)[:, None]
        found += np.einsum("ij,ij->i", there, there)
        np.maximum(found, 0.0, out=out[:, start : start + ROWS])
    out[np.arange(len(queries)), queries] = np.inf
