"""The search space of a block Krylov iteration: a basis, its products and its Ritz pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from streampca.kernels import PROBES, Array, norm_estimate, probe_vectors, row_pieces

PIECE_NBYTES = 8 << 20  # float64 rows that are processed at a time
DEPENDENT = 1e-13  # part of a product outside of the space that is rounding, at least
INDEPENDENT = 1e-10  # least eigenvalue of a Gram matrix, relative to the largest, for Cholesky


@dataclass(frozen=True)
class Ritz:
    """Ritz pairs of a search space of d dimensions.

    values : (d,) descending.  rotation : (d, d), Ritz vectors are basis @ rotation.
    residual : (d,) ||S x - value x||, from the stored products, without a pass.
    rounding : (d,) bounds of the error of S x, where it was measured.
    lowest : the least value; those below 0 are 0 in ``values``.
    """

    values: Array
    rotation: Array
    residual: Array
    rounding: Array | None = None
    lowest: float = 0.0


class KrylovSpace:
    """A basis B of the search space, and S B, for a symmetric S that is known by its products.

    S may be complex Hermitian: then so are all arrays where ``dtype`` is.

    The long arrays, (m, capacity), are held in ``held``; sums over m are float64. B need only be
    orthonormal to ``dtype``, that of the products' arithmetic: its Gram matrix is taken into
    account. After every product the Ritz vectors and their residuals are known without a pass.

    Where every block is what the last product has outside of the space (:meth:`following`), the
    residuals of all Ritz vectors are combinations of the block that follows. Their norms then
    cost nothing.

    live : (m,) False where rows of S are zero and are not searched; None: search everywhere.
    held : ``dtype`` if it is None. In float64 nothing is converted for the sums.
    Source: Parlett 1998, "The Symmetric Eigenvalue Problem", sections 11.3 and 13.10; Musco and
    Musco 2015, "Randomized block Krylov methods for stronger and faster approximate singular
    value decomposition", algorithm 2.
    """

    def __init__(
        self, m: int, capacity: int, dtype: Any, live: Array | None = None, held: Any = None
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.live = live
        self._exact = np.result_type(self.dtype, np.float64)
        held = self.dtype if held is None else held
        self._basis = np.empty((capacity, m), held)  # rows, so that a few are contiguous
        self._products = np.empty((capacity, m), held)
        self.images: list[Array] = []  # (length, width) of each block, where they are kept
        self.size = 0
        self.mature: int | None = None  # vectors that the last restart kept
        self.starts = 0  # independent vectors that it began with, and random ones
        self._fresh = 0  # random ones of the block that follows
        self._last = slice(0, 0)  # the newest block
        self._coupling: Array | None = None  # (b, b) what follows, times the newest products
        self._gram = np.zeros((0, 0))
        self._cross = np.zeros((0, 0))
        self.probed: Array | None = None  # (m, PROBES) S H, in short sums
        self._errors = np.zeros((0, PROBES))  # of the products, times H

    @property
    def capacity(self) -> int:
        """Columns that fit."""
        return len(self._basis)

    @property
    def m(self) -> int:
        """Length of the vectors."""
        return int(self._basis.shape[1])

    def add(self, block: Array, product: Array, image: Array | None = None) -> None:
        """Add a block (m, w) of the basis and S times it.  image : Z times it, if kept."""
        first, last = self.size, self.size + block.shape[1]
        self._last, self._coupling = slice(first, last), None
        self.starts, self._fresh = self.starts + self._fresh if self.starts else last, 0
        self._basis[first:last] = block.T
        self._products[first:last] = product.T
        self.size = last
        self._errors = np.vstack([self._errors, self._measured(slice(first, last))])
        self._gram = self._extended(self._gram, self._basis, first)
        self._cross = self._extended(self._cross, self._products, first)
        if image is not None:
            self.images.append(image)

    def _measured(self, rows: slice) -> Array:
        """(rows, PROBES) errors of products, times H."""
        if self.probed is None:
            return np.zeros((rows.stop - rows.start, PROBES))
        h, out = probe_vectors(self.m), np.zeros((rows.stop - rows.start, PROBES))
        for piece in self._pieces(2 * out.shape[0]):
            out += self._products[rows, piece].astype(self._exact, copy=False) @ h[piece]
            basis = self._basis[rows, piece].astype(self._exact, copy=False)
            out -= basis @ self.probed[piece].conj()
        return out

    def _extended(self, old: Array, other: Array, first: int) -> Array:
        """basis' other over the columns so far; only the new rows and columns are computed."""
        d = self.size
        full = np.zeros((d, d), self._exact)
        full[:first, :first] = old
        for piece in self._pieces(d):
            fresh = other[first:d, piece].astype(self._exact, copy=False)
            basis = self._basis[:d, piece].astype(self._exact, copy=False)
            full[:, first:] += basis.conj() @ fresh.T
        full[first:, :first] = full[:first, first:].conj().T  # S is symmetric
        return full

    def _pieces(self, width: int) -> list[slice]:
        return row_pieces(self.m, 16 * max(1, width), PIECE_NBYTES)

    def ritz(self, exact: bool = True) -> Ritz:
        """Ritz values and vectors of the whole space.

        exact : residuals are those of the products; otherwise what follows gives their norms.
        """
        cross = (self._cross + self._cross.conj().T) / 2
        values, rotation = scipy.linalg.eigh(cross, self._gram)
        values, rotation = values[::-1], np.ascontiguousarray(rotation[:, ::-1])
        if exact or self._coupling is None:
            squares = np.zeros(self.size)
            for piece in self._pieces(3 * self.size):
                rest = self._residual(rotation, values, piece)
                squares += np.einsum("ij,ij->j", rest, rest.conj()).real
            residual = np.sqrt(squares) * _unit(values)
        else:
            residual = np.linalg.norm(self._coupling @ rotation[self._last], axis=0)
        rounding = None if self.probed is None else norm_estimate(rotation.T @ self._errors)
        return Ritz(np.maximum(values, 0.0), rotation, residual, rounding, float(values[-1]))

    def _residual(self, rotation: Array, values: Array, piece: slice) -> Array:
        """(piece, columns) S x - value x, in units of the largest value: squares of small numbers
        would underflow."""
        d = self.size
        image = self._products[:d, piece].T.astype(self._exact, copy=False) @ rotation
        image -= (self._basis[:d, piece].T.astype(self._exact, copy=False) @ rotation) * values
        image /= _unit(values)
        return np.asarray(image)

    def vectors(self, ritz: Ritz, k: int) -> Array:
        """(m, k) float64 leading Ritz vectors."""
        return self._combined(self._basis, ritz.rotation[:, :k])

    def multiplied(self, ritz: Ritz, k: int, which: Array) -> Array:
        """(m, k) float64 leading Ritz vectors, with S x / value for those of ``which`` (k,).

        S x / value, from the products, is nearer to an eigenvector than x: by the ratio of the
        largest value outside the space to its own (:func:`certify_ritz`). The columns are
        orthogonalised in order.
        """
        found = self.vectors(ritz, k)
        some = np.flatnonzero(which)
        if some.size:
            turn = ritz.rotation[:, some] / ritz.values[some]
            found[:, some] = self._combined(self._products, turn)
            factor = np.linalg.cholesky(found.conj().T @ found)
            found = scipy.linalg.solve_triangular(factor, found.conj().T, lower=True).conj().T
        return found

    def image_of(self, ritz: Ritz, k: int) -> Array:
        """(length, k) float64 images of the leading Ritz vectors, where images were kept."""
        return self._image(ritz.rotation[:, :k])

    def _image(self, rotation: Array) -> Array:
        out = np.zeros((len(self.images[0]), rotation.shape[1]))
        first = 0
        for image in self.images:
            width = image.shape[1]
            out += image @ rotation[first : first + width].astype(image.dtype)
            first += width
        return out

    def next_block(
        self, ritz: Ritz, width: int, rng: np.random.Generator, floor: float = 0.0
    ) -> Array:
        """(m, width) new directions: the residuals of the leading Ritz vectors, orthonormalised.

        floor : those with a smaller residual have converged to rounding; the next ones take their
            place.
        """
        leading = np.flatnonzero(ritz.residual > floor)[:width]
        out = np.empty((self.m, width), self._exact)
        for piece in self._pieces(3 * self.size):
            rest = self._residual(ritz.rotation[:, leading], ritz.values[leading], piece)
            out[piece, : len(leading)] = rest
        norms = np.linalg.norm(out[:, : len(leading)], axis=0)
        out[:, : len(leading)] /= np.where(norms > 0, norms, 1.0)
        if width > len(leading):
            out[:, len(leading) :] = self._drawn(rng, width - len(leading))
        return self.orthonormal(out)

    def following(self, rng: np.random.Generator) -> Array:
        """(m, b) the next block of a Krylov space, orthonormal: what the newest products have
        outside of the space. Random where that is rounding. :meth:`add` it next."""
        product = self._products[self._last].T
        basis = self._basis[: self.size].T
        block = product - basis @ np.linalg.solve(self._gram, basis.conj().T @ product)
        block, triangle, _ = scipy.linalg.qr(block, mode="economic", pivoting=True)
        rounding = max(DEPENDENT, 10.0 * float(np.finfo(self.dtype).eps))
        largest = np.linalg.norm(product, axis=0).max(initial=0.0)
        weak = np.abs(np.diagonal(triangle)) <= rounding * largest
        if weak.any():
            block[:, weak] = self._drawn(rng, int(np.count_nonzero(weak)))
        self._fresh = int(np.count_nonzero(weak))
        block = self.orthonormal(block, rounds=1 + bool(weak.any()))
        self._coupling = block.conj().T.astype(self._exact, copy=False) @ product
        return block

    def random(self, width: int, rng: np.random.Generator) -> Array:
        """(m, width) random directions, orthonormal to the space."""
        self._fresh = width
        return self.orthonormal(self._drawn(rng, width))

    def _drawn(self, rng: np.random.Generator, count: int) -> Array:
        """(m, count) random directions, 0 where nothing is searched."""
        return _drawn(rng, self.m, count, self.live, self._exact)

    def orthonormal(self, block: Array, rounds: int = 2) -> Array:
        """The block (m, b), orthonormal to the basis and in itself: in place, then in dtype."""
        d = self.size
        for _ in range(rounds):
            inner = np.zeros((d, block.shape[1]), self._exact)
            for piece in self._pieces(d):
                basis = self._basis[:d, piece].astype(self._exact, copy=False)
                inner += basis.conj() @ block[piece]
            inner = np.linalg.solve(self._gram, inner) if d else inner
            for piece in self._pieces(d):
                block[piece] -= self._basis[:d, piece].T.astype(self._exact, copy=False) @ inner
            block = orthonormalised(block, self.live)
        return block.astype(self.dtype)

    def crowded(self, ritz: Ritz, k: int, level: float) -> bool:
        """Whether more eigenvalues equal to one of the k largest may be missed.

        A Krylov space has at most as many vectors of an eigenspace as it began with. Where it has
        so many, all before the k-th, there may be more.
        level : rounding of the values.
        """
        values, reach = ritz.values, ritz.residual
        apart = values[:-1] - values[1:] > reach[:-1] + reach[1:] + level
        ends = np.append(np.flatnonzero(apart), len(values) - 1) + 1
        sizes = np.diff(np.append(0, ends))
        return bool(np.any(sizes[ends <= k] >= self.starts))

    def restart(self, ritz: Ritz, keep: int) -> None:
        """Keep only the leading Ritz vectors, their products and images, without a pass."""
        self._take(self, np.ascontiguousarray(ritz.rotation[:, :keep]))
        self.mature = keep

    def adopt(self, other: KrylovSpace, ritz: Ritz, most: int) -> None:
        """Take over the vectors of another space, or its ``most`` leading ones if it has more."""
        whole = other.size <= most
        self._take(other, np.eye(other.size) if whole else ritz.rotation[:, :most])

    def _take(self, source: KrylovSpace, rotation: Array) -> None:
        """Hold combinations of the vectors of a space (even of this one), products and images."""
        d, self.size = source.size, rotation.shape[1]
        for mine, theirs in ((self._basis, source._basis), (self._products, source._products)):
            for piece in self._pieces(d):
                mine[: self.size, piece] = rotation.T @ theirs[:d, piece].astype(
                    self._exact, copy=False
                )
        self._last, self._coupling = slice(0, 0), None
        self.probed = source.probed
        self._errors = self._measured(slice(0, self.size))
        if source.images:
            self.images = [source._image(rotation).astype(self.dtype)]
        self._gram = self._extended(np.zeros((0, 0)), self._basis, 0)
        self._cross = self._extended(np.zeros((0, 0)), self._products, 0)

    def _combined(self, held: Array, rotation: Array) -> Array:
        out = np.empty((self.m, rotation.shape[1]), self._exact)
        for piece in self._pieces(self.size):
            out[piece] = held[: self.size, piece].T.astype(self._exact, copy=False) @ rotation
        return out


