"""Fits without one group each, exactly, from sums that one pass keeps of every group.

Sums of all groups but one are the sums of a fit without it: nothing is subtracted, so nothing is
lost to rounding, and what the model kept does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator, MeanImputedScatter, Scatter
from streampca.accumulators.grouped import ByGroup, ScaledGram
from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal, symmetrize
from streampca.matrix import ChunkedMatrix
from streampca.matrix.alignment import shared_places
from streampca.models.contract.linear import LinearModel
from streampca.models.explore.score_space import ALIKE, ROUNDING
from streampca.models.results.decomposition import PrincipalComponents
from streampca.passes import one_pass, pass_spec, single_threaded_blas
from streampca.solvers.resampling import Resampled, ScoreSpace
from streampca.sources import counted

SQUARES = 6  # arrays of the size of the sums of one group, while components are computed
TURNS = 6  # arrays of all turns of components, until errors are known


@dataclass(frozen=True)
class LeftOutFits:
    """The components without each group.

    found : of each group.  axes : (p, p) what their turns are in terms of, of features; of groups
    of features None, and ``scores`` (n, r), whose columns of length 1 these are.
    """

    found: list[Resampled]
    axes: Array | None = None
    scores: Array | None = None


def without_rows(
    model: LinearModel, result: PrincipalComponents, X: Any, numbers: Array, k: int, match: str
) -> LeftOutFits:
    """Fits that each leave a group of rows out: p x p sums.  numbers : (n,) of the groups."""
    matrix = _of_fit(model, result, X)
    places = shared_places(result.fitted_samples, matrix.labels.samples, "samples of the fit")
    if places is not None:  # the rows come in another order
        numbers = numbers[np.argsort(places)]
    centred = result.feature_mean is None
    holes = centred and getattr(model, "missing", "raise") != "raise"
    inner: Accumulator = MeanImputedScatter() if holes else Scatter(center=centred)
    parts = _summed(model, matrix, 0, inner, numbers, {}, k)
    whole = _joined(inner, parts)
    factors = np.ones(matrix.shape[1])
    if result.divisors is not None:
        factors = reciprocal(np.asarray(result.divisors))
    covariance = _covariance(whole, result, factors)
    with single_threaded_blas():
        values, vectors = np.linalg.eigh(covariance)
    axes = _signed(vectors[:, ::-1], np.asarray(result.require_components())[:k].T)
    _refuse_others(values[::-1], result, k)
    space, again = _space(k, match), result.divided_by_deviations
    spread = np.diagonal(covariance)

    def without(group: int) -> Resampled:
        rest = _joined(inner, [part for i, part in enumerate(parts) if i != group])
        left = _covariance(rest, result, factors)
        if again:
            times = np.sqrt(spread * reciprocal(np.diagonal(left)))
            left *= times[:, None] * times
        return space.of_covariance(axes.T @ left @ axes, np.ones(len(axes)))

    with single_threaded_blas():
        return LeftOutFits([without(group) for group in range(len(parts))], axes=axes.T)


def without_features(
    model: LinearModel, result: PrincipalComponents, X: Any, numbers: Array, k: int, match: str
) -> LeftOutFits:
    """Fits that each leave a group of features out: n x n sums.

    numbers : (p,) of the groups, -1 for features that the fit does not use.
    """
    if getattr(model, "missing", None) == "pairwise":
        raise InvalidInputError(
            "missing='pairwise' takes means over the variants that two samples have, which are no "
            "sums over chromosomes; expected a fit with missing='mean'"
        )
    matrix, p = _of_fit(model, result, X), result.n_features
    scale = np.ones(p) if result.divisors is None else np.asarray(result.divisors)
    centre = np.asarray(result.mean) if matrix.design is None else np.zeros(p)
    operands = {"center": centre, "scale": scale}
    inner = ScaledGram(missing=getattr(model, "missing", "mean"))
    parts = [one.gram() for one in _summed(model, matrix, 1, inner, numbers, operands, k)]
    freedom = max(result.weight - result.ddof, 1.0)
    with single_threaded_blas():
        values, vectors = np.linalg.eigh(sum(parts) / freedom)
    r = int(np.count_nonzero(values > len(values) * 1e-15 * values[-1]))
    values = values[::-1][:r]
    units = vectors[:, ::-1][:, :r]
    rows, scores = result.fitted_scores()
    if len(rows) == len(units):
        units = _signed(units, scores[:, :k])
    _refuse_others(values, result, k)
    space, roots = _space(k, match), np.sqrt(values)
    sizes = np.bincount(numbers[numbers >= 0])

    def without(group: int) -> Resampled:
        times = sizes.sum() / (sizes.sum() - sizes[group]) / freedom
        left = units.T @ sum(one for i, one in enumerate(parts) if i != group) @ units
        return space.of_covariance(left * times, roots)

    return LeftOutFits(
        [without(group) for group in range(len(parts))], scores=units * roots * freedom**0.5
    )


def _of_fit(model: LinearModel, result: PrincipalComponents, X: Any) -> ChunkedMatrix:
    matrix = model._matrix(counted(X), None, getattr(model, "remove", None), of_fit=True)
    if result.weight != matrix.shape[0]:
        raise InvalidInputError(
            f"the fit had {result.n_samples} rows of a total weight of {result.weight:g}, and X "
            f"has {matrix.shape[0]}; expected the rows of the fit, without sample weights"
        )
    return matrix


def _summed(
    model: LinearModel,
    matrix: ChunkedMatrix,
    axis: int,
    inner: Accumulator,
    numbers: Array,
    operands: dict[str, Array],
    k: int,
) -> list[Any]:
    """The sums of each group: one pass. Raises MemoryLimitError.

    k : components that are made of them afterwards.
    """
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
    count, across = int(numbers.max()) + 1, matrix.shape[1 - axis]
    few = starts if len(starts) <= 16 * count else None
    sums = ByGroup(inner=inner, groups=count, starts=few, of_features=tuple(operands))
    spec = pass_spec(
        "sums of groups",
        matrix,
        axis,
        {"sums": sums},
        flops=float(matrix.shape[axis]) * across**2,
        kept_nbytes=8 * across * (SQUARES * across + TURNS * count * k)
        + sum(one.nbytes for one in operands.values()),
    )
    arrays: dict[str, Any] = {"operands": operands, "side_inputs": {"group": numbers}}
    done = one_pass(matrix, spec, model._running_once, **arrays)
    found = done.answer["sums"].parts
    return [found[group] for group in range(count)]


def _joined(inner: Accumulator, parts: list[Any]) -> Any:
    whole = inner.blank()
    for part in parts:
        whole.merge(part)
    return whole


def _covariance(sums: Any, result: PrincipalComponents, factors: Array) -> Array:
    """(p, p) of features times factors."""
    found = symmetrize(np.array(sums.lower())) / max(float(sums.weight) - result.ddof, 1.0)
    return np.asarray(found * factors[:, None] * factors)


def _signed(vectors: Array, known: Array) -> Array:
    """Columns with the signs of those that are known, (d, k), in front."""
    k = known.shape[1]
    signs = np.where(np.einsum("ij,ij->j", vectors[:, :k], known) < 0, -1.0, 1.0)
    return np.concatenate([vectors[:, :k] * signs, vectors[:, k:]], axis=1)


def _space(k: int, match: str) -> ScoreSpace:
    return ScoreSpace(np.empty((0, k)), k, 0.0, True, 0.0, match)


def _refuse_others(values: Array, result: PrincipalComponents, k: int) -> None:
    expected = result.explained_variance[:k]
    found = values[:k]
    if len(found) < k or not np.allclose(found, expected, rtol=ALIKE, atol=ROUNDING * expected[0]):
        raise InvalidInputError(
            "X has other variances than the components; expected the rows and features of the fit"
        )
