"""PCA of a matrix with holes: the components are those of the matrix that they complete.

min |W (X - 1 m' - S V)|^2 over means m, scores S and components V. Where its gradient is 0, the
matrix completed by the model has the column means m, and V spans its leading components (Kiers
1997, "Weighted least squares fitting using ordinary least squares algorithms", section 2; Josse and
Husson 2012, "Handling missing values in exploratory multivariate data analysis methods", section
3.1, the iterative PCA algorithm).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.models.completion.hard_impute import HardImpute
from streampca.models.decomposition import Decomposition
from streampca.models.iteration import iteration_limits
from streampca.models.linear import attach
from streampca.passes import Plan

LEAST_PASSES = 60
REFUSED = ("weights", "remove")


def completion_of(settings: Mapping[str, Any]) -> HardImpute:
    """The completion that a PCA with these parameters is. Raises InvalidInputError."""
    k = settings["n_components"]
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise InvalidInputError(
            f"missing='impute' with n_components={k!r}; expected a number: what is put into the "
            "holes depends on it. HardImpute([1, 2, 3], validation=0.05) helps to choose one"
        )
    if given := [name for name in REFUSED if settings[name] is not None]:
        raise InvalidInputError(f"{given[0]}= does not go with missing='impute'; use 'mean'")
    if settings["whiten"]:
        raise InvalidInputError("whiten=True does not go with missing='impute'")
    if settings["svd_solver"] != "auto" or not settings["center"]:
        raise InvalidInputError("missing='impute' needs svd_solver='auto' and center=True")
    shared = ("scale", "tol", "random_state", "missing_value", "memory_limit", "scheduler",
              "progress", "checkpoint")  # fmt: skip
    settings = iteration_limits(dict(settings))
    most = max(LEAST_PASSES, int(settings["max_passes"]))
    return HardImpute(k, center="fitted", max_passes=most, **{n: settings[n] for n in shared})


def plan_of(model: HardImpute, X: Any, dim: Any, sample_weight: Any = None) -> Plan:
    """Its plan, called a PCA."""
    return replace(model.plan(X, dim=dim, sample_weight=sample_weight), method="PCA")


def as_pca(result: Decomposition, settings: Mapping[str, Any]) -> Decomposition:
    """The result of the completion as that of a PCA with these parameters."""
    n, ddof = result.weight, settings["ddof"]
    if n - ddof <= 0:
        raise InvalidInputError(f"{n:g} samples with ddof={ddof} leave no degree of freedom")
    again = (n - result.ddof) / (n - ddof)
    kept = {k: v for k, v in settings.items() if k not in ("scheduler", "progress")}
    return replace(
        result,
        method="PCA",
        explained_variance=result.explained_variance * again,
        total_variance=result.total_variance * again,
        ddof=ddof,
        settings=kept,
    )


def completing(result: Decomposition, settings: Mapping[str, Any]) -> HardImpute:
    """The fitted completion behind such a PCA: it scores rows with holes, and fills them."""
    model = completion_of(settings)
    attach(model, result)
    model.best_rank_, model.best_penalty_ = result.n_components, 0.0
    return model
