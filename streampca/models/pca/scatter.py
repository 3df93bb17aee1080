"""PCA of streamed samples through p x p sums: the scatter matrix, or its R factor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streampca.accumulators import MeanImputedScatter, RFactor, Scatter
from streampca.matrix import ChunkedMatrix, work_dtype
from streampca.models.fitted import Fitted, Resolution, SolverInput
from streampca.models.pca.removal import beside_design, factor_without, scatter_without
from streampca.models.pca.sample_space import count_missing
from streampca.models.pca.solve import solve_accumulator
from streampca.models.pca.solve_cost import kept_count, scatter_cost
from streampca.models.request import Request
from streampca.passes import Candidate, pass_spec
from streampca.store import MemorySink


def scatter_candidate(matrix: ChunkedMatrix, request: Request) -> Candidate:
    """One pass that sums the scatter matrix."""
    n, p = matrix.shape
    k = kept_count(matrix, request)
    imputed = request.missing == "mean"
    accumulator = MeanImputedScatter() if imputed else Scatter(center=request.center)
    solve, flops = scatter_cost(p, request, k)
    read = matrix
    if (basis := request.side.basis) is not None:
        read = beside_design(matrix, basis)
        solve["scatter of residuals"] = p * p * 8
    flops_of_pass = (4.0 if imputed else 1.0) * n * p * p
    spec = pass_spec("scatter", read, 0, {"scatter": accumulator}, flops=flops_of_pass)
    spec = replace(spec, matrix=read)
    reason = "one pass; p x p scatter, then eigh; eigenvalues to about {} of the largest".format(
        "1e-7" if str(work_dtype(matrix.dtype)) == "float32" else "1e-15"
    )
    if imputed:
        reason = "one pass with Z'Z, Z'M and M'M, so that holes hold the mean exactly"
    return Candidate("scatter", reason, (spec,), {"scatter": spec.total_nbytes} | solve, flops)


def solve_scatter(given: SolverInput) -> Fitted:
    """Eigenvectors of the scatter matrix."""
    matrix, request = given.matrix, given.request
    more: dict[str, Any] = {}
    counts = MemorySink(matrix.shape[0], 1, np.int64)
    if request.missing == "mean":
        more = {"maps": {"missing": count_missing}, "sinks": {"missing": counts}}
    resolution, removed = Resolution.of(matrix.dtype), None
    if (basis := request.side.basis) is not None:
        more["matrix"] = beside_design(matrix, basis)
    done = given.step("scatter", **more)["scatter"]
    if basis is not None:
        done, removed = scatter_without(done, basis.shape[1])
        resolution = replace(resolution, work=np.dtype(np.float64))
    fitted = solve_accumulator(done, request, resolution, min(matrix.shape), removed)
    if request.missing == "mean":
        fitted.missing_by_sample = counts.values[:, 0]
    return fitted


def tsqr_candidate(matrix: ChunkedMatrix, request: Request) -> Candidate:
    """One pass that keeps the R factor."""
    n, p = matrix.shape
    basis = request.side.basis
    read = matrix if basis is None else beside_design(matrix, basis)
    accumulators = {"r": RFactor(center=request.center)}
    spec = pass_spec("tsqr", read, 0, accumulators, flops=2.0 * n * p * p, work="factor")
    spec = replace(spec, matrix=read)
    reason = "one pass; R factor, then its SVD: singular values to about 1e-14 of the largest"
    return Candidate("tsqr", reason, (spec,), {"R factor and its SVD": 6 * p * p * 8}, 22.0 * p**3)


def solve_tsqr(given: SolverInput) -> Fitted:
    """Singular vectors of the R factor."""
    matrix, request = given.matrix, given.request
    removed = None
    resolution, limit = Resolution.of(matrix.dtype), min(matrix.shape)
    if (basis := request.side.basis) is None:
        done = given.step("tsqr")["r"]
    else:
        joint = beside_design(matrix, basis)
        done = given.step("tsqr", matrix=joint)["r"]
        done, removed = factor_without(done, basis.shape[1])
    return solve_accumulator(done, request, resolution, limit, removed)
