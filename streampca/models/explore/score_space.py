"""What a bootstrap or a jackknife asks of a model: scores of the rows of its fit, and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.matrix.alignment import along, rows_along, shared_places
from streampca.models.contract.linear import LinearModel, decomposition_of
from streampca.models.contract.request import whole_number
from streampca.models.explore.sample_certainty import LeftOut
from streampca.models.results.decomposition import PrincipalComponents
from streampca.models.results.score_scaling import check_spread
from streampca.passes import single_threaded_blas
from streampca.passes.settings import thread_count
from streampca.solvers.resampling import MATCHES, Resampled, ScoreSpace, Units
from streampca.sources import counted

T = TypeVar("T")
SHOWN = 50  # components by default
FEWEST = 5  # units of which anything can be said
ALIKE = 0.01  # of a variance: scores of the rows of the fit
ROUNDING = 1e-6  # of the largest variance, in float32


def components_of(model: Any) -> PrincipalComponents:
    """The result of a model. Raises InvalidInputError, NotFittedError."""
    result = decomposition_of(model, "streampca.bootstrap(PCA(10).fit(X), X)")
    if not isinstance(result, PrincipalComponents) or not result.principal:
        raise InvalidInputError(
            f"a {result.method} has no principal components whose sampling is known; expected a "
            "fitted PCA (but with missing='impute'), GenotypePCA, IncrementalPCA or TruncatedSVD"
        )
    if not min(result.n_components, result.rank):
        raise InvalidInputError("the model has no component with variance")
    return result


def count_of(n_components: int | None, r: int) -> int:
    """k, of r components with scores. Raises InvalidInputError."""
    if n_components is None:
        return min(r, SHOWN)
    return whole_number("n_components", n_components, 1, r)


def check_match(match: str) -> None:
    """Raise InvalidInputError for an unknown one."""
    if match not in MATCHES:
        raise InvalidInputError(f"match={match!r}; expected one of {MATCHES}")


def score_space(
    model: Any, X: Any, scores: Any, n_components: int | None, match: str
) -> tuple[PrincipalComponents, ScoreSpace]:
    """The result, and the scores of its rows on components that have variance."""
    result = components_of(model)
    check_match(match)
    r = min(result.n_components, result.rank)
    values = _scores(model, result, X, scores)[:, :r]
    if result.fitted is not None and len(values) == len(result.fitted) > result.n_samples:
        values = values[result.fitted]
    n, freedom = len(values), max(result.weight - result.ddof, 1.0)
    if result.weight != n:
        raise InvalidInputError(
            f"the fit had {result.n_samples} rows of a total weight of {result.weight:g}, and the "
            f"scores are of {n}; expected the rows of the fit, without sample weights"
        )
    spread = np.einsum("ij,ij->j", values, values) / freedom
    expected = result.explained_variance[:r]
    if not np.allclose(spread, expected, rtol=ALIKE, atol=ROUNDING * expected[0]):
        raise InvalidInputError(
            "the scores have other variances than the components; expected those of the rows of "
            "the fit: scores=model.transform(X), or streampca.bootstrap(model, X); a fit that "
            "keeps its scores needs neither"
        )
    rest = LeftOut.of(result, r, np.ones(1)).variance
    centred = result.feature_mean is None
    k = count_of(n_components, r)
    axes = _rescaled_axes(result, r) if centred else None
    return result, ScoreSpace(values, k, rest, centred, float(result.ddof), match, axes)


def _rescaled_axes(result: PrincipalComponents, r: int) -> Array | None:
    """(r, r) all components of features that were divided by their deviations; else None."""
    if result.components is None or not result.divided_by_deviations:
        return None
    used = np.asarray(result.scale) > 0.0
    if np.count_nonzero(used) != r:
        return None
    axes = np.asarray(result.components[:r], dtype=np.float64)
    return axes[:, used]


def _scores(model: LinearModel, result: PrincipalComponents, X: Any, scores: Any) -> Array:
    """(n, k) float64 of the rows of the fit: those handed over, those of X, or those kept."""
    if X is not None and scores is not None:
        raise InvalidInputError("X and scores say the same; give one of them")
    whitened = bool(getattr(model, "whiten", False))
    factor = result.score_deviation if whitened else np.ones(1)
    if X is not None:
        remove, fitted = getattr(model, "remove", None), result.fitted_samples
        passes = model._passes(model._matrix(counted(X), None, remove, of_fit=True))
        found = model._scored(passes, model._scores_map(X, passes.options))
        places = shared_places(fitted, passes.matrix.labels.samples, "samples of the fit")
        found = found if places is None else found[places]
        return found.astype(np.float64) * factor
    if scores is not None:
        samples = result.labels.samples
        found = rows_along(result.unscaled_scores(scores, whitened), samples, "scores")
        if found.shape[-1:] != (result.n_components,):
            raise InvalidInputError(
                f"scores has shape {found.shape}; expected (n, {result.n_components}), as "
                "model.transform(X) gives them"
            )
        found = np.asarray(found, dtype=np.float64).reshape(-1, result.n_components) * factor
        check_spread(found, result)
        return found
    rows, found = result.fitted_scores()
    if not len(rows):
        raise InvalidInputError(
            "this fit keeps no scores (it streamed the samples). One pass makes them: "
            "streampca.bootstrap(model, X); or hand them over, scores=model.transform(X)"
        )
    return np.asarray(found, dtype=np.float64)


def units_of(result: PrincipalComponents, space: ScoreSpace, groups: Any, blocks: Any) -> Units:
    """What is drawn. Raises InvalidInputError where it is too few."""
    n = len(space.scores)
    if blocks is not None:
        return Units(n, block=_block_length(blocks, n, groups))
    units = Units(n, None if groups is None else row_groups(result, groups, None))
    check_units(units)
    return units


def check_units(units: Units) -> None:
    """Raise InvalidInputError for too few."""
    if units.count < FEWEST:
        raise InvalidInputError(f"{units.count} rows or groups; expected {FEWEST} or more to draw")


def row_groups(result: PrincipalComponents, groups: Any, blocks: Any) -> Array:
    """(n,) numbers from 0 of the groups of the fitted rows, by labels or as consecutive blocks."""
    samples = result.labels.samples
    if blocks is not None:
        n = len(result.fitted_samples)
        return np.arange(n) // _block_length(blocks, n, groups)
    labels = labels_of(groups, samples, "groups")
    return numbered(labels if result.fitted is None else labels[result.fitted], "groups")


def _block_length(blocks: Any, n: int, groups: Any) -> int:
    """Rows of a block. Raises InvalidInputError."""
    if groups is not None:
        raise InvalidInputError("blocks= are of a series and groups= of families; give one of them")
    return whole_number("blocks", blocks, 1, n // FEWEST, why=f", so that {FEWEST} make the series")


def labels_of(values: Any, axis: AxisLabels, name: str) -> Array:
    """(len(axis),) labels; a text is the name of a column that came with the source.

    A family of 0 is none, as in PLINK: such a row is alone. Raises InvalidInputError.
    """
    if not isinstance(values, str):
        return np.asarray(along(values, axis, name))
    if values not in axis.extra:
        known = f"; known are {', '.join(axis.extra)}" if axis.extra else ""
        raise InvalidInputError(f"{name}={values!r} is no column of this source{known}")
    found = [str(one) for one in axis.extra[values]]
    if values == "family":
        found = [f"{i} of 0" if one == "0" else one for i, one in enumerate(found)]
    return np.array(found)


def numbered(labels: Array, name: str) -> Array:
    """Numbers from 0 of the groups. Raises InvalidInputError."""
    labels = np.asarray(labels)
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise InvalidInputError(f"{name} holds NaN; expected a label for each")
    if labels.dtype.kind not in "biufM":
        labels = np.array([str(one) for one in labels.tolist()])
    numbers = np.unique(labels, return_inverse=True)[1]
    if numbers.max(initial=0) + 1 < FEWEST:
        raise InvalidInputError(
            f"{name} has {numbers.max(initial=0) + 1} groups; expected {FEWEST} or more"
        )
    return np.asarray(numbers)


def each_of(work: Callable[[int], T], numbers: Iterable[int]) -> list[T]:
    """The results of all numbers, in their order, on the threads of this process."""
    with single_threaded_blas(), ThreadPoolExecutor(thread_count()) as pool:
        return list(pool.map(work, numbers))


def left_out_of(result: PrincipalComponents, space: ScoreSpace, units: Units) -> LeftOut:
    """What has no scores; components turn towards it as they do towards each other."""
    values, even = np.mean(space.scores**2, axis=0), units.drawn / units.count
    number = even * float(np.sum(units.weights(np.ones(units.count))))
    excess = np.empty((space.k, len(values)))
    for i in range(space.k):
        sums = units.sums(space.scores * space.scores[:, [i]])
        excess[i] = even * np.sum(sums**2, axis=0) / (number * values * values[i])
    return LeftOut.of(result, len(values), independent(excess, number, units.drawn))


def independent(excess: Array, number: float, units: int) -> Array:
    """(k,) rows that turn a component as far as all do, at most ``number``, of so many units.

    excess : (k, r) variance of its products with each component, in that of independent normal
        rows. Those with others count; where there is none, a unit counts as one row.
    """
    k, r = excess.shape
    if r < 2:
        return np.full(k, float(units))
    others = (excess.sum(axis=1) - np.diagonal(excess)) / (r - 1)
    return np.asarray(number / np.maximum(others, 1.0))


def turns_of(found: Iterable[Resampled]) -> tuple[Array, Array]:
    """(R, k, r) components, and (R, k, r + 1) what makes scores on them."""
    both = [(one.turns, one.on_scores) for one in found]
    return np.stack([one for one, _ in both]), np.stack([one for _, one in both])
