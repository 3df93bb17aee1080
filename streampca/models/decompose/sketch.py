"""PCA from a single pass over samples that cannot be read again: approximate, with a bound.

Nothing in it is random. What each step cuts off is summed up, so that the certificate bounds the
error of every component, whatever was lost. The leave-one-out estimate of Epperly and Tropp 2024
(SIAM J. Sci. Comput. 46, A508, sections 3 and 4) says how answers vary with a random test matrix:
here there is none, and of solver='randomized', whose start is random, the certificate has the
residuals themselves. A direction that all columns of a start miss stays unseen by both.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import LeadingDirections, Moments
from streampca.errors import InvalidInputError, shorten
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, Resolution, work_dtype
from streampca.models.contract.request import Request
from streampca.models.decompose.assemble import FeatureSummary, Fitted, finish_components
from streampca.passes import (
    Candidate,
    Pass,
    PassSpec,
    Planned,
    Steps,
    pass_spec,
    single_threaded_blas,
)
from streampca.solvers import (
    Spectrum,
    certify,
    coherent_rounding,
    known_count,
    numerical_rank,
    rounding_floor,
    signs_of_components,
    solver_floor,
)

WIDTH = 64  # least number of directions kept; else four times the components
UNDETERMINED = 1.5  # radians: a larger bound says no more than a right angle


def sketch_candidates(matrix: ChunkedMatrix, request: Request) -> list[Candidate[Fitted]]:
    """One pass over samples that keeps a few directions.

    Raises InvalidInputError for a request that needs statistics of the whole matrix first.
    """
    n, p = matrix.shape
    k = known_count(request.n_components, n, p)
    if not k or request.n_components is None:
        raise InvalidInputError(
            f"solver='sketch' needs a number of components from 1, not "
            f"n_components={request.n_components!r}"
        )
    side = request.side
    wanted = {
        "scale": request.scale,
        "missing='mean'": request.missing == "mean",
        "remove": side.basis is not None,
        "weights of features": side.weights is not None,
    }
    if refused := [name for name, value in wanted.items() if value]:
        raise InvalidInputError(
            f"solver='sketch' takes one look, and {', '.join(refused)} must be known before "
            "it; use solver='randomized', which reads again"
        )
    width = min(max(WIDTH, 4 * k), min(n, p))
    directions = LeadingDirections(
        streamed=0, standardize=request.standardize, width=width, missing=request.missing
    )
    taken = LeadingDirections.rows_at_once(width, p)
    flops = 2.0 * n * p * (width + taken) * (taken + 2 * width) / taken
    spec = pass_spec(
        "sketch",
        matrix,
        0,
        {"directions": directions, "columns": Moments()},
        flops=flops,
        work="skinny",
        thin=not matrix.sparse,
    )
    reason = f"one look; the {width} leading directions are kept, and what is cut off is bounded"
    solve = {
        "directions": 2 * width * p * 8,
        "components": 2 * k * p * 8,
        "column statistics": 12 * p * 8,
    }
    solver = partial(sketch, matrix=matrix, request=request, spec=spec)
    return [Candidate("sketch", reason, (spec,), solve, solve=solver)]


def sketch(
    planned: Planned[Any], *, matrix: ChunkedMatrix, request: Request, spec: PassSpec
) -> Steps[Fitted]:
    """The leading directions of a factor whose distance from the scatter is bounded."""
    k = known_count(request.n_components, *matrix.shape)
    assert k is not None  # plan_pca refuses other requests
    done = yield Pass(spec)
    found, stats = done["directions"], done["columns"].columns()
    scaling = request.standardize.resolve(stats, Resolution.of(matrix.dtype).eps)
    weight = request.side.count(matrix.shape[0])
    still = scaling.constant if request.center else np.zeros_like(scaling.constant)
    k = min(k, max(1, int(np.count_nonzero((stats.count > 0) & ~still))))
    factor = found.rows()
    factor = np.vstack([factor, np.zeros((max(0, k - len(factor)), factor.shape[1]))])
    with single_threaded_blas():
        _, singular, vectors = np.linalg.svd(factor, full_matrices=False)
    m2 = stats.m2 if request.center else stats.m2 + stats.weight * stats.mean**2
    spectrum = _spectrum(singular**2, vectors, float(np.sum(m2)))
    terms = int(np.diff(planned.blocks(spec).edges).max(initial=1))
    rounding = rounding_floor(work_dtype(matrix.dtype), spectrum, terms)
    rounding += solver_floor(spectrum.values, matrix.shape[1])
    rounding += abs(spectrum.total - float(np.sum(singular**2)) - found.lost_trace)  # of all steps
    rank = numerical_rank(spectrum.values, matrix.shape[1], rounding)
    kept = spectrum.head(k)
    divisor = request.divisor(weight)
    certificate = certify(
        np.zeros(len(kept.values)),
        kept,
        found.lost + rounding,
        divisor,
        1,
        rank,
        coherent_rounding(work_dtype(matrix.dtype)) * kept.values,
    )
    features = replace(
        FeatureSummary.of_scaling(stats, scaling, divisor), divisors=None, scale=None
    )
    fitted = Fitted(
        spectrum=kept,
        features=features,
        weight=weight,
        rank=rank,
        certificate=certificate,
        squared_in=str(work_dtype(matrix.dtype)),
    )
    components = np.array(kept.vectors.T, order="C")
    fitted.components = finish_components(components, rank, features, request.center)
    fitted.components *= signs_of_components(fitted.components.T)[:, None]
    fitted.doubt = _undetermined(fitted, rank)
    return fitted


def _undetermined(fitted: Fitted, rank: int) -> str:
    """A sentence on components that this bound leaves undetermined; "" if there are none."""
    assert fitted.certificate is not None
    bad = np.flatnonzero(fitted.certificate.angle_bound[:rank] >= UNDETERMINED)
    if not bad.size:
        return ""
    k = len(fitted.spectrum.values)
    shown = shorten([str(i + 1) for i in bad[:4]], bad.size)
    fewer = f", or fewer components, n_components={bad[0]}" if bad[0] else ""
    return (
        f"one look leaves the direction of {bad.size} of {k} components undetermined: component "
        f"{shown}. What the sketch left out may be as large as the gaps beside them. Use "
        f"solver='randomized', which reads again{fewer}; certificate_ has the bounds."
    )


def _spectrum(values: Array, rows: Array, total: float) -> Spectrum:
    return Spectrum(values, np.ascontiguousarray(rows.T), 0.0, total, float("nan"))
