"""From the result of a solver to principal components: labels, provenance, warnings to the user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from streampca.errors import (
    RESCALE,
    AccuracyWarning,
    DominantFeatureWarning,
    DroppedFeaturesWarning,
    NoGapWarning,
    NonFiniteError,
    shorten,
    warn_caller,
)
from streampca.kernels import VARIES, Array, ColumnStats, reciprocal
from streampca.matrix import AxisLabels, ChunkedMatrix, Labels, Resolution, Scaling
from streampca.matrix.places import on_globe
from streampca.models.contract.request import Request
from streampca.models.results.decomposition import PrincipalComponents
from streampca.models.side_data.design import Removal
from streampca.passes import single_threaded_blas
from streampca.solvers import LARGEST, TRACY_WIDOM, Certificate, Spectrum, complete_columns

Model = TypeVar("Model", bound=PrincipalComponents)
NO_GAP = (
    "the spectrum has no gap that stands above sampling error; all components above rounding "
    "were kept. Choose a number, or a share such as n_components=0.9."
)
NOT_SIGNIFICANT = "no component is significant by the Tracy-Widom test at 0.05; the first was kept"
DOMINANT = 0.5  # of the total variance in one feature: probably due to its unit


# What a fit knows of each feature.

DROPPED, CONSTANT, FILTERED = LEFT_OUT_CODES = (1, 2, 3)  # why a feature is left out; 0: it is used


@dataclass(frozen=True)
class FeatureSummary:
    """What a fit knows of each feature, under the names of the result: arrays, or stored columns.

    mean : what was subtracted.  divisors : weights of the features included; or None.
    scale : the divisors before weights entered them.  feature_variance, feature_mean : unscaled.
    missing : holes.  dropped, constant, filtered : places.
    removed : (r, p) coefficients of the basis of the design, or None.
    """

    mean: Any
    divisors: Any
    scale: Any
    feature_variance: Any
    feature_mean: Any
    missing: Any
    dropped: Any
    constant: Any
    filtered: Any
    removed: Any = None

    def fields(self, request: Request) -> dict[str, Any]:
        """The fields of the result."""
        known = dict(vars(self))
        del known["divisors"]  # which follow from the scale and the weights
        removed, design = known.pop("removed"), request.side.design
        if design is not None and removed is not None:
            known["removal"] = Removal(design, removed)
        if request.center:
            del known["feature_mean"]  # it is the mean
        return known

    def without(self, removed: Array) -> FeatureSummary:
        """These, where a design was removed.  removed : (1 + r, p) means, and coefficients."""
        return replace(self, mean=removed[0].copy(), removed=removed[1:].copy())

    @classmethod
    def of_stats(
        cls, stats: ColumnStats, matrix: ChunkedMatrix, request: Request, divisor: float
    ) -> FeatureSummary:
        """From the statistics of all columns.  divisor : of the sums of squares."""
        eps = Resolution.of(matrix.dtype).eps
        scaling = request.standardize.resolve(stats, eps, request.side.weights)
        return cls.of_scaling(stats, scaling, divisor)

    @classmethod
    def of_scaling(cls, stats: ColumnStats, scaling: Scaling, divisor: float) -> FeatureSummary:
        """The same, where their scaling is known."""
        codes = left_out_codes(stats, scaling)
        return cls(
            scaling.center,
            scaling.scale,
            scaling.deviation,
            stats.m2 / divisor,
            np.array(stats.mean),
            np.asarray(stats.missing),
            *(np.flatnonzero(codes == code) for code in LEFT_OUT_CODES),
        )


def hidden_squares(matrix: ChunkedMatrix, mean: Any, divisors: Any, weight: float) -> float:
    """Sum of squares of the means that are subtracted after products: of sparse matrices.

    mean, divisors : (p,) of the columns; None for no divisors.  weight : of all samples.
    """
    if not matrix.sparse:
        return 0.0
    scaled = np.asarray(mean) * (1.0 if divisors is None else reciprocal(np.asarray(divisors)))
    with np.errstate(over="ignore"):
        return weight * float(np.sum(scaled**2))


def left_out_codes(stats: ColumnStats, scaling: Scaling) -> Array:
    """(columns,) why a column is left out: no value, constant, filtered; 0 if it is used."""
    codes = np.where(scaling.filtered, FILTERED, 0)
    codes[scaling.constant] = CONSTANT
    codes[stats.count == 0] = DROPPED
    return codes


def finish_components(
    components: Array, rank: int, features: FeatureSummary, centered: bool
) -> Array:
    """(k, p) orthonormal rows from Z'u / s, in place; directions beyond the numerical rank are
    completed."""
    dead = features.dropped
    if features.divisors is not None:
        dead = np.union1d(dead, np.flatnonzero(features.divisors == 0.0))
    if centered:
        dead = np.union1d(dead, features.constant)
    with single_threaded_blas():
        complete_columns(components.T, rank, dead)
    return components


# The answer of a solver.


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
    squares: Array | None = None  # (everyone,) of standardised values, where they were asked for
    missing_by_sample: Array | None = None  # (n,)
    relatives: Any = None  # pairs of samples that are too close, where they were looked for
    others: Mapping[str, Any] = field(default_factory=dict)  # further sums of the same read
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
        rest_cubes=spectrum.rest_cubes / divisor**3,
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


OVERFLOWED = f"sums of squares overflowed the working precision; {RESCALE}"


def refuse_lost_squares(fitted: Fitted) -> None:
    """Raise NonFiniteError where sums of squares left the range of the arithmetic.

    A column that varies has a positive variance, however small (:func:`column_stats`).
    """
    work = fitted.squared_in
    limits = np.finfo(np.dtype(work))
    values, variance = fitted.spectrum.values, np.asarray(fitted.features.feature_variance)
    largest = float(values[:1].max(initial=0.0)) or float(variance.max(initial=0.0)) * fitted.weight
    if not largest:
        largest = _lost_means(fitted.features)
    if not np.isfinite(values).all() or largest > LARGEST:
        raise NonFiniteError(OVERFLOWED)
    if 0.0 < largest < limits.tiny / limits.eps:
        raise NonFiniteError(
            f"squares of these values are too small for {work} (their sums reach {largest:.1g}); "
            f"{RESCALE}, or, of float32, convert with X.astype('float64')"
        )


def _lost_means(features: FeatureSummary) -> float:
    """VARIES where means were not subtracted, and their squares vanished; else 0."""
    kept = features.divisors is None and not np.any(np.asarray(features.mean))
    return VARIES if kept and np.any(np.asarray(features.feature_mean)) else 0.0


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
