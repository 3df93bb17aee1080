"""Elementwise and per-column operations on blocks, and pseudo-random numbers by index."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import scipy

from streampca.kernels.blas import Array
from streampca.kernels.team import each

# splitmix64: pseudo-random numbers computed from an index alone.
#
# Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the odd number nearest to 2^64 / golden ratio


def mixed(x: Array) -> Array:
    """The finalizer of splitmix64 for states x, uint64. Successive states are GOLDEN apart."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


# Elementwise and per-column operations on blocks, in pieces that stay in cache.

CACHE_NBYTES = 256 * 1024  # of a piece that stays in a core's L2 cache
VARIES = 1e-300  # sum of squares of a column that varies, but whose squares underflow
SUM_LENGTH = 8  # rows of a tile whose column sums are added in its dtype
GROUP = 4  # most consecutive pieces that one call takes; the plan has no room for more
PIECE_ROWS = 8  # least rows of a piece of an array with long rows


def row_pieces(n_rows: int, row_nbytes: int, nbytes: int = CACHE_NBYTES) -> list[slice]:
    """Slices of consecutive rows of about ``nbytes`` each."""
    step = max(1, nbytes // max(1, row_nbytes))
    return [slice(i, min(i + step, n_rows)) for i in range(0, n_rows, step)]


def pieces(
    n_rows: int, n_columns: int, itemsize: int, nbytes: int = CACHE_NBYTES
) -> list[tuple[slice, slice]]:
    """(rows, columns) slices of pieces of about ``nbytes``, with at least PIECE_ROWS rows."""
    widest = max(1, nbytes // (PIECE_ROWS * itemsize))
    return [
        (rows, columns)
        for columns in row_pieces(n_columns, 1, widest)
        for rows in row_pieces(n_rows, itemsize * (columns.stop - columns.start), nbytes)
    ]


def groups(parts: list[tuple[slice, slice]]) -> list[tuple[slice, slice, int]]:
    """(rows, columns, rows of a piece) of up to GROUP consecutive pieces with the same columns.

    A call of NumPy releases the GIL and takes it again. Where several threads do so every ten
    microseconds, they wait for it longer than they compute.
    """
    made = []
    for columns, alike in groupby(parts, key=itemgetter(1)):
        lines = [rows for rows, _ in alike]
        for some in (lines[i : i + GROUP] for i in range(0, len(lines), GROUP)):
            made.append((slice(some[0].start, some[-1].stop), columns, lines[0].stop))
    return made


def by_piece(x: Array, step: int) -> list[Array]:
    """(pieces, rows, columns) views of a group: its pieces of ``step`` rows, and what is left."""
    whole = len(x) // step
    parts = x[: whole * step].reshape(whole, step, x.shape[1]), x[None, whole * step :]
    return [part for part in parts if part.size]


def added_in_order(start: Array, terms: Array) -> Array:
    """start + terms[0] + terms[1] + ..., in this order.  start : (columns,)."""
    total = np.array(start, dtype=np.float64)
    for term in terms:
        total += term
    return total


def sums_at(places: Array, values: Array, length: int) -> Array:
    """(length,) float64 sums of the values at each place. (An empty ``bincount`` is integer.)"""
    return np.bincount(places, values, minlength=length).astype(np.float64, copy=False)


def side_by_side(lengths: Sequence[int]) -> list[slice]:
    """The slices of consecutive pieces of these lengths."""
    ends = np.cumsum(lengths)
    return [slice(int(e) - n, int(e)) for e, n in zip(ends, lengths, strict=True)]


def probe(start: int, stop: int) -> Array:
    """Entries start..stop of the fixed pseudo-random vector h that orients components.

    h is uniform on (0, 2), from splitmix64 of the index, so that any slice can be computed alone.
    Its mean is positive, so one-sided components become positive.
    """
    with np.errstate(over="ignore"):
        x = np.arange(start, stop, dtype=np.uint64) + np.uint64(1)
        x = x * GOLDEN
    return (mixed(x) >> np.uint64(11)).astype(np.float64) * (2.0 / 2**53)


@dataclass(frozen=True)
class ColumnStats:
    """Per-column summary of one set of rows; every field is (columns,) float64 or int64."""

    count: Array  # observed cells
    missing: Array
    weight: Array  # sum of the weights of the observed cells
    mean: Array  # 0 where nothing was observed
    m2: Array  # sum of w (x - mean)^2
    minimum: Array  # +inf where nothing was observed
    maximum: Array  # -inf where nothing was observed
    mean_low: Array | float = 0.0  # rounding error of the mean, to be added to it


def set_zero(x: Array, where: Array) -> None:
    """x[where] = 0, in place.  where : bool, of the shape of x.

    Boolean indexing holds the GIL and branches at every cell: where a third of the cells was chosen
    at random, it took eight times as long as these bits.
    """
    if (bits := _bits(x)) is None:
        x[where] = 0
    else:
        bits &= where.view(np.int8) - np.int8(1)  # -1 has all bits


def set_nan(x: Array, where: Array) -> None:
    """x[where] = NaN of a float array, in place.  where : bool, of the shape of x."""
    if (bits := _bits(x)) is None:
        x[where] = np.nan
    else:
        bits |= -where.view(np.int8)


def _bits(x: Array) -> Array | None:
    """The floats as integers, or None where there are none of their width."""
    native = x.dtype.kind == "f" and x.dtype.isnative and x.dtype.itemsize <= 8
    return x.view(f"i{x.dtype.itemsize}") if native else None


def column_stats(values: Array, mask: Array | None, weights: Array | None) -> ColumnStats:
    """Count, mean, M2, min and max of each column in one sweep, shifted before squaring.

    values : (rows, columns); mask : True = missing, or None; weights : (rows,) or None.
    """
    n, p = values.shape
    shift = provisional_mean(values, mask, weights)
    room = np.empty(GROUP * max(CACHE_NBYTES, 8 * PIECE_ROWS) // 8)  # for a group
    total, square, weight = np.zeros(p), np.zeros(p), np.zeros(p)
    missing = np.zeros(p, dtype=np.int64)
    low, high = np.full(p, np.inf), np.full(p, -np.inf)
    for rows, cols, step in groups(pieces(n, p, 8)):
        x = values[rows, cols]
        d = room[: x.size].reshape(x.shape)
        np.subtract(x, shift[cols], out=d)
        w = None if weights is None else weights[rows, None]
        lowest, highest = low[cols], high[cols]
        if mask is not None and (hole := mask[rows, cols]).any():
            missing[cols] += np.count_nonzero(hole, axis=0)
            seen = np.array(x, None if x.dtype.kind == "f" else np.float64)
            set_nan(seen, hole)
            np.minimum(lowest, np.fmin.reduce(seen, axis=0, initial=np.inf), out=lowest)
            np.maximum(highest, np.fmax.reduce(seen, axis=0, initial=-np.inf), out=highest)
            set_zero(d, hole)
        else:
            np.minimum(lowest, x.min(axis=0), out=lowest)
            np.maximum(highest, x.max(axis=0), out=highest)
            hole = None
        if w is not None:
            for i in range(0, len(x), step):
                some, empty = w[i : i + step], None if hole is None else hole[i : i + step]
                if empty is None or not empty.any():
                    weight[cols] += some.sum()
                else:
                    weight[cols] += np.sum(some * ~empty, axis=0)
        weighted = d if w is None else w * d
        for one, other in zip(by_piece(weighted, step), by_piece(d, step), strict=True):
            total[cols] = added_in_order(total[cols], one.sum(axis=1))
            square[cols] = added_in_order(square[cols], np.einsum("kij,kij->kj", one, other))
    count = n - missing
    if weights is None:
        weight = count.astype(np.float64)
    safe = np.where(weight > 0, weight, 1.0)
    offset = total / safe
    mean, rest = add_exactly(np.where(weight > 0, shift, 0.0), offset)
    with np.errstate(over="ignore", invalid="ignore"):
        m2 = np.maximum(square - total * offset, 0.0)
    if weights is None:
        m2[(m2 == 0.0) & (high > low)] = VARIES
    return ColumnStats(count, missing, weight, mean, m2, low, high, rest)


def column_means(values: Array) -> Array:
    """(columns,) the means that :func:`column_stats` finds without a mask, to the bit."""
    n, p = values.shape
    shift, total = provisional_mean(values, None), np.zeros(p)
    for rows, cols, step in groups(pieces(n, p, 8)):
        d = values[rows, cols] - shift[cols]
        for one in by_piece(d, step):
            total[cols] = added_in_order(total[cols], one.sum(axis=1))
    return np.asarray(shift + total / max(n, 1))


def reciprocal(scale: Array) -> Array:
    """(p,) 1 / scale, 0 where the scale is 0 (an excluded column)."""
    return np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)


def add_exactly(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b, of one shape, as the rounded sum and its rounding error (Knuth's two-sum).

    A mean is kept as such a pair: float64 resolves a mean of 1e6 to 1e-10, and the scatter of two
    parts needs the difference of their means to all digits.
    """
    total = a + b
    virtual = total - a
    return total, (a - (total - virtual)) + (b - virtual)


def provisional_mean(values: Array, mask: Array | None, weights: Array | None = None) -> Array:
    """(p,) a shift near each column's mean: the mean of the observed cells among a few rows.

    Rows of weight 0 are ignored, so a column that is constant in all others is shifted to 0.
    """
    head = leading_rows(len(values), weights)
    part = values[head]
    if mask is None or not mask[head].any():
        return part.mean(axis=0, dtype=np.float64) if len(part) else np.zeros(values.shape[1])
    seen = ~mask[head]
    total = np.where(seen, part, 0).sum(axis=0, dtype=np.float64)
    return np.asarray(total / np.maximum(seen.sum(axis=0), 1))


def leading_rows(n: int, weights: Array | None) -> slice | Array:
    """The first rows of positive weight (n,), at most 64, as a slice or numbers."""
    return slice(0, min(n, 64)) if weights is None else np.flatnonzero(weights)[:64]


# Held-out cells, selected by a hash of their position, so that no mask is stored.


def seeded(seed: int, numbers: Array) -> Array:
    """Uniform 64-bit integers of a seed, one for each number (uint64): splitmix64."""
    with np.errstate(over="ignore"):
        start = mixed(np.asarray([seed], np.uint64) * GOLDEN + GOLDEN)
        return mixed(start + numbers * GOLDEN)


def line_keys(numbers: Array, seed: int, axis: int) -> Array:
    """(lines,) uint32 keys of rows (axis 0) or columns (axis 1) by their number: splitmix64."""
    with np.errstate(over="ignore"):
        x = np.asarray(numbers, np.uint64) * np.uint64(2) + np.uint64(axis)
        x = x + GOLDEN * np.uint64((2 * seed + 1) % (1 << 63))
    return (mixed(x) >> np.uint64(32)).astype(np.uint32)


def chosen(row_keys: Array, column_keys: Array, share: float) -> Array:
    """Whether each cell is held out: ``share`` of all cells, independent of the blocks.

    row_keys, column_keys : broadcast against each other. (rows, 1) and (columns,) give a tile,
        (entries,) and (entries,) single cells.
    Cost: five operations on 32 bits per cell.
    Source: the finalizer of Appleby's MurmurHash3 over the sum of the keys.
    """
    with np.errstate(over="ignore"):
        h = row_keys + column_keys
        h = h ^ (h >> np.uint32(16))
        h *= np.uint32(0x85EBCA6B)
        h ^= h >> np.uint32(13)
        h *= np.uint32(0xC2B2AE35)
        h ^= h >> np.uint32(16)
    return np.asarray(h < np.uint32(min(share * 2.0**32, 2.0**32 - 1)))


# Products with a few random vectors, in short sums, which measure the rounding of a long sum.
#
# A symmetric update adds many terms one after the other. Terms that are equal, or small relative to
# an earlier one, are rounded in the same direction. So the error can be a hundred times that of a
# random walk, and it depends on the BLAS kernel. No a priori bound is both valid and tight.
#
# So while the rows z pass, z (z'H) is summed in float64 for a fixed random matrix H. The error E of
# the sum S then shows in S H - sum z (z'H) = E H. For any v that was found without H, (E v)'h is
# normal with variance |E v|^2, which a bound of an eigenpair needs.
#
# Source: Hutchinson 1990, "A stochastic estimator of the trace of the influence matrix", section 2;
# Higham 2002, "Accuracy and Stability of Numerical Algorithms", section 4.2, on sums in runs.

PROBES = 8  # columns of H
CONFIDENCE = 6.0  # |E v| exceeds 6 root mean squares of PROBES values in 6 of a million cases
SHORT = 32  # terms that are added one after the other
CACHED_NBYTES = 512 * 1024  # of a panel that is multiplied twice; at least one run
CHAIN = 512  # most terms that a BLAS kernel adds one after the other
FEW_PROBED = 1024  # rows of H up to which SciPy's special functions are not loaded: as float32, the
# normal numbers of the standard library are the same
AT_ONCE = 8  # panels that threads multiply before their products are added
PANEL = 128  # least terms between two roundings of its result to memory


@lru_cache(maxsize=4)
def probe_vectors(m: int) -> Array:
    """H: (m, PROBES) float32, read-only, standard normal numbers from splitmix64 of the index."""
    with np.errstate(over="ignore"):
        x = (np.arange(m * PROBES, dtype=np.uint64) + np.uint64(1 << 40)) * GOLDEN
    uniform = ((mixed(x) >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53
    if m <= FEW_PROBED:
        quantile = statistics.NormalDist().inv_cdf
        normal = np.fromiter(map(quantile, uniform.tolist()), np.float64, len(uniform))
    else:
        normal = scipy.special.ndtri(uniform)
    vectors = normal.reshape(m, PROBES).astype(np.float32)
    vectors.flags.writeable = False
    return np.asarray(vectors)


def norm_estimate(probed: Array) -> Array:
    """(k,) upper estimates of |x_i| from x_i'H, (k, PROBES)."""
    # without it, squares of huge or tiny numbers would overflow or underflow
    unit = float(np.abs(probed).max(initial=0.0))
    if unit == 0.0 or not np.isfinite(unit):
        return np.full(len(probed), unit)
    return np.asarray(CONFIDENCE * unit * np.sqrt(np.mean(np.abs(probed / unit) ** 2, axis=1)))


def probed_product(z: Array, h: Array, *, rows: bool, further: Array | None = None) -> Array:
    """z'(z h) for z (r, m) (``rows=True``), or z (z'h) for z (m, r): (m, PROBES) float64.

    further : (r, c) further columns to multiply z' (or z) with, for c more columns of the result.
    No sum over r in the dtype of z is longer than SHORT. The two products with a panel of z follow
    each other while it is in the cache.
    Cost: 4 r m PROBES flops; 4 r m PROBES / SHORT bytes.
    """
    if not rows and not z.flags.c_contiguous:
        z, rows = z.T, True
    r, m = z.shape if rows else z.shape[::-1]
    further = np.empty((r, 0), z.dtype) if further is None else further
    h = h.astype(z.dtype, copy=False)
    out = np.zeros((m, PROBES + further.shape[1]))
    step = SHORT * max(1, CACHED_NBYTES // max(1, SHORT * m * z.itemsize))

    def images(first: int) -> None:
        panel = z[first : first + step] if rows else z[:, first : first + step].T
        inner = np.empty((len(panel), out.shape[1]), z.dtype)
        np.matmul(panel, h, out=inner[:, :PROBES])
        inner[:, PROBES:] = further[first : first + step]
        whole = len(panel) - len(panel) % SHORT
        made[first] = (
            _of_runs(panel[:whole], inner[:whole], SHORT),
            _of_runs(panel[whole:], inner[whole:], len(panel) - whole),
        )

    with np.errstate(over="ignore", invalid="ignore"):  # the solver checks for overflow
        for start in range(0, r, AT_ONCE * step):
            firsts = range(start, min(start + AT_ONCE * step, r), step)
            made: dict[int, tuple[Array, Array]] = {}
            each(images, firsts)
            for first in firsts:  # in this order, whoever made them
                for part in made[first]:
                    out += part
    return out


def _of_runs(panel: Array, inner: Array, run: int) -> Array:
    """panel' inner, (m, columns) float64, with sums over its rows in runs of that length."""
    if len(panel) == 0:
        return np.zeros((panel.shape[1], inner.shape[1]))
    if len(panel) == run:
        return panel.T @ inner
    factors = inner.reshape(-1, run, inner.shape[1]).transpose(0, 2, 1)
    parts = np.matmul(factors, panel.reshape(-1, run, panel.shape[1]))
    return np.asarray(parts.sum(axis=0, dtype=np.float64).T)


def sum_error(dtype: np.dtype[Any], terms: int) -> float:
    """Bound of the error of a BLAS sum of ``terms`` terms, relative to the sum of their sizes.

    Source: Higham 2002, section 4.2: a sum of n terms in runs of b has an error of (b + n / b) u.
    """
    unit = float(np.finfo(dtype).eps) / 2
    return unit * (min(terms, CHAIN) + terms / PANEL + 2)
