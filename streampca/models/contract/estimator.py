"""The one fit of all estimators, and what they make of new rows.

A method says how X is opened, what is requested, the ways to the answer, and what it is; the result
says what it makes of a block of rows. Everything between the data and that block is here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from streampca.errors import InvalidTypeError, MemoryLimitError, NonFiniteError, not_fitted
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, Labels
from streampca.matrix.block import score_dtype
from streampca.models.contract.request import seed_of
from streampca.models.contract.scikit_learn import ScikitLearnContract
from streampca.models.results.result import Result, provenance
from streampca.models.results.row_maps import RowMap, RowOptions, RowPasses
from streampca.models.results.score_scaling import SCALING, WHITENED
from streampca.models.results.value_attributes import of_series
from streampca.models.rows.new_rows import LazyRows, NewRows
from streampca.models.side_data.feature_names import is_xarray, text_names
from streampca.passes import Candidate, Outcome, PassCost, Plan, Planned, choose, execute
from streampca.report.cards import estimator_card, result_card
from streampca.sources import as_matrix, counted
from streampca.sources.dask.lazy import (
    frame_of_rows,
    is_dask_array,
    is_dask_frame,
    is_lazy,
    lazily_held,
)
from streampca.sources.tables.frames import framed

if TYPE_CHECKING:
    from streampca.report.document import Report

Kind = TypeVar("Kind", bound=Result)


class Estimator(ScikitLearnContract):
    """A method with a result: fit, transform, save.

    Every estimator has the parameters of :class:`.RunningParameters`; :class:`RowOptions` names
    those that say how rows are scored.
    """

    registered_name: ClassVar[str]  # of its own class or a base: saved models load under it
    reconstructs: ClassVar[bool] = False  # rows from scores with the least error
    views: ClassVar[int] = 1  # matrices that ``fit`` takes: 2 for X and Y
    scored_views: ClassVar[int] = 1  # of them, those that ``transform`` takes
    result_: Result
    n_features_in_: int
    plan_: Plan  # of the last ``fit``; the method ``plan`` makes one in advance
    cost_: list[PassCost]
    dim_: Any = None
    takes_complex: ClassVar[bool] = False  # whether X may hold complex numbers

    @classmethod
    def from_result(cls, result: Any) -> Any:
        """A fitted model with a result that was saved, and the parameters that made it."""
        return attach(cls.restored(result.settings), result)

    # A method says how X is opened, what is asked, the ways to the answer, and what it is.

    def _opened(self, X: Any, dim: Any) -> Any:
        """X as samples x features, or the pair of two views, before anything of it is read."""
        code, takes = self.missing_value, self.takes_complex
        return as_matrix(X, dim=dim, missing_value=code, complex_values=takes)

    def _request(self, *matrix: Any, **side: Any) -> Any:
        """The parameters, checked, and the side data bound to a matrix.

        side : as ``fit`` takes them, and the ``seed`` of a fit.
        """
        raise NotImplementedError

    def _bound(self, *opened: Any, **side: Any) -> tuple[ChunkedMatrix, Any]:
        """The matrix that is read, and what is asked of it."""
        return opened[0], self._request(*opened, **side)

    def _candidates(self, matrix: ChunkedMatrix, request: Any) -> Sequence[Candidate[Any]]:
        """The ways to the answer, in the order in which they are preferred."""
        raise NotImplementedError

    def _result(self, matrix: ChunkedMatrix, request: Any, done: Outcome[Any]) -> Result:
        """The frozen result of an answer."""
        raise NotImplementedError

    # Where it needs them, it has further steps.

    def _preparation(self, opened: Any) -> Planned[Any] | None:
        """The pass that says which part of X is fitted; None where all is."""
        return None

    def _prepared(self, opened: Any, answer: Any) -> tuple[Any, dict[str, Any]]:
        """That part, by the answer of the pass, and what else the answer says, as side data."""
        raise NotImplementedError

    def _quick(self, matrix: ChunkedMatrix, request: Any) -> Sequence[Candidate[Any]]:
        """Candidates that no other needs to be compared with; none where there is a choice."""
        return ()

    def _remark(self, matrix: ChunkedMatrix, request: Any) -> None:
        """Warn of what can be seen before the fit reads."""

    def _warm_start(self, matrix: ChunkedMatrix, request: Any) -> Any:
        """What earlier fits left in memory: where the solver starts, and a ``recall``; or None."""
        return None

    def _without_empty(self, X: Any, opened: Any, request: Any) -> Any:
        """Of a fit that met a hole: the samples to fit without the empty ones; None: refuse it."""
        return None

    def _bound_to(self, *observed: Any, **side: Any) -> tuple[ChunkedMatrix, Any]:
        """The matrix of those samples, and what is asked of it.  observed : what is opened, too."""
        raise NotImplementedError

    def _of_all(self, result: Any, observed: Any) -> Result:
        """The result over the labels of all samples."""
        raise NotImplementedError

    # Every fit is this.

    def plan(self, X: Any, *, dim: Any = None) -> Plan:
        """What ``fit`` would do with X, (n, p): solver, passes, reads, memory. Reads nothing.

        Raises MemoryLimitError, naming the smallest limit that would do.
        """
        return self._plan_for(X, dim)

    def fit(self, X: Any, y: Any = None, *, dim: Any = None) -> Self:
        """Fit to X, (n, p): anything that ``streampca.open`` takes.

        dim : for xarray and N-dimensional arrays, the sample dimension(s).
        Raises InvalidInputError, MemoryLimitError before reading; NonFiniteError while reading.
        """
        return self._fit_to(X, dim)

    def _plan_for(self, X: Any, dim: Any, **side: Any) -> Plan:
        opened = self._opened(X, dim)
        before = self._preparation(opened)
        plan = self._planned(*self._bound(opened, **side)).plan
        return plan if before is None else plan.after(before.plan)

    def _fit_to(self, X: Any, dim: Any, **side: Any) -> Self:
        X, side = counted(X), side | self._drawn()
        opened, earlier = self._opened(X, dim), None
        if (before := self._preparation(opened)) is not None:
            with suppress(MemoryLimitError):  # what is left may fit; all else is refused now
                self._planned(*self._bound(opened, **side))
            earlier = execute(before, self._running_once)
            opened, more = self._prepared(opened, earlier.answer)
            side |= more
        matrix, request = self._bound(opened, **side)
        planned, observed = self._planned(matrix, request), None
        self._remark(matrix, request)
        try:
            done = self._executed(planned, request)
        except NonFiniteError:
            if (observed := self._without_empty(X, opened, request)) is None:
                raise
        if observed is not None:
            matrix, request = self._bound_to(opened, observed, **side)
            done = self._executed(self._planned(matrix, request), request)
            done = replace(done, costs=[*observed.costs, *done.costs])
        done = done if earlier is None else done.after(earlier)
        result = self._result(matrix, request, done)
        attach(self, result if observed is None else self._of_all(result, observed))
        self.plan_, self.cost_, self.dim_ = done.plan, done.costs, dim
        return self

    def _drawn(self) -> dict[str, int]:
        """The seed of one fit, as side data; nothing where the method draws nothing."""
        if "random_state" not in self.parameters:
            return {}
        return {"seed": seed_of(self.random_state)}  # type: ignore[attr-defined]

    def _planned(self, matrix: ChunkedMatrix, request: Any) -> Planned[Any]:
        """The candidate that fits the memory. Raises MemoryLimitError."""
        every = partial(self._candidates, matrix, request)
        quick, method = self._quick(matrix, request), self.registered_name
        if not quick:
            return choose(matrix, method, every(), self.memory_limit)
        return choose(matrix, method, quick, self.memory_limit, otherwise=every)

    def _executed(self, planned: Planned[Any], request: Any) -> Outcome[Any]:
        """The answer of a plan, and what it cost."""
        warm = self._warm_start(planned.matrix, request)
        recall = None if warm is None else warm.recall
        return execute(planned, self._running, start=warm, recall=recall)

    def _described(
        self, matrix: ChunkedMatrix, done: Outcome[Any], **settings: Any
    ) -> dict[str, Any]:
        """The fields that a result of any kind has.  settings : in addition to the parameters."""
        return {
            "method": self.registered_name,
            "n_samples": matrix.shape[0],
            "labels": matrix.labels,
            "settings": self.stored_params() | settings,
            "plan": done.plan.to_dict(),
            "provenance": provenance(done.costs, matrix.fingerprint(), done.memory),
        }

    def fit_transform(self, X: Any, y: Any = None, *, dim: Any = None) -> Any:
        """Fit, and the scores of X, (n, k): a second pass."""
        return self.fit(X, dim=dim).transform(X, dim=dim)

    def transform(
        self,
        X: Any,
        *,
        dim: Any = None,
        out: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        remove: Any = None,
    ) -> Any:
        """Scores of rows, (n, k), as the result defines them.

        X : anything that ``fit`` takes: raw rows, where the fit was of a matrix that
            ``streampca.preprocess`` gave, for its steps are applied to them with the numbers of
            the fit; or rows that have had these steps, as that room gives them. An array in memory
            counts as raw. A Dask array or data frame gives a lazy Dask array (a data frame after
            ``set_output(transform="pandas")``), xarray gives labelled xarray, lazy where X holds
            Dask arrays; anything else is computed. Named dimensions may come in any
            order.
        dim : the sample dimension(s). Default: those of the fit for xarray, paths and
            N-dimensional arrays; the first of two.
        out : path of a new Zarr array to write block by block; it is returned, opened.
        remove : after a fit that removed arrays, those of these rows; cycles and trends follow
            from their coordinate, named columns from those of the same name. False: the rows are
            anomalies, and nothing is removed.

        After a completion, or ``PCA(missing="impute")``, scores are by least squares over what each
        row observes.
        Cost: one pass, and one for each step of the preprocessing that scales rows by their sums;
        memory of a few blocks, and of the scores where they are returned.
        """
        result = self._fitted()
        lazy = None if out is not None else self._new_rows(result).lazy(X, dim, remove)
        if lazy is not None:
            return self._lazy_scores(X, lazy)
        rows = self._passes(self._matrix(X, dim, remove))
        scores_of = self._scores_map(X, rows.options)
        if out is not None:
            return rows.written("transform", scores_of, out, overwrite)
        return self._wrap_scores(X, rows.matrix, self._scored(rows, scores_of))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the fitted model to a directory; ``streampca.load`` opens it."""
        return self._fitted().save(path)

    def report(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        scores: Any = None,
        labels: Any = None,
        title: str = "",
    ) -> Report:
        """Everything about this fit as one HTML page that needs no network.

        path : of the file to write; None writes nothing: ``model.report().save("report.html")``.
        scores : (n, k) to draw, of two views those of X and of Y; None takes those of the rows of
            the fit, if it kept them.
        labels : (n,) one label per sample to colour by, or several by name.  title : of the page.

        Cost: no pass. All scores are read into memory; 50,000 are drawn, and the page says so.
        Raises InvalidInputError for scores or labels that do not fit, OutputError.
        """
        from streampca.report.document import report_of

        made = report_of(self._fitted(), scores=scores, labels=labels, title=title)
        if path is not None:
            made.save(path)
        return made

    def _repr_html_(self) -> str:
        name = type(self).__name__
        if not hasattr(self, "result_"):
            return estimator_card(name, repr(self))
        return result_card(self.result_, name, repr(self))

    # -- what every result has ------------------------------------------------------------------

    @property
    def n_components_(self) -> int:
        """k."""
        return self._fitted().n_components

    @property
    def n_samples_(self) -> int:
        """Rows of the fit."""
        return self._fitted().n_samples

    @property
    def feature_names_in_(self) -> Array:
        """(p,) names of the features of the fit, where it knows them as text (else no attribute).

        Made from the labels each time: a million variants have theirs only once. Raises
        AttributeError.
        """
        names = text_names(self._labels_of_fit().features)
        if names is None:
            raise AttributeError(f"the features of this {type(self).__name__} have no names")
        return names

    # -- rows, in and out -----------------------------------------------------------------------

    def _fitted(self) -> Result:
        """The result; an estimator that knows its kind narrows the type."""
        return self._result_as(Result)

    def _result_as(self, kind: type[Kind]) -> Kind:
        """The result of the fit. Raises NotFittedError, InvalidTypeError for another kind."""
        if not hasattr(self, "result_"):
            raise not_fitted(type(self).__name__)
        result = self.result_
        if not isinstance(result, kind):
            raise InvalidTypeError(
                f"this {type(self).__name__} holds a {type(result).__name__}; expected a "
                f"{kind.__name__}. streampca.load(path) opens a model as its own kind"
            )
        return result

    def _labels_of_fit(self) -> Labels:
        return self._fitted().labels

    def _new_rows(self, result: Result | None) -> NewRows:
        """What opens data as further rows of the fit.  result : None while it takes rows in."""
        running = self._running_once
        name, labels, code = type(self).__name__, self._labels_of_fit(), self._missing_code
        known = (name, labels, result, self.dim_, self.missing_value, code, running)
        return NewRows(*known, self.takes_complex)

    def _missing_code(self, dtype: np.dtype[Any]) -> float | None:
        """The missing code of new data of this dtype that do not define one."""
        return self.missing_value

    def _matrix(
        self, X: Any, dim: Any = None, remove: Any = None, of_fit: bool = False
    ) -> ChunkedMatrix:
        """New data as samples x features, in the form that the maps of the result expect.

        of_fit : X holds the rows of the fit; those that it left out are left out.
        """
        result = self._fitted()
        return result.as_rows(self._new_rows(result).matrix(X, dim, remove, of_fit))

    def _options(self, rows: ChunkedMatrix | LazyRows) -> RowOptions:
        """The options of the parameters for such rows."""
        centre = rows.design is None
        named = ("missing", "whiten", "scores")
        known = {name: getattr(self, name) for name in named if hasattr(self, name)}
        return RowOptions(**known, centre=centre)

    def _passes(self, matrix: ChunkedMatrix) -> RowPasses:
        """Passes that apply the result to a matrix."""
        running = self._running_once
        return RowPasses(matrix, self._options(matrix), running, self._fitted().kept_nbytes)

    def _scores_map(self, X: Any, options: RowOptions) -> RowMap:
        """The map from rows of X to their scores."""
        return self._fitted().scores_of(options)

    def _scored(self, rows: RowPasses, scores_of: RowMap) -> Array:
        """(n, k) scores in memory."""
        return rows.table("transform", scores_of, rows.dtype)

    def _lazy_scores(self, X: Any, lazy: LazyRows) -> Any:
        """(n, k) lazy scores of X, as the kind of object that it is."""
        scores_of = self._scores_map(X, self._options(lazy))
        dtype, function = score_dtype(lazy.rows.dtype), lazy.function(scores_of)
        if is_dask_frame(X) and self._table == "pandas" and lazy.design is None:
            names = self.get_feature_names_out()
            return frame_of_rows(X, lazy.whole(function), names, dtype)
        return self._wrap_scores(X, lazy.matrix, lazy.map(function, scores_of.width, dtype))

    def _wrap_scores(self, X: Any, matrix: ChunkedMatrix | None, scores: Any) -> Any:
        """Scores as the kind of object that came in.  matrix : its labels, where it has any."""
        if matrix is not None and is_lazy(X) and not is_dask_array(scores):
            scores = lazily_held(scores, X, matrix.labels.samples)
        if is_xarray(X):
            from streampca.sources.labelled.to_xarray import to_dataarray

            assert matrix is not None
            axes = [matrix.labels.samples, self._fitted().component_axis]
            power = 0 if getattr(self, "whiten", False) else 1
            attrs = of_series(self._fitted(), "scores of", power)
            attrs |= {} if power else {SCALING: WHITENED}
            return to_dataarray(scores, axes, "scores", attrs)
        if is_dask_array(scores):
            return scores
        table = self._table
        return (
            scores if table == "default" else framed(scores, self.get_feature_names_out(), X, table)
        )


