"""CCA of more than two fields: combinations of each that correlate with those of all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal
from streampca.matrix import ChunkedMatrix, Labels
from streampca.matrix.join import JoinedMatrix
from streampca.matrix.labels import AxisLabels
from streampca.matrix.pair import paired
from streampca.models.contract.estimator import Estimator, attach
from streampca.models.contract.parameters import declared, parameter
from streampca.models.contract.registry import loaded
from streampca.models.pca.pca import PCA
from streampca.models.results.result import shaped
from streampca.models.results.value_attributes import of_correlation, of_map
from streampca.models.two_views.result import ViewsResult
from streampca.models.two_views.two_views import View
from streampca.passes import Plan, single_threaded_blas
from streampca.solvers import signs_of_components
from streampca.sources import as_matrix, counted
from streampca.sources.tables.row_names import named_rows


@dataclass(frozen=True, repr=False, kw_only=True)
class MultisetResult(ViewsResult, kind="multiset"):
    """k combinations of each of m fields; arrays of features are those of one after the other.

    values : (k,) descending, of the eigenproblem: the mean over the fields of what the scores of a
        field covary with the sum of those of all others. Of two fields: canonical correlations; of
        m, from -1 to m - 1. spectrum : all of them.
    explained_variance_ratio : (m, k) shares of the total variance of each field along its weights.
    correlations : (m, m, k) of the scores of a field with those of another.
    view_scores : (n, m k) of the rows of the fit: the k of the first field, then the others'.

    Examples
    --------
    >>> fields = np.random.default_rng(0).standard_normal((3, 50, 4))
    >>> result = streampca.MultisetCCA(2).fit(list(fields)).result_
    >>> result.names, result.correlations.shape
    (['x1', 'x2', 'x3'], (3, 3, 2))
    """

    values: Array = shaped("k")
    spectrum: Array = shaped(None)
    explained_variance_ratio: Array = shaped(None, "k")
    correlations: Array = shaped(None, None, "k")
    view_scores: Array = shaped(None, None)

    @property
    def n_components(self) -> int:
        return len(self.values)

    def scores_of_view(self, name: str) -> Array:
        """(n, k) of the rows of the fit."""
        start = self.names.index(name) * self.n_components
        return np.asarray(self.view_scores[:, start : start + self.n_components])

    def to_xarray(self) -> dict[str, Any]:
        """A Dataset for each field, by its name: weights, loadings, scores, ``values``,
        ``explained_variance_ratio``, ``correlations`` with the scores of every field."""
        from streampca.sources.labelled.to_xarray import to_dataset

        made, components = {}, self.component_axis
        views = AxisLabels.plain("view", len(self.names), self.names)
        for i, name in enumerate(self.names):
            view = self.view(name)
            tables: dict[str, Any] = {
                "values": (self.values, [components]),
                "explained_variance_ratio": (self.explained_variance_ratio[i], [components]),
                "correlations": (self.correlations[i], [views, components]),
                "scores": (self.scores_of_view(name), [self.labels.samples, components]),
            }
            for what, values in (("weights", self.vectors), ("loadings", self.loadings)):
                array = np.array(self.part(name, values).T)
                array[:, view.absent] = np.nan
                tables[what] = (array, [components, view.labels.features])
            attrs: dict[str, Any] = {"weights": partial(of_map, view, what="weights of", power=0)}
            attrs["loadings"] = partial(of_correlation, view)
            made[name] = to_dataset(tables, {"method": self.method, "view": name}, attrs)
        return made


@loaded
@declared
class MultisetCCA(Estimator):
    """CCA of two or more fields over the same samples: ``MultisetCCA(2).fit([X, Y, Z])``.

    It finds weights w_i of all fields for which the scores X_i w_i covary most with those of the
    other fields, sum over i and j != i of w_i' C_ij w_j, for a mean of 1 of w_i' (C_ii + alpha) w_i
    (SUMCOR by one constraint; without ``alpha`` the same as MAXVAR, the eigenvalues being one
    less). Each field is read as its principal components.

    Attributes
    ----------
    values_ (k,): see :class:`MultisetResult`; weights_ and loadings_: dicts of (p_i, k) by the
    names of the fields; explained_variance_ratio_ (m, k); correlations_ (m, m, k); result_; pcas_:
    the PCAs, each with its plan, cost and certificate. The eigenproblem is exact to rounding; what
    the PCAs did not certify is not certain here.

    Cost: for each field a PCA (by the way that it plans), and one read more where that kept no
    scores; then (sum of k_i)^3 flops and (n + sum of k_i) (sum of k_i) float64.
    Raises InvalidInputError, NonFiniteError (holes), MemoryLimitError.
    Source: Kettenring 1971, Biometrika 58, sections 2 and 4; Vinod 1976 for the penalty.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import MultisetCCA
    >>> rng = np.random.default_rng(0)
    >>> shared = rng.standard_normal((500, 1))
    >>> fields = {name: shared + rng.standard_normal((500, 3)) for name in ("u", "v", "w")}
    >>> model = MultisetCCA(1).fit(fields)
    >>> model.correlations_[:, :, 0].round(1).tolist()
    [[1.0, 0.7, 0.8], [0.7, 1.0, 0.8], [0.8, 0.8, 1.0]]
    >>> model.transform({"u": fields["u"][:2]})["u"].shape
    (2, 1)
    """

    n_components: int = parameter(default=2, kw_only=False, meaning="combinations of each field.")
    pca: Any = parameter(
        default=None,
        meaning="""of the leading principal components of each field: a number, a share of the
            variance such as 0.99, None (all), or a list with one of these for each.""",
    )
    alpha: float = parameter(
        default=0.0,
        meaning="""penalty, added to the variances of all principal components, in their unit: of
            xeofs' ``c`` it is c / (1 - c), and values are 1 - c times theirs.""",
    )
    scale: str | None = parameter(default=None, meaning="""None, or "std", as in PCA.""")
    weights: Any = parameter(
        default=None, needs_data=True, meaning="""None, or "coslat", of all fields, as in PCA."""
    )
    remove: Any = parameter(
        default=None, needs_data=True, meaning="what is projected out of all fields, as in PCA."
    )
    missing: ClassVar[str] = "raise"
    result_: MultisetResult

    def plan(self, fields: Any, *, dim: Any = None) -> dict[str, Plan]:  # type: ignore[override]
        """What ``fit`` would do with each field: the plan of its PCA. Reads nothing.

        Raises MemoryLimitError, naming the smallest limit that would do.
        """
        names, parts = self._fields(fields, dim)
        models = self._models(len(names))
        return {n: m.plan(part) for n, m, part in zip(names, models, parts, strict=True)}

    def fit(self, fields: Any, y: Any = None, *, dim: Any = None) -> Self:
        """Fit to fields (n, p_i): a list, or a dict of names and anything that
        ``streampca.open`` takes.

        Rows are paired by their labels where all have some, and those that a field lacks are left
        out.  dim : sample dimension(s) of all.
        Raises InvalidInputError, MemoryLimitError before reading; NonFiniteError for holes.
        """
        names, parts = self._fields(fields, dim)
        models = self._models(len(names))
        for model, part in zip(models, parts, strict=True):
            model.fit(part)
        scores = [_scores(model, part) for model, part in zip(models, parts, strict=True)]
        joined = JoinedMatrix(parts, 1, names)
        with single_threaded_blas():
            found = _solved(scores, self.n_components, float(self.alpha))
            fitted = _of_fields([model.result_ for model in models], scores, found)
        attach(self, MultisetResult(**fitted, **self._about(joined)))
        self.pcas_, self.dim_ = dict(zip(names, models, strict=True)), dim
        return self

    def transform(  # type: ignore[override]
        self, fields: Any, *, dim: Any = None, **options: Any
    ) -> Any:
        """Scores (rows, k) of each field: a tuple for a list, a dict for a dict of some of them.

        options : ``remove``, as of ``PCA.transform``. Cost: a pass over each field.
        Raises InvalidInputError for another number of fields, and for names that were not fitted.
        """
        if isinstance(fields, Mapping):
            return {n: self.view(n).transform(one, dim=dim, **options) for n, one in fields.items()}
        known = self._result_as(MultisetResult).names
        if len(fields) != len(known):
            raise InvalidInputError(
                f"{len(fields)} fields; expected {len(known)}, or some by name: "
                f"transform({{{known[0]!r}: X}})"
            )
        views = zip(known, fields, strict=True)
        return tuple(self.view(n).transform(one, dim=dim, **options) for n, one in views)

    def view(self, name: str) -> View:
        """One field as a model of its own, which transforms rows of it.

        Raises InvalidInputError for a name that was not fitted.
        """
        known = self._result_as(MultisetResult).names
        if name not in known:
            raise InvalidInputError(f"no field {name!r}; expected one of {', '.join(known)}")
        return View(self, name)

    @property
    def values_(self) -> Array:
        """(k,) descending; of two fields canonical correlations, of m from -1 to m - 1."""
        return self.result_.values

    @property
    def correlations_(self) -> Array:
        """(m, m, k) of the scores of a field with those of another."""
        return self.result_.correlations

    @property
    def explained_variance_ratio_(self) -> Array:
        """(m, k) shares of the total variance of each field along its weights."""
        return self.result_.explained_variance_ratio

    @property
    def weights_(self) -> dict[str, Array]:
        """Of each field, by name: (p_i, k), which make its scores."""
        return self._by_name(self.result_.vectors)

    @property
    def loadings_(self) -> dict[str, Array]:
        """Of each field, by name: (p_i, k) correlations of its features with its scores."""
        return self._by_name(self.result_.loadings)

    def _by_name(self, values: Array) -> dict[str, Array]:
        return {name: self.result_.part(name, values) for name in self.result_.names}

    def _fields(self, fields: Any, dim: Any) -> tuple[list[str], list[ChunkedMatrix]]:
        """(names, matrices over the samples that all have, in the order of the first)."""
        if not isinstance(fields, Mapping):
            if not isinstance(fields, Sequence) or isinstance(fields, (str, bytes)):
                raise InvalidInputError(
                    f"fields is a {type(fields).__name__}; expected a list or dict: fit([X, Y, Z])"
                )
            fields = {f"x{i + 1}": one for i, one in enumerate(fields)}
        if len(fields) < 2:
            raise InvalidInputError(f"{len(fields)} fields; expected at least two: fit([X, Y])")
        opened = [
            as_matrix(counted(one), dim=dim, missing_value=self.missing_value)
            for one in fields.values()
        ]
        first, *others = named_rows(opened, list(fields))
        for other in others:
            first = paired(first, other).x
        return list(fields), [first, *(paired(first, other).y for other in others)]

    def _models(self, count: int) -> list[PCA]:
        kept = self.pca if isinstance(self.pca, (list, tuple)) else [self.pca] * count
        if len(kept) != count:
            raise InvalidInputError(f"pca={self.pca!r}; expected a number, or one for each field")
        shared = ("scale", "weights", "remove", "memory_limit", "scheduler", "threads", "progress")
        options = {name: getattr(self, name) for name in shared}
        return [PCA(k, **options) for k in kept]

    def _about(self, joined: JoinedMatrix) -> dict[str, Any]:
        labels: Labels = joined.labels
        return {
            "method": "MultisetCCA",
            "n_samples": joined.shape[0],
            "labels": labels,
            "settings": self.stored_params(),
        }


