"""Random chains of Dask and xarray operations on a small field, for property tests.

A chain is drawn from a ``random.Random``: Hypothesis gives one that it can shrink, and a seed
gives one by hand. Values stay small and finite, and shapes stay small.
"""

import operator
from pathlib import Path
from random import Random

import dask
import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr
import zarr

LARGEST = 4000  # cells of an array
DIMS = ("time", "y", "x")


def drawn_field(rnd: Random, folder: Path) -> xr.DataArray:
    """A field of monthly values in random chunks.  folder : for one that is stored."""
    shape = (rnd.choice([1, 5, 17, 24, 36]), rnd.randint(1, 4), rnd.randint(1, 4))
    values = np.random.default_rng(rnd.randint(0, 99)).normal(size=shape)
    if rnd.random() < 0.2:
        values = values.astype("f4")
    chunks = tuple(drawn_chunks(rnd, n) for n in shape)
    source = rnd.choice([from_array, from_inline, from_delayed, from_random, from_stored])
    return labelled(source(values, chunks, folder))


def from_array(values, chunks, folder):
    return da.from_array(values, chunks=chunks)


def from_inline(values, chunks, folder):
    return da.from_array(values, chunks=chunks, inline_array=True)


def from_delayed(values, chunks, folder):
    whole = dask.delayed(values, pure=True)
    return da.from_delayed(whole, values.shape, values.dtype).rechunk(chunks)


def from_random(values, chunks, folder):
    return da.random.default_rng(3).normal(size=values.shape, chunks=chunks).astype(values.dtype)


def from_stored(values, chunks, folder):
    path = str(folder / f"{dask.base.tokenize(values, chunks)}.zarr")
    stored = tuple(max(sizes) for sizes in chunks)
    array = zarr.create_array(
        path, shape=values.shape, chunks=stored, dtype=values.dtype, overwrite=True
    )
    array[:] = values
    return da.from_zarr(path)


def labelled(array: da.Array) -> xr.DataArray:
    times = pd.date_range("2001-01-31", periods=array.shape[0], freq="ME")
    return xr.DataArray(array, dims=DIMS[: array.ndim], coords={"time": times})


def drawn_chunks(rnd: Random, n: int) -> tuple[int, ...]:
    sizes: list[int] = []
    step = rnd.choice([1, 2, 3, 5, 12, n])
    even = rnd.random() < 0.6
    while n > 0:
        take = min(n, step if even else rnd.randint(1, max(1, step)))
        sizes.append(take)
        n -= take
    return tuple(sizes) or (0,)


# Operations of Dask: of an array of any shape, one with as many dimensions.


def arithmetic(rnd, a):
    operation = rnd.choice([operator.add, operator.sub, operator.mul, np.minimum, np.maximum])
    other = rnd.choice([2.5, 1, np.float32(0.5), a, a[::-1], a.rechunk(-1)])
    return operation(a, other) if rnd.random() < 0.5 else operation(other, a)


def unary(rnd, a):
    return rnd.choice([abs, operator.neg, np.tanh, np.exp2, np.sign, np.nan_to_num])(np.tanh(a))


def astype(rnd, a):
    return a.astype(rnd.choice(["f4", "f8"]))


def sliced(rnd, a):
    d, n = axis_of(rnd, a)
    start, stop = sorted((rnd.randint(0, n), rnd.randint(0, n)))
    step = rnd.choice([1, 1, 2, -1, 3])
    part = slice(start, max(stop, start + 1), step) if step > 0 else slice(None, None, step)
    return a[at(d, part)]


def fancy(rnd, a):
    d, n = axis_of(rnd, a)
    picked = [rnd.randrange(n) for _ in range(rnd.randint(1, n))]
    return a[at(d, picked if rnd.random() < 0.5 else sorted(picked))]


def permuted(rnd, a):
    d, n = axis_of(rnd, a)
    return da.take(a, rnd.sample(range(n), n), axis=d)


def masked_rows(rnd, a):
    d, n = axis_of(rnd, a)
    keep = np.array([rnd.random() < 0.7 for _ in range(n)])
    keep[rnd.randrange(n)] = True
    return a[at(d, keep)]


