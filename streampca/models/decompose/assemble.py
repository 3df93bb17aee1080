"""From the result of a solver to principal components: labels, provenance, warnings to the user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

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
from streampca.matrix import AxisLabels, Labels
from streampca.matrix.places import on_globe
from streampca.models.contract.request import Request
from streampca.models.decompose.gram_outputs import FeatureSummary
from streampca.models.results.decomposition import PrincipalComponents
from streampca.solvers import LARGEST, TRACY_WIDOM, Certificate, Spectrum

Model = TypeVar("Model", bound=PrincipalComponents)
NO_GAP = (
    "the spectrum has no gap that stands above sampling error; all components above rounding "
    "were kept. Choose a number, or a share such as n_components=0.9."
)
NOT_SIGNIFICANT = "no component is significant by the Tracy-Widom test at 0.05; the first was kept"
DOMINANT = 0.5  # of the total variance in one feature: probably due to its unit


@dataclass(kw_only=True)
class Fitted:
    """The answer of a solver, before labels and provenance are added."""

    spectrum: Spectrum  # of the scatter, the k kept components
    all_values: Array | None = None  # every eigenvalue, if the solver computed them
    features: FeatureSummary
    weight: float
    rank: int
    certificate: Certificate
    squared_in: str = "float64"  # the dtype in which values were squared
    gap: int | None = None
    components: Array | None = None  # (k, p)
    streamed: bool = False  # the components went to Zarr
    scores: Array | None = None  # (n, k), or (everyone, k) with a cohort
    missing_by_sample: Array | None = None  # (n,)
    doubt: str = ""  # what an iterative solver could not certify, as text


def assemble(
    fitted: Fitted,
    request: Request,
    described: Mapping[str, Any],
    kind: type[Model] = PrincipalComponents,  # type: ignore[assignment]
    warned: set[type[Warning]] | None = None,
) -> Model:
    """The frozen result of a fit. Warns the user where necessary.

    described : the fields of every result: method, n_samples, labels, settings and so on.
    warned : kinds of warnings that were given before and are not repeated; new ones are added.
    """
    refuse_lost_squares(fitted)
    n_samples, labels = described["n_samples"], described["labels"]
    warn_of_fit(fitted, n_samples, labels, request, set() if warned is None else warned)
    divisor, spectrum = request.divisor(fitted.weight), fitted.spectrum
    return kind(
        **described,
        **fitted.features.fields(request),
        explained_variance=spectrum.values / divisor,
        total_variance=spectrum.total / divisor,
        total_squares=spectrum.squares / divisor**2,
        spectrum=None if fitted.all_values is None else fitted.all_values / divisor,
        ddof=request.ddof,
        rank=fitted.rank,
        weight=fitted.weight,
        weights=request.side.weights,
        certificate=fitted.certificate,
        components=fitted.components,
        scores=fitted.scores,
        missing_by_sample=fitted.missing_by_sample,
    )


def refuse_lost_squares(fitted: Fitted) -> None:
    """Raise NonFiniteError where sums of squares left the range of the arithmetic.

    A column that varies has a positive variance, however small (:func:`column_stats`).
    """
    work = fitted.squared_in
    limits = np.finfo(np.dtype(work))
    values, variance = fitted.spectrum.values, np.asarray(fitted.features.feature_variance)
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
    features, dropped = fitted.features, fitted.features.dropped
    if not len(dropped):
        return
    land, holes, missing = on_globe(names, dropped), 0, features.missing
    if request.missing != "raise" and missing is not None:
        holes = int(np.count_nonzero((missing > 0) & (missing < n_samples)))
    if land and not holes:
        return
    yield (
        DroppedFeaturesWarning,
        f"{len(dropped)} of {len(features.mean)} features have no observation and were "
        f"left out: {shorten(names.names(dropped[:4].tolist()), len(dropped))}"
        + (f"; others with holes, filled with their means: {holes}" if holes else ""),
    )


def _dominant(fitted: Fitted, names: AxisLabels, request: Request) -> Iterator[FitWarning]:
    variance: Array = fitted.features.feature_variance
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
    p, kept, asked = len(fitted.features.mean), len(fitted.spectrum.values), request.n_components
    unused = len(fitted.features.dropped) + len(fitted.features.filtered)
    unused += len(fitted.features.constant) if request.center else 0
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
        streamed = ", and 0 in loadings=" if fitted.streamed else ""
        yield (
            AccuracyWarning,
            f"{kept} components were asked and the data have numerical rank {fitted.rank}: those "
            f"after it are rounding{streamed}. For small singular values use float64 data and "
            "solver='tsqr'.",
        )
