"""PCA of rows that arrive over time: exact appending, merging and forgetting."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from streampca.accumulators import Scatter, TruncatedFactor
from streampca.errors import InvalidInputError, SourceError, not_fitted
from streampca.kernels import Array, reciprocal
from streampca.matrix import AxisLabels, ChunkedMatrix, Labels, Resolution
from streampca.matrix.labels import axis_to_saved, labels_from_saved, labels_to_saved
from streampca.models.contract import shared_parameters as shared
from streampca.models.contract.estimator import WeighsSamples
from streampca.models.contract.linear import LinearModel
from streampca.models.contract.parameters import parameter
from streampca.models.contract.registry import estimator
from streampca.models.contract.request import sample_weights
from streampca.models.decompose.assemble import assemble
from streampca.models.decompose.scatter import solve_accumulator
from streampca.models.pca.incremental_state import StateRequest, choose_append, state_kind
from streampca.models.pca.pca import PCA
from streampca.models.results.decomposition import Decomposition
from streampca.models.results.result import Result, provenance
from streampca.models.rows.new_rows import prepared
from streampca.models.side_data.feature_names import check_same_features, is_xarray, restacked
from streampca.models.side_data.row_weights import refuse_few, refuse_relative
from streampca.passes import Plan, execute
from streampca.solvers import check_n_components
from streampca.sources import as_matrix, counted
from streampca.store import read_bundle, understood, write_bundle

NO_SAMPLES = AxisLabels.plain("sample", 0)


@estimator
class IncrementalPCA(WeighsSamples, LinearModel):
    """PCA whose state is the accumulator itself: p x p, whatever the number of rows.

    Appending batches of any size, one row included, equals the batch fit to rounding; two
    fitted models merge exactly; rows can be removed again. New samples can be appended to this
    tall form only: a wide (n x n) Gram matrix would need products with all old rows, which
    means reading them again (``PCA`` does that).

    ``fit`` starts anew; ``partial_fit`` appends. The decomposition is made when it is first
    asked for after a change, from the state alone. ``save_state`` keeps the state, to append more
    rows in another process (``load_state``); ``save`` keeps the model alone, as of any PCA.

    Cost: one pass over each batch; p^2 float64 of state. Raises MemoryLimitError where the state
    does not fit, naming its size.
    Source: Chan, Golub and LeVeque 1983, eq. 2.1, for matrices.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import IncrementalPCA, PCA
    >>> X = np.random.default_rng(0).normal(size=(50, 4))
    >>> model = IncrementalPCA(2).partial_fit(X[:20]).partial_fit(X[20:])
    >>> bool(np.allclose(model.components_, PCA(2).fit(X).components_))
    True
    """

    n_components: int | float | str | None = parameter(
        default=None, kw_only=False, counts_components=True, meaning="as :class:`PCA`."
    )
    whiten: bool = shared.WHITEN
    copy: bool = shared.COPY
    batch_size: int | None = parameter(
        default=None,
        meaning="""most rows of a block, where stored chunks are no longer; None leaves it to the
            plan (about 16 MiB). It bounds memory; the result is the same to rounding.""",
    )
    state: str | None = parameter(
        default=None,
        meaning=""""scatter" (p x p sums of products; can ``forget``; None means it), "tsqr" (R
            factor; small singular values to 1e-14 of the largest) or "truncated"
            (``max_rows`` x p, for p too large for the others: ``state_bound_`` bounds what
            was cut off, for every eigenvalue).""",
    )
    max_rows: int = parameter(default=256, meaning="rows of the truncated state.")
    solver: str = parameter(
        default="auto",
        meaning="""the same choice in the words of :class:`PCA` and of dask-ml: "auto" (as
            ``state`` says), "covariance_eigh" or "scatter", "full" or "tsqr", "randomized"
            (the truncated state).""",
    )
    center: bool = shared.CENTER
    scale: str | None = shared.SCALE
    ddof: int = shared.DDOF
    missing: str = parameter(
        default="raise",
        choices=("raise", "mean"),
        meaning='"raise", or "mean": a hole holds its column\'s mean.',
    )

    # Taking in rows.

    def _plan_for(self, X: Any, dim: Any, **side: Any) -> Plan:
        """Of ``fit``, or of the next ``partial_fit``."""
        matrix, request = self._opened(X, dim), self._request()
        request.check_appending(matrix.shape)
        weights = sample_weights(side["sample_weight"], matrix)
        held = hasattr(self, "_accumulator")
        return choose_append(matrix, request, request.blank(), held=held, weights=weights).plan

    def _fit_to(self, X: Any, dim: Any, **side: Any) -> Self:
        """Discard the state, then add X. Equals a single ``partial_fit``."""
        sample_weight = side["sample_weight"]
        self._reset()
        self._take(X, dim, sample_weight)
        if not self._solvable():
            seen, weight = self._accumulator.count, self._accumulator.weight
            self._reset()
            if sample_weight is not None:
                refuse_few(np.array([weight]), self.ddof, f"ddof={self.ddof}")
            self._request().divisor(weight)
            check_n_components(self.n_components, seen, self.n_features_in_)
        self._solved: Decomposition | None = self._solve()
        return self

    def partial_fit(
        self, X: Any, y: Any = None, *, dim: Any = None, sample_weight: Any = None
    ) -> Self:
        """Add more rows, (n, p): one pass. If reading fails half-way, the state is unchanged.

        sample_weight : (rows,) how often each row counts, as :meth:`PCA.fit`. Refuses
            :func:`streampca.relative_weights`, which need the rows of all batches.
        """
        refuse_relative(sample_weight)
        return self._take(X, dim, sample_weight)

    def _take(self, X: Any, dim: Any, sample_weight: Any) -> Self:
        """Add rows, whatever their weights mean."""
        seen = hasattr(self, "_accumulator")
        batches = self._new_rows(None) if seen else None
        where = batches.dim_for(X) if batches is not None and dim is None else dim
        X = restacked(X, batches.features) if batches is not None and is_xarray(X) else counted(X)
        matrix = as_matrix(X, dim=where, missing_value=self.missing_value)
        matrix = self._prepared_batch(matrix) if seen else matrix
        request = self._request()
        request.check_appending(matrix.shape)
        weights = sample_weights(sample_weight, matrix)
        blank = request.blank()
        if batches is not None:
            matrix = batches.checked(X, matrix)
        planned = choose_append(matrix, request, blank, held=seen, weights=weights)
        self.plan_ = planned.plan
        outcome = execute(planned, self._running)
        done = outcome.answer["state"]
        resolution = Resolution.of(matrix.dtype)
        if not seen:
            self.n_features_in_ = matrix.shape[1]
            self._accumulator: Any = done
            self._resolution: Resolution = resolution
            self.dim_ = dim
            labels = matrix.labels  # sample dimensions only: each batch has its own rows
            samples = AxisLabels(labels.samples.dims, labels.samples.sizes)
            self._labels = replace(labels, samples=samples)
            self.cost_ = []
        else:
            self._accumulator.merge(done)
            self._resolution = self._resolution.joined(resolution)
        self.cost_ += outcome.costs
        self._solved = None
        return self

    def set_partial_fit_request(self, *, sample_weight: bool | str | None) -> Self:
        """As ``set_fit_request``, of ``partial_fit``."""
        return self._request_metadata("partial_fit", sample_weight)

    def merge(self, other: IncrementalPCA) -> Self:
        """Add all rows that ``other`` has seen, exactly; it stays. Raises InvalidInputError."""
        mine, theirs = self._require_state(), other._require_state()
        if self._state_settings() != other._state_settings():
            raise InvalidInputError(
                f"cannot merge states of {other._state_settings()} into {self._state_settings()}"
            )
        self._check_same_columns(other)
        mine.merge(theirs)
        self._resolution = self._resolution.joined(other._resolution)
        self._solved = None
        return self

    def forget(self, other: IncrementalPCA) -> float:
        """Remove the rows that ``other`` has seen, which must have been added to this model.

        Returns the certified loss: a bound on the error that the subtraction leaves in any
        variance, relative to the largest variance that remains. Forgetting all rows leaves an
        unfitted model. Needs state="scatter" and missing="raise".

        Raises InvalidInputError, and changes nothing, where count, sums or squares show that those
        rows were never added, or were forgotten before. They cannot show it if
        enough rows like those remain: see ``Scatter.forget``. Keep account of what was forgotten.
        """
        mine, theirs = self._require_state(), other._require_state()
        if not isinstance(mine, Scatter) or not isinstance(theirs, Scatter):
            raise InvalidInputError("forget needs IncrementalPCA(state='scatter', missing='raise')")
        self._check_same_columns(other)
        loss = mine.forget(theirs)  # all or nothing
        self._solved = None
        if mine.count == 0:
            self._reset()
        self.forget_loss_ = loss
        return loss

    # -- what it found --------------------------------------------------------------------------

    @property
    def result_(self) -> Decomposition:  # type: ignore[override]
        """The decomposition of all rows added so far, from the state; no data are read."""
        self._require_state()
        if self._solved is None:
            self._solved = self._solve()
        return self._solved

    @property
    def state_bound_(self) -> float:
        """How far any explained variance can lie above the one returned (0 for exact states)."""
        state = self._require_state()
        if not isinstance(state, TruncatedFactor):
            return 0.0
        return state.lost / self._request().divisor(state.weight)

    @property
    def n_samples_seen_(self) -> int:
        """Rows added so far."""
        return int(self._require_state().count)

    def error_under(self, result: Result) -> float:
        """Mean over its rows of ||x - reconstruction||^2 under another result, as that scales.

        From the state alone: no row is read again. Raises InvalidInputError for state="truncated".
        """
        state = self._require_state()
        if not isinstance(result, Decomposition):
            raise InvalidInputError(f"error_under needs a Decomposition; got a {result.kind}")
        if isinstance(state, TruncatedFactor):
            raise InvalidInputError("error_under needs state='scatter' or 'tsqr'")
        shift = np.asarray(state.mean) - result.mean
        if not self.center:
            raise InvalidInputError("error_under needs center=True")
        second = state.scatter() / state.weight + np.outer(shift, shift)
        if (divisors := result.divisors) is not None:
            inverse = reciprocal(divisors)
            second *= inverse[:, None] * inverse
        v = result.require_components()
        return max(float(np.trace(second) - np.einsum("ki,ij,kj->", v, second, v)), 0.0)

    def _solvable(self) -> bool:
        count, p = self._accumulator.count, self.n_features_in_
        wanted = self.n_components
        integer = isinstance(wanted, (int, np.integer))
        return self._accumulator.weight > self.ddof and (not integer or wanted <= min(count, p))

    def _solve(self) -> Decomposition:
        request = self._request()
        state = self._require_state()
        p = len(state.mean)
        request.divisor(state.weight)
        check_n_components(self.n_components, state.count, p)
        request.check_state()
        fitted = solve_accumulator(state, request, self._resolution, min(state.count, p))
        warned = self.__dict__.setdefault("_warned", set())  # once, not at every solution
        described = {
            "method": self.registered_name,
            "n_samples": state.count,
            "labels": self._labels,
            "settings": self.stored_params() | {"components": True},
            "provenance": provenance(self.cost_, ""),
        }
        return assemble(fitted, request, described, warned=warned)

    @classmethod
    def from_result(cls, result: Decomposition) -> PCA:
        """The components without the sums: a model to which no rows can be appended."""
        made: PCA = PCA.from_result(result)
        return made

    # -- at rest --------------------------------------------------------------------------------

    def save_state(self, path: str | os.PathLike[str]) -> Path:
        """Write the state, so that rows can be appended after ``load_state``, bit for bit."""
        return write_bundle(path, *self.state_to_saved())

    @classmethod
    def load_state(cls, path: str | os.PathLike[str]) -> IncrementalPCA:
        """The model that ``save_state`` wrote. Raises SourceError where it is damaged."""
        return cls.state_from_saved(*read_bundle(path), str(path))

    def state_to_saved(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """(arrays of the state's shapes, JSON-ready document), for a bundle."""
        arrays = {f"state-{k}": v for k, v in self._require_state().state().items()}
        columns, labels = labels_to_saved(replace(self._labels, samples=NO_SAMPLES))
        document = {
            "kind": "incremental state",
            "settings": self.stored_params(),
            "eps": self._resolution.eps,
            "work_dtype": str(self._resolution.work),
            "sample_dims": list(self._labels.samples.dims),
            "features": labels.pop("features"),
            "values": {name: value for name, value in labels.items() if name != "samples"},
        }
        return arrays | columns, document

    @classmethod
    def state_from_saved(
        cls, arrays: dict[str, Array], document: dict[str, Any], where: str
    ) -> IncrementalPCA:
        """The inverse of ``state_to_saved``, shapes too.  where : it lay. Raises SourceError."""
        if document.get("kind") != "incremental state":
            raise SourceError(f"{where} is not a saved IncrementalPCA state")
        with understood(where):
            return cls._of_state(arrays, document)

    @classmethod
    def _of_state(cls, arrays: dict[str, Array], document: dict[str, Any]) -> IncrementalPCA:
        model = cls.restored(document["settings"])
        state = {k[6:]: v for k, v in arrays.items() if k.startswith("state-")}
        model._accumulator = model._request().blank().from_state(state)
        p = len(model._accumulator.mean)
        dims = tuple(document["sample_dims"])
        model._labels = _labels_of(document, arrays, AxisLabels(dims, (0,) * len(dims)))
        model._resolution = Resolution(document["eps"], np.dtype(document["work_dtype"]))
        model.n_features_in_, model.cost_, model._solved = p, [], None
        return model

    # -- inside ---------------------------------------------------------------------------------

    def _reset(self) -> None:
        for name in ("_accumulator", "_solved", "_labels", "_resolution", "cost_", "_warned"):
            self.__dict__.pop(name, None)

    def _request(self) -> StateRequest:
        return StateRequest.of(self)

    def _require_state(self) -> Any:
        if not hasattr(self, "_accumulator"):
            raise not_fitted(type(self).__name__)
        return self._accumulator

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_accumulator")

    def _state_settings(self) -> tuple[Any, ...]:
        kind = state_kind(self.state, self.solver)
        return (kind, self.center, self.missing, self.max_rows if kind == "truncated" else 0)

    def _check_same_columns(self, other: IncrementalPCA) -> None:
        mine, theirs = self._labels.features, other._labels.features
        if len(mine) != len(theirs):
            raise InvalidInputError(f"{len(theirs)} features cannot join {len(mine)}")
        check_same_features(theirs, mine)
        here, there = self._labels.preprocessing, other._labels.preprocessing
        if (left := here.after(there)) is None or left:
            raise InvalidInputError(
                f"the rows of the two were not preprocessed alike ({here}; {there}). Fit one "
                "preprocessor, and give both models what it makes: weighting.transform(X)"
            )

    def _prepared_batch(self, matrix: ChunkedMatrix) -> ChunkedMatrix:
        """A further batch with the same preprocessing as the first one."""
        steps = self._labels.preprocessing
        if matrix.preprocessing and not steps:
            raise InvalidInputError(
                f"this batch was preprocessed ({matrix.preprocessing}), those before were not. "
                "Give all of them what one fitted preprocessor makes: weighting.transform(X)"
            )
        return prepared(matrix, steps, self.n_features_in_, self._running_once)

    def _labels_of_fit(self) -> Labels:
        return self._labels


def _labels_of(document: dict[str, Any], arrays: dict[str, Array], samples: AxisLabels) -> Labels:
    """Labels of a saved state; takes their arrays out of ``arrays``."""
    saved = {"samples": axis_to_saved(NO_SAMPLES, "samples")[1], "features": document["features"]}
    labels = labels_from_saved(saved | document["values"], arrays)
    return replace(labels, samples=samples)
