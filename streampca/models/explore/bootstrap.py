"""How sure the sample makes components, without reading it again: bootstrap, jackknife, formula."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal
from streampca.models.contract.request import seed_of, whole_number
from streampca.models.explore.sample_certainty import Estimates, LeftOut, SampleCertainty
from streampca.models.explore.score_space import (
    components_of,
    count_of,
    each_of,
    left_out_of,
    score_space,
    turns_of,
    units_of,
)
from streampca.solvers.resampling import Resampled, Units


def bootstrap(
    model: Any,
    X: Any = None,
    *,
    scores: Any = None,
    n_resamples: int = 1000,
    n_components: int | None = None,
    groups: Any = None,
    blocks: int | None = None,
    match: str = "order",
    random_state: Any = 0,
) -> SampleCertainty:
    """Errors and intervals of variances, shares, components and scores, from resampled rows.

    Each resample has the components that a fit of the drawn rows would have, exactly where the
    model kept all components with variance: resamples live in the r dimensions of the scores.
    Where it kept the leading ones, r of them, the others enter by a bound (:class:`LeftOut`).

    model : a fitted PCA, GenotypePCA, IncrementalPCA or TruncatedSVD.
    X : the rows of the fit, (n, p), of which one pass makes scores. None: the model has them (wide
        fits keep theirs, so nothing is read), or they are ``scores``, (n, k) from ``transform``.
        A wide fit of all n - 1 components, which takes one pass with components=False, is exact.
    n_components : of which the certainty is wanted, at most those of the model; default 50. A
        model with more components than that leaves out less.
    groups : (n,) labels of families, plots or sites, or the name of a column of the source, such as
        "family" of PLINK files: whole groups are drawn, because rows of one are not independent.
    blocks : rows of a time series that are drawn together, in the order of the fit: longer than the
        series remembers.
    match : "order" (each component of a resample is compared with the one that it is most like),
        "sign" (with the one of the same rank) or "procrustes" (the leading ones are rotated onto
        those of the model: errors of the space, not of axes that nearly equal variances mix).

    Each resample is centred anew; with scale="std" it is scaled anew, too, where all components are
    there (r features). Other divisors, weights of features, values in holes and what a design
    removed stay those of the fit.
    A tall fit is resampled through its scores, not by Poisson weights in the read: these would need
    p x p sums for every resample, 8 GB for 1,000 of 1,000 features, and the scores say the same.
    Of so many rows that scores do not fit, ``jackknife(model, X, blocks=..., exact=True)`` keeps
    such sums for a few groups.
    In 1,000 simulated data sets of each of six populations (200 rows, or 50 blocks, or 80 families)
    95 % intervals of single variances and shares held 92 to 96 % of the time, angles 93 to 98 %.
    Of wide rows the variances of samples are too large, and those of resamples again: studentized
    intervals correct that, percentiles double it, and a component that is noise has none that
    holds (El Karoui and Purdom 2019).
    Cost: for each resample 2 n r^2 + 10 r^3 flops; memory n r + n_resamples k r numbers, and not of
    the length of a row. A resample depends on its number and the seed alone, so bits do not depend
    on the number of threads.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; with X what ``transform`` raises.
    Source: Fisher, Caffo, Schwartz and Zipunnikov 2016, J. Am. Stat. Assoc. 111, 846, section 3;
    for blocks Politis and Romano 1992, "A circular block-resampling procedure"; for wide rows El
    Karoui and Purdom 2019, "The non-parametric bootstrap and spectral analysis in moderate and
    high-dimension", AISTATS.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, bootstrap
    >>> X = np.random.default_rng(0).normal(size=(60, 500)) + np.arange(60)[:, None] / 10
    >>> sure = bootstrap(PCA(1).fit(X), n_resamples=100)  # a wide fit keeps its scores
    >>> low, high = sure.shares.interval()[0]
    >>> print(f"{low:.2f} to {high:.2f}")
    0.71 to 0.79
    """
    whole_number("n_resamples", n_resamples, 20)
    result, space = score_space(model, X, scores, n_components, match)
    units, seed = units_of(result, space, groups, blocks), seed_of(random_state)

    def resample(number: int) -> tuple[Resampled, Array]:
        counts = units.counts(seed, number)
        weights = units.weights(counts)
        found = space.under(weights)
        influences = space.influences(found, weights, units)
        return found, _log_errors(influences, counts, float(weights.sum()))

    found, log_errors = zip(*each_of(resample, range(n_resamples)), strict=True)
    whole = np.ones(units.n)
    influences = space.influences(space.under(whole), whole, units)
    even = units.drawn / units.count
    left_out = left_out_of(result, space, units)
    log_error = _log_errors(influences, np.full(units.count, even), even * units.block * units.n)
    replicates = np.stack([[one.variances, one.shares] for one in found], axis=1)
    kept = left_out.variances
    variances, shares = (
        Estimates(
            values,
            np.hypot(replicates[i].std(axis=0, ddof=1), values * np.sqrt(of_rest)),
            shares=bool(i),
            replicates=replicates[i],
            log_error=log_error[i],
            log_errors=np.stack([one[i] for one in log_errors]),
            acceleration=_acceleration(influences[i]),
            left_out=of_rest,
        )
        for i, values, of_rest in ((0, kept, 0.0), (1, kept / left_out.total, left_out.of_shares))
    )
    turns, on_scores = turns_of(found)
    own = np.arange(space.k)
    return SampleCertainty(
        result,
        "bootstrap",
        f"{n_resamples:,} resamples of {_in_words(units)}",
        variances,
        shares,
        (turns - turns.mean(axis=0)) / np.sqrt(n_resamples - 1),
        (on_scores - on_scores.mean(axis=0)) / np.sqrt(n_resamples - 1),
        left_out,
        cosines=np.abs(turns[:, own, own]),
        span_cosines=np.array([one.cosine for one in found]),
        scores=space.scores,
        rescaled=space.axes is not None,
    )


def sampling_errors(
    model: Any, *, n_components: int | None = None, n_effective: float | None = None
) -> SampleCertainty:
    """Standard errors by the formulas for normal rows: of a model alone, without scores.

    A variance has the error l sqrt(2 / n), of which North's rule is a case; a component turns
    towards another by sqrt(l_i l_j / n) / (l_i - l_j). Rows of heavier tails, families and series
    have larger errors, which :func:`bootstrap` sees.

    n_effective : of independent rows; None: those of the fit. Of a series there are fewer.
    Cost: r^3 flops.  Raises InvalidInputError, InvalidTypeError, NotFittedError.
    Source: Anderson 1963, Ann. Math. Stat. 34, 122, theorem 1; North, Bell, Cahalan and Moeng 1982,
    Mon. Wea. Rev. 110, eq. 24.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, sampling_errors
    >>> X = np.random.default_rng(0).normal(size=(201, 6)) * [3, 3, 2, 1, 1, 1]
    >>> sure = sampling_errors(PCA(2).fit(X))
    >>> (sure.variances.errors / sure.variances.values).round(3).tolist()
    [0.1, 0.1]
    """
    result = components_of(model)
    r = min(result.n_components, result.rank)
    k = count_of(n_components, r)
    centred = result.feature_mean is None
    n = float(result.n_samples) if n_effective is None else float(n_effective)
    if not n - centred > 1:
        raise InvalidInputError(
            f"n_effective={n:g}; expected the number of independent rows, 3 or more"
        )
    freedom, values = n - centred, result.explained_variance[:r]
    left_out = LeftOut.of(result, r, np.full(k, freedom))
    shares = values[:k] / (result.total_variance or 1.0)
    squares = float(np.sum(values**2)) + left_out.squares
    others = squares / (result.total_variance or 1.0) ** 2 - shares**2
    of_shares = shares * np.sqrt(2.0 / freedom * ((1.0 - shares) ** 2 + others))
    gaps = values[:k, None] - values
    tilts = np.sqrt(np.outer(values[:k], values) / freedom) * reciprocal(np.abs(gaps))
    deviations = np.zeros((r + 1, k, r + 1))
    deviations[np.arange(r), :, np.arange(r)] = tilts.T
    deviations[r, :, r] = np.sqrt(values[:k] / n)
    return SampleCertainty(
        result,
        "asymptotic",
        f"formulas for {n:g} independent normal rows",
        Estimates(values[:k], values[:k] * np.sqrt(2.0 / freedom)),
        Estimates(shares, of_shares, shares=True),
        deviations[:, :, :r],
        deviations,
        left_out,
    )


def _log_errors(influences: tuple[Array, Array], counts: Array, rows: float) -> Array:
    """(2, k) standard errors of the logarithms of variances and shares, by the delta method.

    counts : (count,) of the units.  rows : that they hold.
    """
    return np.sqrt([counts @ one**2 for one in influences]) / rows


def _acceleration(influences: Array) -> Array:
    """(k,) of BCa intervals. Source: Efron 1987, J. Am. Stat. Assoc. 82, 171, eq. 6.6."""
    cubes, squares = np.sum(influences**3, axis=0), np.sum(influences**2, axis=0)
    return np.asarray(cubes * reciprocal(6.0 * squares**1.5))


def _in_words(units: Units) -> str:
    if units.block > 1:
        return f"{units.n:,} rows in blocks of {units.block:,}"
    if units.groups is not None:
        return f"{units.count:,} groups of {units.n:,} rows"
    return f"{units.n:,} rows"
