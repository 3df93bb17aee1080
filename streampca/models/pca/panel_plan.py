"""The plan of a Gram matrix from streamed samples: how many panels of rows, and their passes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator, CrossMoments, CrossProduct, Moments
from streampca.kernels import PROBES
from streampca.matrix import ChunkedMatrix, work_dtype
from streampca.models.pca.solve_cost import dual_nbytes, eigh_cost, kept_count
from streampca.models.request import Request
from streampca.passes import Candidate, PassSpec, pass_spec, size

PANELS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LEAST_PANEL_NBYTES = 1 << 20  # not divided further: that would read more to save next to nothing


def panel_candidates(matrix: ChunkedMatrix, request: Request) -> list[Candidate]:
    """The Gram matrix from streamed samples: P panels of rows, (P + 1) / 2 reads."""
    n, p = matrix.shape
    k = kept_count(matrix, request)
    solve, flops = eigh_cost(n, request, k)
    solve |= {"Gram matrix": n * n * 8, "scores": 2 * n * k * 8, "column statistics": 20 * p * 8}
    divisions: dict[int, np.ndarray[Any, Any]] = {}
    before: dict[str, Accumulator] = {"columns": Moments()}
    read = matrix
    if (basis := request.side.basis) is not None:
        before["design"] = CrossMoments(y="design", width=basis.shape[1])
        read = matrix.without(basis, np.broadcast_to(0.0, (1 + basis.shape[1], p)))
    for wanted in PANELS:
        bounds = panel_bounds(matrix, wanted)
        divisions.setdefault(len(bounds), bounds)
        if int(np.diff(bounds).max()) * p * work_dtype(matrix.dtype).itemsize <= LEAST_PANEL_NBYTES:
            break
    candidates = []
    for bounds in divisions.values():
        specs = []
        if needs_moments(request):
            specs.append(pass_spec("moments", matrix, 0, before, flops=6.0 * n * p))
        first = len(specs)
        specs += _panel_passes(matrix, request, bounds)
        if request.components:
            cross = CrossProduct(y="u", center="center", width=k)
            held = dual_nbytes(matrix, request, k)
            specs.append(
                pass_spec(
                    "loadings", matrix, 0, {"v": cross}, flops=2.0 * n * p * k, kept_nbytes=held
                )
            )
        specs[first:] = [replace(one, matrix=read) for one in specs[first:]]
        count = len(bounds) - 1
        panel = int(np.diff(bounds).max()) * p * work_dtype(matrix.dtype).itemsize
        reason = (
            f"n x n Gram of streamed samples by {count} panels of rows ({size(panel)} each), "
            f"{(count + 1) / 2:g} reads, then eigh"
        )
        candidates.append(Candidate("gram by panels", reason, tuple(specs), solve, flops))
    return candidates


def _panel_passes(
    matrix: ChunkedMatrix, request: Request, bounds: np.ndarray[Any, Any]
) -> list[PassSpec]:
    """For each panel a pass that loads it, and one over the rows below it."""
    n, p = matrix.shape
    itemsize = work_dtype(matrix.dtype).itemsize
    longest = int(np.diff(bounds).max())
    held = (longest + 3 * PROBES) * p * itemsize + n * n * 8 + 2 * longest**2 * 8 + 12 * p * 8
    specs = []
    for i, (start, stop) in enumerate(pairwise(bounds)):
        first, last = int(start), int(stop)
        counted = not (needs_moments(request) or i)
        columns: dict[str, Accumulator] = {"columns": Moments()} if counted else {}
        own = pass_spec(
            f"panel {i + 1}",
            matrix,
            0,
            columns,
            kept_nbytes=held,
            rows=(first, last),
            flops=float(last - first) ** 2 * p * 2,
        )
        specs.append(replace(own, scratch=lambda length: length * p * itemsize))
        if last < n:
            below = pass_spec(
                f"below panel {i + 1}",
                matrix,
                0,
                {"image": CrossProduct(y="h", width=PROBES), **columns},
                kept_nbytes=held,
                rows=(last, n),
                flops=2.0 * (n - last) * (last - first) * p,
            )
            specs.append(replace(below, scratch=lambda length: 3 * length * longest * 8))
    return specs


def panel_bounds(matrix: ChunkedMatrix, count: int) -> np.ndarray[Any, Any]:
    """Row bounds of about ``count`` panels, on chunk edges."""
    n = matrix.shape[0]
    edges = matrix.chunk_edges(0)
    edges = np.arange(n + 1) if edges is None else edges
    wanted = np.linspace(0, n, count + 1)
    nearest = np.searchsorted(edges, wanted - 1e-9)
    return np.unique(edges[np.clip(nearest, 0, len(edges) - 1)])


def needs_moments(request: Request) -> bool:
    """Whether means or deviations must be known before products are formed."""
    filters = request.standardize.filters
    known = request.scale is None and not filters and request.missing != "mean"
    beside = request.side
    return not known or beside.sample_weight is not None or beside.basis is not None
