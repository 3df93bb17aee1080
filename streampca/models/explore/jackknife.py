"""Standard errors of components from fits that each leave one group out."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.models.explore.sample_certainty import Estimates, LeftOut, SampleCertainty
from streampca.models.explore.score_space import (
    block_length,
    each_of,
    independent,
    labels_of,
    left_out_of,
    numbered,
    score_space,
    turns_of,
    units_of,
)
from streampca.models.results.decomposition import PrincipalComponents
from streampca.passes import single_threaded_blas
from streampca.solvers.resampling import Resampled, ScoreSpace, Units


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
    features : instead, leave features out: (p,) labels, or "chromosome". Within the
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
    >>> X = np.random.default_rng(0).normal(size=(100, 6)) * [3, 3, 2, 1, 1, 1]
    >>> sure = jackknife(PCA(6).fit(X), X, blocks=10)
    >>> sure
    <SampleCertainty: jackknife, each of 10 groups of rows left out; exact>
    >>> sure.variances.errors.shape
    (6,)
    """
    if features is not None:
        if X is not None or groups is not None or blocks is not None:
            raise InvalidInputError("features= leaves features out; give no X, groups or blocks")
        return _without_features(model, scores, n_components, features, match)
    result, space = score_space(model, X, scores, n_components, match)
    units = units_of(result, space, groups, None)
    if blocks is not None:
        length = block_length(blocks, space, groups)
        units = Units(units.n, np.arange(units.n) // length)
    rows = np.arange(units.n) if units.groups is None else units.groups

    def without(group: int) -> Resampled:
        return space.under((rows != group).astype(np.float64))

    found = each_of(without, range(units.count))
    what = f"each of {units.count:,} {'rows' if units.groups is None else 'groups of rows'}"
    left_out = left_out_of(result, space, units)
    return _jackknifed(result, space, np.bincount(rows), found, what, left_out)


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
        return space.of_features((np.diag(roots**2) - part @ part.T) * len(groups) / more, roots)

    with single_threaded_blas():
        found = [without(group) for group in range(len(sizes))]
    what = f"each of {len(sizes):,} groups of features"
    parts = [components[:, groups == group] for group in range(len(sizes))]
    excess = len(groups) * np.sum([(part[: space.k] @ part.T) ** 2 for part in parts], axis=0)
    left_out = LeftOut.of(result, r, independent(excess, len(groups), len(sizes)))
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

    def estimates(of_shares: bool, values: Array, of_rest: Any) -> Estimates:
        replicates = np.stack([one.shares if of_shares else one.variances for one in found])
        errors = np.sqrt(np.sum(deviations(replicates - values) ** 2, axis=0))
        return Estimates(values, np.hypot(errors, values * np.sqrt(of_rest)), of_shares)

    (turns, on_scores), kept = turns_of(found), left_out.variances
    own = np.eye(*on_scores.shape[1:])
    return SampleCertainty(
        result,
        "jackknife",
        f"{what} left out",
        estimates(False, kept, 0.0),
        estimates(True, kept / left_out.total, left_out.of_shares),
        deviations(turns - own[:, :-1]),
        deviations(on_scores - own),
        left_out,
        scores=space.scores,
        by_features=by_features,
        rescaled=space.axes is not None and not by_features,
    )
