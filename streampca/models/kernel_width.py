"""gamma="median": the width of a kernel from the distances between some rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, select
from streampca.models.kernel_functions import Kernel, Rows
from streampca.passes import Pass, PassSpec, Steps
from streampca.store import MemorySink

METRICS = {"rbf": "euclidean", "laplacian": "cityblock"}  # kernels that have a width
SAMPLED = 1000  # rows
SAMPLED_NBYTES = 32 << 20  # of them, at most


def sampled_rows(matrix: ChunkedMatrix, seed: int) -> Array:
    """The numbers of the rows whose distances are taken, increasing."""
    n, p = matrix.shape
    m = min(n, SAMPLED, max(2, SAMPLED_NBYTES // (8 * p)))
    return np.sort(np.random.default_rng(seed).choice(n, m, replace=False))


def sample_spec(matrix: ChunkedMatrix, seed: int) -> PassSpec:
    """The pass over the sampled rows. Chunks without such a row are not read."""
    some = select(matrix, samples=sampled_rows(matrix, seed))
    m, p = some.shape
    scratch = Rows(np.zeros(p), np.dtype(np.float64)).scratch_nbytes(some)
    return PassSpec("sample", 0, 0, 0, scratch, kept_nbytes=8 * m * (p + m), matrix=some,
                    flops=1.5 * m * m * p)  # fmt: skip


def with_width(matrix: ChunkedMatrix, kernel: Kernel) -> Steps[Kernel]:
    """The kernel with its gamma.

    The width is the median distance d between two sampled rows: gamma is 1 / (2 d^2) of Euclidean
    distances, 1 / d of those of the laplacian kernel.
    Raises InvalidInputError where d is 0.
    Source: Garreau, Jitkrittum and Kanagawa 2017, "Large sample analysis of the median heuristic",
    section 1.
    """
    if kernel.sampled is None:
        return kernel
    some = select(matrix, samples=sampled_rows(matrix, kernel.sampled))
    sink = MemorySink(*some.shape, np.float64)
    rows = Rows(np.zeros(some.shape[1]), np.dtype(np.float64))
    yield Pass("sample", matrix=some, maps={"rows": rows}, sinks={"rows": sink})
    distances = scipy.spatial.distance.pdist(sink.values, METRICS[kernel.name])
    middle = float(np.median(distances)) if len(distances) else 0.0
    if not middle > 0.0:
        raise InvalidInputError(
            f"the median distance between {len(sink.values)} sampled rows is 0: most of them "
            "repeat others. Give a number, gamma=..."
        )
    found = (
        f"from the median of {len(distances)} distances, "
        f"{middle:.6g}, between {len(sink.values)} of "
        f"{matrix.shape[0]} rows (seed {kernel.sampled})"
    )
    gamma = 0.5 / middle**2 if kernel.name == "rbf" else 1.0 / middle
    return replace(kernel, gamma=gamma, sampled=None, found=found)