class WeighsSamples(Estimator):
    """An estimator whose samples may count more or less often, by their weights."""

    def plan(self, X: Any, *, dim: Any = None, sample_weight: Any = None) -> Plan:
        """What ``fit`` would do with X, (n, p): solver, passes, reads, memory. Reads nothing.

        Raises MemoryLimitError, naming the smallest limit that would do.
        """
        return self._plan_for(X, dim, sample_weight=sample_weight)

    def fit(self, X: Any, y: Any = None, *, dim: Any = None, sample_weight: Any = None) -> Self:
        """Fit to X.

        X : NumPy, data frame, Dask, xarray, scipy.sparse, ``zarr.Array``, a path or URL, or what
            ``streampca.open`` returned; (n, p). A Dask array that does not know its chunk sizes is
            computed once more, to count them, with a warning.
        dim : for xarray and N-dimensional arrays, the sample dimension(s).
        sample_weight : (n,) how often each sample counts, finite and not negative (a sequence, or a
            DataArray over sample dimensions, or the name of a column of the samples): means are sum
            w x / sum w, variances divide by sum w - ddof, and whole numbers give what repeated rows
            give. Weights that only compare samples, such as probabilities:
            :func:`streampca.relative_weights`. A sample of weight 0 adds nothing; ``transform``
            still scores it.
        Later, and several at once on a cluster: ``dask.delayed(PCA(3).fit)(path)``. (Of
        a Dask array Dask computes all of it first, for the worker that fits.)

        Raises InvalidInputError, InvalidTypeError, MemoryLimitError before reading; ClusterError
        where workers see another store than this process; NonFiniteError while reading.
        """
        return self._fit_to(X, dim, sample_weight=sample_weight)


def attach(model: Any, result: Result) -> Any:
    """Give a model its result."""
    model.result_ = result
    model.n_features_in_ = result.n_features
    return model