@dataclass(frozen=True)
class Solved:
    """values : all, descending.  turns : (k_i, k) of the principal components of each field."""

    values: Array
    turns: list[Array]


def _scores(model: PCA, part: ChunkedMatrix) -> Array:
    """(n, k) of the principal components that vary."""
    result = model.result_
    scores = result.scores
    if scores is None:
        scores = model.transform(part, remove=model.remove)
    vary = min(result.rank, result.n_components)
    return np.asarray(scores)[:, :vary]


def _solved(scores: list[Array], count: int, alpha: float) -> Solved:
    """The eigenproblem of whitened principal components. Raises InvalidInputError."""
    n, widths = len(scores[0]), [one.shape[1] for one in scores]
    if not 1 <= count <= min(widths):
        raise InvalidInputError(
            f"n_components={count!r}; expected from 1 to {min(widths)}, the least of the fields"
        )
    if alpha < 0.0 or not np.isfinite(alpha):
        raise InvalidInputError(f"alpha={alpha!r}; expected a number from 0")
    if not alpha and max(widths) >= n - 1:
        raise InvalidInputError(
            f"{n} rows, of which {max(widths)} principal components fit anything: "
            "MultisetCCA(pca=10), or a penalty: alpha=0.1"
        )
    roots = [1.0 / np.sqrt(np.sum(one**2, axis=0) / (n - 1.0) + alpha) for one in scores]
    whole = np.hstack([one * root for one, root in zip(scores, roots, strict=True)])
    between = whole.T @ whole / (n - 1.0)
    ends = np.cumsum([0, *widths])
    for start, stop in pairwise(ends):
        between[start:stop, start:stop] = 0.0
    values, vectors = np.linalg.eigh(between)
    values, leading = values[::-1], vectors[:, ::-1][:, :count] * np.sqrt(len(scores))
    turns = [
        root[:, None] * t for root, t in zip(roots, np.split(leading, ends[1:-1]), strict=True)
    ]
    return Solved(values, turns)


