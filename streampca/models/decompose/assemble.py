"""From the result of a solver to principal components: labels, provenance, warnings to the user."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from streampca.accumulators.scatter import NARROW
from streampca.errors import (
    AccuracyWarning,
    DominantFeatureWarning,
    DroppedFeaturesWarning,
    NoGapWarning,
    NonFiniteError,
    shorten,
    warn_caller,
)
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix, Labels
from streampca.matrix.places import on_globe
from streampca.models.contract.estimator import Estimator
from streampca.models.contract.request import Request
from streampca.models.results.decomposition import PrincipalComponents
from streampca.models.side_data.design import Removal
from streampca.passes import MemoryUse, Outcome, PassCost, Plan
from streampca.passes.memory import peak_nbytes
from streampca.solvers import LARGEST, TRACY_WIDOM, Certificate, Spectrum

NO_GAP = (
    "the spectrum has no gap that stands above sampling error; all components above rounding "
    "were kept. Choose a number, or a share such as n_components=0.9."
)
NOT_SIGNIFICANT = "no component is significant by the Tracy-Widom test at 0.05; the first was kept"
DOMINANT = 0.5  # of the total variance in one feature: probably due to its unit


@dataclass(kw_only=True)
class Fitted:
    """The result of a solver, before labels and provenance are added."""

    spectrum: Spectrum  # of the scatter, the k kept components
    all_values: Array | None = None  # every eigenvalue, if the solver computed them
    mean: Array
    scale: Array | None = None  # divisors, weights of the features included
    weight: float
    rank: int
    dropped: Array
    constant: Array
    certificate: Certificate
    column_variance: Array  # (p,) unscaled
    gap: int | None = None
    components: Array | None = None  # (k, p)
    scores: Array | None = None  # (n, k), or (everyone, k) with a cohort
    filtered: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    missing: Array | None = None  # (p,) missing cells of each column
    missing_by_sample: Array | None = None  # (n,)
    deviation: Array | None = None  # (p,) the scale before weights entered it
    column_mean: Array | None = None  # (p,) whether it was subtracted or not
    doubt: str = ""  # what an iterative solver could not certify, as text
    removed: Array | None = None  # (r, p) coefficients of the basis of the design


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
    warned: set[type[Warning]] | None = None,
    memory: MemoryUse | None = None,
) -> PrincipalComponents:
    """The frozen result of a fit. Warns the user where necessary.

    parameters : of the estimator, as they are stored with the result.
    warned : kinds of warnings that were given before and are not repeated; new ones are added.
    memory : of this process during the fit.
    """
    refuse_lost_squares(fitted, _squared_in(plan))
    warn_of_fit(fitted, n_samples, labels, request, set() if warned is None else warned)
    divisor = request.divisor(fitted.weight)
    spectrum, design, removal = fitted.spectrum, request.side.design, None
    if design is not None and fitted.removed is not None:
        removal = Removal(design, fitted.removed)
    return PrincipalComponents(
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
        removal=removal,
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
    """The source, the cost of reading it, and the versions of libraries.

    ``peak_bytes`` is the most that this process held while the fit ran, ``held_bytes`` of it were
    there before. Without ``memory``: the peak of this process so far.
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


def fields_of_fit(
    model: Estimator, matrix: ChunkedMatrix, done: Outcome[Any], **settings: Any
) -> dict[str, Any]:
    """The fields that the result of every fit has: see :class:`Result`.

    settings : in place of parameters, such as the seed that was drawn.
    """
    return {
        "method": model.registered_name,
        "n_samples": matrix.shape[0],
        "labels": matrix.labels,
        "settings": model.stored_params() | settings,
        "plan": done.plan.to_dict(),
        "provenance": provenance(done.costs, matrix.fingerprint(), done.memory),
    }


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


# Warnings about a fit, one in each function.

FitWarning = tuple[type[Warning], str]


def warn_of_fit(
    fitted: Fitted, n_samples: int, labels: Labels, request: Request, warned: set[type[Warning]]
) -> None:
    """Warn the caller of ``fit``, once for each kind that is not in ``warned``, which grows."""
    found = (
        *_left_out(fitted, n_samples, labels.features, request),
        *_dominant(fitted, labels.features, request),
        *_no_gap(fitted, request),
        *_too_few(fitted, n_samples, request),
    )
    for kind, message in found:
        if kind not in warned:
            warned.add(kind)
            warn_caller(message, kind)


def _left_out(
    fitted: Fitted, n_samples: int, names: AxisLabels, request: Request
) -> Iterator[FitWarning]:
    """Warns of features without observation, unless they are the land of a field of the sea.

    Land is the same at all times: where other cells have holes, the warning says how many.
    """
    if not len(fitted.dropped):
        return
    land, holes, missing = on_globe(names, fitted.dropped), 0, fitted.missing
    if request.missing != "raise" and missing is not None:
        holes = int(np.count_nonzero((missing > 0) & (missing < n_samples)))
    if land and not holes:
        return
    yield (
        DroppedFeaturesWarning,
        f"{len(fitted.dropped)} of {len(fitted.mean)} features have no observation and were "
        f"left out: {shorten(names.names(fitted.dropped[:4].tolist()), len(fitted.dropped))}"
        + (f"; others with holes, filled with their means: {holes}" if holes else ""),
    )


def _dominant(fitted: Fitted, names: AxisLabels, request: Request) -> Iterator[FitWarning]:
    variance: Array = fitted.column_variance
    if (weights := request.side.weights) is not None:
        variance = variance * weights**2
    described = request.center and request.scale is None  # else not what is decomposed
    if not described or len(variance) <= 2 or not variance.sum() > 0:
        return
    largest = int(np.argmax(variance))
    share = variance[largest] / variance.sum()
    if share > DOMINANT:
        yield (
            DominantFeatureWarning,
            f"{names.name(largest)} holds {share:.0%} of the total variance. If that comes "
            "from its unit and not from what it measures, use scale='std'.",
        )


def _no_gap(fitted: Fitted, request: Request) -> Iterator[FitWarning]:
    words = {"gap": NO_GAP, TRACY_WIDOM: NOT_SIGNIFICANT}
    asked = request.n_components
    if isinstance(asked, str) and asked in words and fitted.gap is None:
        yield NoGapWarning, words[asked]


def _too_few(fitted: Fitted, n_samples: int, request: Request) -> Iterator[FitWarning]:
    """Warns of components that are uncertain, absent, or mere rounding."""
    if fitted.doubt:
        yield AccuracyWarning, fitted.doubt
    p, kept, asked = len(fitted.mean), len(fitted.spectrum.values), request.n_components
    unused = len(fitted.dropped) + len(fitted.filtered)
    unused += len(fitted.constant) if request.center else 0
    varying = p - unused
    if isinstance(asked, (int, np.integer)) and varying < asked:
        yield (
            AccuracyWarning,
            f"{asked} components were asked and {varying} of {p} features vary: "
            f"{kept} were kept" + ("" if varying else ", which is 0"),
        )
    if asked is None:  # all components that shape and centring allow
        kept = min(kept, n_samples - request.center - request.side.rank, varying)
    if kept > fitted.rank > 0:
        streamed = ", and 0 in loadings=" if request.loadings is not None else ""
        yield (
            AccuracyWarning,
            f"{kept} components were asked and the data have numerical rank {fitted.rank}: those "
            f"after it are rounding{streamed}. For small singular values use float64 data and "
            "svd_solver='tsqr'.",
        )