def _unit(values: Array) -> float:
    """The largest value, or 1 where all are 0."""
    return float(values.max(initial=0.0)) or 1.0


def _drawn(
    rng: np.random.Generator, m: int, count: int, live: Array | None, dtype: Any = np.float64
) -> Array:
    """(m, count) random directions, 0 where nothing is searched."""
    fresh = rng.standard_normal((m, count))
    if np.dtype(dtype).kind == "c":
        fresh = fresh + 1j * rng.standard_normal((m, count))
    return fresh if live is None else fresh * live[:, None]


def orthonormalised(block: Array, live: Array | None = None) -> Array:
    """(m, w) orthonormal columns with the span of ``block``, which is overwritten.

    Two rounds of Cholesky QR. Where columns are too nearly dependent for it, Householder QR, with
    random columns in place of dependent ones.
    live : (m,) False where random columns must be 0; at least w are True.
    Source: Yamamoto, Nakatsukasa, Yanagisawa and Fukaya 2015, "Roundoff error analysis of the
    CholeskyQR2 algorithm", section 3.
    """
    parts = row_pieces(len(block), 16 * max(1, block.shape[1]), PIECE_NBYTES)
    norms = np.linalg.norm(block, axis=0)
    turn: Array = np.diag(1.0 / np.where(norms > 0, norms, 1.0))
    for _ in range(3):  # the first time to unit columns
        gram = np.zeros((block.shape[1],) * 2, np.result_type(block, np.float64))
        for piece in parts:
            block[piece] = block[piece] @ turn
            gram += block[piece].conj().T @ block[piece]
        values = np.linalg.eigvalsh(gram)
        if not values.size or not values[0] > INDEPENDENT * values[-1]:
            return _by_reflections(block, live)
        turn = np.linalg.inv(np.linalg.cholesky(gram)).conj().T
    return block


