"""Whether two decompositions differ by more than their samples make: tests, from results alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from streampca.kernels import Array, reciprocal
from streampca.matrix.labels import plain
from streampca.models.results.decomposition import Decomposition
from streampca.models.results.drift import compare
from streampca.solvers.control_limits import exceedance


@dataclass(frozen=True)
class SampledDrift:
    """What sampling alone would make of the differences in a ``Drift``.

    shared : rows of the old fit that are in the new one too.
    krzanowski : sum of the squared cosines of the principal angles, k where the spans are the same.
    krzanowski_expected : its mean if only the sample changed.  span_p : of a smaller one.
    angle_error : (k,) root mean square angle, radians, by which sampling turns each old component.
    angle_p : (k,) of a larger one than that to its match.
    variance_error : (k,) standard error of log(variance_ratio).  spectrum_p : of all of these.
    rest_ratio : of the variances left out, with the probability ``rest_p``.
    mean_p, mean_rest_p : of a larger shift of the mean, within the old components and outside them.
    Probabilities are for Gaussian rows without change; NaN where nothing can be said, as of rotated
    components, of factors, and of components beyond the rank, whose variances are rounding.
    """

    shared: int
    krzanowski: float
    krzanowski_expected: float
    span_p: float
    angle_error: Array
    angle_p: Array
    variance_error: Array
    spectrum_p: float
    rest_ratio: float
    rest_p: float
    mean_p: float
    mean_rest_p: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {name: plain(value) for name, value in vars(self).items()}

    def __str__(self) -> str:
        known = {
            "spans": self.span_p,
            "variances": self.spectrum_p,
            "rest": self.rest_p,
            "mean, within": self.mean_p,
            "mean, outside": self.mean_rest_p,
        }
        tests = "; ".join(f"{name} {value:.2g}" for name, value in known.items())
        turned = ", ".join(f"{one:.3g}" for one in np.rad2deg(self.angle_error))
        return (
            f"Krzanowski's index {self.krzanowski:.6g} of {len(self.angle_p)}, "
            f"{self.krzanowski_expected:.6g} expected of the sample\n"
            f"sampling alone turns each component by (degrees): {turned}\n"
            f"probability of more change in a sample that shares {self.shared} rows: {tests}"
        )


def sampled_drift(old: Decomposition, new: Decomposition, shared: int = 0) -> SampledDrift:
    """The drift from ``old`` to ``new`` against what their samples make. Reads no data.

    shared : rows of the old fit that the new one has too: all of them after an append. Where that
        is not known, 0 makes less of every change.

    The first order of the sampling errors of a covariance matrix, of Gaussian rows. After a scaling
    by standard deviations variances vary less than this, so that tests find less.
    Cost: k^2 p flops. Raises InvalidInputError as ``compare``.
    Source: Anderson 1963, "Asymptotic theory for principal component analysis", theorem 1 and
    eq. 2.15; Krzanowski 1979, "Between-groups comparison of principal components", section 3; sums
    of squares by :func:`streampca.solvers.control_limits.exceedance`.
    """
    drift = compare(old, new)
    k, values = len(drift.match), old.explained_variance
    n = np.array([one.weight if one.weight > 0 else one.n_samples for one in (old, new)])
    chance = float(np.sum(1.0 / n) - 2.0 * min(shared, *n) / np.prod(n)) if n.min() > 1 else 0.0
    if not (0 < k <= min(old.rank, new.rank) and old.principal and chance > 0):
        return _nothing(shared, k)
    later = float(1.0 / n[1] - 1.0 / n[0])  # what a bias of order 1 / n changes by
    noise, count = _rest(old)
    all_values, times = np.append(values, noise), np.append(np.ones(len(values)), count)
    gap = values[:k, None] - all_values
    gap[np.arange(k), np.arange(k)] = np.inf
    with np.errstate(divide="ignore"):
        turns = np.minimum(chance * values[:k, None] * all_values / gap**2, 1.0)
        pull = np.clip(all_values / gap, -n[0], n[0]) * times
    outside = np.arange(len(all_values)) >= k
    cosines = float(np.sum(np.cos(drift.angles) ** 2))
    ratios = np.log(drift.variance_ratio) - later * pull.sum(axis=1)
    within, away = _shift(old, new, k)
    left = old.total_variance - float(np.sum(values[:k]))
    now = new.total_variance - float(np.sum(new.explained_variance[drift.match]))
    now += later * float(values[:k] @ pull[:, outside].sum(axis=1))
    ratio = now / left if left > 0 else np.nan
    return SampledDrift(
        shared=shared,
        krzanowski=cosines,
        krzanowski_expected=max(k - float(np.sum(turns[:, outside] * times[outside])), 0.0),
        span_p=_tail(k - cosines, turns[:, outside], times[outside], 2.0 / n.min()),
        angle_error=np.sqrt(np.minimum(turns @ times, 1.0)),
        angle_p=np.array(
            [_tail(1 - c**2, row, times) for c, row in zip(drift.cosine, turns, strict=True)]
        ),
        variance_error=np.full(k, np.sqrt(2.0 * chance)),
        spectrum_p=float(scipy.special.chdtrc(k, np.sum(ratios**2) / (2.0 * chance))),
        rest_ratio=ratio,
        rest_p=float(scipy.special.erfc(abs(np.log(ratio)) / np.sqrt(4.0 * chance / count)))
        if ratio > 0 and count > 0
        else np.nan,
        mean_p=float(scipy.special.chdtrc(k, np.sum(within**2 / values[:k]) / chance)),
        mean_rest_p=_tail(away, chance * noise, count),
    )


def _nothing(shared: int, k: int) -> SampledDrift:
    number: Any = float("nan")
    of_each: Any = np.full(k, np.nan)
    return SampledDrift(shared, *[number] * 3, *[of_each] * 3, *[number] * 5)


def _tail(value: float, weights: Any, times: Any, unsure: float = 0.0) -> float:
    """The probability of a larger sum of weights times chi-squares of so many degrees of freedom.

    unsure : half the relative variance of the weights of each row, which are estimates too.
    """
    powers = np.array([np.sum(weights**power * times) for power in (1, 2, 3)])
    powers[1] += unsure * np.sum(np.sum(np.atleast_2d(weights) * times, axis=1) ** 2)
    return exceedance(powers, max(value, 0.0)) if powers[0] > 0 else np.nan


def _rest(old: Decomposition) -> tuple[float, float]:
    """(variance, number) of equal directions that stand for those that are left out."""
    first = old.total_variance - float(np.sum(old.explained_variance))
    second = getattr(old, "total_squares", np.nan) - float(np.sum(old.explained_variance**2))
    dimensions = max(old.n_dimensions - old.n_components, 0)
    if not first > 1e-12 * old.total_variance or not dimensions:
        return 0.0, 0.0
    if np.isfinite(second) and second > 0:
        return second / first, first**2 / second
    return first / dimensions, float(dimensions)


def _shift(old: Decomposition, new: Decomposition, k: int) -> tuple[Array, float]:
    """((k,) shift of the mean along the old components, squared length of the rest of it)."""
    shift = np.asarray(new.mean) - np.asarray(old.mean)
    if (divisors := old.divisors) is not None:
        shift = shift * reciprocal(divisors)
    v = old.require_components()[:k]
    within = v @ shift
    return within, float(np.sum((shift - within @ v) ** 2))
