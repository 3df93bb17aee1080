"""EM over streamed features: the loadings of a block are updated and used while it is in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.accumulators import RowInformation
from streampca.accumulators.latent import BESIDE
from streampca.kernels import Array, reciprocal
from streampca.kernels.least_squares import packed, pair_columns, posterior, unpacked_triangle
from streampca.matrix import Block
from streampca.solvers import LatentState, expansion, solve_columns
from streampca.solvers.latent import LOG_2_PI

ROWS = 4096  # rows whose posteriors are computed together


@dataclass(frozen=True)
class ColumnStep:
    """The M step of a block of columns, as a map: the table that RowInformation reads.

    Side inputs: "loadings" (p, k), "noise" and "center" (p,) before the step. Operands: of the
    rows' factors "f" (n, k) and "second" (n, pairs), E[f] times the root of the weight and E[f f']
    times the weight; "root" (n,); "mean" (k,) and "turn" (k, k), which expand the factors (see
    solvers.latent_step); "scale" (p,) or none. Without "f" the table is that of the parameters as
    they are.
    shared : one noise for all columns: it is 1 in the table, and divides afterwards.
    lower : least share of a column's variance that is noise of its own.
    """

    shared: bool
    lower: float

    def __call__(self, block: Block) -> Array:
        w, noise = np.asarray(block["loadings"]), np.asarray(block["noise"])
        k = w.shape[1]
        out = np.zeros((len(w), k + BESIDE))
        out[:, :k], out[:, k] = w, block["center"]
        out[:, k + 1] = noise > 0 if self.shared else noise
        if "f" not in block.arrays:
            out[:, k + 3] = self._seen(block)
            return out
        scale = block.arrays.get("scale")
        scale = None if scale is None else scale[block.columns]
        for tile in block.tiles(np.dtype(np.float64), center=block["center"], scale=scale):
            here = slice(tile.start - block.start, tile.stop - block.start)
            self._solve(block, tile, out[here], noise[here], None if scale is None else scale[here])
        return out

    def _seen(self, block: Block) -> Array:
        """(columns,) weights of the observed cells."""
        return np.asarray(block.stats.weight, dtype=np.float64)

    def _solve(
        self, block: Block, tile: Any, out: Array, noise: Array, scale: Array | None
    ) -> None:
        """Fill the rows of the table for the columns of one tile."""
        z, root, f = tile.values, block["root"], block["f"]
        k = f.shape[1]
        right = np.column_stack([z.T @ f, z.T @ root])
        tables = np.column_stack([block["second"], f * root[:, None], root**2])
        if tile.mask is None:
            sums = np.broadcast_to(tables.sum(axis=0), (len(right), tables.shape[1]))
        else:
            sums = (~tile.mask).T.astype(np.float64) @ tables
        pairs = block["second"].shape[1]
        left = np.empty((len(right), k + 1, k + 1))
        left[:, :k, :k] = unpacked_triangle(sums[:, :pairs], k)
        left[:, :k, k] = left[:, k, :k] = sums[:, pairs : pairs + k]
        left[:, k, k] = seen = sums[:, -1]
        used = (noise > 0) & (seen > 0)
        squares, turn = np.einsum("ij,ij->j", z, z), block["turn"]
        solved, own, rest = np.zeros_like(right), *np.zeros((2, len(right)))
        share = 0.0 if self.shared else self.lower
        solved[used], own[used], rest[used] = solve_columns(
            left[used], right[used], squares[used], turn, share
        )
        shift = solved[:, k] + solved[:, :k] @ block["mean"]
        out[:, :k] = solved[:, :k] @ turn
        out[:, k] += shift if scale is None else shift * scale
        out[:, k + 1] = np.where(used, 1.0, 0.0) if self.shared else own
        out[:, k + 2], out[:, k + 3] = rest, np.where(noise > 0, seen, 0.0)


@dataclass(frozen=True)
class RowPosteriors:
    """The posterior of each row's factors, as arrays for the next step, and the log-likelihood."""

    operands: dict[str, Array]
    likelihood: float


def posteriors_of(
    sums: RowInformation,
    state: LatentState,
    noise: float | None,
    weights: Array | None,
    lower: float,
) -> RowPosteriors:
    """Finish an E step.

    state : its parameters.  noise : that of all columns where it is shared, None where each has
    its own, which is then no less than the share ``lower`` of the column's variance.
    weights : (n,) of the rows, or None.
    """
    share = lower if noise is None else 0.0
    noise = 1.0 if noise is None else noise
    information, b, squares, logs, seen = sums.sums()
    n, k = b.shape
    root = np.ones(n) if weights is None else np.sqrt(weights)
    inverse = reciprocal(root)
    f, second, likelihood = np.empty_like(b), np.empty_like(information), 0.0
    for begin in range(0, n, ROWS):
        rows = slice(begin, begin + ROWS)
        own = b[rows] * (inverse[rows, None] / noise)
        precision = unpacked_triangle(information[rows] / noise, k) + np.eye(k)
        means, covariance, logdet = posterior(precision, own)
        distance = squares[rows] * inverse[rows] ** 2 / noise
        distance = np.maximum(distance - np.einsum("ij,ij->i", own, means), 0.0)
        cells = logs[rows] + seen[rows] * (np.log(noise) + LOG_2_PI)
        likelihood -= 0.5 * float(root[rows] ** 2 @ (cells + logdet + distance))
        f[rows] = means * root[rows, None]
        second[rows] = packed(covariance) * root[rows, None] ** 2 + pair_columns(f[rows])
    total, moment = float(np.sum(root**2)), unpacked_triangle(second.sum(axis=0)[None], k)[0]
    mean, turn = expansion(root @ f, moment, total, state, share)
    operands = {"f": f, "second": second, "root": root, "mean": mean, "turn": turn}
    return RowPosteriors(operands, likelihood)


def state_of(table: Array, before: LatentState, noise: float | None) -> LatentState:
    """The parameters in the table of a pass.  noise : the shared one, or None."""
    k = before.loadings.shape[1]
    own = table[:, k + 1] if noise is None else np.where(table[:, k + 1] > 0, noise, 0.0)
    return LatentState(table[:, :k].copy(), own.copy(), table[:, k].copy())
