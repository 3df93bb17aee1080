"""Differences between two decompositions: angles, matched components, spectrum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix.labels import plain
from streampca.models.results.decomposition import Decomposition
from streampca.models.side_data.feature_names import check_same_features

ORTHONORMAL = 1e-6  # factors, which are not orthonormal, differ by more


@dataclass(frozen=True)
class Drift:
    """From an old result to a new one, over the first k components of both.

    angles : (k,) principal angles between the two spans, radians, ascending.
    match : (k,) which new component each old one became (the assignment with the largest sum of
        absolute cosines).  cosine : (k,) of each old component and its match: negative where the
        sign turned.
    variance_ratio : (k,) explained variance of the match over that of the old component.
    total_ratio : of the total variances.
    mean_shift : largest change of a feature's mean in its old standard deviations.
    """

    angles: Array
    match: Array
    cosine: Array
    variance_ratio: Array
    total_ratio: float
    mean_shift: float

    @property
    def max_angle(self) -> float:
        """The largest principal angle, radians."""
        return float(self.angles.max(initial=0.0))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            **{name: plain(value) for name, value in vars(self).items()},
            "max_angle": self.max_angle,
        }

    def __str__(self) -> str:
        lines = [
            f"largest angle between the spans {np.rad2deg(self.max_angle):.4g} degrees; total "
            f"variance x {self.total_ratio:.6g}; means moved by up to {self.mean_shift:.3g} "
            "standard deviations",
            f"{'component':>9} {'is now':>7} {'angle':>9} {'variance':>9}",
        ]
        for i, (now, cosine) in enumerate(zip(self.match, self.cosine, strict=True)):
            angle = np.rad2deg(np.arccos(min(abs(cosine), 1.0)))
            sign = "-" if cosine < 0 else ""
            lines.append(
                f"{i + 1:>9} {sign + str(now + 1):>7} {angle:>8.3g}° x{self.variance_ratio[i]:.5g}"
            )
        return "\n".join(lines)


def compare(old: Decomposition, new: Decomposition) -> Drift:
    """The drift from ``old`` to ``new``. Reads no data.

    Raises InvalidInputError where they are of other features, without components, or hold NaN.
    """
    v, w = old.require_components(), new.require_components()
    if v.shape[1] != w.shape[1]:
        raise InvalidInputError(f"{w.shape[1]} features cannot be compared with {v.shape[1]}")
    check_same_features(new.labels.features, old.labels.features)
    for which, one in (("old", old), ("new", new)):
        values = (one.require_components(), one.explained_variance, one.total_variance, one.mean)
        if not all(np.all(np.isfinite(np.asarray(value))) for value in values):
            raise InvalidInputError(f"the {which} result holds NaN or infinity; fit it again")
    k = min(len(v), len(w))
    v, w = v[:k], w[:k]
    cosines = v @ w.T
    rows, match = scipy.optimize.linear_sum_assignment(-np.abs(cosines))
    before, now = old.explained_variance[:k], new.explained_variance[match]
    return Drift(
        angles=principal_angles(_orthonormal(v), _orthonormal(w)),
        match=match,
        cosine=cosines[rows, match],
        variance_ratio=_ratio(now, before),
        total_ratio=float(_ratio(new.total_variance, old.total_variance)),
        mean_shift=_mean_shift(old, new),
    )


def align(new: Decomposition, old: Decomposition, how: str = "order") -> Decomposition:
    """The new result with the signs of the old one, and ("order") its order too.

    Components change places only where every one that moves is within 45 degrees of the one whose
    place it takes; explained variances, scores and bounds go with them. Where both have another
    number of components, or other features, nothing moves.
    """
    if how == "none" or new.components is None or old.components is None:
        return new
    drift = compare(old, new)
    k = len(drift.match)
    order, sign = np.arange(new.n_components), np.ones(new.n_components)
    sure = np.abs(drift.cosine) > np.sqrt(0.5)
    moves = drift.match != np.arange(k)
    if how == "order" and moves.any() and new.n_components == k and np.all(sure[moves]):
        order[:k] = drift.match
    for place, cosine, now in zip(range(k), drift.cosine, drift.match, strict=True):
        if order[place] == now and cosine < 0:
            sign[place] = -1.0
    return permuted(new, order, sign)


def permuted(result: Decomposition, order: Array, sign: Array) -> Decomposition:
    """The result with its components in another order and with other signs."""
    if np.array_equal(order, np.arange(len(order))) and np.all(sign > 0):
        return result
    certificate = result.certificate
    if certificate is not None:
        names = ("residual", "variance_bound", "gap", "angle_bound")
        certificate = replace(
            certificate, **{name: getattr(certificate, name)[order] for name in names}
        )
    return replace(
        result,
        components=result.require_components()[order] * sign[:, None],
        explained_variance=result.explained_variance[order],
        scores=None if result.scores is None else result.scores[:, order] * sign,
        certificate=certificate,
        **result.permuted_parts(order, sign),
    )


def _orthonormal(rows: Array) -> Array:
    """Orthonormal rows that span the same space; orthonormal ones are unchanged."""
    if np.abs(rows @ rows.T - np.eye(len(rows))).max(initial=0.0) < ORTHONORMAL:
        return rows
    return np.asarray(np.linalg.qr(rows.T)[0].T)


def principal_angles(v: Array, w: Array) -> Array:
    """(k,) angles between the spans of orthonormal rows, ascending, small ones by their sines.

    Source: Bjorck and Golub 1973, "Numerical methods for computing angles between linear
    subspaces", section 3.
    """
    cosine = np.linalg.svd(v @ w.T, compute_uv=False)
    sine = np.linalg.svd(w - (w @ v.T) @ v, compute_uv=False)[::-1][: len(cosine)]
    small = cosine**2 > 0.5
    return np.where(small, np.arcsin(np.minimum(sine, 1.0)), np.arccos(np.minimum(cosine, 1.0)))


def _ratio(now: Any, before: Any) -> Any:
    """now / before; 1 where both are 0, infinity where only the first was."""
    now, before = np.asarray(now, float), np.asarray(before, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(now == before, 1.0, now / before)


def _mean_shift(old: Decomposition, new: Decomposition) -> float:
    if old.feature_variance is None:
        return float("nan")
    shift = np.abs(np.asarray(new.mean) - np.asarray(old.mean))
    deviation = np.sqrt(np.asarray(old.feature_variance))
    return float(np.divide(shift, deviation, out=np.zeros_like(shift), where=deviation > 0).max())