def shuffled(rnd, a):
    d, n = axis_of(rnd, a)
    order = rnd.sample(range(n), n)
    cut = rnd.randint(0, n)
    return a.shuffle([one for one in (order[:cut], order[cut:]) if one], axis=d)


def vindexed(rnd, a):
    n = a.shape[0]
    picked = [rnd.randrange(n) for _ in range(n)]
    return a.vindex[(picked, *(slice(None),) * (a.ndim - 1))]


def blocks(rnd, a):
    return a.blocks[:: rnd.choice([-1, 1, 2])]


def rechunked(rnd, a):
    return a.rechunk(tuple(drawn_chunks(rnd, n) for n in a.shape))


def balanced(rnd, a):
    return a.rechunk(rnd.choice([{0: -1}, {0: 1}, {a.ndim - 1: -1}, {0: 7}]))


def overlapped(rnd, a):
    depth = tuple(rnd.randint(0, 2) if n > 2 else 0 for n in a.shape)
    boundary = rnd.choice(["none", "reflect", "nearest", "periodic", 0.5])
    return da.map_overlap(smoothed, a, depth=depth, boundary=boundary, dtype=a.dtype)


def smoothed(block):
    return block + np.roll(block, 1, 0) * 0.5 + np.roll(block, -1, -1)


def one_sided(rnd, a):
    depth = {0: (rnd.randint(0, 1), rnd.randint(0, 1))} if a.shape[0] > 2 else {0: 0}
    return da.map_overlap(np.square, a, depth=depth, boundary="none", dtype=a.dtype)


def by_block(rnd, a):
    """What depends on the chunks."""
    function = rnd.choice([less_mean, flipped, numbered])
    return a.map_blocks(function, dtype=a.dtype)


def less_mean(block):
    return block - block.mean(0) if block.size else block


def flipped(block):
    return block[::-1]


def numbered(block, block_id=None):
    return block + sum(block_id or ())


def two_by_block(rnd, a):
    return da.map_blocks(np.subtract, a, a.mean(0, keepdims=True), dtype=a.dtype)


def where(rnd, a):
    return da.where(a > rnd.choice([0, 0.5]), a, rnd.choice([0.0, 1, -a, a[::-1]]))


def concatenated(rnd, a):
    d, n = axis_of(rnd, a)
    return da.concatenate([a, a[at(d, slice(0, rnd.randint(1, n)))] * 2], axis=d)


def stacked(rnd, a):
    d, _ = axis_of(rnd, a)
    both = da.stack([a, a + 1], axis=d)
    if rnd.random() < 0.5:
        return both.sum(d)
    whole = both.reshape(merge_shape(both.shape, d))
    return whole


def merge_shape(shape, d):
    return (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :])


def transposed(rnd, a):
    order = list(range(a.ndim))
    rnd.shuffle(order)
    return a.transpose(order)


def rolled(rnd, a):
    d, n = axis_of(rnd, a)
    return da.roll(a, rnd.randint(-n, n), axis=d)


def flipped_whole(rnd, a):
    return da.flip(a, axis_of(rnd, a)[0])


def diff(rnd, a):
    d, n = axis_of(rnd, a)
    return da.diff(a, axis=d) if n > 1 else a


def running(rnd, a):
    d, _ = axis_of(rnd, a)
    method = rnd.choice(["sequential", "blelloch"])
    return da.cumsum(a, axis=d, method=method) * 0.1


def anomaly(rnd, a):
    d = rnd.choice([None, *range(a.ndim)])
    function = rnd.choice([da.mean, da.sum, da.max, da.std, da.min])
    return a - function(a, axis=d, keepdims=True)


def standardised(rnd, a):
    d, _ = axis_of(rnd, a)
    return (a - a.mean(d, keepdims=True)) / (1 + a.std(d, keepdims=True))


def coarsened(rnd, a):
    d, n = axis_of(rnd, a)
    return da.coarsen(np.mean, a, {d: 2}, trim_excess=True) if n > 3 else a