def _of_fields(results: list[Any], scores: list[Array], found: Solved) -> dict[str, Any]:
    """The fields of the result that follow from the principal components and their turns."""
    vectors, loadings, means, scales, absent, shares, made = [], [], [], [], [], [], []
    n, start = len(scores[0]), 0
    for result, pcs, turn in zip(results, scores, found.turns, strict=True):
        basis = result.require_components()[: pcs.shape[1]].T
        own = pcs @ turn
        spread = np.linalg.norm(own, axis=0) / np.sqrt(n - 1.0)
        divisors = result.divisors
        scale = np.ones(result.n_features) if divisors is None else np.asarray(divisors)
        deviations = np.sqrt(result.feature_variance) * reciprocal(scale)
        with np.errstate(divide="ignore", invalid="ignore"):
            covariances = basis @ (pcs.T @ own) / (n - 1.0)
            loadings.append(np.clip(covariances / deviations[:, None] / spread, -1.0, 1.0))
        shares.append(spread**2 / np.sum(turn**2, axis=0) / result.total_variance)
        vectors.append(basis @ turn)
        means.append(result.mean)
        scales.append(scale)
        absent.append(result.dropped + start)
        made.append(own)
        start += result.n_features
    sign = signs_of_components(np.nan_to_num(loadings[0]))
    own = np.stack(made)  # (m, n, k)
    unit = own / np.linalg.norm(own, axis=1, keepdims=True)
    removal = [one.removal for one in results]
    return {
        "values": found.values[: len(sign)],
        "spectrum": found.values,
        "vectors": np.vstack(vectors) * sign,
        "loadings": np.vstack(loadings) * sign,
        "mean": np.concatenate(means),
        "scale": np.concatenate(scales),
        "absent": np.concatenate(absent).astype(np.int64),
        "explained_variance_ratio": np.array(shares),
        "correlations": np.einsum("ink,jnk->ijk", unit, unit),
        "view_scores": np.hstack(list(own * sign)),
        "removal": _joint_removal(removal),
    }


def _joint_removal(parts: list[Any]) -> Any:
    """What was removed, of all features; the design is the same for all fields."""
    if parts[0] is None:
        return None
    coefficients = np.hstack([part.coefficients for part in parts])
    return type(parts[0])(parts[0].design, coefficients)
