"""The sums of a block Krylov iteration: directions to start from, and the products S Q."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations_with_replacement, zip_longest
from typing import Any, Self

import numpy as np

from streampca.accumulators.base import (
    OPEN_BLOCKS,
    Accumulator,
    refuse_incomplete,
    refuse_partly_missing,
)
from streampca.errors import RESCALE, InvalidInputError, NonFiniteError
from streampca.kernels import (
    PROBES,
    Array,
    add_product,
    probe,
    probe_vectors,
    probed_product,
    reciprocal,
    row_pieces,
    zeros,
)

PIECE_NBYTES = 16 << 20  # of factor and rows together, while their products are summed
CACHE_NBYTES = 1 << 20  # of pieces that are rotated in place
STEP_CELLS = 1 << 16  # of the rows of a step: with fewer, threads wait for each other's calls
LINES = 4096  # lines of a sparse matrix whose products are summed in the dtype of the operand


class LeadingDirections(Accumulator):
    """A factor F of ``width`` rows with F'F approximately the scatter of the rows seen.

    Rows are added a few at a time. After each step the ``width`` leading directions are kept, so
    later blocks refine the directions of the first ones within the pass. Streamed samples are
    centred by the mean of their block, and the difference of the means of blocks is a row of its
    own. Scaling also uses the block alone, since the whole matrix is not known yet. Arithmetic is
    in the working dtype. As the start of an iteration this guarantees nothing (block Krylov needs
    one or two passes fewer than from random columns). Without scaling it is a sketch: every
    eigenvalue of the scatter is between that of F'F and that plus ``lost``, up to rounding.

    streamed : the axis that is streamed.  standardize : how columns are centred and scaled.
    missing : "raise", or "mean".
    ``block["feature_weights"]`` multiplies the columns of the block if present.
    Cost: about 6 n p width flops.
    Source: Brand 2006, "Fast low-rank modifications of the thin SVD", section 4.1; Weyl's
    inequality (Golub and Van Loan 2013, section 8.1.2) for the bound.
    """

    reuses = "factor"
    settings = ("streamed", "standardize", "width", "missing")
    fields = ("count", "weight", "mean", "unit", "holes", "factor", "squares", "lost", "lost_trace")

    def __init__(
        self, *, streamed: int, standardize: Any, width: int, missing: str = "raise"
    ) -> None:
        self.axis = self.streamed = streamed  # type: ignore[misc]
        self.standardize, self.width, self.missing = standardize, width, missing
        self.count = 0  # of streamed samples
        self.weight = 0.0
        self.holes: Any = None  # (p,) of streamed samples
        self.mean: Any = None  # (p,) of streamed samples, neither scaled nor weighted
        self.unit: Any = None  # (p,) scale and weight of the columns in the last block, or None
        self.lost = 0.0  # norms of the parts cut off: F'F <= S <= F'F + lost I, without scaling
        self.lost_trace = 0.0
        self.factor: Any = None  # (at most width, m) working dtype, orthogonal rows
        self.squares: Any = None  # (at most width,) squared norms of these rows

    @staticmethod
    def rows_at_once(width: int, m: int) -> int:
        """How many rows of length m are added before the leading directions are computed again."""
        return max(2 * width, 16, min(48, STEP_CELLS // max(m, 1)))

    def update(self, block: Any) -> None:
        self._check(block)
        stats = block.stats
        m = block.shape[1 - block.axis]
        self._check_width(None if self.factor is None else self.factor.T, m)
        if self.missing == "raise":
            refuse_incomplete(block)
            self._refuse_joint(stats.missing, block.length, block)
        if self.factor is None:
            self.factor = np.zeros((0, m), block.work_dtype)
        scaling = self.standardize.resolve(stats, block.eps, block.arrays.get("feature_weights"))
        bridge = self.factor[:0]
        if block.axis == 0 and block.length and self.standardize.center:
            self.unit = None if scaling.scale is None else reciprocal(scaling.scale)
            bridge = self._join_means(block.total_weight, stats.mean)
        if block.axis == 1 and block.compiled and self.factor.dtype == np.float32:
            self._take_calls(block, scaling)
            return
        for tile in block.tiles(block.work_dtype, scaling.center, scaling.scale, thin=True):
            rows = tile.values.T if block.axis == 1 else tile.values
            for part in self._pieces(len(rows)):
                self._absorb(rows[part], bridge)
                bridge = bridge[:0]

    def _pieces(self, count: int) -> list[slice]:
        """Equal slices of ``count`` rows, each added at once."""
        times = max(1, round(count / self.rows_at_once(self.width, self.factor.shape[1])))
        return row_pieces(count, 1, -(-count // times))

    def _take_calls(self, block: Any, scaling: Any) -> None:
        """Add a block of small integers, whose features are streamed."""
        from streampca.kernels.call_products import stacked_gram, turn_stacked, whole_vectors

        k, m = self.factor.shape
        factor = np.zeros((m, whole_vectors(self.width)), self.factor.dtype)
        factor[:, :k] = self.factor.T
        for tile in block.tiles(block.work_dtype, scaling.center, scaling.scale, thin=True):
            rows = np.ascontiguousarray(tile.values)
            for part in self._pieces(rows.shape[1]):
                gram = stacked_gram(factor, rows, part)
                turn = self._leading(gram)
                turn_stacked(factor, rows, part, turn)
                k = len(turn)
        if k != len(self.factor):
            self.factor = zeros((k, m), factor.dtype)
        self.factor[:] = factor.T[:k]

    def merge(self, other: Self) -> None:
        if other.factor is None:
            return
        self._check_width(None if self.factor is None else self.factor.T, other.factor.shape[1])
        if self.missing == "raise" and other.holes is not None:
            self._refuse_joint(other.holes, other.count)
        if self.factor is None or not (len(self.factor) or self.weight):
            self.weight, self.factor = other.weight, other.factor.copy()
            self.squares = None if other.squares is None else other.squares.copy()
            self.mean = None if other.mean is None else other.mean.copy()
            self.unit = None if other.unit is None else other.unit.copy()
            self.lost, self.lost_trace = other.lost, other.lost_trace
            return
        self.lost += other.lost
        self.lost_trace += other.lost_trace
        bridge = self.factor[:0]
        if other.mean is not None:
            self.unit = None if other.unit is None else other.unit.copy()
            bridge = self._join_means(other.weight, other.mean)
        self._absorb(other.factor, bridge, squares=other.squares)

    def _refuse_joint(self, missing: Array, count: int, block: Any = None) -> None:
        """Refuse a column of streamed samples that is only partly missing."""
        if self.axis == 1:
            return
        joint = missing if self.holes is None else self.holes + missing
        refuse_partly_missing(joint, self.count + count, block)
        self.holes, self.count = joint.copy(), self.count + count

    def _join_means(self, weight: float, mean: Array) -> Array:
        """(1 or 0, m) the row for the difference between the means of two sets of rows."""
        joint = self.weight + weight
        if self.mean is None:
            self.mean, self.weight = mean.copy(), joint
            return np.asarray(self.factor[:0])
        delta = mean - self.mean
        bridge = delta * np.sqrt(self.weight * weight / max(joint, 1e-300))
        if self.unit is not None:
            bridge *= self.unit
        self.mean = self.mean + delta * (weight / max(joint, 1e-300))
        self.weight = joint
        return np.asarray(bridge[None].astype(self.factor.dtype))

    def _absorb(self, *more: Array, squares: Array | None = None) -> None:
        """Add rows, and keep the leading directions of all.

        squares : squared norms of the first of them, whose rows are orthogonal.
        """
        if not any(map(len, more)):
            return
        k, m = self.factor.shape
        everything = zip_longest((self.factor, *more), (self.squares, squares))
        parts, known = zip(*((rows, of) for rows, of in everything if len(rows)), strict=True)
        ends = np.cumsum([len(part) for part in parts])
        own = [slice(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
        total = int(ends[-1])
        columns = row_pieces(m, total * self.factor.itemsize, PIECE_NBYTES)
        gram = np.zeros((total, total))  # its lower triangle
        pairs = list(combinations_with_replacement(range(len(parts)), 2))
        for i, diagonal in enumerate(known):
            if diagonal is not None:
                gram[own[i], own[i]] = np.diag(diagonal)
                pairs.remove((i, i))
        with np.errstate(over="ignore", invalid="ignore"):
            for piece in columns:
                for i, j in pairs:
                    gram[own[j], own[i]] += parts[j][:, piece] @ parts[i][:, piece].T
        turn = self._leading(gram)
        into = self.factor
        if len(turn) != k:
            into, self._spare = zeros((len(turn), m), turn.dtype, self._spare), None
        narrow = row_pieces(m, total * self.factor.itemsize, CACHE_NBYTES)
        room = np.empty(
            (total, max((one.stop - one.start for one in narrow), default=0)), turn.dtype
        )
        for piece in narrow:
            stack = room[:, : piece.stop - piece.start]
            for rows, part in zip(own, parts, strict=True):
                stack[rows] = part[:, piece]
            into[:, piece] = turn @ stack  # where the old rows were, if there are as many
        self.factor = into

    def _leading(self, gram: Array) -> Array:
        """(at most width, rows) the matrix that rotates the rows to their leading directions.

        gram : (rows, rows) their Gram matrix, the lower triangle valid.
        """
        if not np.isfinite(gram).all():
            raise NonFiniteError(
                f"sums of squares overflowed {self.factor.dtype}; {RESCALE}, or, of float32, "
                "convert with X.astype('float64')"
            )
        values, vectors = np.linalg.eigh(gram)
        kept = np.flatnonzero(values > 1e-12 * max(values[-1], 0.0))[::-1][: self.width]
        cut = np.maximum(values[: len(values) - len(kept)], 0.0)
        self.lost += float(cut.max(initial=0.0))
        self.lost_trace += float(cut.sum())
        self.squares = values[kept]
        return np.asarray(vectors[:, kept].T.astype(self.factor.dtype))

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        m = shape[1 - self.streamed]
        return self.width * m * itemsize + 4 * m * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return shape[0] * (self.width + 16) * 4 if self.streamed else 0  # of small integers

    def rows(self) -> Array:
        """(at most width, m) float64 F, a fresh array."""
        if self.factor is None:
            raise InvalidInputError("LeadingDirections has seen no block")
        return np.array(self.factor, dtype=np.float64)

    def directions(self) -> tuple[Array, Array]:
        """((m, at most width) nearly orthonormal directions, leading first; singular values)."""
        rows = self.rows()
        norms = np.linalg.norm(rows, axis=1)
        seen = norms > 0
        return (rows[seen] / norms[seen, None]).T, norms[seen]


class SubspaceStep(Accumulator):
    """Both products in one pass: Z (Z'Q) for streamed features, Z'(Z Q) for streamed samples.

    The operand "q" (m, width) has a row for each entry of the axis that is not streamed. The
    operands "center" and "scale" (p,), of the whole matrix, standardise if present. Missing cells
    are 0, their column's mean.

    Sparse blocks cost only their stored entries. With sparse streamed samples, a first pass that
    does not know center and scale may omit them. They are then passed to :meth:`finished`, and the
    block of vectors must be q times the scale.

    streamed : the axis that is streamed.
    images : keep the inner product too, Z'Q (p, width) or Z Q (n, width), in the working dtype.
    probe : of streamed features, sum Z h, with h of kernels.probe.
    standardize : of streamed features, in a first pass: use center and scale of the block.
    measure : also sum S H for random vectors H, in short sums (:mod:`streampca.kernels.columns`),
        which measures the rounding of S Q. For dense blocks other than small integers, whose
        products are summed in registers, a panel at a time.

    Sums are float64; within a span they are in the working dtype.
    Cost: 4 n p width flops.
    Source: Rokhlin, Szlam and Tygert 2009, "A randomized algorithm for PCA", section 1.
    """

    reuses = "_open"
    height = 1  # vectors of a block are so many times as long as its columns
    settings = ("streamed", "width", "images", "probe", "standardize", "measure")
    fields = ("product", "sums", "center", "scale", "root", "z_probe", "probed", "starts", "table")

    def __init__(
        self,
        *,
        streamed: int,
        width: int,
        images: bool = False,
        probe: bool = False,
        standardize: Any = None,
        measure: bool = False,
    ) -> None:
        self.axis = self.streamed = streamed  # type: ignore[misc]
        self.width, self.images, self.probe = width, images, probe
        self.standardize, self.measure = standardize, measure
        self.product: Any = None  # (m, width) float64
        self._open: Any = None  # (m, width) working dtype, of the open span
        self._blocks = 0  # dense blocks in the open span
        self._lines = 0  # sparse lines in the open span
        self.sums: Any = None  # (width,) of sparse blocks: the correction for the centers
        self.center: Any = None  # (p,) of streamed samples
        self.scale: Any = None  # (p,) their divisors
        self.root: Any = None  # (n,) roots of the sample weights, for streamed features
        self.z_probe: Any = None  # (n,) float64
        self.probed: Any = None  # (m, PROBES) float64
        self.parts: dict[int, Array] = {}  # first streamed entry -> its rows of the image

    def update(self, block: Any) -> None:
        self._check(block)
        q = block["q"]
        m = self.height * block.shape[1 - block.axis]
        if q.shape != (m, self.width):
            raise InvalidInputError(
                f"the operand q has shape {q.shape}; this block needs {(m, self.width)}"
            )
        self._check_width(self._open if self.product is None else self.product, m)
        found = (block.arrays.get(name) for name in ("center", "scale"))
        center, scale = (None if one is None else one[block.columns] for one in found)
        if self.standardize is not None:
            weights = block.arrays.get("feature_weights")
            scaling = self.standardize.resolve(block.stats, block.eps, weights)
            center, scale = scaling.center, scaling.scale
        products = self._of_entries if block.sparse else self._of_tiles
        if block.compiled and block.work_dtype == np.float32:
            products = self._of_calls
        image = products(block, q, center, scale)
        if self.images and block.length:
            self.parts[block.start] = image

    def _of_tiles(self, block: Any, q: Array, center: Array | None, scale: Array | None) -> Array:
        """Add the products of a dense block; return its image."""
        m = len(q)
        self._open_for((m, self.width), block.work_dtype)
        image = np.empty((block.length if self.images else 0, self.width), block.work_dtype)
        h = probe_vectors(m if self.measure else 0)
        each = self.height
        for tile in block.tiles(block.work_dtype, center, scale, thin=True, multiple=each):
            rows = self._rows(tile.values) if block.axis == 1 else tile.values
            inner = rows @ q
            add_product(self._open, rows.T, inner)
            if self.measure:
                mine = np.zeros((m, PROBES)) if self.probed is None else self.probed
                self.probed = mine + probed_product(tile.values, h, rows=block.axis == 0)
            if self.images:
                image[tile.start - block.start :][: len(inner)] = inner
            if self.probe:
                signs = probe(tile.start // each, tile.stop // each).astype(rows.dtype)
                mine = np.zeros(m) if self.z_probe is None else self.z_probe
                self.z_probe = mine + rows.T @ signs
        self._blocks += 1
        return image

    def _rows(self, columns: Array) -> Array:
        """(vectors, m) of the streamed columns of a tile."""
        return columns.T

    def _of_calls(self, block: Any, q: Array, center: Array | None, scale: Array | None) -> Array:
        """Add the products of a block of small integers; return its image."""
        from streampca.kernels.call_products import add_image, two_products, whole_vectors

        self._open_for((len(q), whole_vectors(self.width)), block.work_dtype)
        m = block.shape[1]
        shift = np.zeros(m) if center is None else np.asarray(center, np.float64)
        factor = np.ones(m) if scale is None else reciprocal(scale)
        calls = (block.values, block.missing_value, shift, factor)
        image = two_products(*calls, q, self._open)
        if self.probe:
            self.z_probe = np.zeros(len(q)) if self.z_probe is None else self.z_probe
            add_image(*calls, probe(block.start, block.stop), self.z_probe)
        self._blocks += 1
        return np.ascontiguousarray(image[:, : self.width])

    def _open_for(self, shape: tuple[int, int], dtype: Any) -> None:
        """Have open sums of that shape, with room for another block."""
        held = self._open
        if self._blocks >= OPEN_BLOCKS or (
            held is not None and (held.shape, held.dtype) != (shape, dtype)
        ):
            self.settle()
        if self._open is None:
            self._open, self._spare = zeros(shape, dtype, self._spare), None

    def settle(self) -> None:
        if self._open is not None:
            self.product = _added(self.product, self._open[:, : self.width])
        self._open, self._blocks, self._lines = None, 0, 0

    def _of_entries(self, block: Any, q: Array, center: Array | None, scale: Array | None) -> Array:
        """Add the products of a sparse block; return its image."""
        from streampca.kernels.sparse import whole_vectors

        if self._lines >= LINES or (self._open is not None and self._open.dtype != q.dtype):
            self.settle()
        if self._open is None:
            shape = (len(q), whole_vectors(self.width, q.itemsize))
            self._open, self._spare = zeros(shape, q.dtype, self._spare), None
        self._lines += block.length
        self.sums = np.zeros(self.width) if self.sums is None else self.sums
        entries = block.entries
        if block.axis == 0:
            self.center, self.scale = center, scale
            if scale is not None:
                q = q * reciprocal(scale)[:, None].astype(q.dtype)
            return np.asarray(entries.two_products(q, self._open, self.sums, center))
        if block.weights is not None:
            self.root = np.sqrt(block.weights)
            q = q * self.root[:, None].astype(q.dtype)
        image = entries.two_products(q, self._open, self.sums, center, scale)
        if self.probe:
            h = probe(block.start, block.stop)[:, None]
            mine = np.zeros(len(q)) if self.z_probe is None else self.z_probe
            z_probe = entries.product(h, center, scale)
            self.z_probe = mine + z_probe[:, 0] * (1.0 if self.root is None else self.root)
        return np.asarray(image)

    def merge(self, other: Self) -> None:
        self.settle()
        for part in (other.product, other._open):
            if part is not None:
                self._check_width(self.product, len(part))
                self.product = _added(self.product, part[:, : self.width])
        if other.sums is not None:
            self.center, self.scale, self.root = other.center, other.scale, other.root
        self._join(other, "sums", "z_probe", "probed")
        self.parts.update(other.parts)

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        across = (
            self.height
            * shape[1 - self.streamed]
            * (self.width + 2 * self.probe + 2 * PROBES * self.measure)
            * 8
        )
        return across + shape[self.streamed] * self.width * itemsize * self.images

    def partial_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        m = self.height * shape[1 - self.streamed]
        less = m * self.width * (8 - itemsize)  # of dense blocks
        return self.projected_nbytes(shape, itemsize) - less

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return block_length * self.width * 8

    # -- results ----------------------------------------------------------------------------

    def finished(self, center: Array | None = None, scale: Array | None = None) -> Array:
        """(m, width) float64 S Q, a fresh array.

        center, scale : (p,) of the whole matrix, where the pass did not know them.
        """
        product = None if self.product is None else np.array(self.product)
        if self._open is not None:
            product = _added(product, self._open[:, : self.width])
        if product is None:
            raise self._nothing_seen()
        if self.sums is None:
            return product
        if self.axis == 1:
            product -= self.sums
            return product if self.root is None else product * self.root[:, None]
        center = self.center if center is None else center
        scale = self.scale if scale is None else scale
        if center is not None:
            product -= np.multiply.outer(center, self.sums)
        return product if scale is None else product * reciprocal(scale)[:, None]

    def image(self) -> Array:
        """(length of the streamed axis, width) in the working dtype, a fresh array."""
        return np.concatenate([self.parts[start] for start in sorted(self.parts)])

    # -- state: one table instead of a field per block -----------------------------------------

    @property
    def starts(self) -> Array | None:
        """(parts, 2) first entry and length of each part of the image."""
        lengths = [(start, len(self.parts[start])) for start in sorted(self.parts)]
        return np.array(lengths, dtype=np.int64) if lengths else None

    @property
    def table(self) -> Array | None:
        """The image, or None."""
        return self.image() if self.parts else None

    def from_state(self, state: Mapping[str, Array]) -> Self:
        plain = {k: v for k, v in state.items() if k not in ("starts", "table")}
        restored = super().from_state(plain)
        offset = 0
        for start, length in np.asarray(state.get("starts", ())).reshape(-1, 2):
            restored.parts[int(start)] = np.array(state["table"][offset : offset + length])
            offset += length
        return restored


def _added(mine: Array | None, theirs: Array) -> Array:
    """A float64 sum; ``mine`` is changed in place."""
    if mine is None:
        mine = zeros(theirs.shape)
    mine += theirs
    return mine
