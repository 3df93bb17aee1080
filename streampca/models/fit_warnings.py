"""What a user should know about a fit, as warnings: one remark in each function."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np

from streampca.errors import (
    AccuracyWarning,
    DominantFeatureWarning,
    DroppedFeaturesWarning,
    NoGapWarning,
    shorten,
)
from streampca.kernels import Array
from streampca.matrix import AxisLabels, Labels
from streampca.models.fitted import Fitted
from streampca.models.request import Request
from streampca.solvers import TRACY_WIDOM

NO_GAP = (
    "the spectrum has no gap that stands above sampling error; all components above rounding "
    "were kept. Choose a number, or a share such as n_components=0.9."
)
NOT_SIGNIFICANT = "no component is significant by the Tracy-Widom test at 0.05; the first was kept"
DOMINANT = 0.5  # of the total variance in one feature: rather its unit than its meaning

FitWarning = tuple[type[Warning], str]


def warn_of_fit(
    fitted: Fitted,
    n_samples: int,
    labels: Labels,
    request: Request,
    told: set[type[Warning]],
) -> None:
    """Warn whoever called ``fit``, once for each kind that is not in ``told``; those are added."""
    remarks = (
        *_left_out(fitted, labels.features),
        *_dominant(fitted, labels.features, request),
        *_no_gap(fitted, request),
        *_too_few(fitted, n_samples, request),
    )
    for kind, message in remarks:
        if kind not in told:
            told.add(kind)
            warnings.warn(message, kind, stacklevel=4)


def _left_out(fitted: Fitted, names: AxisLabels) -> Iterator[FitWarning]:
    if len(fitted.dropped):
        yield (
            DroppedFeaturesWarning,
            f"{len(fitted.dropped)} of {len(fitted.mean)} features have no observation and were "
            f"left out: {shorten(names.names(fitted.dropped[:4].tolist()), len(fitted.dropped))}",
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
    """Components that are not certain, that nothing is left for, or that are rounding."""
    if fitted.uncertain:
        yield AccuracyWarning, fitted.uncertain
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
    if asked is None:  # all: those that shape and centring allow
        kept = min(kept, n_samples - request.center - request.side.rank, varying)
    if kept > fitted.rank > 0:
        streamed = ", and 0 in loadings=" if request.loadings is not None else ""
        yield (
            AccuracyWarning,
            f"{kept} components were asked and the data have numerical rank {fitted.rank}: those "
            f"after it are rounding{streamed}. For small singular values use float64 data and "
            "svd_solver='tsqr'.",
        )
