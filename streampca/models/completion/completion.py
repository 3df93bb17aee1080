"""What completions of any kind share: parameters, fit, what is filled in, recommendations."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Self

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix
from streampca.matrix.block import score_dtype
from streampca.models.completion.fit import Completed, complete
from streampca.models.completion.plan import completion_candidates
from streampca.models.completion.recommend import CHOICES, Ratings, judged, pairs_of
from streampca.models.completion.request import CompletionRequest, bounds_of, completion_request
from streampca.models.completion.result import (
    PENALTIES,
    CompletedDecomposition,
    result_of,
    warn_of_completion,
)
from streampca.models.completion.row_solve import FillHoles, HiddenErrors
from streampca.models.completion.saved import scratch_folder
from streampca.models.completion.trace import Sweep
from streampca.models.completion.withheld import Withhold
from streampca.models.contract import shared_parameters as shared
from streampca.models.contract.estimator import WeighsSamples
from streampca.models.contract.linear import LinearModel
from streampca.models.contract.parameters import Kept, declared, parameter
from streampca.models.contract.request import seed_of
from streampca.models.rows.labelled_rows import completed_like
from streampca.passes import Candidate, Outcome
from streampca.sources.dask.lazy import is_dask_array

HIDDEN = 0.2  # share of the observed cells by which a model is scored


def ways_to_complete(
    model: Any, matrix: ChunkedMatrix, request: CompletionRequest, scratch: str | None = None
) -> list[Candidate[Completed]]:
    """The candidates of a model whose request is a completion.

    scratch : where factors lie that do not fit the memory; None: in the checkpoint of the model, or
        in a temporary folder that goes when the model does.
    """
    folder = partial(scratch_folder, model, scratch or model.checkpoint)
    solve = partial(complete, request=request, checkpoint=model.checkpoint, scratch=folder)
    return completion_candidates(matrix, request, solve)


@declared
class Completion(WeighsSamples, LinearModel):
    """A low-rank model of a matrix with missing cells.

    A subclass has ranks and penalties, and says whether singular values are cut off or lowered.
    """

    missing = "mean"  # holes are expected
    whiten = False
    _soft = False
    rank: Any
    _scores: Any = None  # the scores of a fit whose factors are in a scratch store
    _known: Ratings | None = None  # of a fit of ratings, made at the first question

    solver: str = parameter(
        default="auto",
        meaning=""""als" solves rows and columns exactly in turn, which takes the fewest passes.
            "exact" is the classic iteration to the letter: fill the holes with the
            estimate, take the best approximation of rank r, from the p x p or n x n matrix
            of the filled data. "impute" is the same with one step of subspace iteration per
            pass, for any size; its fixed points are the same. "auto" is "als".""",
    )
    center: bool | str = parameter(
        default="auto",
        meaning="""True subtracts the mean of every column over its observed cells; False nothing.
            "biases" (solver "als", scale=None) is the model of ratings, x_ij = m + a_i +
            b_j + u_i'v_j: biases of rows and columns are solved for with the factors, drawn
            to 0 by ridges of their own, the noise over their variances in the first look.
            "fitted" makes means of columns a part of the model (solver "als"), so that they
            are those of the completed matrix. "both" centres rows and columns, by turns of
            one pass each, until all of their observed means are 0. After "biases" and
            "both" a new row has a level of its own, from what it observes. "auto" is
            "biases" with ``validation``, where solver and scale allow it; without,
            "fitted" for one rank and no penalty (means over observed cells are not those
            of the completed matrix); else True. A column without observations has the
            mean of all cells.""",
    )
    scale: str | None = parameter(
        default=None,
        meaning="""None, or "std": divide by the standard deviation of the observed cells; "both"
            (with center="both"): rows and columns by turns, until all of their mean squares
            are 1.""",
    )
    weights: Any = shared.WEIGHTS
    tol: float = parameter(
        default=1e-05,
        meaning="""the fit stops when a sweep changes neither the estimate (relative, Frobenius)
            nor the objective by more, or two sweeps the held-out error; then, or at
            ``max_passes`` with a ConvergenceWarning. Candidates that cannot have the least
            held-out error any more, at the rate at which theirs falls, leave the sweeps; with
            0 all are fitted to the end.""",
    )
    max_passes: int = parameter(
        default=100,
        meaning="""over the data, the first look included, and at most a third of them turns.""",
    )
    validation: Any = parameter(
        default=None,
        kept=Kept.NOT,
        meaning="""cells held out of the fit, to judge it by: a share of all cells (chosen by a
            hash of their place, so that the same cells are held out whatever the chunks), a
            boolean (n, p) mask, or (rows, columns). With them rank 0 is always a candidate
            (but with center="fitted"), and it is kept unless another one is better by more
            than the standard error of the difference. What is kept has not seen the cells
            that are held out; ``refit`` has.""",
    )
    early_stop: bool = parameter(
        default=False,
        meaning="""stop when the best held-out error has not fallen in the last two sweeps.""",
    )
    random_state: Any = parameter(
        default=0, meaning="seed of the held-out cells and of random first directions."
    )
    init: Any = parameter(
        default=None,
        kept=Kept.NOT,
        meaning="""(scores (n, r), loadings (p, r)) of a first estimate, in centred and scaled
            units, or anything fitted: "als" takes the loadings alone.""",
    )
    bounds: Any = parameter(
        default="observed",
        meaning="""of what ``impute`` and ``predict`` fill in: "observed", the least and the
            largest cell of the whole matrix that the fit has seen; None; or (low, high),
            such as (1, 5). Sweeps, scores and components do not know of them; held-out
            errors are those of what is filled in. May be changed after the fit.""",
    )
    absent: str = parameter(
        default="missing",
        meaning="""of sparse data, "missing" (a cell that is not stored was not observed; a stored
            zero is data) or "zero".""",
    )
    checkpoint: str | None = parameter(
        default=None,
        kept=Kept.NOT,
        process=True,
        meaning="""directory in which an interrupted fit leaves its state after every sweep, and
            within it; the same fit resumes there.""",
    )
    scratch: str | None = parameter(
        default=None,
        kept=Kept.NOT,
        process=True,
        meaning="""directory for the factors of the rows where they do not fit into the memory
            limit.""",
    )

    # -- fit ------------------------------------------------------------------------------------

    def refit(self, X: Any, *, tol: float = 1e-3, **options: Any) -> Self:
        """A new model of the rank and penalty that were kept, fitted to all of X, (n, p).

        It has seen the cells that were held out, too, and begins with this estimate.
        tol : of the new fit.  options : as for ``fit``, whose cost it has.
        """
        kept = self._fitted().settings
        chosen = {name: kept[name] for name in ("rank", "center", PENALTIES[self._soft])}
        changed = {"validation": None, "early_stop": False, "init": self, "tol": tol}
        return type(self)(**{**self.get_params(), **chosen, **changed}).fit(X, **options)

    def _opened(self, X: Any, dim: Any) -> ChunkedMatrix:
        """X; of a sparse one the cells that are not stored are missing, but with absent="zero"."""
        if self.absent not in ("missing", "zero"):
            raise InvalidInputError(f"absent={self.absent!r}; expected 'missing' or 'zero'")
        matrix: ChunkedMatrix = super()._opened(X, dim)
        return matrix.observed_only() if matrix.sparse and self.absent == "missing" else matrix

    def _request(
        self, matrix: ChunkedMatrix, *, sample_weight: Any = None, seed: int = 0
    ) -> CompletionRequest:
        return completion_request(self, matrix, sample_weight, seed)

    def _candidates(
        self, matrix: ChunkedMatrix, request: CompletionRequest
    ) -> list[Candidate[Completed]]:
        return ways_to_complete(self, matrix, request, self.scratch)

    def _result(
        self, matrix: ChunkedMatrix, request: CompletionRequest, done: Outcome[Completed]
    ) -> CompletedDecomposition:
        self.result_: CompletedDecomposition
        described = self._described(matrix, done, random_state=request.seed)
        result, self._scores = result_of(done.answer, matrix, described)
        warn_of_completion(done.answer)
        return result

    def _fitted(self) -> CompletedDecomposition:
        return self._result_as(CompletedDecomposition)

    # What the fit found.

    @property
    def best_rank_(self) -> int:
        """Of the candidate that is kept."""
        return self._fitted().n_components

    @property
    def best_penalty_(self) -> float:
        """Of the candidate that is kept."""
        return self._fitted().penalty

    @property
    def trace_(self) -> list[Sweep]:
        """Objective, change and held-out error of every sweep."""
        return self._fitted().trace

    @property
    def n_iter_(self) -> int:
        """Sweeps."""
        return len(self._fitted().provenance["trace"])

    @property
    def validation_(self) -> list[dict[str, Any]]:
        """Rank, penalty, held-out error and objective of every candidate."""
        return [dict(one) for one in self._fitted().provenance["validation"]]

    @property
    def turns_(self) -> list[float]:
        """How far each turn moved the effects of rows and columns; empty without turns."""
        return list(self._fitted().provenance.get("turns", ()))

    @property
    def bounds_(self) -> tuple[float, float] | None:
        """(low, high) of what is predicted, by ``bounds`` and the cells of the fit; or None."""
        return bounds_of(self.bounds, self._fitted().provenance.get("observed"))

    @property
    def lambda_max_(self) -> float:
        """The smallest penalty for which the first component of this estimate would be 0."""
        largest = float(self._fitted().singular_values.max(initial=0.0))
        return largest + (self.best_penalty_ if self._soft else 0.0)

    # -- rows -----------------------------------------------------------------------------------

    def impute(
        self,
        X: Any,
        *,
        dim: Any = None,
        out: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
    ) -> Any:
        """X with its holes filled, (n, p); what is observed stays as it is. Never a NaN.

        Imputed values stay within ``bounds_``, by default the smallest and largest cell of the
        fit; a row with observations outside them may be filled with values as extreme as its own.
        X : the data of the fit, or new rows.  out : path of a new Zarr array, written block by
            block; without it the result is in memory, as the kind of X.

        Cost: one pass, and memory of a few blocks with ``out``.
        """
        return self._filled(X, dim, out, overwrite)

    def _filled(
        self,
        X: Any,
        dim: Any = None,
        out: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        everywhere: bool = False,
    ) -> Any:
        """X with its holes filled, or all of its cells by the model."""
        matrix = self._matrix(X, dim)
        p, dtype = matrix.shape[1], score_dtype(matrix.dtype)
        widened = isinstance(self.bounds, str)
        filled = self._passes(matrix)
        solve = self._fitted().scores_of(filled.options)
        fill = FillHoles(solve, np.dtype(dtype), everywhere, self.bounds_, widened)
        rows = filled.mapped("impute", fill, stored=False)
        if out is not None:
            return rows.written(out, p, dtype, dims=("sample", "feature"), overwrite=overwrite)
        return completed_like(X, matrix, self._fitted().labels.features, rows.in_memory(p, dtype))

    @property
    def score_samples(self) -> Any:
        """A completion is no probability model: it has no such method. Raises AttributeError."""
        raise AttributeError(
            f"a {type(self).__name__} has no likelihood; fit streampca.PPCA, or take score(X)"
        )

    def score(self, X: Any, y: Any = None, *, remove: Any = None) -> float:
        """Minus the mean squared error of hidden cells of X; larger is better, as a search needs.

        A fifth of the observed cells, chosen by a hash of their place and ``random_state``, are
        hidden, and predicted by what the rest of their rows observe.

        X : (n, p), rows that the fit has not seen.
        Cost: one pass; memory of a few blocks. Raises InvalidInputError where no cell is hidden.
        """
        rows = self._passes(self._matrix(X, remove=remove))
        solve = self._fitted().scores_of(rows.options)
        fill = FillHoles(solve, np.dtype(np.float64), True, self.bounds_, False)
        hide = Withhold(HIDDEN, seed_of(self.random_state))
        squares, cells = rows.mapped("score", HiddenErrors(hide, fill)).in_memory(2).sum(axis=0)
        if not cells:
            raise InvalidInputError("X has too few observed cells to hide some; give more rows")
        return -float(squares / cells)

    def predict(self, rows: Any, columns: Any = None) -> Any:
        """(cells,) values of the model at these cells of the data of the fit, observed or not.

        They stay within ``bounds_``, like those of ``impute``.

        rows, columns : numbers from 0, of the same length. After a fit of ``open_ratings`` ids of
            users and items, or as ``rows`` alone a list of (user, item) pairs, or a frame with
            these columns: what is unknown is predicted by biases.  Or, instead of both, X: then
            all cells of these rows by the model, (n, p), where ``impute`` keeps what is observed.
        Cost: 2 r flops per cell; nothing is read, but for factors in a scratch store.
        """
        result = self._fitted()
        bounds = self.bounds_
        if result.of_ratings and (pairs := pairs_of(self._ratings(), rows, columns)) is not None:
            values = self._ratings().predict(*pairs)
            return values if bounds is None else np.clip(values, *bounds)
        if columns is None and is_dask_array(rows) and result.row_mean is None:
            lazy = self.inverse_transform(self.transform(rows))
            return lazy if bounds is None else lazy.clip(*bounds)
        if columns is None:
            return self._filled(rows, everywhere=True)
        rows, columns = np.atleast_1d(rows), np.atleast_1d(columns)
        values = result.cells(rows, columns, self._scores_at)
        return np.asarray(values if bounds is None else np.clip(values, *bounds))

    def _scores_at(self, rows: Array) -> Array:
        """(rows, r) scores of some rows of the fit."""
        scores = self._fitted().scores
        if scores is not None:
            return np.asarray(scores[rows])
        if self._scores is None:
            raise InvalidInputError(
                "the scores of this fit lay in a scratch store, which a saved model does not hold; "
                "use impute(X), or transform(X) and the components"
            )
        unique, place = np.unique(rows, return_inverse=True)
        return np.asarray(self._scores.get_orthogonal_selection((unique, slice(None))))[place]

    # -- ratings --------------------------------------------------------------------------------

    def _ratings(self) -> Ratings:
        result = self._fitted()
        if self._known is None or self._known.result is not result:
            self._known = Ratings(result, self._scores_at)
        return self._known

    def recommend(self, user: Any, n: int = CHOICES, *, seen: bool = False) -> Any:
        """The n items with the largest predictions for a user: [(item, prediction), ...].

        user : an id of ``open_ratings``; a list of ids, for {user: [(item, prediction), ...]}; or
            {item: rating, ...} of somebody who is not in the fit. An unknown id has the items that
            all like most, with an AbsentNamesWarning.
        seen : whether items that the user has rated in the fit may come too. Items without a
            rating never do. Predictions are ranked first and kept within ``bounds_`` then.

        Cost: r flops for each item and user; memory of 4 million predictions.
        """
        return self._ratings().recommend(user, n, seen, self.bounds_)

    def similar_items(self, item: Any, n: int = CHOICES) -> list[tuple[Any, float]]:
        """The n items that are liked by the same people: [(item, cosine), ...], the nearest first.

        Cosines between rows of V S, the loadings times the singular values.
        """
        return self._ratings().similar(item, n)

    def evaluate(
        self, ratings: Any, n: int = CHOICES, *, relevant: float | None = None
    ) -> dict[str, float]:
        """Errors and ranks on ratings that the fit has not seen, such as those of ``split``.

        Returns ``rmse`` and ``mae`` of all ratings, ``cold`` ratings among them (the user or the
        item is not in the fit); and the means over ``users`` of ``precision``, ``recall`` and
        ``ndcg`` of the n recommended items, those that the user rated in the fit left out.
        relevant : the least rating of an item that should be recommended; by default the mean of
            the fit. Users who gave none are not among ``users``.

        Cost: one pass over the ratings; r flops for each item and user. Source: Jarvelin and
        Kekalainen 2002, ACM TOIS 20:422, with gains of 1.
        """
        return judged(self._ratings(), ratings, n, relevant, self.bounds_)
