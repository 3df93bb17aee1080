"""From a solver's result to a Decomposition: labels, provenance, warnings."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from streampca.errors import (
    AccuracyWarning,
    DominantFeatureWarning,
    DroppedFeaturesWarning,
    NoGapWarning,
    shorten,
)
from streampca.matrix import Labels
from streampca.models.decomposition import Decomposition
from streampca.models.fitted import Fitted, freedom
from streampca.models.given import given
from streampca.passes import PassCost, Plan
from streampca.passes.machine import peak_nbytes
from streampca.solvers import TRACY_WIDOM

NO_GAP = (
    "the spectrum has no gap that stands above sampling error; all components above rounding "
    "were kept. Choose a number, or a share such as n_components=0.9."
)


def assemble(
    method: str,
    fitted: Fitted,
    n_samples: int,
    labels: Labels,
    settings: dict[str, Any],
    plan: Plan | None = None,
    costs: Sequence[PassCost] = (),
    source: str = "",
    told: set[type[Warning]] | None = None,
) -> Decomposition:
    """The frozen result of a fit, after warning about what its user should know.

    told : kinds of warning that were given before, and are not repeated; new ones are added.
    """
    _warn(fitted, n_samples, labels, settings, set() if told is None else told)
    divisor = freedom(fitted.weight, settings)
    spectrum = fitted.spectrum
    return Decomposition(
        method=method,
        explained_variance=spectrum.values / divisor,
        total_variance=spectrum.total / divisor,
        mean=fitted.mean,
        n_samples=n_samples,
        ddof=settings["ddof"],
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
        settings=_kept(settings),
        weights=given(settings).weights,
        design=given(settings).design,
        removed=fitted.removed,
        provenance=provenance(costs, source),
        plan={} if plan is None else plan.to_dict(),
        weight=fitted.weight,
        total_squares=spectrum.squares / divisor**2,
        feature_variance=fitted.column_variance,
        feature_mean=None if settings["center"] else fitted.column_mean,
    )


def _warn(
    fitted: Fitted,
    n_samples: int,
    labels: Labels,
    settings: dict[str, Any],
    told: set[type[Warning]],
) -> None:
    names = labels.features
    if len(fitted.dropped):
        _tell(
            f"{len(fitted.dropped)} of {len(fitted.mean)} features have no observation and were "
            f"left out: {shorten(names.names(fitted.dropped[:4].tolist()), len(fitted.dropped))}",
            DroppedFeaturesWarning,
            told,
        )
    variance = fitted.column_variance
    if (weights := given(settings).weights) is not None:
        variance = variance * weights**2
    if settings["scale"] is None and len(variance) > 2 and variance.sum() > 0:
        largest = int(np.argmax(variance))
        share = variance[largest] / variance.sum()
        if share > 0.5:
            _tell(
                f"{names.name(largest)} holds {share:.0%} of the total variance. If that comes "
                "from its unit and not from what it measures, use scale='std'.",
                DominantFeatureWarning,
                told,
            )
    if settings["n_components"] == "gap" and fitted.gap is None:
        _tell(NO_GAP, NoGapWarning, told)
    if settings["n_components"] == TRACY_WIDOM and fitted.gap is None:
        _tell(
            "no component is significant by the Tracy-Widom test at 0.05; the first was kept",
            NoGapWarning,
            told,
        )
    if fitted.uncertain:
        _tell(fitted.uncertain, AccuracyWarning, told)
    kept = len(fitted.spectrum.values)
    unused = len(fitted.dropped) + len(fitted.filtered)
    unused += len(fitted.constant) if settings["center"] else 0
    varying = len(variance) - unused
    asked = settings["n_components"]
    if isinstance(asked, (int, np.integer)) and varying < asked:
        _tell(
            f"{asked} components were asked and {varying} of {len(variance)} features vary: "
            f"{kept} were kept" + ("" if varying else ", which is 0"),
            AccuracyWarning,
            told,
        )
    if asked is None:  # all: those that shape and centring allow
        kept = min(kept, n_samples - settings["center"] - given(settings).rank, varying)
    if kept > fitted.rank > 0:
        streamed = ", and 0 in loadings=" if settings.get("loadings") is not None else ""
        _tell(
            f"{kept} components were asked and the data have numerical rank {fitted.rank}: those "
            f"after it are rounding{streamed}. For small singular values use float64 data and "
            "svd_solver='tsqr'.",
            AccuracyWarning,
            told,
        )


def _tell(message: str, kind: type[Warning], told: set[type[Warning]]) -> None:
    """Warn whoever called ``fit``, once for each kind."""
    if kind not in told:
        told.add(kind)
        warnings.warn(message, kind, stacklevel=5)


def _kept(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that are stored: no objects of this process, no arrays beside the matrix."""
    kept = {k: v for k, v in settings.items() if k not in ("scheduler", "progress", "given")}
    for name in ("weights", "remove"):  # words; of arrays the result has what they made
        value = kept.get(name)
        words = [value] if isinstance(value, str) else value
        plain = isinstance(words, (list, tuple)) and all(isinstance(one, str) for one in words)
        if "given" in settings and not plain:
            kept[name] = None
    return kept


def provenance(costs: Sequence[PassCost], source: str) -> dict[str, Any]:
    """What was read, what it cost, and with which versions."""
    names = ("streampca", "numpy", "scipy", "zarr", "dask", "xarray")
    return {
        "source": source,
        "passes": [vars(cost) for cost in costs],
        "reads": sum(c.reads for c in costs),
        "bytes": sum(c.nbytes for c in costs),
        "stored_bytes": sum(c.stored for c in costs),
        "seconds": sum(c.seconds for c in costs),
        "peak_bytes": peak_nbytes(),
        "versions": {"python": platform.python_version(), **{n: _version(n) for n in names}},
    }


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
