"""Kernel PCA, exact: principal components of the samples in the feature space of a kernel."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from streampca.errors import AccuracyWarning, InvalidInputError, SourceError, warn_caller
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, Labels
from streampca.matrix.block import score_dtype
from streampca.models.contract.parameters import Kept, parameter
from streampca.models.contract.registry import estimator
from streampca.models.contract.request import whole_number
from streampca.models.decompose.routes import ordered
from streampca.models.kernel.functions import Kernel, Rows
from streampca.models.kernel.matrix import exact_candidates
from streampca.models.kernel.request import (
    NEGATIVE,
    KernelEigenpairs,
    KernelModelResult,
    KernelParameters,
    KernelRequest,
    check_count,
    checked_kernel,
    finite,
)
from streampca.models.kernel.scores import FixedPoints, KernelScores, PreImages, RidgePreImages
from streampca.models.kernel.scratch import scratch_candidates, stored_candidates
from streampca.models.kernel.tiles import matrix_free_candidates
from streampca.models.results.result import shaped
from streampca.models.results.row_maps import RowMap, RowOptions, RowPasses
from streampca.models.rows.labelled_rows import rows_of_scores
from streampca.passes import Candidate, Outcome, Rates
from streampca.passes.blocks import BLOCK_NBYTES
from streampca.report.presentation import Presentation
from streampca.sources import as_matrix, counted
from streampca.sources.memory.objects import ObjectKernel, objects_in


@dataclass(frozen=True, repr=False, kw_only=True)
class KernelResult(KernelModelResult, kind="kernel model"):
    """eigenvalues : (k,) of the centred kernel matrix.  eigenvectors : (n, k), unit columns.

    angle_bound : (k,) radians by which each eigenvector may be off, pi/2 where its direction is not
    determined.  eigenvalue_bound : (k,).  lowest_eigenvalue : an upper bound
    of the least of all; below 0 where the kernel is not positive semi-definite.
    means : (n,) of the kernel matrix.
    training_rows : (n, p) a copy; else ``source`` is the path of the rows, ``stamp`` their digest.
    """

    eigenvalues: Array = shaped("k")
    eigenvectors: Array = shaped(None, "k")
    angle_bound: Array | None = shaped("k", optional=True)
    eigenvalue_bound: Array | None = shaped("k", optional=True)
    lowest_eigenvalue: float = 0.0
    means: Array = shaped(None)
    training_rows: Array | None = shaped(None, "p", optional=True)
    source: str
    stamp: str
    training: Any = None  # the matrix of the fit, which is not saved

    @property
    def n_components(self) -> int:
        return len(self.eigenvalues)

    @property
    def fitted_scores(self) -> Array:
        """(n, k) of the rows of the fit."""
        return np.asarray(self.eigenvectors * np.sqrt(self.eigenvalues))

    def presentation(self) -> Presentation:
        variances = self.eigenvalues / max(self.n_samples, 1)
        return replace(
            super().presentation(),
            pictures="plots.scores, plots.pairs, plots.pcs or plots.spectrum",
            component="PC",
            scores=self.fitted_scores,
            deviations=np.sqrt(variances),
            variances=variances,
        )

    @property
    def kept_nbytes(self) -> int:
        held = BLOCK_NBYTES if self.training_rows is None else self.training_rows.nbytes
        return 8 * (self.n_components + 1) * self.n_samples + 4 * held

    def scores_of(self, options: RowOptions) -> RowMap:
        kernel = self.as_kernel()
        return KernelScores(kernel, self._training(), self.shift, self._vectors, self.means)

    def rows_of(self, method: str, alpha: float) -> PreImages:
        """What makes rows of scores. Raises InvalidInputError."""
        if method not in ("ridge", "fixed point"):
            raise InvalidInputError(f"method={method!r}; expected 'ridge' or 'fixed point'")
        if (training := self._training()) is None:
            raise InvalidInputError(
                "inverse_transform needs the training rows, and this kernel was precomputed"
            )
        kernel = self.as_kernel()
        if method == "ridge":
            ridge = finite("alpha", alpha)
            return RidgePreImages(kernel, training, self.fitted_scores, ridge)
        if self.kernel != "rbf":
            raise InvalidInputError(
                f"method='fixed point' is for kernel='rbf', and this is {self.kernel!r}: 'ridge'"
            )
        return FixedPoints(kernel, training, self.fitted_scores, self._vectors, self.shift)

    @property
    def _vectors(self) -> Array:
        """(n, k) eigenvectors over the roots of their eigenvalues, 0 where that is 0."""
        roots = np.sqrt(self.eigenvalues)
        return np.divide(
            self.eigenvectors, roots, out=np.zeros_like(self.eigenvectors), where=roots > 0
        )

    def _training(self) -> ChunkedMatrix | None:
        """The training rows, opened. Raises SourceError where they have changed."""
        if self.kernel == "precomputed":
            return None
        if self.training_rows is not None:
            return as_matrix(self.training_rows)
        found = self.training or _opened(self.source, self.labels)
        if found.content_stamp() != self.stamp:
            raise SourceError(
                f"the training rows of this model, {self.source or 'a lazy array'}, have changed "
                "since the fit; fit again, with keep_training='rows.zarr' to keep a copy"
            )
        return found

    def table(self, rows: int = 10) -> str:
        shown = "\n".join(f"{i + 1:>9} {v:>14.6g}" for i, v in enumerate(self.eigenvalues[:rows]))
        lines = [f"component     eigenvalue\n{shown}", *self.gamma_lines()]
        if self.lowest_eigenvalue < -NEGATIVE * max(self.eigenvalues.max(initial=0.0), 0.0):
            lines.append(f"the lowest is {self.lowest_eigenvalue:.6g}: not semi-definite")
        return "\n".join(lines)

    def to_saved(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """See :class:`Result`. Raises InvalidInputError where the training rows have no path."""
        if not self.source and self.training_rows is None and self.kernel != "precomputed":
            raise InvalidInputError(
                "the training rows of this model cannot be opened again by a path; fit with "
                "KernelPCA(keep_training='rows.zarr'), which writes a copy"
            )
        return super().to_saved()


SOLVERS = ("auto", "exact", "matrix-free", "scratch")
# what makes candidates -> the values of ``solver`` that take them
EXACT = {exact_candidates: ("auto", "exact")}
ITERATIVE = {
    matrix_free_candidates: ("auto", "matrix-free"),
    stored_candidates: ("auto", "matrix-free", "scratch"),
    scratch_candidates: ("auto", "scratch"),
}


@estimator
class KernelPCA(KernelParameters):
    """Principal components in the feature space of a kernel, whatever the number of samples.

    Attributes
    ----------
    eigenvalues_ (k,) of the centred kernel matrix, eigenvectors_ (n, k); gamma_; plan_, cost_;
    result_ with angle_bound (k,), eigenvalue_bound (k,) and lowest_eigenvalue.

    Missing cells are refused. ``transform`` reads the training rows once for each block of new
    ones. It refuses training rows that have changed. A component that is not certified gives an
    AccuracyWarning, with the bound of its angle.
    Cost: "exact": n x n x 8 bytes, and 5 times that for all components; one read of
    streamed features, (P + 1) / 2 reads of streamed samples by P panels of rows; 4/3 n^3 flops, or
    9 n^3. "matrix-free": about 5 steps, each n^2 (p + 2 (k + 6)) flops, n^2 / 2 exponentials and
    a read, (P + 3) / 2 reads by P panels; up to 200 n (k + 6) bytes, and a panel. "scratch": n x n
    values on disk, and a read of them for each step.
    Raises InvalidInputError, NonFiniteError (holes), MemoryLimitError.
    Source: Schoelkopf, Smola and Mueller 1998, Neural Computation 10(5), section 3 and appendix A.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import KernelPCA
    >>> angles = np.arange(40) * np.pi / 20
    >>> circle = np.column_stack([np.cos(angles), np.sin(angles)])
    >>> rings = np.vstack([circle, 4 * circle])  # no line separates them
    >>> scores = KernelPCA(1, kernel="rbf", gamma=0.3).fit_transform(rings)
    >>> bool(abs(scores[:40].mean() - scores[40:].mean()) > 0.8), bool(scores[:40].std() < 1e-6)
    (True, True)
    """

    n_components: int | None = parameter(
        default=None,
        kw_only=False,
        counts_components=True,
        meaning="k, at most n; None: all whose eigenvalue stands above rounding.",
    )
    kernel: Any = parameter(
        default="linear",
        kept=Kept.NAME,
        meaning="""a function of two rows (samples are streamed then), or of two objects where X is
            a list of them (strings, graphs), or "linear"; "poly":
            (gamma <x, y> + coef0)^degree; "rbf": exp(-gamma |x - y|^2); "laplacian":
            exp(-gamma sum |x_i - y_i|); "sigmoid": tanh(gamma <x, y> + coef0); "cosine";
            "precomputed": X is the kernel matrix.""",
    )
    alpha: float = parameter(default=1.0, meaning="ridge of ``inverse_transform``.")
    keep_training: str | None = parameter(
        default=None,
        kept=Kept.NOT,
        process=True,
        meaning="""path of a new Zarr array for a copy of the training rows, (n, p). None: the
            model refers to the path of X, or holds X where that is in memory.""",
    )
    solver: str = parameter(
        default="auto",
        choices=SOLVERS,
        meaning=""""exact" (the n x n kernel matrix in memory), "matrix-free" (it is never stored:
            block Krylov steps on tiles that are computed, multiplied and dropped, until every
            component is certified), "scratch" (written once and read in every step, for wide
            rows), or "auto": "exact" where it fits the memory and is predicted to take .2 s, 10 s
            and 4 times the others, or 1.25 times that; "scratch" only where a folder is given.""",
    )
    scratch: str | None = parameter(
        default=None,
        kept=Kept.NOT,
        process=True,
        meaning="""folder for the n x n kernel matrix during a fit; the plan says its size. An
            interrupted fit finds it again; a finished one removes it.""",
    )
    tol: float = parameter(
        default=1e-4,
        meaning="""radians; "matrix-free" stops when the angle of every component is
        certified to it.""",
    )
    max_passes: int = parameter(default=12, meaning="""steps of "matrix-free", at most.""")

    def fit(self, X: Any, y: Any = None, *, dim: Any = None) -> Self:
        """Fit to X (n, p): anything that ``streampca.open`` takes, or with a function as kernel a
        list of any n objects that it takes. See the class for its cost."""
        self.result_: KernelResult
        return self._fit_to(X, dim, path=X if isinstance(X, str) else "")

    def fit_transform(self, X: Any, y: Any = None, *, dim: Any = None) -> Any:
        """Fit, and the scores of X, (n, k), which the fit has: no further pass."""
        matrix = self._opened(X := counted(X), dim)
        scores = self.fit(X, dim=dim).result_.fitted_scores
        return self._wrap_scores(X, matrix, scores.astype(score_dtype(matrix.dtype), copy=False))

    def inverse_transform(
        self,
        X: Any,
        *,
        method: str = "ridge",
        out: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
    ) -> Any:
        """Rows (m, p) whose scores are near to X (m, k): pre-images, which are seldom exact.

        method : "ridge", kernel ridge regression of the training rows on their scores with
            ``alpha``, by the same kernel: scikit-learn's, which shrinks towards 0. "fixed point",
            for "rbf": the row whose image is nearest to the point of the feature space, sought
            from the training row with the nearest scores.
        out : path of a new Zarr array to write block by block. Lazy on Dask, labelled where X is.
        Cost: for every block of scores, one read of the training rows ("ridge"), or one for each
        step ("fixed point"); "ridge" takes 16 n^2 bytes and n^3 / 3 flops once.
        Raises InvalidInputError, MemoryLimitError; SourceError where training rows have changed.
        """
        result = self._result_as(KernelResult)
        back = result.rows_of(method, self.alpha)
        return rows_of_scores(
            result, self._passes, "inverse transform", X, back, out=out, overwrite=overwrite
        )

    @property
    def eigenvalues_(self) -> Array:
        """(k,) of the centred kernel matrix, descending."""
        return self.result_.eigenvalues

    @property
    def eigenvectors_(self) -> Array:
        """(n, k) unit columns."""
        return self.result_.eigenvectors

    # From data to the result

    def _request(self, matrix: ChunkedMatrix, *, seed: int = 0, path: str = "") -> KernelRequest:
        """The parameters, checked.  path : X, where it is one."""
        n, solver = matrix.shape[0], self.solver
        if solver not in SOLVERS:
            raise InvalidInputError(f"solver={solver!r}; expected one of {SOLVERS}")
        if not isinstance(self.tol, (int, float)) or not 0 < self.tol < 1:
            raise InvalidInputError(f"tol={self.tol!r}; expected radians between 0 and 1")
        check_count(self.n_components, n)
        if isinstance(matrix, ObjectKernel):  # half of it is computed, and it is held whole
            kernel = Kernel("precomputed", 1.0, float(self.degree), float(self.coef0))
            if solver not in ("auto", "exact"):
                raise InvalidInputError(
                    f"solver={solver!r} would compute the kernel of objects in every step: 'exact'"
                )
            solver = "exact"
        else:
            kernel = checked_kernel(self.kernel, self, matrix, seed)
        if solver == "scratch" and self.scratch is None:
            raise InvalidInputError("solver='scratch' needs a folder: scratch='/fast/disk'")
        steps = whole_number("max_passes", self.max_passes)
        return KernelRequest(
            kernel, self.n_components, self.tol, steps, seed, self.scratch, solver, path
        )

    def _candidates(
        self, matrix: ChunkedMatrix, request: KernelRequest
    ) -> list[Candidate[KernelEigenpairs]]:
        """Exact ways come first where they do not take far longer."""
        exact, iterative = (
            [
                one
                for make, solvers in ways.items()
                if request.solver in solvers
                for one in make(matrix, request)
            ]
            for ways in (EXACT, ITERATIVE)
        )
        if not exact and not iterative:
            raise InvalidInputError(
                f"solver={request.solver!r} finds fewer than n - 1 = {matrix.shape[0] - 1} "
                f"components, and n_components={request.count!r}; expected a smaller number, or "
                "solver='exact'"
            )
        rates = Rates.of(None)
        return ordered(rates.timed(matrix, exact), rates.timed(matrix, iterative))

    def _result(
        self, matrix: ChunkedMatrix, request: KernelRequest, done: Outcome[KernelEigenpairs]
    ) -> KernelResult:
        pairs = done.answer
        for remark in filter(None, (pairs.doubt, pairs.cut())):
            warn_caller(remark, AccuracyWarning)
        training, source, rows = self._training(matrix, request.path)
        return KernelResult(
            **self._described(matrix, done, random_state=request.seed),
            **pairs.kernel.fields(),
            **pairs.fields(),
            training_rows=rows,
            source=source,
            stamp=training.content_stamp(),
            training=training,
        )

    def _opened(self, X: Any, dim: Any) -> ChunkedMatrix:
        """X as rows, or the kernel matrix of objects that are none."""
        objects = objects_in(X) if callable(self.kernel) else None
        if objects is None:
            return X if isinstance(X, ObjectKernel) else super()._opened(counted(X), dim)
        if self.keep_training is not None:
            raise InvalidInputError(
                "keep_training= copies rows of numbers, and X is a list of objects: leave it out. "
                "The model holds them while it is in memory"
            )
        return ObjectKernel(self.kernel, objects)

    def _matrix(
        self, X: Any, dim: Any = None, remove: Any = None, of_fit: bool = False
    ) -> ChunkedMatrix:
        """New rows; of objects, their kernel with those of the fit."""
        result = self._fitted()
        named = isinstance(self.kernel, str)  # a function is not saved
        if not named and (objects := objects_in(X)) is not None:
            known = getattr(result, "training", None)
            if isinstance(known, ObjectKernel):
                return known.of_others(objects)
            raise InvalidInputError(
                "a saved model holds neither the objects of its fit nor their kernel: give its "
                "values, numpy.array([[kernel(a, b) for b in objects_of_fit] for a in X])"
            )
        return super()._matrix(X, dim, remove, of_fit)

    def _training(
        self, matrix: ChunkedMatrix, path: str
    ) -> tuple[ChunkedMatrix, str, Array | None]:
        """(training rows, the path that opens them or "", a copy if X is in memory)."""
        if self.keep_training is not None:
            copy = Rows(np.zeros(matrix.shape[1]), score_dtype(matrix.dtype))
            running = self._running_once
            rows = RowPasses(matrix, RowOptions(), running, 0).mapped("training rows", copy)
            rows.written(self.keep_training, copy.width, copy.dtype, dims=("sample", "feature"))
            path = os.path.abspath(self.keep_training)
            return as_matrix(path), path, None
        if matrix.given_nbytes:
            held = matrix.streamed(0, np.array([0, len(matrix.labels.samples)])).read_block(0)
            return matrix, "", np.array(held.dense())
        path = path or "".join(matrix.paths()[:1])
        with contextlib.suppress(InvalidInputError, SourceError):
            found = _opened(path, matrix.labels)
            if found.content_stamp() == matrix.content_stamp():
                return matrix, path, None
        return matrix, "", None


def _opened(path: str, labels: Labels) -> ChunkedMatrix:
    return as_matrix(path, dim=list(labels.samples.dims) if labels.dims_named else None)
