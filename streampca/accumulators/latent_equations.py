"""One E step of a linear Gaussian model, holes left out: the normal equations of every column."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator
from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.kernels.posterior import packed, pair_columns, posterior, unpacked

LOG_2_PI = float(np.log(2.0 * np.pi))
SUMS = ("second", "first", "seen", "cross", "total", "squares", "mean", "moment")


class LatentEquations(Accumulator):
    """What the posteriors of the rows' factors say about every column, and the log-likelihood.

    Row z = W f + e has factors f ~ N(0, I) and noise e; of the columns o that it observes the
    posterior of f has precision I + W_o'W_o / noise_o. Summed over the rows that observe a column,
    with their weights: E[f f'], E[f], 1, z E[f], z and z^2: all that its new loadings, centre and
    noise need. Rows without holes share one posterior covariance.

    Operands by name: ``loadings`` (p, k), ``noise`` (p,), 0 for columns that are left out,
    ``center`` (p,) and ``scale`` (p,) or None. Arithmetic is float64.
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
        self.used: Any = None  # (p,) 1.0 where the noise is not 0: other sums mean nothing

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
        """Add the rows of one tile, which are times the roots of their weights."""
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
        """Add rows that all observe everything (None), or what ``observed`` says (1.0 or 0.0)."""
        k, weight = model.loadings.shape[1], root**2
        b, constant = z @ model.weighted, np.array([model.constant])
        if observed is None:
            f, covariance = b @ model.covariance, model.covariance[None]
        else:
            information = unpacked(observed @ model.pairs, k) + np.eye(k)
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
        self._check_width(self.seen, len(other.seen))
        self.rows += other.rows
        self.likelihood += other.likelihood
        self.used = other.used.copy()
        for name in SUMS:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, theirs.copy() if mine is None else mine + theirs)

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        k = self.width
        return (shape[1] + 1) * (k * (k + 1) // 2 + 2 * k + 4) * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        p, k = shape[1], self.width
        rows = min(block_length, max(4 * 2**20 // (8 * p), min(512, 64 * 2**20 // (8 * p)), 1))
        operands = p * (k * (k + 1) + 4 * k + 3) * 8  # and what one tile adds
        return operands + rows * (5 * p + 6 * k * k + 8 * k) * 8

    # -- results ----------------------------------------------------------------------------

    def equations(self) -> tuple[Array, Array]:
        """((p, k + 1, k + 1), (p, k + 1)): normal equations of each column's loadings and centre,
        fresh arrays; the centre comes last. 0 for columns that are left out."""
        if self.second is None:
            raise InvalidInputError("LatentEquations has seen no block")
        k = self.first.shape[1]
        left = np.empty((len(self.seen), k + 1, k + 1))
        left[:, :k, :k] = unpacked(self.second, k)
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
        self.log_noise = np.where(self.used, log + LOG_2_PI, 0.0)  # what an observed cell takes
        information = np.eye(k) + loadings.T @ self.weighted
        _, covariance, logdet = posterior(information[None], np.zeros((1, k)))
        self.covariance = covariance[0]
        self.constant = -0.5 * float(self.log_noise.sum() + logdet[0])
