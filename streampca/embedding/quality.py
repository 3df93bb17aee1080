"""How much of the neighbourhoods of the components a picture keeps, by some of its rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streampca.kernels import Array

NEIGHBOURS = 15
DISTANCES_NBYTES = 64 << 20  # of one space, at a time
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


def quality(rows: Array, picture: Array, queries: Array, n_neighbors: int = NEIGHBOURS) -> Quality:
    """Trustworthiness and k-NN preservation of a picture of rows.

    rows : (n, k).  picture : (n, 2).  queries : numbers of the rows to look at; with all of them
        the trustworthiness is scikit-learn's. Neighbours are sought among all rows.
    Cost: n q (k + 2) differences, n q n_neighbors comparisons; 128 MiB and the differences.
    Source: Venna and Kaski 2001, ICANN, LNCS 2130:485, eq. 1 (trustworthiness).
    """
    n, near = len(rows), min(n_neighbors, (len(rows) - 1) // 2)
    batch = max(1, DISTANCES_NBYTES // (8 * n))
    penalty, kept = np.empty(len(queries)), np.empty(len(queries))
    for start in range(0, len(queries), batch):
        some = queries[start : start + batch]
        far, drawn = _squares(rows, some), _squares(picture, some)
        for i, (high, low) in enumerate(zip(far, drawn, strict=True), start):
            in_data = np.argpartition(high, near - 1)[:near]
            in_picture = np.argpartition(low, near - 1)[:near]
            new = np.setdiff1d(in_picture, in_data)
            ranks = np.array([np.count_nonzero(high < high[j]) + 1 for j in new])
            penalty[i] = np.maximum(ranks - near, 0).sum()
            kept[i] = 1.0 - len(new) / near
    each = 1.0 - penalty * 2.0 / (near * (2.0 * n - 3.0 * near - 1.0))
    root = np.sqrt(max(len(queries), 1))
    unseen = np.sqrt(1.0 - len(queries) / n)  # of a sample without replacement
    means = [float(one.mean()) for one in (each, kept)]
    errors = [float(one.std() / root * unseen) for one in (each, kept)]
    return Quality(means[0], means[1], errors[0], errors[1], near, len(queries), n)


def _squares(rows: Array, queries: Array) -> Array:
    """(q, n) squared distances to all rows, inf to the query itself."""
    out = np.empty((len(queries), len(rows)))
    asked = np.asarray(rows[queries], dtype=np.float64)
    for start in range(0, len(rows), ROWS):
        part = np.asarray(rows[start : start + ROWS], dtype=np.float64)
        # differences about a row of the part: a common offset costs no digits
        origin = part[0]
        here, there = asked - origin, part - origin
        found = here @ there.T
        found *= -2.0
        found += np.einsum("ij,ij->i", here, here)[:, None]
        found += np.einsum("ij,ij->i", there, there)
        out[:, start : start + ROWS] = found
    np.maximum(out, 0.0, out=out)
    out[np.arange(len(queries)), queries] = np.inf
    return out
