"""The most probable number of components, by Minka's approximation of the evidence."""

from __future__ import annotations

import math

import numpy as np
import scipy

from streampca.errors import InvalidInputError
from streampca.kernels import Array

MLE = "mle"  # scikit-learn's name


def check_mle(known: int, n: int | None, p: int) -> None:
    """Raise InvalidInputError where n samples or ``known`` eigenvalues are too few for 'mle'."""
    if known < p or n is None or n < p:
        raise InvalidInputError(
            "n_components='mle' needs the whole spectrum and at least as many samples as features; "
            f"got {known} of {p} eigenvalues and n_samples={n}. Use a number, a share such as "
            "n_components=0.9, or 'gap'"
        )


def by_mle(values: Array, p: int, n: int | None, rank: int | None = None) -> int:
    """The k, at least 1 and at most p - 1, for which ``log_evidence`` is largest.

    values : (p,) eigenvalues, decreasing.  n : samples.  rank : those after it are rounding of 0.
    Raises InvalidInputError where some eigenvalues are unknown, or n < p.
    """
    check_mle(len(values), n, p)
    assert n is not None
    values = np.array(values[:p])
    values[p if rank is None else rank :] = 0.0
    return 1 if p < 2 else int(np.argmax(log_evidence(values, n))) + 1


def log_evidence(values: Array, n: int) -> Array:
    """(p - 1,) log p(data | k) for k = 1 ... p - 1, to Laplace's approximation, up to a constant.

    values : (p,) eigenvalues of the covariance, decreasing, in any unit.
    The result is -inf for a k that counts rounding as a component. Where a k leaves no noise, the
    noise is set to the level of rounding.

    Cost: p^2 flops, p memory: products over pairs are split into prefix sums.
    Source: Minka 2000, "Automatic choice of dimensionality for PCA", NIPS 13, eqs. 77 and 80.
    """
    p = len(values)
    tiny = p * np.finfo(np.float64).eps * values[0]
    floored = np.maximum(values, tiny)
    among = np.zeros(p)  # j: sum over i < j of log(1/l_j - 1/l_i)
    later = np.zeros(p)  # j: sum over i > j of log(l_j - l_i)
    for j in range(p):
        drops = np.log(np.maximum(floored[:j] - floored[j], tiny))
        among[j] = np.sum(drops - np.log(floored[:j]) - np.log(floored[j]))
        later[j] = np.sum(np.log(np.maximum(floored[j] - floored[j + 1 :], tiny)))
    among, later = np.cumsum(among), np.cumsum(later)
    logs = np.cumsum(np.log(floored))
    freedom = p - np.arange(p)
    prior = np.cumsum(
        scipy.special.gammaln(freedom / 2) - math.log(math.pi) * freedom / 2 - math.log(2)
    )
    evidence = np.full(p - 1, -np.inf)
    for k in range(1, p):
        if values[k - 1] <= tiny:
            continue
        noise = max(float(np.mean(values[k:])), tiny)
        m = p * k - k * (k + 1) / 2
        inverse = np.maximum(1 / noise - 1 / floored[:k], np.finfo(np.float64).eps / noise)
        hessian = among[k - 1] + later[k - 1] + (p - k) * np.sum(np.log(inverse))
        hessian += m * math.log(n)
        fit = -n / 2 * (logs[k - 1] + (p - k) * math.log(noise))
        volume = (m + k) / 2 * math.log(2 * math.pi) - hessian / 2 - k / 2 * math.log(n)
        evidence[k - 1] = prior[k - 1] + fit + volume
    return evidence
