"""The E steps of a linear Gaussian model, for streamed samples and for streamed features."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator, refuse_holes
from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.kernels.least_squares import packed, pair_columns, posterior, unpacked_triangle

# One E step of a linear Gaussian model with missing cells: the normal equations of every column.

LOG_2_PI = float(np.log(2.0 * np.pi))
SUMS = ("second", "first", "seen", "cross", "total", "squares", "mean", "moment")


class LatentEquations(Accumulator):
    """The normal equations of every column from the posteriors of the rows' factors.

    Row z = W f + e has factors f ~ N(0, I) and noise e. Given the observed columns o, the posterior
    of f has precision I + W_o'W_o / noise_o. Summed over the rows that observe a column, with their
    weights: E[f f'], E[f], 1, z E[f], z and z^2. These determine the column's new loadings, centre
    and noise. Rows without holes share one posterior covariance. The log-likelihood is summed too.

    Operands by name: ``loadings`` (p, k), ``noise`` (p,) with 0 for excluded columns, ``center``
    (p,) and ``scale`` (p,) or None. Arithmetic is float64.
    width : k, for the projection of memory only.
    Cost: about 2 n p k (k + 4) flops, and n k^3.
    Source: Tipping and Bishop 1999, appendix B, for rows with holes; Liu, Rubin and Wu 1998,
    Biometrika 85, 755-770, for the moments of all factors.
    """

    settings = ("scale", "width")
    fields = ("rows", "likelihood", "used", *SUMS)

    def __init__(self, *, scale: str | None = None, width: int = 8) -> None:
        self.scale, self.width = scale, width
        self.rows = 0.0  # sum of the weights of all rows
        self.likelihood = 0.0  # of the standardised observed cells, under the operands
        self.second: Any = None  # (p, k (k + 1) / 2) sum over observed cells of w E[f f'], packed
        self.first: Any = None  # (p, k) sum w E[f]
        self.seen: Any = None  # (p,) sum w
        self.cross: Any = None  # (p, k) sum w z E[f]
        self.total: Any = None  # (p,) sum w z
        self.squares: Any = None  # (p,) sum w z^2
        self.mean: Any = None  # (k,) sum over rows of w E[f]
        self.moment: Any = None  # (k (k + 1) / 2,) sum over rows of w E[f f'], packed
        self.used: Any = None  # (p,) 1.0 where the noise is not 0: other columns' sums are unused

    def update(self, block: Any) -> None:
        self._check(block)
        w, noise = block["loadings"], block["noise"]
        p, k = w.shape
        self._check_width(self.seen, p)
        if len(noise) != block.shape[1]:
            raise InvalidInputError(f"loadings of {p} columns; this block has {block.shape[1]}")
        if self.second is None:
            pairs = k * (k + 1) // 2
            shapes = ((p, pairs), (p, k), (p,), (p, k), (p,), (p,), (k,), (pairs,))
            for name, shape in zip(SUMS, shapes, strict=True):
                setattr(self, name, np.zeros(shape))
            self.used = (noise > 0).astype(np.float64)
        model = _Operands(w, noise)
        scale = None if self.scale is None else block[self.scale]
        for tile in block.tiles(np.dtype(np.float64), center=block["center"], scale=scale):
            self._take(tile, model)

    def _take(self, tile: Any, model: _Operands) -> None:
        """Add the rows of one tile, already multiplied by the roots of their weights."""
        z, mask, root = tile.values, tile.mask, tile.root_weights
        root = np.ones(len(z)) if root is None else root
        holes = np.zeros(len(z), bool) if mask is None else np.any(mask & model.used, axis=1)
        for own in (False, True):
            chosen = holes == own
            if not chosen.any():
                continue
            rows: Any = slice(None) if chosen.all() else chosen
            observed = (~mask[rows]).astype(np.float64) if own else None
            self._take_rows(z[rows], root[rows], observed, model)

    def _take_rows(self, z: Array, root: Array, observed: Array | None, model: _Operands) -> None:
        """Add rows that observe all columns (None), or those where ``observed`` is 1.0, not 0.0."""
        k, weight = model.loadings.shape[1], root**2
        b, constant = z @ model.weighted, np.array([model.constant])
        if observed is None:
            f, covariance = b @ model.covariance, model.covariance[None]
        else:
            information = unpacked_triangle(observed @ model.pairs, k) + np.eye(k)
            f, covariance, logdet = posterior(information, b)
            constant = -0.5 * (observed @ model.log_noise + logdet)
        second = packed(covariance) * weight[:, None]
        second += pair_columns(f)
        left = z - f @ model.loadings.T
        if observed is not None:
            left *= observed
        left *= left
        distance = left @ model.inverse_noise + np.einsum("ij,ij->i", f, f)
        self.likelihood += float(np.sum(weight * constant) - 0.5 * distance.sum())
        self.rows += float(weight.sum())
        self.mean += root @ f
        self.moment += second.sum(axis=0)
        self.cross += z.T @ f
        self.total += root @ z
        np.multiply(z, z, out=left)
        self.squares += left.sum(axis=0)
        if observed is None:
            self.second += second.sum(axis=0)
            self.first += root @ f
            self.seen += float(weight.sum())
        else:
            self.second += observed.T @ second
            self.first += observed.T @ (f * root[:, None])
            self.seen += weight @ observed

    def merge(self, other: Self) -> None:
        if other.second is None:
            return
        self._join(other, "rows", "likelihood", *SUMS)
        self.used = other.used.copy()

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        k = self.width
        return (shape[1] + 1) * (k * (k + 1) // 2 + 2 * k + 4) * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        p, k = shape[1], self.width
        rows = min(block_length, max(4 * 2**20 // (8 * p), min(512, 64 * 2**20 // (8 * p)), 1))
        operands = p * (k * (k + 1) + 4 * k + 3) * 8  # and the sums of one tile
        return operands + rows * (5 * p + 6 * k * k + 8 * k) * 8

    # -- results ----------------------------------------------------------------------------

    def equations(self) -> tuple[Array, Array]:
        """((p, k + 1, k + 1), (p, k + 1)): normal equations of each column's loadings and centre,
        fresh arrays; the centre comes last. 0 for excluded columns."""
        if self.second is None:
            raise self._nothing_seen()
        k = self.first.shape[1]
        left = np.empty((len(self.seen), k + 1, k + 1))
        left[:, :k, :k] = unpacked_triangle(self.second, k)
        left[:, :k, k] = left[:, k, :k] = self.first
        left[:, k, k] = self.seen
        left *= self.used[:, None, None]
        return left, np.column_stack([self.cross, self.total]) * self.used[:, None]


class _Operands:
    """What all rows of a block share."""

    def __init__(self, loadings: Array, noise: Array) -> None:
        k = loadings.shape[1]
        self.loadings, self.used = loadings, noise > 0
        self.inverse_noise = np.divide(1.0, noise, out=np.zeros_like(noise), where=self.used)
        self.weighted = loadings * self.inverse_noise[:, None]
        self.pairs = pair_columns(loadings * np.sqrt(self.inverse_noise)[:, None])
        log = np.log(noise, out=np.zeros_like(noise), where=self.used)
        self.log_noise = np.where(self.used, log + LOG_2_PI, 0.0)  # subtracted per observed cell
        information = np.eye(k) + loadings.T @ self.weighted
        _, covariance, logdet = posterior(information[None], np.zeros((1, k)))
        self.covariance = covariance[0]
        self.constant = -0.5 * float(self.log_noise.sum() + logdet[0])


# The information of streamed features about the factors of every sample, summed.


class FeaturePosterior(Accumulator):
    """sum over features of w z / noise, z^2 / noise, and sums over the observed ones of a table.

    For stores whose chunks hold all samples, where a block of samples would be most of the matrix.
    z = (x - center) / scale, holes 0. Arithmetic is float64.

    Operands by name: ``weighted`` (p, k) loadings over the noise, ``inverse_noise`` (p,),
    ``center`` (p,), ``scale`` (p,) or None, and ``table`` (p, t), the addend of each observed
    feature to its row (present only where holes are allowed).
    missing, absent : as :class:`Reconstruction`.
    width, columns : k and t, for the projection of memory only.
    """

    axis = 1
    settings = ("scale", "missing", "absent", "width", "columns")
    fields = ("b", "squares", "tables")

    def __init__(
        self,
        *,
        scale: str | None = None,
        missing: str = "raise",
        absent: tuple[int, ...] = (),
        width: int = 64,
        columns: int = 0,
    ) -> None:
        self.scale, self.missing, self.absent = scale, missing, absent
        self.width, self.columns = width, columns
        self.b: Any = None  # (n, k) sum w z / noise
        self.squares: Any = None  # (n,) sum z^2 / noise
        self.tables: Any = None  # (n, t) sums of the table's rows over the observed features

    def update(self, block: Any) -> None:
        self._check(block)
        n, part = block.shape[0], block.columns
        self._check_width(self.b, n)
        weighted, inverse = block["weighted"], block["inverse_noise"]
        if self.b is None:
            self.b, self.squares = np.zeros((n, weighted.shape[1])), np.zeros(n)
            self.tables = np.zeros((n, 0 if self.missing == "raise" else block["table"].shape[1]))
        scale = None if self.scale is None else block[self.scale][part]
        for tile in block.tiles(np.dtype(np.float64), center=block["center"][part], scale=scale):
            if self.missing == "raise":
                refuse_holes(block, tile, self.absent)
            here = slice(tile.start, tile.stop)
            self.b += tile.values @ weighted[here]
            self.squares += np.einsum("ij,ij,j->i", tile.values, tile.values, inverse[here])
            if self.missing != "raise":
                table = block["table"][here]
                every = tile.mask is None
                self.tables += table.sum(axis=0) if every else ~tile.mask @ table

    merge = Accumulator.merge_sums

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return shape[0] * (self.width + 1 + self.columns) * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return shape[0] * (self.width + self.columns) * 8 + block_length * (shape[0] + 1) * 8

    # -- results ----------------------------------------------------------------------------

    def sums(self) -> tuple[Array, Array, Array]:
        """((n, k) w z / noise, (n,) z^2 / noise, (n, t) of the table), fresh arrays."""
        if self.b is None:
            raise self._nothing_seen()
        return np.array(self.b), np.array(self.squares), np.array(self.tables)


# The information of streamed columns, with their new loadings, about the factors of every row.

EXTRA = 4  # columns of the table after the loadings: centre, noise, residual, observed weight


class RowInformation(Accumulator):
    """The E step of a linear Gaussian model whose columns stream, with missing cells left out.

    ``block["columns"]``, a map, is (columns, width + EXTRA): loadings, centre, noise (0 =
    excluded), residual sum of squares, and weight of the observed cells. The operand "scale" (p,)
    standardises if present. Summed for every row over the columns that it observes: w w' / noise,
    w z / noise, z^2 / noise, log(noise) and 1. Rows are multiplied by the root of their weight, in
    z and z^2 only. Arithmetic is float64.
    width : k, for the projection of memory only.
    """

    axis = 1
    settings = ("width",)
    fields = ("information", "b", "squares", "logs", "seen", "rest", "cells")

    def __init__(self, *, width: int = 8) -> None:
        self.width = width
        self.information: Any = None  # (n, k (k + 1) / 2) packed
        self.b: Any = None  # (n, k)
        self.squares: Any = None  # (n,)
        self.logs: Any = None  # (n,)
        self.seen: Any = None  # (n,) number of columns that the row observes
        self.rest = 0.0  # residual sum of squares over all columns
        self.cells = 0.0  # sum of the weights of all observed cells

    def update(self, block: Any) -> None:
        self._check(block)
        self._check_width(self.b, block.shape[0])
        columns = block["columns"]
        n, k = block.shape[0], columns.shape[1] - EXTRA
        if self.b is None:
            self.information, self.b = np.zeros((n, k * (k + 1) // 2)), np.zeros((n, k))
            self.squares, self.logs, self.seen = np.zeros(n), np.zeros(n), np.zeros(n)
        noise, scale = columns[:, k + 1], block.arrays.get("scale")
        used = noise > 0
        inverse = np.divide(1.0, noise, out=np.zeros_like(noise), where=used)
        logs = np.log(noise, out=np.zeros_like(noise), where=used)
        weighted = columns[:, :k] * inverse[:, None]
        pairs = pair_columns(columns[:, :k] * np.sqrt(inverse)[:, None])
        self.rest += float(columns[used, k + 2].sum())
        self.cells += float(columns[used, k + 3].sum())
        scale = None if scale is None else scale[block.columns]
        for tile in block.tiles(np.dtype(np.float64), center=columns[:, k], scale=scale):
            here = slice(tile.start - block.start, tile.stop - block.start)
            z = tile.values
            self.b += z @ weighted[here]
            self.squares += z**2 @ inverse[here]
            if tile.mask is None:
                self.information += pairs[here].sum(axis=0)
                self.logs += logs[here].sum()
                self.seen += np.count_nonzero(used[here])
                continue
            observed = (~tile.mask).astype(np.float64)
            self.information += observed @ pairs[here]
            self.logs += observed @ logs[here]
            self.seen += observed @ used[here]

    merge = Accumulator.merge_sums

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        k = self.width
        return shape[0] * (k * (k + 1) // 2 + k + 3) * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        n, k = shape[0], self.width
        columns = min(block_length, max(4 * 2**20 // (8 * n), min(512, 64 * 2**20 // (8 * n)), 1))
        tables = block_length * (k * (k + 1) + 3 * k + 2 * EXTRA) * 8
        systems = columns * ((k + 1) * (k + 3) + k * (k + 1)) * 8  # of the preceding map
        return 4 * n * columns * 8 + tables + systems + n * (k * (k + 1) // 2 + k) * 8

    # -- results ----------------------------------------------------------------------------

    def sums(self) -> tuple[Array, Array, Array, Array, Array]:
        """Fresh arrays: information (n, k (k + 1) / 2), b (n, k), squares, logs and seen (n,)."""
        if self.b is None:
            raise self._nothing_seen()
        first, *rest = (np.array(getattr(self, name)) for name in self.fields[:5])
        return first, rest[0], rest[1], rest[2], rest[3]
