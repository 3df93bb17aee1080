"""Weights that give every variable of a Dataset the same total variance."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.accumulators import Moments
from streampca.errors import InvalidInputError
from streampca.models.contract.request import feature_weights
from streampca.passes import Running, easier_axis, one_pass, pass_spec
from streampca.sources import as_matrix


def variable_weights(
    X: Any,
    *,
    weights: Any = None,
    dim: Any = None,
    missing_value: float | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
) -> dict[str, float]:
    """One weight for each variable, 1 / sqrt(its total variance): ``PCA(weights=...)`` takes them.

    Each variable then has a total variance of 1, whatever its unit and number of grid cells;
    within it, features keep their proportions (``scale="std"`` gives those up as well).

    X : (n, p), a Dataset, or what ``streampca.concat_features(..., variables=...)`` returned.
    weights : those within the variables, as in :class:`PCA`; the total variance of a variable is
        that of its weighted features. Cells that count by their area, of variables that count the
        same: ``PCA(weights=["coslat", variable_weights(X, weights="coslat")])``.
    Other parameters : as in :class:`PCA`. Missing cells are left out, not refused.

    Cost: one pass, and moments of every feature.
    Raises InvalidInputError where X has no variables, or one of them does not vary.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from streampca import variable_weights
    >>> rng = np.random.default_rng(0)
    >>> t = xr.DataArray(rng.normal(size=(50, 4)), dims=('time', 'x'))
    >>> weights = variable_weights(xr.Dataset({'t': t, 'p': 100 * t}), dim='time')
    >>> round(weights['t'] / weights['p'])
    100
    """
    matrix = as_matrix(X, dim=dim, missing_value=missing_value)
    slices = matrix.labels.features.slices
    if not slices:
        raise InvalidInputError(
            "X is one matrix without variables; expected a Dataset and its sample dimension: "
            "variable_weights(ds[['sst', 'slp']], dim='time')"
        )
    factors = None if weights is None else feature_weights(weights, matrix)
    spec = pass_spec("moments", matrix, easier_axis(matrix), {"columns": Moments()})
    done = one_pass(matrix, spec, Running(memory_limit, scheduler, progress))
    variance = done.answer["columns"].variance()
    if factors is not None:
        variance = variance * factors**2
    totals = {name: float(np.nansum(variance[where])) for name, where in slices.items()}
    if still := [name for name, total in totals.items() if not total > 0]:
        raise InvalidInputError(f"variable {still[0]!r} does not vary; leave it out: X.drop_vars")
    return {name: 1.0 / np.sqrt(total) for name, total in totals.items()}
