"""A source of Dask arrays that counts how often each of its chunks is read."""

import itertools
import threading
from collections import Counter

import dask.array as da
import numpy as np

SHAPE = (120, 12)


class Source:
    """An array that counts how often each of its chunks is read."""

    def __init__(self, shape=SHAPE):
        self.values = np.random.default_rng(7).normal(size=shape)
        self.shape, self.dtype, self.ndim = shape, self.values.dtype, len(shape)
        self.reads = Counter()
        self._lock = threading.Lock()

    def __getitem__(self, index):
        values = self.values[index]
        if values.size:  # Dask asks for an empty slice when it wants to know the type
            with self._lock:
                self.reads[str(index)] += 1
        return values

    def array(self, chunks=(12, 5), inline=False):
        return da.from_array(self, chunks=chunks, lock=False, inline_array=inline)

    def __reduce__(self):
        return Source, (self.shape,)


def values_of(matrix, axis):
    edges = matrix.chunk_edges(axis)
    blocks = [matrix.read(axis, int(a), int(b)) for a, b in itertools.pairwise(edges)]
    return np.concatenate(blocks, axis=axis)


def planned(matrix, axis):
    return matrix.count_span(axis, matrix.chunk_edges(axis))
