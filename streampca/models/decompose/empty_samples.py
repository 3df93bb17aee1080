"""Samples of a field without any observation: left out of a fit, and NaN in the scores.

They are looked for where a hole was met that ``missing="raise"`` refuses: fields without holes take
no time for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import RowMissing
from streampca.errors import EmptySamplesWarning, NonFiniteError, shorten, warn_caller
from streampca.kernels import Array
from streampca.matrix import AxisLabels, Block, ChunkedMatrix, Labels
from streampca.matrix.select import SelectedMatrix
from streampca.models.contract.estimator import Estimator
from streampca.models.contract.request import sample_weights
from streampca.models.decompose.eigenproblem import count_missing
from streampca.models.results.decomposition import PrincipalComponents
from streampca.models.results.row_maps import FeatureSums, RowMap, RowOptions, RowPasses
from streampca.models.side_data.feature_names import is_xarray
from streampca.models.side_data.row_weights import of_some
from streampca.passes import (
    Candidate,
    Pass,
    PassCost,
    PassSpec,
    Planned,
    Running,
    Steps,
    choose_axis,
    execute,
    pass_spec,
)
from streampca.store import MemorySink

NAME = "empty samples"


def is_field(X: Any, labels: Labels) -> bool:
    """Whether X is a field, whose samples may be empty: an xarray object, or a store or a matrix
    whose dimensions have names.

    labels : those of X, or of the rows of the fit.
    """
    stored = isinstance(X, (str, os.PathLike, ChunkedMatrix))
    return is_xarray(X) or (stored and labels.dims_named)


@dataclass(frozen=True)
class ObservedSamples:
    """The samples of a matrix that have an observation, where others have none.

    rows : their numbers.  everyone : the labels of all.  costs : of finding them.
    """

    rows: Array
    everyone: Labels
    costs: list[PassCost]

    @classmethod
    def of(cls, views: Sequence[ChunkedMatrix], running: Running) -> ObservedSamples | None:
        """Those with an observation in each view, by a pass over each; None where that is all, or
        none."""
        n = views[0].shape[0]
        rows, costs = np.arange(n), []
        for view in views:
            missing, cost = _missing_by_sample(view, running)
            rows = rows[missing[rows] < view.shape[1]]
            costs += cost
        return None if len(rows) in (0, n) else cls(rows, views[0].labels, costs)

    def part(self, matrix: ChunkedMatrix) -> ChunkedMatrix:
        """These samples of a matrix of all."""
        return SelectedMatrix(matrix, self.rows)

    def weights(self, matrix: ChunkedMatrix, sample_weight: Any) -> Any:
        """The sample weights of all, (n,), 0 for the empty ones."""
        given = sample_weights(sample_weight, matrix)
        found = np.zeros(matrix.shape[0])
        found[self.rows] = 1.0 if given is None else given[self.rows]
        return of_some(sample_weight, found, np.arange(len(found)))

    def spread(self, rows: Array) -> Array:
        """(n, k) of all samples from those of the observed ones; NaN for the others."""
        found = np.full((len(self.everyone.samples), *rows.shape[1:]), np.nan, rows.dtype)
        found[self.rows] = rows
        return found

    def result(self, result: Any) -> Any:
        """The result over the labels of all samples, from that of the observed ones."""
        more: dict[str, Any] = {"labels": self.everyone}
        if isinstance(result, PrincipalComponents):
            more["fitted"] = np.zeros(len(self.everyone.samples), np.bool_)
            more["fitted"][self.rows] = True
        if getattr(result, "scores", None) is not None:
            more["scores"] = self.spread(np.asarray(result.scores))
        return replace(result, **more)


class LeavesOutEmptySamples(Estimator):
    """An estimator that is fitted without a field's samples that have no observation.

    They are looked for where the fit meets a hole that it refuses, and the fit begins again.
    """

    def _without_empty(self, X: Any, opened: Any, request: Any) -> ObservedSamples | None:
        field = request.missing == "raise" and is_field(X, opened.labels)
        return ObservedSamples.of([opened], self._running) if field else None

    def _bound_to(
        self, opened: Any, observed: ObservedSamples, *, sample_weight: Any = None, **side: Any
    ) -> tuple[ChunkedMatrix, Any]:
        """Side data are those of all samples, of which the empty ones have a weight of 0.

        The basis of a design is then 0 at the empty ones, and stays a basis without them.
        """
        part, rows = observed.part(opened), observed.rows
        weights = observed.weights(opened, sample_weight)
        request = self._request(opened, sample_weight=weights, **side)
        request.check(part.shape, least=0)
        whole = request.side
        weight = None if sample_weight is None else whole.sample_weight[rows]
        basis = None if whole.basis is None else whole.basis[rows]
        return part, request.bound(side=replace(whole, sample_weight=weight, basis=basis))

    def _of_all(self, result: Any, observed: ObservedSamples) -> Any:
        warn_of_empty(observed.everyone.samples, observed.rows)
        return observed.result(result)


def warn_of_empty(samples: AxisLabels, observed: Array) -> None:
    """Tell the caller of ``fit`` which samples are left out, and how many."""
    empty = np.setdiff1d(np.arange(len(samples)), observed)
    names = [samples.name(int(i)) for i in empty[:4]]
    warn_caller(
        f"{len(empty)} of {len(samples)} samples have no observation, and were left out of the "
        f"fit; their scores are NaN: {shorten(names, len(empty))}",
        EmptySamplesWarning,
    )


def _missing_by_sample(matrix: ChunkedMatrix, running: Running) -> tuple[Array, list[PassCost]]:
    """((n,) missing cells of every sample, cost): one pass along the more suitable axis."""
    kept, width = 8 * matrix.shape[0], matrix.shape[1]
    by_features = pass_spec(NAME, matrix, 1, {"rows": RowMissing()}, kept_nbytes=kept)
    by_samples = PassSpec(NAME, 0, 0, 0, lambda length: length * (width + 8), kept_nbytes=kept)
    by_axis = [
        Candidate(NAME, "", (spec,), solve=partial(_counted, n=matrix.shape[0]))
        for spec in (by_samples, by_features)
    ]
    running = replace(running, checkpoint=None)
    done = execute(choose_axis(matrix, by_axis, running.memory_limit), running)
    return done.answer, done.costs


def _counted(planned: Planned[Array], *, n: int) -> Steps[Array]:
    """(n,) missing cells of every sample."""
    (spec,) = planned.candidate.passes
    if spec.axis:
        counts: Array = (yield Pass(spec))["rows"].counts()
        return counts
    sink = MemorySink(n, 1, np.int64)
    yield Pass(spec, maps={"n": count_missing}, sinks={"n": sink})
    return sink.values[:, 0]


@dataclass(frozen=True)
class OfObserved(RowMap):
    """A map of the rows with an observation; NaN for the others."""

    rows: RowMap

    @property
    def width(self) -> int:
        """That of the map."""
        return self.rows.width

    def __call__(self, block: Block) -> Array:
        """(rows, width) of a block of samples."""
        try:
            return self.rows(block)
        except NonFiniteError:
            observed = np.flatnonzero(block.row_missing < block.shape[1])
            if len(observed) == block.length:
                raise
        if not len(observed):
            return np.full((block.length, self.width), np.nan, block.work_dtype)
        part = block.take_rows(observed)
        some = self.rows(replace(part, stop=block.start + len(observed)))
        found = np.full((block.length, self.width), np.nan, some.dtype)
        found[observed] = some
        return found

    def block_of(self, values: Any, missing_value: float | None) -> Block:
        """As the map."""
        return self.rows.block_of(values, missing_value)

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """As the map."""
        return self.rows.scratch_nbytes(matrix)

    def by_features(self) -> FeatureSums | None:
        """As the map, which refuses empty rows: :func:`scores_of_observed` leaves them out."""
        return self.rows.by_features()


def scores_of_observed(passes: RowPasses, rows: RowMap) -> Array:
    """(n, width) of such a map, also where features are streamed."""
    try:
        return passes.table("transform", rows, passes.dtype)
    except NonFiniteError:
        views = [passes.matrix]
        observed = ObservedSamples.of(views, passes.running) if passes.by_features else None
        if observed is None:
            raise
    mine = replace(passes, matrix=observed.part(passes.matrix))
    return observed.spread(mine.table("transform", rows, passes.dtype))


class ScoresEmptySamples(LeavesOutEmptySamples):
    """An estimator that gives NaN as the scores of a field's samples without any observation."""

    missing: str

    def _scores_map(self, X: Any, options: RowOptions) -> RowMap:
        scores_of = super()._scores_map(X, options)
        field = self.missing == "raise" and is_field(X, self._fitted().labels)
        return OfObserved(scores_of) if field else scores_of

    def _scored(self, rows: RowPasses, scores_of: RowMap) -> Array:
        if isinstance(scores_of, OfObserved):
            return scores_of_observed(rows, scores_of)
        return super()._scored(rows, scores_of)
