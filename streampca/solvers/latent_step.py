"""The M step of a linear Gaussian model, in parameters that expand the factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.kernels import Array
from streampca.kernels.posterior import unpacked

COLUMNS = 4096  # whose equations are solved together


@dataclass(frozen=True)
class LatentState:
    """Parameters between two passes: loadings (p, k) and noise (p,) of standardised columns, and
    their centre (p,) in the units of the data. A noise of 0 leaves a column out.
    """

    loadings: Array
    noise: Array
    center: Array


def expanded_step(
    sums: Any, state: LatentState, scale: Array | None, shared: bool, lower: float
) -> LatentState:
    """The parameters that an E step makes most likely.

    sums : a LatentEquations folded over all rows.  scale : (p,) divisors of the columns, or None.
    shared : one noise for all columns (PPCA), or one each (factor analysis).
    lower : least noise.

    Every column's loadings and centre solve one small system, which is exact; its noise is what is
    left. Then the factors, which had mean 0 and variance 1, get the mean and covariance that their
    posteriors have, and the loadings and the centre take those in: the likelihood does not fall
    by either, and what plain EM needs hundreds of passes for is done at once.
    Cost: p k^3 flops; COLUMNS systems at a time.
    Source: Liu, Rubin and Wu 1998, "Parameter expansion to accelerate EM", Biometrika 85, section
    4.1 (PX-EM of factor analysis).
    """
    used = np.flatnonzero((state.noise > 0) & (sums.seen > 0))
    k = state.loadings.shape[1]
    left, right = sums.equations()
    solved = np.zeros((len(state.noise), k + 1))
    rest = np.zeros(len(state.noise))
    for begin in range(0, len(used), COLUMNS):
        part = used[begin : begin + COLUMNS]
        solved[part] = np.linalg.solve(left[part], right[part][:, :, None])[:, :, 0]
        fitted = np.einsum("ij,ij->i", solved[part], right[part])
        rest[part] = np.maximum(sums.squares[part] - fitted, 0.0)
    noise = np.zeros_like(rest)
    noise[used] = (
        rest[used].sum() / sums.seen[used].sum() if shared else rest[used] / sums.seen[used]
    )
    noise[used] = np.maximum(noise[used], lower)
    mean = sums.mean / sums.rows
    spread = unpacked(sums.moment[None], k)[0] / sums.rows - np.outer(mean, mean)
    loadings = solved[:, :k]
    shift = solved[:, k] + loadings @ mean
    center = state.center + (shift if scale is None else shift * scale)
    return LatentState(loadings @ np.linalg.cholesky(spread), noise, center)
