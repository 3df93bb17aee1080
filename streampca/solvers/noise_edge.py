"""Parallel analysis by formula: the largest variance of noise in features of known variances."""

from __future__ import annotations

import numpy as np
import scipy

from streampca.kernels import Array
from streampca.solvers.tracy_widom import tracy_widom_sf

CLOSE = 1e-13  # to the pole


def noise_p_values(values: Array, feature_variances: Array, freedom: float) -> Array:
    """(k,) probabilities that the first variance of uncorrelated features reaches each value.

    values : (k,) variances of components.  feature_variances : (p,) of the features, which noise
    has, too.  freedom : degrees of freedom of the rows.

    Horn's parallel analysis draws such noise; of many normal rows and features its first variance
    follows, about the edge of its spectrum, the law of Tracy and Widom. Of few it stays below that:
    in simulated noise 0 to 4 % of p-values are under .05. Features may vary unequally, which
    :func:`tracy_widom_test` takes for structure (8 to 35 % under .05).
    Cost: some 60 sums of p numbers; 2 ms for each value. NaN where no feature varies.
    Source: El Karoui 2007, "Tracy-Widom limit for the largest eigenvalue of a large class of
    complex sample covariance matrices", Ann. Probab. 35, 663, theorem 1 (real: Lee and Schnelli
    2016, Ann. Appl. Probab. 26, 3786); as a parallel analysis Dobriban and Owen 2019, J. R. Stat.
    Soc. B 81, 163, section 3.
    """
    used = feature_variances[feature_variances > 0.0]
    if not used.size or not freedom > 0:
        return np.full(len(values), np.nan)
    logs = np.log(used)  # which vary by trigamma(freedom / 2) where variances are equal
    spread = float(np.var(logs))
    own = max(spread - float(scipy.special.polygamma(1, freedom / 2.0)), 0.0)
    logs = np.mean(logs) + (logs - np.mean(logs)) * np.sqrt(own / (spread or 1.0))
    used = np.exp(logs) * (used.sum() / np.exp(logs).sum())
    largest = float(used.max())
    shares = used / largest

    def powers(c: float, power: int) -> float:
        return float(np.sum((shares * c / (1.0 - shares * c)) ** power)) / freedom

    c = scipy.optimize.brentq(lambda c: powers(c, 2) - 1.0, 0.0, 1.0 - CLOSE, xtol=1e-15)
    edge = largest * (1.0 + powers(c, 1)) / c
    width = largest * np.cbrt(1.0 + powers(c, 3)) / c * freedom ** (-2.0 / 3.0)
    return tracy_widom_sf((np.asarray(values) - edge) / width)
