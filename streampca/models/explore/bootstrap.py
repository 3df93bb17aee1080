"""How sure the sample makes components, without reading it again: bootstrap, jackknife, formula."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal
from streampca.matrix.alignment import along, rows_along
from streampca.models.contract.linear import LinearModel, decomposition_of
from streampca.models.contract.request import seed_of, whole_number
from streampca.models.explore.sample_certainty import Estimates, LeftOut, SampleCertainty
from streampca.models.results.decomposition import PrincipalComponents
from streampca.models.results.score_scaling import check_spread
from streampca.passes import single_threaded_blas
from streampca.passes.settings import thread_count
from streampca.solvers.resampling import MATCHES, Resampled, ScoreSpace, Units

T = TypeVar("T")
SHOWN = 50  # components by default
FEWEST = 5  # units of which anything can be said
ALIKE = 0.01  # of a variance: scores of the rows of the fit


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
    groups : (n,) labels of families, plots or sites: whole groups are drawn, because rows of one
        are not independent.  blocks : rows of a time series that are drawn together, in the order
        of the fit: longer than the series remembers.
    match : "order" (each component of a resample is compared with the one that it is most like),
        "sign" (with the one of the same rank) or "procrustes" (the leading ones are rotated onto
        those of the model: errors of the space, not of axes that nearly equal variances mix).

    The numbers of the fit by which columns were centred, scaled, weighted and filled stay, except
    that each resample is centred anew; so does what a design removed.
    Cost: for each resample 2 n r^2 + 10 r^3 flops; memory n r + n_resamples k r numbers, and not of
    the length of a row. A resample depends on its number and the seed alone, so bits do not depend
    on the number of threads.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; with X what ``transform`` raises.
    Source: Fisher, Caffo, Schwartz and Zipunnikov 2016, J. Am. Stat. Assoc. 111, 846, section 3;
    for blocks Politis and Romano 1992, "A circular block-resampling procedure".

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, bootstrap
    >>> X = np.random.default_rng(0).normal(size=(60, 500)) + np.arange(60)[:, None] / 10
    >>> sure = bootstrap(PCA(1).fit(X), n_resamples=100)  # a wide fit keeps its scores
    >>> low, high = sure.shares.interval()[0]
    >>> print(f"{low:.2f} to {high:.2f}")
    0.71 to 0.78
    """
    whole_number("n_resamples", n_resamples, 20)
    result, space = _score_space(model, X, scores, n_components, match)
    units, seed = _units(result, space, groups, blocks), seed_of(random_state)

    def resample(number: int) -> tuple[Resampled, Array]:
        counts = units.counts(seed, number)
        found = space.under(units.weights(counts))
        return found, _log_errors(space.influences(found, units), counts, units)

    found, log_errors = zip(*_each(resample, range(n_resamples)), strict=True)
    influences = space.influences(space.under(np.ones(units.n)), units)
    even = np.full(units.count, units.drawn / units.count)
    log_error, left_out = _log_errors(influences, even, units), _left_out(result, space, units)
    replicates = np.stack([[one.variances, one.shares] for one in found], axis=1)
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
        for i, (values, of_rest) in enumerate(_values(result, space.k, left_out))
    )
    turns = _turns(found)
    own = np.arange(space.k)
    return SampleCertainty(
        result,
        "bootstrap",
        f"{n_resamples:,} resamples of {_in_words(units)}",
        variances,
        shares,
        (turns - turns.mean(axis=0)) / np.sqrt(n_resamples - 1),
        left_out,
        cosines=np.abs(turns[:, own, own]),
        span_cosines=np.array([one.cosine for one in found]),
        scores=space.scores,
    )


