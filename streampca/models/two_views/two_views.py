"""What the models of two views share: rows paired by label, a plan, scores of both."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import numpy as np

from streampca.errors import (
    AccuracyWarning,
    DroppedFeaturesWarning,
    InvalidInputError,
    shorten,
    warn_caller,
)
from streampca.kernels import Array
from streampca.matrix import VIEWS, ChunkedMatrix, Pair, PairedMatrix, paired
from streampca.matrix.places import on_globe
from streampca.models.contract import shared_parameters as shared
from streampca.models.contract.estimator import Estimator, attach
from streampca.models.contract.parameters import Kept, declared, parameter
from streampca.models.contract.request import sample_weights, side_data, whole_number
from streampca.models.decompose.empty_samples import (
    ObservedSamples,
    ScoresEmptySamples,
    is_field,
    warn_of_empty,
)
from streampca.models.results.result import Result
from streampca.models.rows.new_rows import NewRows
from streampca.models.side_data.design import Removal
from streampca.models.side_data.row_weights import of_some, refuse_few
from streampca.models.two_views.joint_sums import factor_candidates, sums_candidates
from streampca.models.two_views.krylov import krylov_candidates
from streampca.models.two_views.request import Found, Method, ViewRequest
from streampca.models.two_views.result import Redundancy, TwoViewResult
from streampca.models.two_views.rotated_views import RotatedTwoViewResult
from streampca.models.two_views.sample_space import sample_candidates
from streampca.passes import Candidate, Outcome, Plan, Rates, Running
from streampca.solvers.rotation import METHODS
from streampca.sources import as_pair, same_rows

# What a way cannot do, by the parameter for it.
LACKS = {
    "tsqr": ("missing='mean'",),
    "samples": ("sample_weight=",),
    "krylov": ("missing='mean'", "sample_weight="),
}

WAYS: dict[str, Callable[[ChunkedMatrix, ViewRequest], list[Candidate[Found]]]] = {
    "scatter": sums_candidates,
    "tsqr": factor_candidates,
    "samples": sample_candidates,
    "krylov": krylov_candidates,
}
ITERATIVE = ("krylov",)  # taken where no exact way fits the memory


class View(ScoresEmptySamples):
    """One view of a fitted model: scores of its rows."""

    def __init__(self, model: Any, name: str) -> None:
        self.name = name
        running = (field.name for field in fields(Running))
        taken = (*running, "missing", "missing_value", "dim_", "_output")
        vars(self).update({one: getattr(model, one) for one in taken if hasattr(model, one)})
        attach(self, model.result_.view(name))

    def _new_rows(self, result: Result | None) -> NewRows:
        owner = f"the {self.name.upper()} view of this {self._fitted().method}"
        return replace(super()._new_rows(result), estimator=owner)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """cca0, cca1, ..."""
        stem = self._fitted().method.lower()
        return np.asarray([f"{stem}{i}" for i in range(self._fitted().n_components)], dtype=object)


def of_view(name: str, field: str, meaning: str) -> Any:
    """A property: the part of one view of an array of the result."""

    return property(lambda self: self.result_.part(name, getattr(self.result_, field)), doc=meaning)


@declared
class TwoViewParameters(Estimator):
    """The parameters that the models of two views share."""

    n_components: int | None = parameter(
        default=2,
        kw_only=False,
        counts_components=True,
        meaning="pairs, at most the least of rows and features; None: all that there are.",
    )
    scale: str | None = shared.SCALE
    missing: str = parameter(
        default="raise",
        choices=("raise", "mean"),
        meaning="""what to do with missing cells: "raise", or "mean" to put the mean of their
            feature in their place (correlations are then smaller than without holes).""",
    )
    remove: Any = parameter(
        default=None,
        kept=Kept.NAME,
        needs_data=True,
        meaning="""what is projected out of both views in the same pass, in addition to the mean, so
            that pairs are partial ones: "month", "hour" or another cycle in the dates of the
            samples (as in PCA), "trend", an (n,) or (n, c) array of covariates or batches for the
            rows of both, a DataArray, the name of a column of the samples of X, or a list of such.
            ``transform`` needs the arrays of new rows.""",
    )
    rotation: str | None = parameter(
        default=None,
        choices=(None, *METHODS),
        meaning="""turn the pairs towards simple structure, both views by the same matrix: None,
            "varimax", "quartimax" (both orthogonal), or "promax" (oblique); ``result_`` is then a
            :class:`RotatedTwoViewResult`, which says what its numbers are.""",
    )
    normalize: bool = parameter(
        default=True, meaning="of the rotation, as :func:`streampca.rotate`."
    )
    power: float = parameter(default=4.0, meaning="of the rotation, as :func:`streampca.rotate`.")


class TwoViewModel(TwoViewParameters):
    """What the models of two views share: rows paired by label, a plan, scores of both."""

    views: ClassVar[int] = 2
    scored_views: ClassVar[int] = 2
    result_: TwoViewResult
    solver: str

    # -- a method says --------------------------------------------------------------------------

    def _method(self, pair: Pair) -> Method:
        """The method with its parameters, checked against the shapes."""
        raise NotImplementedError

    def _weights(self, pair: Pair) -> tuple[Array | None, Array | None]:
        """Of the features of both."""
        return None, None

    def _ways(self, method: Method) -> dict[str, str | None]:
        """The ways among which the quickest is taken, each with the way that follows where its
        answer leaves a doubt."""
        raise NotImplementedError

    def _patterns(self, found: Found, request: ViewRequest) -> Array | None:
        """(p + q, k) what a score of 1 adds to standardised columns; None: the vectors do."""
        return found.patterns

    # -- plan and fit ---------------------------------------------------------------------------

    def plan(self, X: Any, Y: Any = None, *, dim: Any = None, sample_weight: Any = None) -> Plan:
        """What ``fit`` would do with X (n, p) and Y (n, q): passes, reads, memory. Reads nothing.

        Raises MemoryLimitError, naming the smallest limit that would do.
        """
        return self._plan_for((X, Y), dim, sample_weight=sample_weight)

    def fit(self, X: Any, Y: Any = None, *, dim: Any = None, sample_weight: Any = None) -> Self:
        """Fit to X (n, p) and Y (n, q): anything that ``streampca.open`` takes.

        Rows are paired by their labels where both have some, else by their number; rows without a
        partner are left out, with a warning that counts them. Two pandas frames whose indices hold
        the same integers are paired by them. Rows of a field without any observation in X or in Y
        are left out, with a warning that counts them; not with ``remove=``.
        dim : sample dimension(s) of both.
        sample_weight : (n,) how often each row that is in both counts, as for ``PCA.fit``.
        Raises InvalidInputError, MemoryLimitError before reading; NonFiniteError for holes;
        InvalidInputError after it where nothing varies in a view.
        """
        return self._fit_to((X, Y), dim, sample_weight=sample_weight)

    def _remark(self, matrix: ChunkedMatrix, request: ViewRequest) -> None:
        request.pair.warn_of_lost_rows()

    def _without_empty(
        self, X: Any, opened: PairedMatrix, request: ViewRequest
    ) -> ObservedSamples | None:
        views = opened.parts
        fields = any(is_field(one, view.labels) for one, view in zip(X, views, strict=True))
        refused = fields and self.missing == "raise" and self.remove is None
        return ObservedSamples.of(views, self._running) if refused else None

    def _bound_to(
        self,
        opened: PairedMatrix,
        observed: ObservedSamples,
        *,
        sample_weight: Any = None,
        **side: Any,
    ) -> tuple[ChunkedMatrix, ViewRequest]:
        pair, rows = opened.pair, observed.rows
        weights = of_some(sample_weight, sample_weights(sample_weight, pair.x), rows)
        x, y = (observed.part(view) for view in (pair.x, pair.y))
        return self._bound(replace(pair, x=x, y=y).joint(), sample_weight=weights)

    def _of_all(self, result: TwoViewResult, observed: ObservedSamples) -> TwoViewResult:
        warn_of_empty(observed.everyone.samples, observed.rows)
        return result

    def _result(
        self, matrix: ChunkedMatrix, request: ViewRequest, done: Outcome[Found]
    ) -> TwoViewResult:
        found, pair, side = done.answer, request.pair, request.side
        weight = None if side.sample_weight is None else side.count(matrix.shape[0])
        self._warn(found, matrix, weight, side.rank)
        solved, total = found.solved, found.solved.total
        scores = found.scores or (None, None)
        removal = None
        if side.design is not None and found.removed is not None:
            removal = Removal(side.design, found.removed)
        result = TwoViewResult(
            **self._described(matrix, done),
            values=solved.values[: found.vectors.shape[1]],
            spectrum=solved.values,
            vectors=found.vectors,
            loadings=found.loadings,
            cross_loadings=found.cross_loadings,
            x_covariance=found.between_scores[0],
            y_covariance=found.between_scores[1],
            patterns=self._patterns(found, request),
            mean=found.mean,
            scale=found.scale,
            bound=solved.bound,
            absent=found.absent,
            x_scores=scores[0],
            y_scores=scores[1],
            x_rank=solved.ranks[0],
            y_rank=solved.ranks[1],
            left_out_x=pair.left_out[0],
            left_out_y=pair.left_out[1],
            total=total,
            estimated=solved.estimated,
            removal=removal,
            weight=weight,
            **solved.more,
        )
        if self.rotation is None:
            return result
        rotated: TwoViewResult = result.rotate(
            self.rotation, normalize=self.normalize, power=self.power
        )
        return rotated

    def _opened(self, X: Any, dim: Any) -> PairedMatrix:
        """[X, Y].  X : both."""
        if X[1] is None:
            raise InvalidInputError(
                f"a {type(self).__name__} relates two views; expected fit(X, Y), on the command "
                "line two sources: streampca fit x.zarr y.zarr --model "
                f"{type(self).__name__.lower()}"
            )
        return paired(*as_pair(*X, dim=dim, missing_value=self.missing_value)).joint()

    def _request(self, matrix: PairedMatrix, *, sample_weight: Any = None) -> ViewRequest:
        pair = matrix.pair
        (n, p), q, k = pair.x.shape, pair.y.shape[1], self.n_components
        if k is not None:
            why = f", the least of {n} rows, {p} and {q} features"
            whole_number("n_components", k, 1, min(n, p, q), "None or ", why)
        if n < 3:
            raise InvalidInputError(f"{n} rows are in both views; expected at least 3")
        if self.rotation not in (None, *METHODS):
            raise InvalidInputError(
                f"rotation={self.rotation!r}; expected None or one of {', '.join(METHODS)}"
            )
        if self.scale not in (None, "std"):
            raise InvalidInputError(f"scale={self.scale!r}; expected None or 'std'")
        if self.missing not in ("raise", "mean"):
            raise InvalidInputError(f"missing={self.missing!r}; expected 'raise' or 'mean'")
        side = side_data(pair.x, remove=self.remove, sample_weight=sample_weight)
        refuse_few(side.sample_weight, 2 + side.rank, "two rows, and one for all that is removed")
        request = ViewRequest(pair, self._method(pair), self._weights(pair), side, self.missing)
        self._refuse_combinations(request)
        return request

    def _refuse_combinations(self, request: ViewRequest) -> None:
        """Refuse parameters that exclude each other."""
        wanted = _abilities_needed(request)
        if "missing='mean'" in wanted and "remove=" in wanted:
            raise InvalidInputError(
                "missing='mean' with remove=: what a hole holds would follow from what is removed; "
                "fill the holes first, such as X = X.fillna(X.mean())"
            )
        if "missing='mean'" in wanted and request.method.folds:
            raise InvalidInputError(
                "missing='mean' with alpha='cv': the folds are summed without holes; give "
                "numbers, alpha=(0.1, 0.1), or fill the holes first"
            )
        if lacks := [one for one in LACKS.get(self.solver, ()) if one in wanted]:
            raise InvalidInputError(
                f"solver={self.solver!r} does not take {lacks[0]}; leave it out, or take "
                "solver='scatter'"
            )

    def _candidates(self, matrix: ChunkedMatrix, request: ViewRequest) -> list[Candidate[Found]]:
        """The exact ways, the quickest first, then the iterative ones."""
        exact: list[Candidate[Found]] = []
        iterative: list[Candidate[Found]] = []
        wanted = _abilities_needed(request)
        able = {name: way for name, way in WAYS.items() if not wanted & set(LACKS.get(name, ()))}
        for name, then in self._ways(request.method).items():
            if name in able:
                others = able[then](matrix, request) if then in able else []
                kind = iterative if name in ITERATIVE else exact
                for one in able[name](matrix, request):
                    kind += [replace(one, then=other) for other in (*others, None)]
        rates = Rates.of(None)
        return rates.timed(matrix, exact) + rates.timed(matrix, iterative)

    def _warn(
        self, found: Found, matrix: ChunkedMatrix, weight: float | None, removed: int
    ) -> None:
        """Tell the caller of ``fit`` what was left out, and what is not certain."""
        land = self.missing == "raise" and on_globe(matrix.labels.features, found.absent)
        if len(found.absent) and not land:
            names = matrix.labels.features.names(found.absent[:4].tolist())
            warn_caller(
                f"{len(found.absent)} of {matrix.shape[1]} features have no observation and were "
                f"left out: {shorten(names, len(found.absent))}",
                DroppedFeaturesWarning,
            )
        rows = (matrix.shape[0] if weight is None else weight) - removed
        for remark in self._remarks(found, rows):
            warn_caller(remark, AccuracyWarning)

    def _remarks(self, found: Found, n: float) -> Iterator[str]:
        """What the user does not have, in words.  n : rows, less what was removed."""
        k, asked = found.vectors.shape[1], self.n_components
        if asked is not None and k < asked:
            x, y = found.solved.ranks
            yield f"{asked} pairs were requested; there are {k}: the views have rank {x} and {y}"
        if found.doubt:
            yield found.doubt

    # -- other axes -----------------------------------------------------------------------------

    def rotate(self, method: str = "varimax", k: int | None = None, **options: Any) -> Self:
        """The model of the first k pairs, rotated: ``streampca.rotate``. Reads nothing."""
        result = self._result_as(TwoViewResult).rotate(method, k, **options)
        return self._of_result(result)

    def unrotated(self) -> Self:
        """The model that was rotated, with its first k pairs."""
        return self._of_result(self._result_as(RotatedTwoViewResult).unrotated())

    def _of_result(self, result: TwoViewResult) -> Self:
        model: Self = copy.copy(self)
        changed = ("n_components", "rotation", "normalize", "power")
        model.set_params(**{name: result.settings[name] for name in changed})
        return attach(model, result)  # type: ignore[no-any-return]

    # -- scores ---------------------------------------------------------------------------------

    def view(self, name: str) -> View:
        """One view as a model of its own, which transforms rows of it.  name : "x" or "y"."""
        self._fitted()
        return View(self, name)

    def transform(
        self,
        X: Any,
        Y: Any = None,
        *,
        dim: Any = None,
        out: Any = None,
        overwrite: bool = False,
        remove: Any = None,
    ) -> Any:
        """(scores of X, scores of Y), (n, k) each; without Y those of X alone.

        X, Y : rows of each view, as ``PCA.transform`` takes them. Lazy where they are, labelled
            where they are. Without ``dim`` that of the fit. Rows of both with names are paired as
            in ``fit``: those that both have, in the order of X. Others need not be the same.
        out : paths of two new Zarr arrays, or of one without Y.
        Cost: one pass over each. Raises InvalidInputError.
        """
        many = Y is not None
        paths = out if many and out is not None else (out, None)
        if many and (isinstance(paths, (str, os.PathLike)) or len(paths) != 2):
            raise InvalidInputError(f"out={out!r}; expected two paths, of scores of X and of Y")
        if many and X is not None:
            dims = [
                self.view(name)._new_rows(None).dim_for(rows) if dim is None else dim
                for name, rows in zip(VIEWS, (X, Y), strict=True)
            ]
            X, Y, pair = same_rows(X, Y, dims, self.missing_value)
            if pair is not None:
                pair.warn_of_lost_rows()
        made = [
            self.view(name).transform(rows, dim=dim, out=path, overwrite=overwrite, remove=remove)
            for name, rows, path in zip(VIEWS, (X, Y), paths, strict=True)
            if rows is not None
        ]
        return tuple(made) if many else made[0]

    def fit_transform(self, X: Any, Y: Any = None, *, dim: Any = None) -> Any:
        """Fit, and the scores of X and Y, (n, k) each: a second read of both."""
        return self.fit(X, Y, dim=dim).transform(X, Y, dim=dim, remove=self.remove)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """(k,) names of the scores of either view."""
        return self.view("x").get_feature_names_out()

    x_weights_ = of_view("x", "vectors", "(p, k): scores of X are the centred X times these.")
    y_weights_ = of_view("y", "vectors", "(q, k): scores of Y are the centred Y times these.")
    x_patterns_ = of_view("x", "adding", "(p, k): what a score of 1 adds to the centred X.")
    y_patterns_ = of_view("y", "adding", "(q, k): what a score of 1 adds to the centred Y.")
    x_loadings_ = of_view("x", "loadings", "(p, k) correlations of X with the scores of X.")
    y_loadings_ = of_view("y", "loadings", "(q, k) correlations of Y with the scores of Y.")
    x_cross_loadings_ = of_view("x", "cross_loadings", "(p, k) of X with the scores of Y.")
    y_cross_loadings_ = of_view("y", "cross_loadings", "(q, k) of Y with the scores of X.")

    @property
    def redundancy_(self) -> Redundancy:
        """(k,) shares of the variance of each view that the scores of either explain, in the mean
        over its features (standardised ones count alike)."""
        return self.result_.redundancy


def _abilities_needed(request: ViewRequest) -> set[str]:
    """Abilities that not every way has: see LACKS."""
    side = request.side
    needed = {
        "missing='mean'": request.missing == "mean",
        "remove=": side.design is not None,
        "sample_weight=": side.sample_weight is not None,
    }
    return {name for name, here in needed.items() if here}
