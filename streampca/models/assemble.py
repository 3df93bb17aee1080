"""From a solver's result to a Decomposition: labels, settings, provenance."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from streampca.accumulators.scatter import NARROW
from streampca.errors import NonFiniteError
from streampca.matrix import Labels
from streampca.models.decomposition import Decomposition
from streampca.models.fit_warnings import warn_of_fit
from streampca.models.fitted import Fitted
from streampca.models.request import Request
from streampca.passes import MemoryUse, PassCost, Plan, warn_of_excess
from streampca.passes.memory import peak_nbytes
from streampca.solvers import LARGEST


def assemble(
    method: str,
    fitted: Fitted,
    n_samples: int,
    labels: Labels,
    request: Request,
    parameters: Mapping[str, Any],
    plan: Plan | None = None,
    costs: Sequence[PassCost] = (),
    source: str = "",
    told: set[type[Warning]] | None = None,
    memory: MemoryUse | None = None,
) -> Decomposition:
    """The frozen result of a fit, after warning about what its user should know.

    parameters : of the estimator, as they are stored with the result.
    told : kinds of warning that were given before, and are not repeated; new ones are added.
    memory : of this process during the fit.
    """
    refuse_lost_squares(fitted, _squared_in(plan))
    warn_of_fit(fitted, n_samples, labels, request, set() if told is None else told)
    if plan is not None and memory is not None:
        warn_of_excess(plan, memory)
    divisor = request.divisor(fitted.weight)
    spectrum = fitted.spectrum
    return Decomposition(
        method=method,
        explained_variance=spectrum.values / divisor,
        total_variance=spectrum.total / divisor,
        mean=fitted.mean,
        n_samples=n_samples,
        ddof=request.ddof,
        rank=fitted.rank,
        components=fitted.components,
        scale=fitted.deviation,
        scores=fitted.scores,
        spectrum=None if fitted.all_values is None else fitted.all_values / divisor,
        dropped=fitted.dropped,
        constant=fitted.constant,
        filtered=fitted.filtered,
        missing=fitted.missing,
        missing_by_sample=fitted.missing_by_sample,
        labels=labels,
        certificate=fitted.certificate,
        settings=dict(parameters),
        weights=request.side.weights,
        design=request.side.design,
        removed=fitted.removed,
        provenance=provenance(costs, source, memory),
        plan={} if plan is None else plan.to_dict(),
        weight=fitted.weight,
        total_squares=spectrum.squares / divisor**2,
        feature_variance=fitted.column_variance,
        feature_mean=None if request.center else fitted.column_mean,
    )


def _squared_in(plan: Plan | None) -> str:
    """The dtype in which values were squared."""
    if plan is None or plan.solver == "tsqr":
        return "float64"
    narrow = plan.solver == "scatter" and plan.shape[1] <= NARROW
    return "float64" if narrow else plan.work_dtype


def refuse_lost_squares(fitted: Fitted, work: str) -> None:
    """Raise NonFiniteError where sums of squares left the range of the arithmetic.

    A column that varies has a positive variance, however small (:func:`column_stats`).
    """
    limits = np.finfo(np.dtype(work))
    values, variance = fitted.spectrum.values, np.asarray(fitted.column_variance)
    largest = float(values[:1].max(initial=0.0)) or float(variance.max(initial=0.0)) * fitted.weight
    if not np.isfinite(values).all() or largest > LARGEST:
        raise NonFiniteError(
            "sums of squares overflowed the working precision; rescale the columns, X * 1e-100"
        )
    if 0.0 < largest < limits.tiny / limits.eps:
        raise NonFiniteError(
            f"squares of these values are too small for {work} (their sums reach {largest:.1g}); "
            "rescale the columns, X * 1e100, or convert with X.astype('float64')"
        )


def provenance(
    costs: Sequence[PassCost], source: str, memory: MemoryUse | None = None
) -> dict[str, Any]:
    """What was read, what it cost, and with which versions.

    ``peak_bytes`` is the most that this process held while the fit ran, ``held_bytes`` of it were
    there before. Without ``memory``: the most so far, whatever it was that held it.
    """
    names = ("streampca", "numpy", "scipy", "zarr", "dask", "xarray")
    return {
        "source": source,
        "passes": [vars(cost) for cost in costs],
        "reads": sum(c.reads for c in costs),
        "bytes": sum(c.nbytes for c in costs),
        "stored_bytes": sum(c.stored for c in costs),
        "seconds": sum(c.seconds for c in costs),
        "peak_bytes": peak_nbytes() if memory is None else memory.peak_nbytes(),
        "held_bytes": None if memory is None else memory.held,
        "versions": {"python": platform.python_version(), **{n: _version(n) for n in names}},
    }


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
