"""PCA from one look at samples that cannot be read again: approximate, with a bound."""

from __future__ import annotations

import numpy as np

from streampca.errors import shorten
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, work_dtype
from streampca.models.fitted import Fitted, Resolution, Runner
from streampca.models.pca.gram_outputs import finish_components
from streampca.models.request import Request
from streampca.passes import Plan, single_threaded_blas
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

UNDETERMINED = 1.5  # radians: a bound that says no more than a right angle does


def sketch(plan: Plan, matrix: ChunkedMatrix, request: Request, step: Runner) -> Fitted:
    """The leading directions of a factor whose distance from the scatter is bounded."""
    k = known_count(request.n_components, *matrix.shape)
    assert k is not None  # the plan refuses others
    done = step("sketch")
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
    terms = int(np.diff(plan.named("sketch").edges).max(initial=1))
    rounding = rounding_floor(work_dtype(matrix.dtype), spectrum, terms)
    rounding += solver_floor(spectrum.values, matrix.shape[1])
    rank = numerical_rank(spectrum.values, matrix.shape[1], rounding)
    dropped = np.flatnonzero(stats.count == 0)
    kept = spectrum.head(k)
    divisor = request.divisor(weight)
    fitted = Fitted(
        kept,
        None,
        scaling.center,
        None,
        weight,
        rank,
        dropped,
        np.setdiff1d(np.flatnonzero(scaling.constant), dropped),
        certify(
            np.zeros(len(kept.values)),
            kept,
            found.lost + rounding,
            divisor,
            1,
            rank,
            coherent_rounding(work_dtype(matrix.dtype)) * kept.values,
        ),
        stats.m2 / divisor,
        missing=stats.missing,
    )
    components = np.array(kept.vectors.T, order="C")
    fitted.components = finish_components(components, rank, fitted, request.center)
    fitted.components *= signs_of_components(fitted.components.T)[:, None]
    fitted.uncertain = _undetermined(fitted, rank)
    return fitted


def _undetermined(fitted: Fitted, rank: int) -> str:
    """Which components that vary the bound of this look leaves undetermined; "" where none is."""
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
        f"svd_solver='randomized', which reads again{fewer}; certificate_ has the bounds."
    )


def _spectrum(values: Array, rows: Array, total: float) -> Spectrum:
    return Spectrum(values, np.ascontiguousarray(rows.T), 0.0, total, float("nan"))