def padded(rnd, a):
    width = [(0, 0)] * a.ndim
    width[axis_of(rnd, a)[0]] = (rnd.randint(0, 2), rnd.randint(0, 2))
    return da.pad(a, width, mode=rnd.choice(["constant", "edge", "reflect", "wrap"]))


def repeated(rnd, a):
    d, _ = axis_of(rnd, a)
    return da.repeat(a, 2, axis=d) if rnd.random() < 0.5 else da.tile(a, (2,) + (1,) * (a.ndim - 1))


def assigned(rnd, a):
    d, n = axis_of(rnd, a)
    b = a.copy()
    start = rnd.randrange(n)
    b[at(d, slice(start, start + rnd.randint(1, n)))] = rnd.choice([0.5, -1])
    if rnd.random() < 0.3:
        b[b > 1] = 1
    return b


def multiplied(rnd, a):
    n = a.shape[-1]
    matrix = np.linspace(-0.5, 0.5, n * n).reshape(n, n)
    return da.tensordot(a, matrix.astype(a.dtype), axes=1)


def windows(rnd, a):
    d, n = axis_of(rnd, a)
    if n < 4:
        return a
    return da.lib.stride_tricks.sliding_window_view(a, 3, axis=d).mean(-1)


def sorted_along(rnd, a):
    d, n = axis_of(rnd, a)
    return da.topk(a, min(n, 5), axis=d)


def sorted_blocks(rnd, a):
    return a.map_blocks(np.sort, dtype=a.dtype)


def persisted(rnd, a):
    return a.persist(scheduler="sync")


def optimised(rnd, a):
    return dask.optimize(a)[0]


def reshaped(rnd, a):
    d = rnd.randrange(a.ndim - 1) if a.ndim > 1 else 0
    if a.ndim < 2:
        return a
    return a.reshape(merge_shape(a.shape, d)).reshape(a.shape)


def products(rnd, a):
    b = a.reshape((a.shape[0], -1))
    c = (b @ (b.T @ b)) * 1e-3
    return c.reshape(a.shape)


def histogrammed(rnd, a):
    return da.digitize(a, np.linspace(-1, 1, 5)).astype(a.dtype) + a


def squeezed(rnd, a):
    return a[None].squeeze(0)[..., None][..., 0]


DASK = (
    arithmetic,
    arithmetic,
    unary,
    astype,
    sliced,
    fancy,
    fancy,
    permuted,
    permuted,
    masked_rows,
    shuffled,
    vindexed,
    blocks,
    rechunked,
    rechunked,
    rechunked,
    balanced,
    overlapped,
    overlapped,
    one_sided,
    by_block,
    two_by_block,
    where,
    concatenated,
    stacked,
    transposed,
    rolled,
    flipped_whole,
    diff,
    running,
    anomaly,
    anomaly,
    standardised,
    coarsened,
    padded,
    repeated,
    assigned,
    multiplied,
    windows,
    sorted_along,
    sorted_blocks,
    persisted,
    optimised,
    reshaped,
    products,
    histogrammed,
    squeezed,
)


def axis_of(rnd, a):
    d = rnd.randrange(a.ndim) if rnd.random() < 0.5 else 0
    return d, a.shape[d]


def at(d, index):
    return (*(slice(None),) * d, index)


# Operations of xarray: of a field with a time.

CYCLES = ("time.month", "time.season", "time.dayofyear", "time.year")


def group_anomaly(rnd, x):
    groups = x.groupby(rnd.choice(CYCLES))
    return groups - groups.mean()


def group_standard(rnd, x):
    cycle = rnd.choice(CYCLES[:2])
    anomalies = x.groupby(cycle) - x.groupby(cycle).mean()
    return anomalies.groupby(cycle) / (1 + x.groupby(cycle).std())


def group_mapped(rnd, x):
    return x.groupby(rnd.choice(CYCLES)).map(lambda one: one - one.mean("time"))


def group_means(rnd, x):
    means = x.groupby("time.month").mean()
    return means.sel(month=x.time.dt.month).drop_vars("month")


def months(rnd, x):
    picked = x.time.dt.month.isin(rnd.sample(range(1, 13), 6))
    return x.isel(time=np.flatnonzero(picked)) if picked.any() else x


