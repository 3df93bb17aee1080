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
from streampca.models.estimator import attach
from streampca.models.request import iteration_limits
from streampca.passes import Plan

LEAST_PASSES = 60
REFUSED = ("weights", "remove")


def completion_of(pca: Any) -> HardImpute:
    """The completion that a PCA with these parameters is. Raises InvalidInputError."""
    k = pca.n_components
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise InvalidInputError(
            f"missing='impute' with n_components={k!r}; expected a number: what is put into the "
            "holes depends on it. HardImpute([1, 2, 3], validation=0.05) helps to choose one"
        )
    if refused := [name for name in REFUSED if getattr(pca, name) is not None]:
        raise InvalidInputError(f"{refused[0]}= does not go with missing='impute'; use 'mean'")
    if pca.whiten:
        raise InvalidInputError("whiten=True does not go with missing='impute'")
    if pca.svd_solver != "auto" or not pca.center:
        raise InvalidInputError("missing='impute' needs svd_solver='auto' and center=True")
    tol, max_passes = iteration_limits(pca.tol, pca.max_passes, pca.iterated_power)
    return HardImpute(
        k,
        center="fitted",
        scale=pca.scale,
        tol=tol,
        max_passes=max(LEAST_PASSES, max_passes),
        random_state=pca.random_state,
        missing_value=pca.missing_value,
        memory_limit=pca.memory_limit,
        scheduler=pca.scheduler,
        progress=pca.progress,
        checkpoint=pca.checkpoint,
    )


def plan_of(model: HardImpute, X: Any, dim: Any, sample_weight: Any = None) -> Plan:
    """Its plan, called a PCA."""
    return replace(model.plan(X, dim=dim, sample_weight=sample_weight), method="PCA")


def as_pca(result: Decomposition, ddof: int, parameters: Mapping[str, Any]) -> Decomposition:
    """The result of the completion as that of a PCA with these parameters."""
    n = result.weight
    if n - ddof <= 0:
        raise InvalidInputError(f"{n:g} samples with ddof={ddof} leave no degree of freedom")
    again = (n - result.ddof) / (n - ddof)
    return replace(
        result,
        method="PCA",
        explained_variance=result.explained_variance * again,
        total_variance=result.total_variance * again,
        ddof=ddof,
        settings=dict(parameters),
    )


def completing(result: Decomposition, pca: Any) -> HardImpute:
    """The fitted completion behind such a PCA: it scores rows with holes, and fills them."""
    model = completion_of(pca)
    attach(model, result)
    model.best_rank_, model.best_penalty_ = result.n_components, 0.0
    return model
