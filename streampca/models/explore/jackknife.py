"""Standard errors of components from fits that each leave one group out."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.models.explore.left_out_sums import without_features, without_rows
from streampca.models.explore.sample_certainty import Estimates, LeftOut, SampleCertainty
from streampca.models.explore.score_space import (
    check_match,
    check_units,
    components_of,
    count_of,
    each_of,
    independent,
    labels_of,
    left_out_of,
    numbered,
    row_groups,
    score_space,
    turns_of,
)
from streampca.models.results.decomposition import PrincipalComponents
from streampca.passes import single_threaded_blas
from streampca.solvers.resampling import Resampled, Units


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
    exact: bool = False,
) -> SampleCertainty:
    """Standard errors from fits that each leave one group out: of rows, or of features.

    model, X, scores, n_components, match : as for :func:`bootstrap`.
    groups : (n,) labels of the rows.  blocks : consecutive rows that are left out together, which
        makes n / blocks groups. Neither: each row is a group.
    features : instead, leave features out: (p,) labels, or "chromosome". Within the
        components of the model that needs no sums by block, and no read: X'u / s is a component,
        so that products of its parts are the Gram matrices of the groups between the scores.
        Variances are for as many features as the fit has.
    exact : one pass of X keeps the sums of each group, of which all but one are those of a fit
        without it. That is exact whatever the model kept; the divisors of scale="std" are made
        anew. For ``groups`` or ``blocks`` of rows, or with ``features``.

    Without ``exact`` it is so where the model kept all components with variance, as the bootstrap
    is; else what it did not keep enters by a bound.
    Cost: as that of a resample for each group; of features r^2 p flops, and r^3 for each. With
    ``exact`` a read, n p^2 flops and 10 p^3 for each group of rows; n^2 p and 10 n^3 for each of
    features. Memory: for each group 8 p^2 bytes, or 8 n^2; fewer groups take less.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; with X what ``transform`` raises,
    and with ``exact`` MemoryLimitError.
    Source: Busing, Meijer and van der Leeden 1999, "Delete-m jackknife for unequal m", Stat.
    Comput. 9, 3, section 2.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, jackknife
    >>> X = np.random.default_rng(0).normal(size=(100, 6)) * [3, 3, 2, 1, 1, 1]
    >>> sure = jackknife(PCA(6).fit(X), X, blocks=10)
    >>> sure
    <SampleCertainty: jackknife, each of 10 groups of rows left out; exact>
    >>> sure.variances.errors.shape
    (6,)
    >>> jackknife(PCA(2).fit(X), X, blocks=10, exact=True).variances.errors.round(1).tolist()
    [1.0, 1.2]
    """
    if features is not None and (groups is not None or blocks is not None):
        raise InvalidInputError("features= leaves features out; give no groups or blocks")
    if exact and scores is not None:
        raise InvalidInputError("exact=True takes sums of X, not scores; leave scores out")
    if exact:
        return _exactly(model, X, n_components, (groups, blocks, features), match)
    if features is not None:
        if X is not None:
            raise InvalidInputError(
                "features= goes by the components of the model; leave X out, or add exact=True"
            )
        return _without_features(model, scores, n_components, features, match)
    result, space = score_space(model, X, scores, n_components, match)
    n, each = len(space.scores), groups is None and blocks is None
    units = Units(n, None if each else row_groups(result, groups, blocks))
    check_units(units)
    rows = np.arange(n) if units.groups is None else units.groups

    def without(group: int) -> Resampled:
        return space.under((rows != group).astype(np.float64))

    found = each_of(without, range(units.count))
    what = f"each of {units.count:,} {'rows' if units.groups is None else 'groups of rows'}"
    left_out = left_out_of(result, space, units)
    rescaled = space.axes is not None
    own = {"scores": space.scores, "rescaled": rescaled}
    return _jackknifed(result, np.bincount(rows), found, what, left_out, **own)


def _exactly(
    model: Any, X: Any, n_components: int | None, left: tuple[Any, Any, Any], match: str
) -> SampleCertainty:
    """From the sums of each group.  left : groups, blocks and features, of which one is given."""
    result, (groups, blocks, features) = components_of(model), left
    p = result.n_features
    if X is None or not any(one is not None for one in left):
        raise InvalidInputError(
            "exact=True reads X, and keeps the sums of each group: expected X, and blocks=, "
            "groups= or features="
        )
    check_match(match)
    k = count_of(n_components, min(result.n_components, result.rank))
    whole = float(result.total_variance), result.explained_variance[:k], np.ones(k)
    nothing = LeftOut(0.0, 0.0, 0.0, *whole)
    if features is None:
        numbers = row_groups(result, groups, blocks)
        made, sizes = without_rows(model, result, X, numbers, k, match), np.bincount(numbers)
    else:
        labels, numbers = labels_of(features, result.labels.features, "features"), -np.ones(p, int)
        used = np.setdiff1d(
            np.arange(p), np.concatenate([result.dropped, result.constant, result.filtered])
        )
        numbers[used] = numbered(labels[used], "features")
        made = without_features(model, result, X, numbers, k, match)
        sizes = np.bincount(numbers[used])
    what = f"each of {len(sizes):,} groups of {'rows' if features is None else 'features'}"
    return _jackknifed(
        result,
        sizes,
        made.found,
        what,
        nothing,
        scores=made.scores,
        axes=made.axes,
        by_features=features is not None,
        rescaled=features is None and result.divided_by_deviations,
    )


def _without_features(
    model: Any, scores: Any, n_components: int | None, features: Any, match: str
) -> SampleCertainty:
    """The jackknife over groups of features."""
    result, space = score_space(model, None, scores, n_components, match)
    axis, r = result.labels.features, space.scores.shape[1]
    components = np.asarray(result.require_components()[:r], dtype=np.float64)
    used = np.any(components != 0.0, axis=0)
    groups = numbered(labels_of(features, axis, "features")[used], "features")
    components = components[:, used]
    roots = np.sqrt(result.explained_variance[:r])
    sizes = np.bincount(groups)

    def without(group: int) -> Resampled:
        part, more = components[:, groups == group] * roots[:, None], len(groups) - sizes[group]
        return space.of_covariance((np.diag(roots**2) - part @ part.T) * len(groups) / more, roots)

    with single_threaded_blas():
        found = [without(group) for group in range(len(sizes))]
    what = f"each of {len(sizes):,} groups of features"
    parts = [components[:, groups == group] for group in range(len(sizes))]
    excess = len(groups) * np.sum([(part[: space.k] @ part.T) ** 2 for part in parts], axis=0)
    left_out = LeftOut.of(result, r, independent(excess, len(groups), len(sizes)))
    own = {"scores": space.scores, "by_features": True}
    return _jackknifed(result, sizes, found, what, left_out, **own)


def _jackknifed(
    result: PrincipalComponents,
    sizes: Array,
    found: list[Resampled],
    what: str,
    left_out: LeftOut,
    **own: Any,
) -> SampleCertainty:
    """sizes : (groups,) of the groups that were left out, one after the other.

    own : further fields of the certainty.
    """
    times = sizes.sum() / sizes
    weights = np.sqrt((times - 1.0) / len(sizes))  # of deviations: sqrt((G - 1) / G) where alike

    def deviations(replicates: Array) -> Array:
        # h t - (h - 1) t_g - (G t - sum of (1 - 1 / h) t_g), over sqrt(G (h - 1)), with t = 0
        mean = np.tensordot(1.0 - 1.0 / times, replicates, 1)
        shape = (-1, *[1] * (replicates.ndim - 1))
        left = mean - (times - 1.0).reshape(shape) * replicates
        return np.asarray(left * (weights / (times - 1.0)).reshape(shape))

    def estimates(of_shares: bool, values: Array, of_rest: Any) -> Estimates:
        replicates = np.stack([one.shares if of_shares else one.variances for one in found])
        errors = np.sqrt(np.sum(deviations(replicates - values) ** 2, axis=0))
        return Estimates(values, np.hypot(errors, values * np.sqrt(of_rest)), of_shares)

    (turns, on_scores), kept = turns_of(found), left_out.variances
    eye = np.eye(*on_scores.shape[1:])
    return SampleCertainty(
        result,
        "jackknife",
        f"{what} left out",
        estimates(False, kept, 0.0),
        estimates(True, kept / left_out.total, left_out.of_shares),
        deviations(turns - eye[:, :-1]),
        deviations(on_scores - eye),
        left_out,
        **own,
    )
