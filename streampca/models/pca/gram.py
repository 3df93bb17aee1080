"""PCA through the n x n Gram matrix of streamed features."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.accumulators import Accumulator, Gram, Moments, RowMissing
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, Standardize, found
from streampca.models.fitted import Cohort, Fitted, Runner, freedom, standardization
from streampca.models.given import given
from streampca.models.pca.dual import Dual, RowsSink, dual_fitted, remove_mean, solve_dual
from streampca.models.pca.gram_outputs import components_sink, finish_components, write_relationship
from streampca.models.projection import FeatureLoadings, ScoresBesideFit
from streampca.passes import Plan
from streampca.store import MemorySink, Sink


def gram_by_features(
    plan: Plan,
    matrix: ChunkedMatrix,
    settings: dict[str, Any],
    step: Runner,
    cohort: Cohort | None = None,
) -> Fitted:
    """Gram matrix in one pass, loadings (and the scores of a cohort) in a second."""
    standardize = standardization(settings)
    accumulators = {
        "gram": Gram(standardize=standardize, missing=settings["missing"]),
        "columns": Moments(),
    }
    sinks: dict[str, Any] = {}
    if matrix.design is not None:
        rank = 1 + matrix.design.shape[1]
        sinks = {
            "sinks": {"removed": MemorySink(matrix.shape[1], rank)},
            "maps": {"removed": found},
        }
    counted = settings["missing"] == "mean"
    scores_all = cohort is not None and settings["components"]
    if counted and not scores_all:
        accumulators["rows"] = RowMissing()
    first = step("gram", accumulators=accumulators, **sinks).accumulators
    gram = first.pop("gram")
    if (relationship := settings.get("relationship")) is not None:
        samples = matrix.labels.samples
        written = write_relationship(relationship, gram.lower(), gram.n_used, samples)
    probed = gram.rounding()
    if settings["center"]:
        remove_mean(gram.lower(), gram.z_probe, given(settings).sample_weight)
    dual = solve_dual(gram.lower(), gram.z_probe, settings, matrix, gram.n_used, probed)
    del gram  # n x n, before the statistics of all columns are joined
    fitted = dual_fitted(dual, first["columns"].columns(), matrix, settings, 1)
    if sinks:
        removed = sinks["sinks"]["removed"].values.T
        fitted.mean, fitted.removed = removed[0].copy(), removed[1:].copy()
    if "rows" in accumulators:
        fitted.missing_by_sample = first["rows"].counts()
    del first
    if settings["components"]:
        _loadings(plan, matrix, settings, step, cohort, dual, fitted)
    if relationship is not None:  # not before: an interrupted fit must find its place free
        written.finish()
    return fitted


def _loadings(
    plan: Plan,
    matrix: ChunkedMatrix,
    settings: dict[str, Any],
    step: Runner,
    cohort: Cohort | None,
    dual: Dual,
    fitted: Fitted,
) -> None:
    """The pass for the components, in memory or streamed to Zarr, and for a cohort's scores.

    Components of mere rounding are 0 in it, and completed afterwards where they are in memory.
    """
    standardize = standardization(settings)
    components: Array | None = None
    sink: Sink
    if (path := settings.get("loadings")) is None:
        components = np.empty((dual.k, matrix.shape[1]))
        sink = RowsSink(components.T, 0)
    else:
        variance = fitted.spectrum.values / freedom(fitted.weight, settings)
        sink = components_sink(path, fitted, variance, matrix, plan.named("loadings").edges)
    real = np.where(np.arange(dual.k) < dual.rank, dual.s, np.inf)
    second = step(
        "loadings",
        operands={"u": dual.u, "s": real},
        sinks={"loadings": sink},
        maps={"loadings": FeatureLoadings(standardize, None if cohort is None else cohort.rows)},
        accumulators=_cohort_scores(standardize, cohort),
        matrix=matrix if cohort is None else cohort.everyone,
    )
    if components is not None:
        fitted.components = finish_components(components, dual.rank, fitted, settings["center"])
    if cohort is not None:
        fitted.scores = second["scores"].scores
        fitted.scores[cohort.rows] = dual.u * dual.s
        counted = settings["missing"] == "mean"
        fitted.missing_by_sample = second["rows"].counts() if counted else None


def _cohort_scores(standardize: Standardize, cohort: Cohort | None) -> dict[str, Accumulator]:
    if cohort is None:
        return {}
    scores = ScoresBesideFit(standardize=standardize, rows=cohort.rows)
    return {"scores": scores, "rows": RowMissing()}