def jackknife(
    model: Any,
    X: Any = None,
    *,
    scores: Any = None,
    n_components: int | None = None,
    groups: Any = None,
    blocks: int | None = None,
    features: Any = None,
    match: str = "order",
) -> SampleCertainty:
    """Standard errors from fits that each leave one group out: of rows, or of features.

    model, X, scores, n_components, match : as for :func:`bootstrap`.
    groups : (n,) labels of the rows.  blocks : consecutive rows that are left out together, which
        makes n / blocks groups. Neither: each row is a group.
    features : instead, leave features out: (p,) labels, or "chromosome" of genotypes. Within the
        components of the model that needs no sums by block, and no read: X'u / s is a component,
        so that products of its parts are the Gram matrices of the groups between the scores.
        Variances are for as many features as the fit has.

    Exact where the model kept all components with variance, as the bootstrap is.
    Cost: as that of a resample for each group; of features r^2 p flops, and r^3 for each.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; with X what ``transform`` raises.
    Source: Busing, Meijer and van der Leeden 1999, "Delete-m jackknife for unequal m", Stat.
    Comput. 9, 3, section 2.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, jackknife
    >>> X = np.random.default_rng(0).normal(size=(100, 4)) * [4, 2, 1, 1]
    >>> sure = jackknife(PCA(4).fit(X), X, blocks=10)
    >>> sure
    <SampleCertainty: jackknife, each of 10 groups of rows left out; exact>
    >>> sure.variances.errors.shape
    (4,)
    """
    if features is not None:
        if X is not None or groups is not None or blocks is not None:
            raise InvalidInputError("features= leaves features out; give no X, groups or blocks")
        return _without_features(model, scores, n_components, features, match)
    result, space = _score_space(model, X, scores, n_components, match)
    units = _units(result, space, groups, None)
    if blocks is not None:
        length = _length(blocks, space, groups)
        units = Units(units.n, np.arange(units.n) // length)
    rows = np.arange(units.n) if units.groups is None else units.groups

    def without(group: int) -> Resampled:
        return space.under((rows != group).astype(np.float64))

    found = _each(without, range(units.count))
    what = f"each of {units.count:,} {'rows' if units.groups is None else 'groups of rows'}"
    left_out = _left_out(result, space, units)
    return _jackknifed(result, space, np.bincount(rows), found, what, left_out)


def _without_features(
    model: Any, scores: Any, n_components: int | None, features: Any, match: str
) -> SampleCertainty:
    """The jackknife over groups of features."""
    result, space = _score_space(model, None, scores, n_components, match)
    axis, r = result.labels.features, space.scores.shape[1]
    if isinstance(features, str) and features == "chromosome":
        if "chromosome" not in axis.extra:
            raise InvalidInputError("the features have no chromosomes; give (p,) labels of groups")
        features = np.asarray(axis.extra["chromosome"]).astype(str)
    components = np.asarray(result.require_components()[:r], dtype=np.float64)
    used = np.any(components != 0.0, axis=0)
    groups = _numbered(along(features, axis, "features")[used], "features")
    components = components[:, used]
    roots = np.sqrt(result.explained_variance[:r])
    sizes = np.bincount(groups)

    def without(group: int) -> Resampled:
        part, more = components[:, groups == group] * roots[:, None], len(groups) - sizes[group]
        return space.of_covariance(np.diag(roots**2) - part @ part.T, len(groups) / more)

    with single_threaded_blas():
        found = [without(group) for group in range(len(sizes))]
    what, left_out = f"each of {len(sizes):,} groups of features", LeftOut.of(result, r, len(sizes))
    return _jackknifed(result, space, sizes, found, what, left_out, by_features=True)


def _jackknifed(
    result: PrincipalComponents,
    space: ScoreSpace,
    sizes: Array,
    found: list[Resampled],
    what: str,
    left_out: LeftOut,
    by_features: bool = False,
) -> SampleCertainty:
    """sizes : (groups,) of the groups that were left out, one after the other."""
    times = sizes.sum() / sizes
    weights = np.sqrt((times - 1.0) / len(sizes))  # of deviations: sqrt((G - 1) / G) where alike

    def deviations(replicates: Array) -> Array:
        # h t - (h - 1) t_g - (G t - sum of (1 - 1 / h) t_g), over sqrt(G (h - 1)), with t = 0
        mean = np.tensordot(1.0 - 1.0 / times, replicates, 1)
        shape = (-1, *[1] * (replicates.ndim - 1))
        left = mean - (times - 1.0).reshape(shape) * replicates
        return np.asarray(left * (weights / (times - 1.0)).reshape(shape))

    def estimates(of_shares: bool, values: Array, of_rest: float) -> Estimates:
        replicates = np.stack([one.shares if of_shares else one.variances for one in found])
        errors = np.sqrt(np.sum(deviations(replicates - values) ** 2, axis=0))
        return Estimates(values, np.hypot(errors, values * np.sqrt(of_rest)), of_shares)

    turns = _turns(found)
    variances, shares = _values(result, space.k, left_out)
    return SampleCertainty(
        result,
        "jackknife",
        f"{what} left out",
        estimates(False, *variances),
        estimates(True, *shares),
        deviations(turns - np.eye(*turns.shape[1:])),
        left_out,
        scores=space.scores,
        by_features=by_features,
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
    >>> X = np.random.default_rng(0).normal(size=(201, 4)) * [4, 2, 1, 1]
    >>> sure = sampling_errors(PCA(2).fit(X))
    >>> (sure.variances.errors / sure.variances.values).round(3).tolist()
    [0.1, 0.1]
    """
    result = _components_of(model)
    r = min(result.n_components, result.rank)
    k = _count(n_components, r)
    centred = result.feature_mean is None
    n = float(result.n_samples) if n_effective is None else float(n_effective)
    if not n - centred > 1:
        raise InvalidInputError(
            f"n_effective={n:g}; expected the number of independent rows, 3 or more"
        )
    freedom, values = n - centred, result.explained_variance[:r]
    left_out = LeftOut.of(result, r, int(freedom) + 1)
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
        deviations,
        left_out,
    )


# What all of them ask of a model.


def _components_of(model: Any) -> PrincipalComponents:
    result = decomposition_of(model, "streampca.bootstrap(PCA(10).fit(X), X)")
    if not isinstance(result, PrincipalComponents) or not result.principal:
        raise InvalidInputError(
            f"a {result.method} has no principal components whose sampling is known; expected a "
            "fitted PCA, GenotypePCA, IncrementalPCA or TruncatedSVD"
        )
    if not min(result.n_components, result.rank):
        raise InvalidInputError("the model has no component with variance")
    return result


def _count(n_components: int | None, r: int) -> int:
    """k."""
    return (
        min(r, SHOWN) if n_components is None else whole_number("n_components", n_components, 1, r)
    )


def _score_space(
    model: Any, X: Any, scores: Any, n_components: int | None, match: str
) -> tuple[PrincipalComponents, ScoreSpace]:
    """The result, and the scores of its rows on components that have variance."""
    result = _components_of(model)
    if match not in MATCHES:
        raise InvalidInputError(f"match={match!r}; expected one of {MATCHES}")
    r = min(result.n_components, result.rank)
    values = _scores(model, result, X, scores)[:, :r]
    n, freedom = len(values), max(result.weight - result.ddof, 1.0)
    if result.weight != n:
        raise InvalidInputError(
            f"the fit had {result.n_samples} rows of a total weight of {result.weight:g}, and the "
            f"scores are of {n}; expected the rows of the fit, without sample weights"
        )
    spread = np.einsum("ij,ij->j", values, values) / freedom
    if not np.allclose(spread, result.explained_variance[:r], rtol=ALIKE):
        raise InvalidInputError(
            "the scores have other variances than the components; expected those of the rows of "
            "the fit: scores=model.transform(X), or streampca.bootstrap(model, X)"
        )
    rest = LeftOut.of(result, r, n).variance
    centred = result.feature_mean is None
    k = _count(n_components, r)
    return result, ScoreSpace(values, k, rest, centred, float(result.ddof), match)


def _scores(model: LinearModel, result: PrincipalComponents, X: Any, scores: Any) -> Array:
    """(n, k) float64 of the rows of the fit: those handed over, those of X, or those kept."""
    if X is not None and scores is not None:
        raise InvalidInputError("X and scores say the same; give one of them")
    if X is not None:
        found = np.asarray(model.transform(X, remove=getattr(model, "remove", None)))
        found = found.reshape(-1, result.n_components).astype(np.float64)
        return found * result.score_deviation if getattr(model, "whiten", False) else found
    if scores is not None:
        samples = result.labels.samples
        found = rows_along(result.unscaled_scores(scores), samples, "scores")
        if found.shape[-1:] != (result.n_components,):
            raise InvalidInputError(
                f"scores has shape {found.shape}; expected (n, {result.n_components}), as "
                "model.transform(X) gives them"
            )
        found = np.asarray(found, dtype=np.float64).reshape(-1, result.n_components)
        check_spread(found, result)
        return found
    rows, found = result.fitted_scores()
    if not len(rows):
        raise InvalidInputError(
            "this fit keeps no scores (it streamed the samples). One pass makes them: "
            "streampca.bootstrap(model, X); or hand them over, scores=model.transform(X)"
        )
    return np.asarray(found, dtype=np.float64)


def _units(result: PrincipalComponents, space: ScoreSpace, groups: Any, blocks: Any) -> Units:
    """What is drawn. Raises InvalidInputError where it is too few."""
    n = len(space.scores)
    if blocks is not None:
        return Units(n, block=_length(blocks, space, groups))
    if groups is None:
        numbers = None
    else:
        labels = along(groups, result.labels.samples, "groups")
        fitted = result.fitted
        labels = labels if fitted is None or len(labels) == n else labels[fitted]
        numbers = _numbered(labels, "groups")
    units = Units(n, numbers)
    if units.count < FEWEST:
        raise InvalidInputError(f"{units.count} rows or groups; expected {FEWEST} or more to draw")
    return units


def _length(blocks: Any, space: ScoreSpace, groups: Any) -> int:
    if groups is not None:
        raise InvalidInputError("blocks= are of a series and groups= of families; give one of them")
    most = len(space.scores) // FEWEST
    return whole_number("blocks", blocks, 1, most, why=f", so that {FEWEST} make the series")


def _numbered(labels: Array, name: str) -> Array:
    """Numbers from 0 of the groups. Raises InvalidInputError, InvalidTypeError."""
    labels = np.asarray(labels)
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise InvalidInputError(f"{name} holds NaN; expected a label for each")
    labels = labels.astype(str) if labels.dtype.kind == "O" else labels
    numbers = np.unique(labels, return_inverse=True)[1]
    if numbers.max(initial=0) + 1 < FEWEST:
        raise InvalidInputError(
            f"{name} has {numbers.max(initial=0) + 1} groups; expected {FEWEST} or more"
        )
    return np.asarray(numbers)


def _each(work: Callable[[int], T], numbers: Iterable[int]) -> list[T]:
    """The results of all numbers, in their order, on the threads of this process."""
    with single_threaded_blas(), ThreadPoolExecutor(thread_count()) as pool:
        return list(pool.map(work, numbers))


def _log_errors(influences: tuple[Array, Array], counts: Array, units: Units) -> Array:
    """(2, k) standard errors of the logarithms of variances and shares, by the delta method."""
    rows = float(units.weights(counts).sum())
    return np.sqrt([counts @ one**2 for one in influences]) / rows


def _acceleration(influences: Array) -> Array:
    """(k,) of BCa intervals. Source: Efron 1987, J. Am. Stat. Assoc. 82, 171, eq. 6.6."""
    cubes, squares = np.sum(influences**3, axis=0), np.sum(influences**2, axis=0)
    return np.asarray(cubes * reciprocal(6.0 * squares**1.5))


def _left_out(result: PrincipalComponents, space: ScoreSpace, units: Units) -> LeftOut:
    return LeftOut.of(result, space.scores.shape[1], units.drawn)


def _values(
    result: PrincipalComponents, k: int, left_out: LeftOut
) -> tuple[tuple[Array, float], tuple[Array, float]]:
    """(values (k,), variance that directions without scores add to their logarithms) of the
    variances and of the shares. Normal rows: that of a sum of variances is 2 sum l^2 / n."""
    values, total = result.explained_variance[:k], result.total_variance or 1.0
    of_total = 2.0 * left_out.squares / total**2 / max(left_out.units - 1, 1)
    return (values, 0.0), (values / total, of_total)


def _turns(found: Iterable[Resampled]) -> Array:
    """(R, k, r + 1) components, and minus the scores of the mean row on them."""
    return np.stack([np.column_stack([one.turns, -(one.turns @ one.mean)]) for one in found])


def _in_words(units: Units) -> str:
    if units.block > 1:
        return f"{units.n:,} rows in blocks of {units.block:,}"
    if units.groups is not None:
        return f"{units.count:,} groups of {units.n:,} rows"
    return f"{units.n:,} rows"
