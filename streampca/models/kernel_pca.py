"""Kernel PCA, exact: principal components of the samples in the feature space of a kernel."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from streampca.errors import InvalidInputError, SourceError
from streampca.kernels import Array, probe
from streampca.matrix import Block, ChunkedMatrix, Labels
from streampca.models import shared_parameters as shared
from streampca.models.assemble import provenance
from streampca.models.estimator import Estimator
from streampca.models.kernel_matrix import (
    KERNELS,
    Kernel,
    Rows,
    centred,
    plan_kernel,
    squares,
    sum_kernel,
)
from streampca.models.parameters import Kept, parameter
from streampca.models.registry import estimator
from streampca.models.request import whole_number
from streampca.models.result import Result, shaped
from streampca.models.row_passes import RowMap, RowOptions, RowPasses, score_dtype
from streampca.passes import (
    Execution,
    Plan,
    all_threads,
    block_edges,
    easier_axis,
    warn_of_excess,
)
from streampca.passes.plan import BLOCK_NBYTES
from streampca.solvers import eigh_lower, numerical_rank, signs
from streampca.sources import as_matrix, counted


@dataclass(frozen=True)
class KernelScores(RowMap):
    """Scores of new rows: their kernel with the training rows, which are read block by block.

    training : None where the rows are kernels with the training rows already.
    vectors : (n, k) eigenvectors over the roots of their eigenvalues.  means : (n,) of the kernel.
    """

    kernel: Kernel
    training: ChunkedMatrix | None
    shift: Array
    vectors: Array
    means: Array

    @property
    def width(self) -> int:
        return int(self.vectors.shape[1])

    def __call__(self, block: Block) -> Array:
        rows = Rows(self.shift, np.dtype(np.float64))(block)
        out, total = np.zeros((len(rows), self.width)), np.zeros((len(rows), 1))
        for first, values in self._values(rows):
            out += values @ self.vectors[first : first + values.shape[1]]
            total += values.sum(axis=1, keepdims=True)
        sums = self.vectors.sum(axis=0)
        centre = (self.means.mean() - total / len(self.means)) * sums
        return np.asarray(out + centre - self.means @ self.vectors)

    def _values(self, rows: Array) -> Iterator[tuple[int, Array]]:
        """(first training row, values (rows, training rows of a block))."""
        if self.training is None:
            yield 0, rows
            return
        axis = 0 if self.kernel.function is not None else easier_axis(self.training)
        laid = self.training.streamed(axis, block_edges(self.training, axis))
        products, lengths = np.zeros((len(rows), len(self.means) * axis)), np.zeros(1)
        for block in map(laid.read_block, range(laid.n_blocks)):
            part = slice(block.start, block.stop) if axis == 1 else slice(None)
            known = Rows(self.shift[part], rows.dtype)(block)
            if axis == 0:
                yield block.start, self.kernel.of_rows(rows, known)
            else:
                products += rows[:, part] @ known.T
                lengths = lengths + squares(known)
        if axis == 1:
            yield 0, self.kernel.of_products(products, squares(rows), lengths)

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        return lambda length: length * 8 * (2 * matrix.shape[1] + 4 * len(self.means) + self.width)


@dataclass(frozen=True, repr=False, kw_only=True)
class KernelResult(Result, kind="kernel model"):
    """eigenvalues : (k,) of the centred kernel matrix.  eigenvectors : (n, k), unit columns.

    means : (n,) of the kernel matrix.  shift : (p,) taken off the rows before products.
    training_rows : (n, p) a copy; else ``source`` is the path of the rows, ``stamp`` their digest.
    """

    eigenvalues: Array = shaped("k")
    eigenvectors: Array = shaped(None, "k")
    means: Array = shaped(None)
    shift: Array = shaped("p")
    training_rows: Array | None = shaped(None, "p", optional=True)
    kernel: str
    gamma: float
    degree: float
    coef0: float
    source: str
    stamp: str
    training: Any = None  # the matrix of the fit and its kernel function, which are not saved
    function: Any = None

    @property
    def n_components(self) -> int:
        return len(self.eigenvalues)

    @property
    def fitted_scores(self) -> Array:
        """(n, k) of the rows of the fit."""
        return np.asarray(self.eigenvectors * np.sqrt(self.eigenvalues))

    @property
    def kept_nbytes(self) -> int:
        held = BLOCK_NBYTES if self.training_rows is None else self.training_rows.nbytes
        return 8 * (self.n_components + 1) * self.n_samples + 4 * held

    def scores_of(self, options: RowOptions) -> RowMap:
        if self.kernel == "function" and self.function is None:
            raise InvalidInputError("a saved model does not hold the function that is its kernel")
        kernel = Kernel(self.kernel, self.gamma, self.degree, self.coef0, self.function)
        roots = np.sqrt(self.eigenvalues)
        vectors = np.divide(self.eigenvectors, roots, out=np.zeros_like(self.eigenvectors),
                            where=roots > 0)  # fmt: skip
        return KernelScores(kernel, self._training(), self.shift, vectors, self.means)

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
        return f"component     eigenvalue\n{shown}"

    def to_saved(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """See :class:`Result`. Raises InvalidInputError where nothing tells the training rows."""
        if not self.source and self.training_rows is None and self.kernel != "precomputed":
            raise InvalidInputError(
                "the training rows of this model cannot be opened again by a path; fit with "
                "KernelPCA(keep_training='rows.zarr'), which writes a copy"
            )
        return super().to_saved()


@estimator
class KernelPCA(Estimator):
    """Principal components in the feature space of a kernel, from the whole n x n kernel matrix.

    Attributes
    ----------
    eigenvalues_ (k,) of the centred kernel matrix, eigenvectors_ (n, k); plan_, cost_, result_.

    Missing cells are refused. ``transform`` reads the training rows once for each block of new
    ones. It refuses training rows that have changed.
    Cost: n x n x 8 bytes, and 5 times that where all components are asked; one read of streamed
    features, (P + 1) / 2 reads of streamed samples by P panels of rows; 4/3 n^3 flops, or 9 n^3.
    Raises InvalidInputError, NonFiniteError (holes), MemoryLimitError.
    Source: Schoelkopf, Smola and Mueller 1998, Neural Computation 10(5), section 3 and appendix A.
    """

    n_components: int | None = parameter(
        default=None, kw_only=False, counts_components=True,
        meaning="k, at most n; None: all whose eigenvalue stands above rounding.",
    )  # fmt: skip
    kernel: Any = parameter(
        default="linear", kept=Kept.NAME,
        meaning="""a function of two rows (samples are streamed then), or "linear"; "poly":
            (gamma <x, y> + coef0)^degree; "rbf": exp(-gamma |x - y|^2); "sigmoid":
            tanh(gamma <x, y> + coef0); "cosine"; "precomputed": X is the kernel matrix.""",
    )  # fmt: skip
    gamma: float | None = parameter(default=None, meaning="of a kernel; None: 1 / features.")
    degree: float = parameter(default=3.0, meaning="of the polynomial kernel.")
    coef0: float = parameter(default=1.0, meaning="added by the polynomial and sigmoid kernels.")
    keep_training: str | None = parameter(
        default=None, kept=Kept.NOT, process=True,
        meaning="""path of a new Zarr array for a copy of the training rows, (n, p). None: the
            model refers to the path of X, or holds X where that is in memory.""",
    )  # fmt: skip
    memory_limit: int | str | None = shared.MEMORY_LIMIT
    scheduler: Any = shared.SCHEDULER
    threads: int | None = shared.THREADS
    progress: Any = shared.PROGRESS
    checkpoint: str | None = shared.CHECKPOINT

    def plan(self, X: Any, *, dim: Any = None) -> Plan:
        """What ``fit`` would do with X: passes, reads, memory. Reads nothing."""
        matrix = as_matrix(counted(X), dim=dim)
        return plan_kernel(matrix, self._kernel(matrix), self.n_components, self.memory_limit)

    def fit(self, X: Any, y: Any = None, *, dim: Any = None) -> Self:
        """Fit to X (n, p): anything that ``streampca.open`` takes. See the class for its cost."""
        matrix = as_matrix(counted(X), dim=dim)
        kernel = self._kernel(matrix)
        self.plan_ = plan = plan_kernel(matrix, kernel, self.n_components, self.memory_limit)
        execution = Execution.begun(plan, matrix, self.scheduler, self.progress, self.checkpoint)
        lower, shift = sum_kernel(plan, matrix, kernel, execution)
        execution.finished()
        with all_threads():
            means = centred(lower)
            spectrum = eigh_lower(lower, self.n_components)
        del lower  # n x n
        rank = numerical_rank(spectrum.values, len(means))
        k = self.n_components or max(rank, 1)
        values = np.where(np.arange(k) < rank, spectrum.values[:k], 0.0)
        vectors = spectrum.vectors[:, :k]
        vectors = vectors * signs(vectors.T @ probe(0, len(means)))
        self.cost_, self.dim_ = execution.costs, dim
        warn_of_excess(plan, execution.memory)
        training, source, rows = self._training(matrix, X)
        self.n_features_in_ = matrix.shape[1]
        self.result_: KernelResult = KernelResult(
            method=self.registered_name, n_samples=len(means), labels=matrix.labels,
            settings=self.stored_params(), plan=plan.to_dict(),
            provenance=provenance(self.cost_, matrix.fingerprint(), execution.memory),
            eigenvalues=values, eigenvectors=vectors, means=means, shift=shift,
            kernel=kernel.name, gamma=kernel.gamma, degree=kernel.degree, coef0=kernel.coef0,
            training_rows=rows, source=source, stamp=training.content_stamp(), training=training,
            function=kernel.function,
        )  # fmt: skip
        return self

    def fit_transform(self, X: Any, y: Any = None, *, dim: Any = None) -> Any:
        """Fit, and the scores of X, (n, k), which the fit has."""
        matrix = as_matrix(X := counted(X), dim=dim)
        scores = self.fit(X, dim=dim).result_.fitted_scores
        return self._wrap_scores(X, matrix, scores.astype(score_dtype(matrix.dtype), copy=False))

    @property
    def eigenvalues_(self) -> Array:
        """(k,) of the centred kernel matrix, descending."""
        return self.result_.eigenvalues

    @property
    def eigenvectors_(self) -> Array:
        """(n, k) unit columns."""
        return self.result_.eigenvectors

    def _kernel(self, matrix: ChunkedMatrix) -> Kernel:
        """The parameters, checked."""
        (n, p), k, name = matrix.shape, self.n_components, self.kernel
        if k is not None:
            whole_number("n_components", k, 1, n, beside="None or ")
        if not callable(name) and name not in KERNELS:
            raise InvalidInputError(f"kernel={name!r}; expected a function or one of {KERNELS}")
        if name == "precomputed" and n != p:
            raise InvalidInputError(f"a precomputed kernel of {n} x {p}; expected a square matrix")
        if callable(name) and easier_axis(matrix) == 1:
            raise InvalidInputError(
                "a function takes whole rows, and the chunks of X hold few features of many "
                "samples: streampca.convert(X, 'rows.zarr') first, or name a kernel"
            )
        gamma = 1.0 / p if self.gamma is None else float(self.gamma)
        known = ("function", name) if callable(name) else (name, None)
        return Kernel(known[0], gamma, float(self.degree), float(self.coef0), known[1])

    def _training(self, matrix: ChunkedMatrix, X: Any) -> tuple[ChunkedMatrix, str, Array | None]:
        """(training rows, the path that opens them or "", a copy if X is in memory)."""
        if self.keep_training is not None:
            copy = Rows(np.zeros(matrix.shape[1]), score_dtype(matrix.dtype))
            limits = (self.memory_limit, self.scheduler, self.progress)
            rows = RowPasses(matrix, RowOptions(), *limits, 0).mapped("training rows", copy)
            rows.written(self.keep_training, copy.width, copy.dtype, dims=("sample", "feature"))
            path = os.path.abspath(self.keep_training)
            return as_matrix(path), path, None
        if matrix.given_nbytes:
            held = matrix.streamed(0, np.array([0, len(matrix.labels.samples)])).read_block(0)
            return matrix, "", np.array(held.dense())
        path = X if isinstance(X, str) else "".join(matrix.paths()[:1])
        with contextlib.suppress(InvalidInputError, SourceError):
            found = _opened(path, matrix.labels)
            if found.content_stamp() == matrix.content_stamp():
                return matrix, path, None
        return matrix, "", None


def _opened(path: str, labels: Labels) -> ChunkedMatrix:
    return as_matrix(path, dim=list(labels.samples.dims) if labels.dims_named else None)