def _by_reflections(block: Array, live: Array | None) -> Array:
    q, r = np.linalg.qr(block)
    size = np.abs(np.diagonal(r))
    weak = np.flatnonzero(size <= 1e-10 * max(size.max(initial=0.0), 1e-300))
    if weak.size:
        rng = np.random.default_rng(len(block))
        q[:, weak] = _drawn(rng, len(block), weak.size, live, block.dtype)
        for _ in range(2):
            others = np.delete(q, weak, axis=1)
            q[:, weak] -= others @ (others.conj().T @ q[:, weak])
            q[:, weak] = np.linalg.qr(q[:, weak])[0]
    return np.asarray(q)


def start_block(directions: Array, width: int, live: Array, rng: np.random.Generator) -> Array:
    """(m, width) orthonormal float64 (complex128): known directions, completed by random ones.

    live : (m,) False where every vector is exactly 0 (a constant feature).
    """
    exact = np.result_type(directions, np.float64)
    known = directions[:, :width].astype(exact, copy=False)
    block = np.empty((len(known), width), exact)
    block[:, : known.shape[1]] = known
    block[:, known.shape[1] :] = _drawn(rng, len(known), width - known.shape[1], None, exact)
    block[~live] = 0.0
    block = orthonormalised(block, live)
    block[~live] = 0.0  # QR leaves rounding
    return block
