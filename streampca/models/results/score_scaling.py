"""Scores that a caller hands over: components by their labels, and the scaling of scores."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal
from streampca.matrix import AxisLabels
from streampca.matrix.alignment import by_dims
from streampca.matrix.components import by_own_name
from streampca.matrix.names import places
from streampca.sources.tables.frames import is_frame

SCALINGS = (0, 1, 2)
SCALING = "scaling"  # attribute of labelled scores: one of these, or
WHITENED = "whitened"  # divided by the deviations of the model, which PPCA shrinks
NUMBERED = re.compile(r"(.*?)(\d+)")
ALIKE = 0.05  # of a standard deviation that is as expected


def as_transformed(
    scores: Any, component: AxisLabels, result: Any = None, whitened: bool = False
) -> Any:
    """Scores (..., k) of any kind as ``transform`` gives them: components in order, not scaled.

    component : labels of the k components.  result : a linear one; None of a kind that scales
    nothing.  whitened : ``transform`` divides scores by their deviations.
    Raises InvalidInputError for labels of other components.
    """
    if is_frame(scores) and hasattr(scores, "iloc"):
        order = _by_number([str(name) for name in scores.columns], len(component))
        return scores if order is None else scores.iloc[:, order]
    if not by_dims(scores):
        return scores
    scores, (dim,) = by_own_name(scores, component), component.dims
    if dim in scores.dims:
        scores = scores.transpose(..., dim)
        if dim in scores.coords and scores.sizes[dim] == len(component):
            known, wanted = np.asarray(scores.coords[dim].values), component.coords[dim]
            found = places(wanted, known, f"scores along {dim!r}")
            if found.min() < 0:
                raise InvalidInputError(
                    f"scores are of the components {known.tolist()}; expected those of the model, "
                    f"{np.asarray(wanted).tolist()}"
                )
            scores = scores if np.all(np.diff(found) == 1) else scores.isel({dim: found})
    if result is None or SCALING not in scores.attrs or scores.shape[-1] != len(component):
        return scores
    divided = reciprocal(_factor_of(result, scores.attrs[SCALING]))
    wanted = _factor_of(result, WHITENED if whitened else 0)
    factor = divided * wanted
    if np.allclose(factor[wanted > 0], 1.0, rtol=1e-12):
        return scores
    attrs = {name: value for name, value in scores.attrs.items() if name != SCALING}
    return (scores * factor).assign_attrs(attrs)


def _factor_of(result: Any, scaling: int | str) -> Array:
    """(k,) factors of a scaling, or of whitening."""
    if scaling == WHITENED:
        return reciprocal(result.score_deviation)
    return scaling_factor(result, int(scaling))


def _by_number(names: list[str], k: int) -> list[int] | None:
    """The order in which columns such as pca0, pca1, ... count up; None where they do."""
    parts = [NUMBERED.fullmatch(name) for name in names]
    if len(names) != k or None in parts or len({part[1] for part in parts if part}) > 1:
        return None
    numbers = [int(part[2]) for part in parts if part]
    order = np.argsort(numbers).tolist()
    whole = sorted(numbers) in (list(range(k)), list(range(1, k + 1)))
    return order if whole and order != list(range(k)) else None


def check_spread(scores: Array, result: Any) -> None:
    """Refuse scores (n, k) of the rows of the fit that have been scaled and do not say so."""
    spread = scores.std(axis=0, ddof=result.ddof)
    for scaling in (*SCALINGS, WHITENED):
        expected = result.score_spread * _factor_of(result, scaling)
        near = np.abs(spread - expected) <= ALIKE * expected
        if near.all():
            if scaling:
                how = scaling if scaling == WHITENED else f"scaling={scaling}"
                raise InvalidInputError(
                    f"scores have the spread of PCs with {how}; expected them as project gives "
                    "them: scores=pca.project(X), and pc_scaling= says how they come out"
                )
            return


def scaling_factor(result: Any, scaling: int) -> Array:
    """(k,) factors of a scaling: 1, 1 / sqrt(variance) or sqrt(variance).

    0, not 1 / 0, for components after the rank. Raises InvalidInputError.
    """
    deviation = np.sqrt(np.maximum(result.explained_variance, 0.0))
    if check_scaling(scaling) == 0:
        return np.ones_like(deviation)
    if scaling == 2:
        return np.asarray(deviation)
    real = np.arange(len(deviation)) < result.rank
    return reciprocal(np.where(real, deviation, 0.0))


def check_scaling(scaling: int) -> int:
    """The scaling, which must be one of SCALINGS. Raises InvalidInputError."""
    if scaling not in SCALINGS or isinstance(scaling, bool):
        raise InvalidInputError(
            f"scaling={scaling!r}; expected 0 (as it is), 1 (divided by the square root of the "
            "eigenvalue) or 2 (multiplied by it)"
        )
    return scaling
