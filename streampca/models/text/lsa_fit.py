"""The fit of a latent semantic analysis: weights, decomposition and coordinates, as one candidate.

Passes are planned for counts that are weighted by 1, since their weights are not known yet. What
the later ones read is the matrix that the first have weighted.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import FeatureProjection
from streampca.errors import InvalidInputError, not_fitted
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, Preprocessing, RowLengths, RowTotals, work_dtype
from streampca.matrix.block import score_dtype
from streampca.models.contract.preprocessing import LogEntropy, Preprocessor, TermWeights, TfIdf
from streampca.models.contract.request import Request
from streampca.models.decompose.assemble import Fitted, assemble
from streampca.models.decompose.routes import pca_candidates
from streampca.models.results.projection import Projection
from streampca.models.results.row_maps import RowOptions, stored_rows, with_writing
from streampca.models.rows.line_sums import columns_planned, rows_planned, totals
from streampca.models.rows.new_rows import steps_left
from streampca.models.text.lsa_result import LSADecomposition
from streampca.passes import (
    Candidate,
    Pass,
    PassResult,
    PassSpec,
    Planned,
    Steps,
    easier_axis,
    pass_spec,
)
from streampca.sources.sparse.anndata import TOKENS
from streampca.store import MemorySink
from streampca.store.sinks import mark_written

WEIGHTINGS: dict[str, type[TermWeights]] = {"log-entropy": LogEntropy, "tf-idf": TfIdf}
OF_ROWS = (RowLengths, RowTotals)  # steps that need sums of the rows
ANY = sys.maxsize  # a limit of bytes: that of the fit concerns all passes together


@dataclass
class WeightedCounts:
    """Counts, and the passes that find how they are weighted.

    by : what fits weights to them; None if ``steps`` is known, the steps of a fitted weighting.
    columns, rows : passes for sums of columns and of rows.
    as_if : the weighted counts, before their weights are known.
    matrix : the weighted counts, lazily, once they are.
    """

    counts: ChunkedMatrix
    by: TermWeights | None
    steps: Preprocessing
    columns: list[Candidate[PassResult]] = field(default_factory=list)
    rows: list[Candidate[Array]] = field(default_factory=list)
    matrix: ChunkedMatrix | None = None

    @classmethod
    def of(cls, counts: ChunkedMatrix, weighting: Any) -> WeightedCounts:
        """weighting : as :class:`streampca.LSA` takes it. Raises InvalidInputError."""
        if isinstance(weighting, Preprocessor):
            if not weighting.__sklearn_is_fitted__():
                raise not_fitted(type(weighting).__name__)
            steps = weighting.preprocessing_
            steps = steps_left(counts.preprocessing, steps, counts.shape[1])
            return cls(counts, None, steps)
        if isinstance(weighting, str) and weighting == "raw":
            return cls(counts, None, Preprocessing())
        if not isinstance(weighting, str) or weighting not in WEIGHTINGS:
            raise InvalidInputError(
                f"weighting={weighting!r:.60}; expected 'log-entropy', 'tf-idf', 'raw', or a "
                "fitted streampca.preprocess.LogEntropy or TfIdf"
            )
        if counts.preprocessing:
            raise InvalidInputError(
                f"X has been weighted already ({counts.preprocessing}); give the counts, or "
                "weighting='raw'"
            )
        by, (n, p) = WEIGHTINGS[weighting](), counts.shape
        nothing = [np.zeros(p) for _ in by.summed(counts)]
        return cls(counts, by, by.steps_of(n, *nothing))

    def __post_init__(self) -> None:
        made = self.counts
        for name, summed in () if self.by is None else self.by.summed(self.counts):
            self.columns.append(_reading(summed, columns_planned(summed, name, ANY), name))
        for step in self.steps.steps:
            if isinstance(step, OF_ROWS):
                planned = rows_planned(made, isinstance(step, RowLengths), ANY)
                name = f"row sums {len(self.rows) + 1}" if self.rows else "row sums"
                self.rows.append(_reading(made, planned, name))
            made = _after(made, step, np.ones(made.shape[0]))
        self.as_if = made

    @property
    def passes(self) -> tuple[PassSpec, ...]:
        """All of them."""
        parts: list[Candidate[Any]] = [*self.columns, *self.rows]
        return tuple(spec for part in parts for spec in part.passes)

    def weighted(self, planned: Planned[Any]) -> Steps[ChunkedMatrix]:
        """The weighted counts, lazily; the passes for their weights are made once."""
        if self.matrix is not None:
            return self.matrix
        sums = []
        for column in self.columns:
            done = yield from _part(planned, column)
            sums.append(totals(done["columns"].columns()))
        steps = self.steps if self.by is None else self.by.steps_of(self.counts.shape[0], *sums)
        made, rows = self.counts, iter(self.rows)
        for step in steps.steps:
            needed = isinstance(step, OF_ROWS)
            of_rows = (yield from _part(planned, next(rows), made)) if needed else None
            made = _after(made, step, of_rows)
        self.matrix = made
        return made


def _reading(matrix: ChunkedMatrix, planned: Planned[Any], name: str) -> Candidate[Any]:
    """A candidate of one pass, as a part of others, under this name."""
    (spec,) = planned.candidate.passes
    return replace(planned.candidate, passes=(replace(spec, name=name, matrix=matrix),))


def _after(matrix: ChunkedMatrix, step: Any, sums: Array | None) -> ChunkedMatrix:
    """The matrix after a step.  sums : (n,) of its rows, where the step needs them."""
    found: Any = sums
    return Preprocessing((step,)).apply(matrix, lambda *_: found)


def _part(
    planned: Planned[Any], part: Candidate[Any], matrix: ChunkedMatrix | None = None
) -> Generator[Pass, PassResult, Any]:
    """The answer of a part of what is planned.  matrix : that its passes read, if another."""
    steps = part.solve(replace(planned, candidate=part))
    result: Any = None
    while True:
        try:
            wanted = steps.send(result)
        except StopIteration as done:
            return done.value
        result = yield wanted if matrix is None else replace(wanted, matrix=matrix)


def lsa_candidates(
    counts: WeightedCounts, request: Request, coordinates: str | None
) -> list[Candidate[LSADecomposition | Fitted]]:
    """The ways of a PCA of the weighted counts, those before, and the coordinates after it.

    coordinates : path of a new Zarr array for them; None: in memory.
    """
    documents = _documents_spec(counts.as_if, int(request.n_components or 0), coordinates)
    solve = partial(fit_lsa, documents=documents, counts=counts, request=request, path=coordinates)
    return [
        _composed(candidate, counts.passes, documents, solve)
        for candidate in pca_candidates(counts.as_if, request)
    ]


def _composed(
    first: Candidate[Any], before: tuple[PassSpec, ...], documents: PassSpec, solve: Any
) -> Candidate[Any]:
    then = None if first.then is None else _composed(first.then, (), documents, solve)
    passes = (*before, *first.passes, documents)
    return replace(first, passes=passes, then=then, solve=partial(solve, first=first))


def _documents_spec(weighted: ChunkedMatrix, k: int, coordinates: str | None) -> PassSpec:
    """The pass that finds U S, held in memory or written."""
    (n, p), row = weighted.shape, k * score_dtype(weighted.dtype)().itemsize
    kept: dict[str, Any] = {"kept_nbytes": 8 * k * p + n * row * (coordinates is None)}
    kept |= {"stored": True, "final": True}
    if easier_axis(weighted):
        sums = {"total": FeatureProjection(center=None, missing="raise", width=k)}
        return pass_spec("documents", weighted, 1, sums, **kept)
    scratch = Projection.needed(weighted, k)
    scratch = scratch if coordinates is None else with_writing(scratch, row)
    return PassSpec("documents", 0, 0, 0, scratch, **kept)


def fit_lsa(
    planned: Planned[Any],
    *,
    first: Candidate[Fitted],
    documents: PassSpec,
    counts: WeightedCounts,
    request: Request,
    path: str | None,
) -> Steps[LSADecomposition | Fitted]:
    """The result, without settings, plan and provenance; an answer in doubt as it is."""
    weighted = yield from counts.weighted(planned)
    fitted: Fitted = yield from _part(planned, first, weighted)
    if fitted.doubt and planned.then is not None:
        return fitted
    labels = weighted.labels
    described = {"method": "LSA", "n_samples": weighted.shape[0], "labels": labels}
    svd: Any = assemble(fitted, request, described, LSADecomposition)
    tokens = labels.attrs.get(TOKENS, "")
    result: LSADecomposition = replace(svd, scores=None, tokens=tokens)
    scores = yield from _coordinates(planned, documents, result, weighted, path)
    if path is None:
        return replace(result, scores=scores)
    mark_written(path, result.mark)
    return result


def _coordinates(
    planned: Planned[Any],
    spec: PassSpec,
    result: LSADecomposition,
    weighted: ChunkedMatrix,
    path: str | None,
) -> Steps[Array | None]:
    """(n, k) U S of all documents; None where they are written to a Zarr array."""
    shape, dtype = (weighted.shape[0], result.n_components), score_dtype(weighted.dtype)
    scores_of = result.scores_of(RowOptions())
    edges = planned.blocks(spec).edges if spec.axis == 0 else np.array([0, shape[0]])
    sink: Any = (
        MemorySink(*shape, dtype)
        if path is None
        else stored_rows(path, shape, edges, dtype=dtype, overwrite=False)
    )
    sums = scores_of.by_features() if spec.axis else None
    if sums is None:
        yield Pass(spec, matrix=weighted, maps={"rows": scores_of}, sinks={"rows": sink})
    else:
        settings = {name: getattr(sums.accumulator, name) for name in sums.accumulator.settings}
        changed = {"total": settings}
        done = yield Pass(spec, matrix=weighted, changed=changed, operands=sums.operands)
        eps = float(np.finfo(work_dtype(weighted.dtype)).eps)
        sink.write(0, np.asarray(sums.finish(done["total"], eps), dtype))
        sink.finish()
    return None if path is not None else np.asarray(sink.values)