def sort_by(rnd, x):
    key = xr.DataArray(np.array([rnd.random() for _ in x.time]), dims="time")
    return x.sortby(key)


def sort_by_time(rnd, x):
    return x.sortby("time", ascending=rnd.random() < 0.5)


def isel(rnd, x):
    n = x.sizes["time"]
    return x.isel(time=rnd.sample(range(n), rnd.randint(1, n)))


def rolling(rnd, x):
    return x.rolling(time=3, center=rnd.random() < 0.5, min_periods=1).mean()


def shift(rnd, x):
    if x.sizes["time"] < 3:  # xarray divides by zero where nothing is left of Dask's chunks
        return x
    return x.shift(time=rnd.choice([-2, -1, 1, 2]), fill_value=0.0)


def roll(rnd, x):
    return x.roll(time=rnd.randint(-3, 3))


def both_ends(rnd, x):
    return xr.concat([x, x.isel(time=slice(0, 2)) + 1], dim="time")


def weighted(rnd, x):
    weights = xr.DataArray(np.arange(1.0, 1 + x.sizes["time"]), dims="time")
    return x - x.weighted(weights).mean("time")


def filled(rnd, x):
    return x.where(x > rnd.choice([-0.5, 0])).fillna(rnd.choice([0.0, 1.5]))


def filled_by_mean(rnd, x):
    holes = x.where(x > -0.5)
    return holes.fillna(holes.mean("time")).fillna(0.0)


def unstacked(rnd, x):
    dims = tuple(x.dims)
    return x.stack(cell=dims[1:]).unstack("cell").transpose(*dims).drop_vars(dims[1:])


def shuffled_groups(rnd, x):
    return x.groupby("time.month").shuffle_to_chunks()


def resampled(rnd, x):
    if not x.indexes["time"].is_monotonic_increasing:
        return x
    return x.resample(time="QS").mean().fillna(0.0)


def detrended(rnd, x):
    t = xr.DataArray(np.linspace(-1, 1, x.sizes["time"]), dims="time")
    slope = (x * t).sum("time") / ((t * t).sum() + 1)
    return x - slope * t


def chunked(rnd, x):
    return x.chunk({"time": rnd.choice([1, 3, 7, 12, -1])})


def coarse(rnd, x):
    return x.coarsen(time=2, boundary="pad").mean() if x.sizes["time"] > 2 else x


XARRAY = (
    group_anomaly,
    group_anomaly,
    group_standard,
    group_mapped,
    group_means,
    months,
    sort_by,
    sort_by_time,
    isel,
    rolling,
    shift,
    roll,
    both_ends,
    weighted,
    filled,
    filled_by_mean,
    unstacked,
    shuffled_groups,
    resampled,
    detrended,
    chunked,
    coarse,
)


def drawn_chain(rnd: Random, folder: Path, length: int = 20) -> tuple[da.Array, list[str]]:
    """The array at the end of a chain, and the names of its operations."""
    field, done = drawn_field(rnd, folder), []
    kept = field
    only = rnd.choice([DASK, XARRAY, DASK + XARRAY])
    for _ in range(rnd.randint(1, length)):
        operation = rnd.choice(only)
        name = operation.__name__
        made = operation(rnd, field) if operation in XARRAY else of_dask(rnd, operation, field)
        if not 0 < made.size <= LARGEST or min(made.sizes.values()) == 0:
            continue
        done.append(name)
        field = made.drop_vars([name for name in made.coords if name not in made.dims])
        if rnd.random() < 0.1 and kept.shape == field.shape and kept.dims == field.dims:
            done.append("with an earlier one")
            field = field.copy(data=field.data - kept.data)
        if rnd.random() < 0.1:
            kept = field
    return field.data, done


def of_dask(rnd, operation, field):
    """An operation on the values; the times stay where the number of them does."""
    made = operation(rnd, field.data)
    if made.shape[:1] == field.shape[:1]:
        return (
            field.copy(data=made)
            if made.shape == field.shape
            else xr.DataArray(made, dims=field.dims, coords={"time": field.time})
        )
    return labelled(made)
