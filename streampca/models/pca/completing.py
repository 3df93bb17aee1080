"""A PCA with ``missing="impute"``: the completion that it is, and its result as that of a PCA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.models.completion.completion import ways_to_complete as ways_to_complete
from streampca.models.completion.impute import HardImpute
from streampca.models.completion.request import CompletionRequest, completion_request
from streampca.models.completion.result import CompletedDecomposition as CompletedDecomposition
from streampca.models.completion.result import result_of, warn_of_completion
from streampca.models.contract.parameters import RunningParameters
from streampca.models.contract.request import degrees_of_freedom, is_bounded, iteration_limits
from streampca.models.results.decomposition import Decomposition
from streampca.passes import Outcome

COMPLETING = 60  # passes of a completion that nobody bounds
SHARED_WITH_PCA = (*RunningParameters.parameters, "scale", "weights", "random_state")


def completion_of(pca: Any) -> HardImpute:
    """The completion that a PCA with these parameters is. Raises InvalidInputError."""
    k = pca.n_components
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise InvalidInputError(
            f"missing='impute' with n_components={k!r}; expected a number: what is put into the "
            "holes depends on it. HardImpute([1, 2, 3], validation=0.05) helps to choose one"
        )
    refused = {
        "whiten=True": pca.whiten,
        "warm_start=True": pca.warm_start,
        "components=False": not pca.components,
        "center=False": not pca.center,
        "remove=": pca.remove is not None,
        f"solver={pca._solver!r}": pca._solver != "auto",
    }
    for setting in (setting for setting, is_set in refused.items() if is_set):
        raise InvalidInputError(
            f"{setting} does not go with missing='impute'; use missing='mean', or leave it out"
        )
    tol, max_passes = iteration_limits(pca.tol, pca.max_passes, pca.iterated_power)
    max_passes = max_passes if is_bounded(pca.max_passes, pca.iterated_power) else COMPLETING
    shared_with_pca = {name: getattr(pca, name) for name in SHARED_WITH_PCA}
    return HardImpute(k, center="fitted", tol=tol, max_passes=max_passes, **shared_with_pca)


def as_pca(result: Decomposition, ddof: int, parameters: Mapping[str, Any]) -> Decomposition:
    """The result of a completion as that of a PCA with these parameters."""
    freedom = degrees_of_freedom(result.weight, ddof)
    again = (result.weight - result.ddof) / freedom
    return replace(
        result,
        explained_variance=result.explained_variance * again,
        total_variance=result.total_variance * again,
        ddof=ddof,
        settings=dict(parameters),
    )


def request_of(pca: Any, matrix: ChunkedMatrix, sample_weight: Any, seed: int) -> CompletionRequest:
    """The request of the completion that a PCA is."""
    return completion_request(completion_of(pca), matrix, sample_weight, seed)


def pca_of(
    pca: Any,
    matrix: ChunkedMatrix,
    done: Outcome[Any],
    described: Mapping[str, Any],
    parameters: Mapping[str, Any],
) -> Decomposition:
    """The result of a PCA that completed a matrix. Warns of what did not converge."""
    warn_of_completion(done.answer)
    return as_pca(result_of(done.answer, matrix, dict(described))[0], pca.ddof, parameters)
