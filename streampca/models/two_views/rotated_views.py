"""Rotated pairs of two views: both turned by one matrix towards simple structure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from streampca.errors import AccuracyWarning, InvalidInputError, warn_caller
from streampca.kernels import Array
from streampca.matrix import VIEWS
from streampca.models.contract.request import whole_number
from streampca.models.results.result import shaped
from streampca.models.two_views.request import orientation
from streampca.models.two_views.result import TwoViewResult
from streampca.passes import single_threaded_blas
from streampca.report.presentation import Presentation
from streampca.solvers import rotate_loadings
from streampca.solvers.rotation import RESTARTS

LEAST = 1e-14  # of the largest value: pairs below it are rounding


@dataclass(frozen=True, repr=False, kw_only=True)
class RotatedTwoViewResult(TwoViewResult, kind="rotated two-view"):
    """Pairs whose patterns of X above those of Y, times the roots of the values, were rotated.

    values : (k,) descending. Of a covariance: that of the rotated scores of X and Y, which is the
        product of the lengths of the rotated pair; by an orthogonal rotation their sum stays, and
        that of their squares does not. Of CCA: correlations of the rotated scores.
    vectors, patterns, x_scores, y_scores : rotated; by an orthogonal rotation scores of X covary
        with those of Y of the same pair alone. Those of CCA keep their length, others have that of
        the value.
    loadings, cross_loadings : homogeneous and heterogeneous maps of these scores.
    rotation : (k, k), orthogonal but for promax.  base_values : of the pairs that were rotated.
    rotated_by : "varimax", "quartimax" or "promax".
    converged, starts, reached, optima : as of a rotated PCA.  spectrum, total : as before.
    ``bound`` is not determined.

    Source: Cheng and Dunkerton 1995, Journal of Climate 8, section 2.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, Y = rng.standard_normal((60, 4)), rng.standard_normal((60, 3))
    >>> result = streampca.MCA(3, rotation="varimax").fit(X, Y).result_
    >>> bool(np.isclose(result.values.sum(), result.base_values.sum()))
    True
    """

    rotation: Array = shaped("k", "k", empty=(0, 0))
    base_values: Array = shaped("k", empty=0)
    rotated_by: str = ""
    converged: bool = True
    starts: int = 1
    reached: int = 1
    optima: int = 1

    @classmethod
    def of(
        cls,
        result: TwoViewResult,
        method: str = "varimax",
        k: int | None = None,
        *,
        normalize: bool = True,
        power: float = 4.0,
        restarts: int = RESTARTS,
    ) -> Self:
        """The first k pairs of a fitted result, rotated; see ``streampca.rotate``."""
        k = _checked_count(result, k)
        base, stacked = np.array(result.values[:k]), np.array(result.adding[:, :k])
        stacked[np.isnan(result.loadings[:, :k]).all(axis=1)] = 0.0  # land: only rounding
        with single_threaded_blas():
            found = rotate_loadings(
                stacked * np.sqrt(base),
                method,
                normalize=normalize,
                power=power,
                restarts=whole_number("restarts", restarts, 0),
            )
        if not found.converged:
            warn_caller(
                f"the rotation has not converged after {found.sweeps} sweeps (last turn "
                f"{found.angle:.1e} radians): the criterion is flat. Rotate another number of "
                "pairs: k=...",
                AccuracyWarning,
            )
        values = _rotated_values(base, found.matrix, result.correlates)
        order = np.argsort(-values, kind="stable")
        values, turn = values[order], found.matrix[:, order]
        parts = _turned(result, _filters(base, turn) * np.sqrt(values))
        signs = orientation(parts["loadings"][: result.labels.features.slices["x"].stop])
        parts = _turned(result, _filters(base, turn) * np.sqrt(values) * signs)
        settings = {"rotation": method, "normalize": normalize, "power": power}
        return cls(
            **_kept(result, settings | ({} if k == result.n_components else {"n_components": k})),
            **parts,
            values=values,
            bound=np.full(k, np.inf),
            rotation=turn * signs,
            base_values=base,
            rotated_by=method,
            converged=found.converged,
            starts=found.starts,
            reached=found.reached,
            optima=found.optima,
        )

    def rotate(self, method: str = "varimax", k: int | None = None, **options: Any) -> Any:
        """Raises InvalidInputError: the result is rotated already."""
        raise InvalidInputError("this result is rotated already; rotate result.unrotated()")

    def unrotated(self) -> TwoViewResult:
        """The result that was rotated: its first k pairs."""
        filters = _filters(self.base_values, self.rotation) * np.sqrt(self.values)
        return TwoViewResult(
            **_kept(self, {"rotation": None, "n_components": self.n_components}),
            **_turned(self, np.linalg.inv(filters)),
            values=self.base_values,
            bound=np.full(self.n_components, np.inf),
        )

    @property
    def correlations(self) -> Array:
        """(k, k) of the rotated factors (phi), the identity but for promax."""
        inverse = np.linalg.inv(self.rotation)
        return np.asarray(inverse @ inverse.T)

    def presentation(self) -> Presentation:
        """As of the pairs before; it says that they are rotated."""
        shown = super().presentation()
        return replace(shown, component="Rotated pair ")

    def notes(self) -> list[str]:
        """As before, and how they were rotated."""
        best = f", the best of {self.optima} optima" if self.optima > 1 else ""
        return [*super().notes(), f"rotation   {self.rotated_by}{best}"]


def _rotated_values(base: Array, turn: Array, correlates: bool) -> Array:
    """(k,) lengths of X times lengths of Y; or the correlations of scores."""
    if not correlates:
        return np.asarray(np.sum(base[:, None] * turn**2, axis=0))
    back = np.linalg.inv(turn)
    return np.asarray(1.0 / np.sum(back**2 / base, axis=1))


def _filters(base: Array, turn: Array) -> Array:
    """(k, k): scores times these are the rotated ones, of the covariance phi between the views."""
    return np.asarray(np.linalg.inv(turn).T / np.sqrt(base)[:, None])


def _turned(result: TwoViewResult, turn: Array) -> dict[str, Any]:
    """The fields that follow scores, of the first scores times turn (k, k)."""
    k = len(turn)
    slices = [result.labels.features.slices[name] for name in VIEWS]
    between = [one[:k, :k] for one in (result.x_covariance, result.y_covariance)]
    spread = [np.sqrt(np.diagonal(one)) for one in between]
    after = [turn.T @ one @ turn for one in between]
    loadings = np.empty((result.n_features, k))
    cross = np.empty_like(loadings)
    for i, rows in enumerate(slices):
        for table, source, j in (
            (loadings, result.loadings, i),
            (cross, result.cross_loadings, 1 - i),
        ):
            covariances = (source[rows, :k] * spread[j]) @ turn
            table[rows] = np.clip(covariances / np.sqrt(np.diagonal(after[j])), -1.0, 1.0)
    scores = (
        None if one is None else one[:, :k] @ turn for one in (result.x_scores, result.y_scores)
    )
    x_scores, y_scores = scores
    return {
        "vectors": result.vectors[:, :k] @ turn,
        "patterns": result.adding[:, :k] @ np.linalg.inv(turn).T,
        "loadings": loadings,
        "cross_loadings": cross,
        "x_covariance": after[0],
        "y_covariance": after[1],
        "x_scores": x_scores,
        "y_scores": y_scores,
    }


def _kept(result: TwoViewResult, changed: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a rotation leaves, and the settings that would give it."""
    kept = result.fields_of(TwoViewResult)
    turned = ("vectors", "patterns", "loadings", "cross_loadings", "x_covariance", "y_covariance")
    for name in (*turned, "x_scores", "y_scores", "values", "bound"):
        del kept[name]
    return kept | {"settings": {**result.settings, **changed}}


def _checked_count(result: TwoViewResult, k: int | None) -> int:
    """The number of pairs to rotate; None: all with a value. Raises InvalidInputError."""
    values = result.values
    have = int(np.count_nonzero(values > LEAST * values.max(initial=0.0)))
    count = whole_number("k", have if k is None else k, 0, beside="None or ")
    if not 1 <= count <= have:
        raise InvalidInputError(
            f"k={count}; the result has {have} pairs that covary. Fit more of them, or rotate fewer"
        )
    return count
