"""The planned passes by which a fitted model is applied to rows: into a sink, or into sums."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator, FeatureProjection, Reconstruction
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, work_dtype
from streampca.models.fitted_views import FittedViews
from streampca.models.mapped_rows import MappedRows, plan_one_pass
from streampca.models.projection import BackProjection, Likelihood, Projection, score_dtype
from streampca.passes import Execution, PassResult, Plan, easier_axis, pass_spec, run
from streampca.store import ZarrSink


class RowPasses(FittedViews):
    """What a fitted result makes of rows, each by one planned pass over a matrix.

    Blocks of samples are mapped one by one. Where those would be huge, features are streamed, and
    what belongs to a row is summed up over all blocks.
    """

    whiten: bool
    missing: str
    missing_value: float | None
    memory_limit: int | str | None
    scheduler: Any
    progress: Any
    checkpoint: str | None

    # -- the maps -------------------------------------------------------------------------------

    def _projection(self, centre: bool = True) -> Any:
        """The map from rows to scores.  centre : False where blocks come without the mean."""
        return Projection.of(self._fitted(), self.whiten, self.missing, centre)

    def _back_projection(self, again: bool) -> BackProjection:
        """The map from scores to rows.  again : add what a design removed."""
        return BackProjection.of(self._fitted(), self.whiten, again)

    def _likelihood(self, centre: bool = True) -> Any:
        """The map from rows to their log-likelihood."""
        return Likelihood.of(self._fitted(), self.missing, centre)

    # -- what they give, by samples or by features ------------------------------------------------

    def _project(self, matrix: ChunkedMatrix, projection: Any) -> Array:
        """(n, k) in memory, by samples or, where blocks of samples would be huge, by features."""
        dtype = score_dtype(matrix.dtype)
        if easier_axis(matrix) == 1:
            return np.asarray(self._scores_by_features(matrix, projection), dtype=dtype)
        rows = self._mapped("transform", matrix, projection)
        return rows.in_memory(len(projection.components), dtype)

    def _transform_into(
        self,
        out: str | os.PathLike[str],
        overwrite: bool,
        matrix: ChunkedMatrix,
        projection: Any,
    ) -> Any:
        """The Zarr array of (n, k) scores, written block by block where samples are streamed."""
        n, k = matrix.shape[0], len(projection.components)
        dtype = score_dtype(matrix.dtype)
        if easier_axis(matrix) == 1:
            sink = ZarrSink(out, n, k, dtype, overwrite=overwrite)
            sink.write(0, self._project(matrix, projection))
            sink.finish()
            return sink.array
        rows = self._mapped("transform", matrix, projection)
        return rows.written(out, k, dtype, overwrite=overwrite)

    def _log_likelihoods(self, matrix: ChunkedMatrix) -> Array:
        """(n,) log-likelihoods, by samples or by features."""
        likelihood = self._likelihood(matrix.design is None)
        if easier_axis(matrix) == 1:
            return self._likelihood_by_features(matrix, likelihood)
        return self._mapped("score", matrix, likelihood).in_memory(1)[:, 0]

    def _errors(self, matrix: ChunkedMatrix) -> tuple[Array, int]:
        """((k + 1,) summed squared errors of 0, 1, ..., k components, rows): one pass."""
        if easier_axis(matrix) == 1:
            done = self._by_features("reconstruction", matrix)
            return done.errors(_eps(matrix)), matrix.shape[0]
        operands, settings = self._operands(matrix.design is None)
        total = self._fold("reconstruction", matrix, 0, Reconstruction(**settings), operands)
        return total.errors(), total.count

    def _scores_by_features(self, matrix: ChunkedMatrix, projection: Any) -> Array:
        """(n, k) float64 scores from a pass over blocks of features."""
        scores = self._by_features("transform", matrix).projected()
        if projection.whiten is not None:
            scores /= projection.whiten
        return scores

    def _likelihood_by_features(self, matrix: ChunkedMatrix, likelihood: Any) -> Array:
        """(n,) log-likelihoods from a pass over blocks of features."""
        done = self._by_features("score", matrix)
        return np.asarray(likelihood.of_parts(done.projected(), done.residuals(_eps(matrix))))

    def _by_features(self, name: str, matrix: ChunkedMatrix) -> FeatureProjection:
        """Scores and norms of all rows, from a pass over blocks of features."""
        operands, settings = self._operands(matrix.design is None)
        total = FeatureProjection(**settings)
        result: FeatureProjection = self._fold(name, matrix, 1, total, operands)
        return result

    def _operands(self, centre: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
        """Operands of a pass that projects, and the settings of its accumulator.

        centre : False where blocks come without the mean, and what else was removed.
        """
        result = self._fitted()
        operands: dict[str, Any] = {
            "components": result.projectors,
            "center": np.asarray(result.mean) if centre else np.zeros(result.n_features),
        }
        if result.divisors is not None:
            operands["scale"] = result.divisors
        settings = {
            "scale": "scale" if "scale" in operands else None,
            "missing": self.missing,
            "absent": tuple(result.dropped.tolist()),
            "width": result.n_components,
        }
        return operands, settings

    # -- one pass ---------------------------------------------------------------------------------

    def _fold(
        self, name: str, matrix: ChunkedMatrix, axis: int, total: Any, operands: dict[str, Any]
    ) -> Any:
        """One planned pass of one accumulator."""
        return self._fold_all(name, matrix, axis, {"total": total}, operands)["total"]

    def _fold_all(
        self,
        name: str,
        matrix: ChunkedMatrix,
        axis: int,
        accumulators: dict[str, Accumulator],
        operands: dict[str, Any],
    ) -> PassResult:
        """One planned pass of several accumulators."""
        kept = sum(int(one.nbytes) for one in operands.values())
        spec = pass_spec(name, matrix, axis, accumulators, kept_nbytes=kept, stored=True)
        plan = plan_one_pass(matrix, spec, self.memory_limit)
        execution = Execution.begun(plan, matrix, self.scheduler, self.progress)
        return run(plan.passes[0], matrix, operands=operands, execution=execution)

    def _mapped(
        self,
        name: str,
        matrix: ChunkedMatrix,
        function: Any,
        side_inputs: dict[str, Any] | None = None,
        stored: bool = True,
    ) -> MappedRows:
        """What a function makes of every block of samples, by one planned pass."""
        kept = 8 * self._fitted().n_components * self._fitted().n_features
        limits = (self.memory_limit, self.scheduler, self.progress)
        return MappedRows(name, matrix, function, kept, *limits, stored, side_inputs)

    def _begun(self, plan: Plan, matrix: ChunkedMatrix, whole: Plan | None = None) -> Execution:
        """How the passes of a fit are run: see :meth:`Execution.begun`."""
        return Execution.begun(
            plan, matrix, self.scheduler, self.progress, self.checkpoint, whole=whole
        )


def _eps(matrix: ChunkedMatrix) -> float:
    return float(np.finfo(work_dtype(matrix.dtype)).eps)
