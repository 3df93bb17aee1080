"""What a soak of nights knows of a source: every value written, and what of it may be served.

TextOptions from the help texts alone (``help(streampca.operations)``), so that it can disagree with
the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

NEVER, WRITTEN, REMOVED, GONE, DAMAGED = range(5)  # of a cell
ROOM = 600  # most rows of a source


@dataclass
class Expected:
    """Of the next refresh: how many rows it must and may take, and how it may fail."""

    least: int
    most: int
    must_fail: str = ""
    may_fail: str = ""


class Record:
    """Every cell of an array: its value, and whether it was written.

    REMOVED cells were cut off by a shrink, or left by an append that died: their values may still
    lie in a chunk. GONE are such of which a version without them was published.
    """

    def __init__(self, features: int, fill: float = 0.0) -> None:
        self.values = np.full((ROOM, features), fill)
        self.state = np.full((ROOM, features), NEVER, "i1")
        self.fill = fill
        self.chunk_columns = features
        self.rows = 0
        self.certified = np.zeros(ROOM, bool)  # rows: by streampca.append or commit_rows
        self.committed: int | None = None  # the attribute that decides alone
        self.quiet = True
        self.life = 0  # changes when an array is made anew: its rows are other ones
        self.by_commits = False  # Icechunk: what is committed counts at once

    def write(self, low: int, values: np.ndarray[Any, Any], columns: slice = slice(None)) -> None:
        self.values[low : low + len(values), columns] = values
        self.state[low : low + len(values), columns] = WRITTEN

    def shrink(self, rows: int, chunk_rows: int) -> None:
        """Chunks outside are deleted; the last one keeps its rows."""
        edge = -(-rows // chunk_rows) * chunk_rows
        kept = self.state[rows:edge]
        kept[(kept == WRITTEN)] = REMOVED
        self.state[edge:] = NEVER
        self.values[edge:] = self.fill
        self.rows = rows
        self.certified[rows:] = False

    def published(self, served: int) -> None:
        """A version of so many rows: what was seen to be removed does not count any more."""
        beyond = self.state[max(served, self.rows) :]
        beyond[beyond == REMOVED] = GONE

    def anew(self) -> None:
        """The array was deleted."""
        self.state[:] = NEVER
        self.values[:] = self.fill
        self.certified[:] = False
        self.committed = None
        self.life += 1

    def same(self, one: Any, other: Any) -> Any:
        return np.isnan(one) if np.isnan(other) else one == other

    def expected(self, served: int, same: bool = True) -> Expected:
        """Of the next refresh. same : the served version was made of this array."""
        state, values = self.state[: self.rows], self.values[: self.rows]
        most = first(~np.isin(state, (WRITTEN, REMOVED)).all(1))
        sure, blank = (state == WRITTEN).all(1), np.zeros(self.rows, bool)
        for low in range(0, values.shape[1], self.chunk_columns):
            piece = values[:, low : low + self.chunk_columns]
            blank |= self.same(piece, self.fill).all(1)
        sure &= ~blank
        holes = np.isnan(values).any(1)
        hole = first(holes[:most])
        if not (self.quiet or self.by_commits):
            sure[:] = False
        sure |= self.certified[: self.rows]
        if same:
            sure[:served] = True
        least = min(first(~sure), most)
        expected = Expected(least, most)
        if self.committed is not None:
            expected.least = expected.most = min(self.committed, self.rows)
            if expected.most > most:
                expected.least, expected.most = 0, most
                expected.may_fail = "rows that the attribute vouches for are not there"
        kept = min(served, self.rows, self.rows if self.committed is None else self.committed)
        lost = (state[:kept] == DAMAGED).any()
        if not same and expected.least < served <= self.rows and self.committed is None:
            expected.may_fail = "a store that was made anew does not have the served rows yet"
        if (blank & ~self.certified[: self.rows])[:served].any():
            expected.may_fail = "a served row holds only the fill value"
        if expected.least < 2:
            expected.may_fail = "hardly any rows"
        if lost:
            expected.must_fail = "a served chunk is damaged"
        elif kept > most:
            expected.must_fail = "served rows are lost" if same and self.rows >= served else ""
            expected.may_fail = "served rows are lost"
        if (state == DAMAGED).any():
            expected.may_fail = "a chunk is damaged"
        if hole < expected.least:
            expected.must_fail = expected.must_fail or "a row that counts has NaN"
        if hole < expected.most:
            expected.most = hole
            expected.may_fail = expected.may_fail or "a row has NaN"
        if self.certified[most:].any():
            expected.may_fail = expected.may_fail or "certified rows are lost"
        expected.least = min(expected.least, expected.most)
        return expected


def first(where: np.ndarray[Any, Any]) -> int:
    """The first True, or the length."""
    return int(np.argmax(where)) if where.any() else len(where)


def disagreement(model: Any, rows: np.ndarray[Any, Any], scale: bool, tolerance: float) -> str:
    """How a model differs from that of these rows by NumPy; empty if it does not."""
    n = int(model.n_samples_seen_)
    if n != len(rows):
        return f"n_samples_seen_ {n}, rows {len(rows)}"
    mean, size = rows.mean(0), np.abs(rows).max()
    if not np.allclose(model.mean_, mean, rtol=0, atol=tolerance * size):
        return f"means {model.mean_} and {mean}"
    covariance = np.atleast_2d(np.cov(rows.T))
    if scale:
        deviation = np.sqrt(np.diag(covariance))
        covariance = covariance / np.outer(deviation, deviation)
    values = np.linalg.eigvalsh(covariance)[::-1]
    k = len(model.components_)
    of_model = model.explained_variance_  # in the order of the version before
    if not np.allclose(np.sort(of_model)[::-1], values[:k], rtol=0, atol=tolerance * values[0]):
        return f"variances {of_model} and {values[:k]}"
    turned = model.components_ @ covariance @ model.components_.T
    if not np.allclose(turned, np.diag(of_model), rtol=0, atol=3 * tolerance * values[0]):
        return f"components: {turned} and {of_model}"
    ratios = of_model / np.trace(covariance)
    if not np.allclose(model.explained_variance_ratio_, ratios, rtol=0, atol=10 * tolerance):
        return f"shares {model.explained_variance_ratio_} and {ratios}"
    return ""
