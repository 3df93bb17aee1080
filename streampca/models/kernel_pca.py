"""Kernel PCA, exact: principal components of the samples in the feature space of a kernel."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from streampca.errors import AccuracyWarning, InvalidInputError, SourceError, warn_caller
from streampca.kernels import Array
from streampca.matrix import Block, ChunkedMatrix, Labels
from streampca.models import shared_parameters as shared
from streampca.models.assemble import provenance
from streampca.models.estimator import Estimator
from streampca.models.kernel_functions import (
    KERNELS,
    NEGATIVE,
    Kernel,
    KernelRequest,
    Rows,
    squares,
)
from streampca.models.kernel_routes import SOLVERS, fit_kernel, plan_kernel
from streampca.models.kernel_width import METRICS
from streampca.models.parameters import Kept, parameter
from streampca.models.registry import estimator
from streampca.models.request import seed_of
from streampca.models.result import Result, shaped
from streampca.models.row_passes import RowMap, RowOptions, RowPasses, score_dtype
from streampca.passes import (
    Execution,
    Plan,
    block_edges,
    easier_axis,
    warn_of_excess,
)
from streampca.passes.plan import BLOCK_NBYTES
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
        axis = 0 if self.kernel.whole_rows else easier_axis(self.training)
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

    angle_bound : (k,) radians by which each eigenvector may be off, pi/2 where its direction is not
    determined.  eigenvalue_bound : (k,).  lowest_eigenvalue : the least that was found, at least
    as high as the least of all; below 0 where the kernel is not positive semi-definite.
    means : (n,) of the kernel matrix.  shift : (p,) taken off the rows before products.
    gamma_found : how gamma was found, in words; "" where it was given.
    training_rows : (n, p) a copy; else ``source`` is the path of the rows, ``stamp`` their digest.
    """

    eigenvalues: Array = shaped("k")
    eigenvectors: Array = shaped(None, "k")
    angle_bound: Array | None = shaped("k", optional=True)
    eigenvalue_bound: Array | None = shaped("k", optional=True)
    lowest_eigenvalue: float = 0.0
    means: Array = shaped(None)
    shift: Array = shaped("p")
    training_rows: Array | None = shaped(None, "p", optional=True)
    kernel: str
    gamma: float
    gamma_found: str = ""
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
        width = f"\ngamma {self.gamma:.6g}, {self.gamma_found}" if self.gamma_found else ""
        below = self.lowest_eigenvalue < -NEGATIVE * max(self.eigenvalues.max(initial=0.0), 0.0)
        lowest = f"\nthe lowest is {self.lowest_eigenvalue:.6g}: not semi-definite" if below else ""
        return f"component     eigenvalue\n{shown}{width}{lowest}"

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
    """Principal components in the feature space of a kernel, whatever the number of samples.

    Attributes
    ----------
    eigenvalues_ (k,) of the centred kernel matrix, eigenvectors_ (n, k); gamma_; plan_, cost_;
    result_ with angle_bound (k,), eigenvalue_bound (k,) and lowest_eigenvalue.

    Missing cells are refused. ``transform`` reads the training rows once for each block of new
    ones. It refuses training rows that have changed. A component that is not certified gives an
    AccuracyWarning, with the bound of its angle.
    Cost: "exact": n x n x 8 bytes, and 5 times that where all components are asked; one read of
    streamed features, (P + 1) / 2 reads of streamed samples by P panels of rows; 4/3 n^3 flops, or
    9 n^3. "matrix-free": about 5 steps, each n^2 (p + 2 (k + 6)) flops, n^2 / 2 exponentials and
    a read, (P + 3) / 2 reads by P panels; up to 200 n (k + 6) bytes, and a panel. "scratch": n x n
    values on disk, and a read of them for each step.
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
            (gamma <x, y> + coef0)^degree; "rbf": exp(-gamma |x - y|^2); "laplacian":
            exp(-gamma sum |x_i - y_i|); "sigmoid": tanh(gamma <x, y> + coef0); "cosine";
            "precomputed": X is the kernel matrix.""",
    )  # fmt: skip
    gamma: float | str | None = parameter(
        default=None,
        meaning="""of a kernel; None: 1 / features. "median": 1 / (2 d^2) for "rbf", 1 / d for
            "laplacian", where d is the median distance between 1000 rows (fewer where they are
            long), drawn by ``random_state``.""",
    )  # fmt: skip
    degree: float = parameter(default=3.0, meaning="of the polynomial kernel.")
    coef0: float = parameter(default=1.0, meaning="added by the polynomial and sigmoid kernels.")
    keep_training: str | None = parameter(
        default=None, kept=Kept.NOT, process=True,
        meaning="""path of a new Zarr array for a copy of the training rows, (n, p). None: the
            model refers to the path of X, or holds X where that is in memory.""",
    )  # fmt: skip
    solver: str = parameter(
        default="auto", choices=SOLVERS,
        meaning=""""exact" (the n x n kernel matrix in memory), "matrix-free" (it is never stored:
            block Krylov steps on tiles that are computed, multiplied and dropped, until every
            component is certified), "scratch" (written once and read in every step, for wide
            rows), or "auto": "exact" where it fits the memory and is predicted to take 2 s, 10 s
            and 4 times the others, or 1.25 times that; "scratch" only where a folder is given.""",
    )  # fmt: skip
    scratch: str | None = parameter(
        default=None, kept=Kept.NOT, process=True,
        meaning="""folder for the n x n kernel matrix during a fit; the plan says its size. An
            interrupted fit finds it again; a finished one removes it.""",
    )  # fmt: skip
    tol: float = parameter(
        default=1e-4, meaning="""radians; "matrix-free" stops when the angle of every component is
        certified to it.""",
    )  # fmt: skip
    max_passes: int = parameter(default=12, meaning="""steps of "matrix-free", at most.""")
    random_state: Any = shared.RANDOM_STATE
    memory_limit: int | str | None = shared.MEMORY_LIMIT
    scheduler: Any = shared.SCHEDULER
    threads: int | None = shared.THREADS
    progress: Any = shared.PROGRESS
    checkpoint: str | None = shared.CHECKPOINT

    def plan(self, X: Any, *, dim: Any = None) -> Plan:
        """What ``fit`` would do with X: passes, reads, memory. Reads nothing."""
        matrix = as_matrix(counted(X), dim=dim)
        request = self._request(matrix, seed_of(self.random_state))
        return plan_kernel(matrix, request, self.solver, self.memory_limit)

    def fit(self, X: Any, y: Any = None, *, dim: Any = None) -> Self:
        """Fit to X (n, p): anything that ``streampca.open`` takes. See the class for its cost."""
        matrix = as_matrix(counted(X), dim=dim)
        request = self._request(matrix, seed_of(self.random_state))
        self.plan_ = plan = plan_kernel(matrix, request, self.solver, self.memory_limit)
        execution = Execution.begun(plan, matrix, self.scheduler, self.progress, self.checkpoint)
        found = fit_kernel(plan, matrix, request, execution)
        kernel = found.kernel
        self.cost_, self.dim_ = execution.costs, dim
        warn_of_excess(plan, execution.memory)
        for remark in filter(None, (found.doubt, found.cut())):
            warn_caller(remark, AccuracyWarning)
        training, source, rows = self._training(matrix, X)
        self.n_features_in_ = matrix.shape[1]
        self.result_: KernelResult = KernelResult(
            method=self.registered_name, n_samples=len(found.means), labels=matrix.labels,
            settings=self.stored_params() | {"random_state": request.seed}, plan=plan.to_dict(),
            provenance=provenance(self.cost_, matrix.fingerprint(), execution.memory),
            eigenvalues=found.values, eigenvectors=found.vectors, means=found.means,
            angle_bound=found.angle, eigenvalue_bound=found.error,
            lowest_eigenvalue=found.lowest, shift=found.shift,
            kernel=kernel.name, gamma=kernel.gamma, gamma_found=kernel.found,
            degree=kernel.degree, coef0=kernel.coef0,
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
    def gamma_(self) -> float:
        """Of the kernel, as it was used. ``result_.gamma_found`` says how "median" found it."""
        return self.result_.gamma

    @property
    def eigenvectors_(self) -> Array:
        """(n, k) unit columns."""
        return self.result_.eigenvectors

    def _request(self, matrix: ChunkedMatrix, seed: int) -> KernelRequest:
        """What is asked, checked."""
        if self.solver not in SOLVERS:
            raise InvalidInputError(f"solver={self.solver!r}; expected one of {SOLVERS}")
        if not isinstance(self.tol, (int, float)) or not 0 < self.tol < 1:
            raise InvalidInputError(f"tol={self.tol!r}; expected radians between 0 and 1")
        if not isinstance(self.max_passes, (int, np.integer)) or self.max_passes < 1:
            raise InvalidInputError(f"max_passes={self.max_passes!r}; expected 1 or more")
        kernel = self._kernel(matrix, seed)
        if self.solver == "scratch" and self.scratch is None:
            raise InvalidInputError("solver='scratch' needs a folder: scratch='/fast/disk'")
        steps, folder = int(self.max_passes), self.scratch
        return KernelRequest(kernel, self.n_components, self.tol, steps, seed, folder)

    def _kernel(self, matrix: ChunkedMatrix, seed: int) -> Kernel:
        """The parameters, checked."""
        (n, p), k, name = matrix.shape, self.n_components, self.kernel
        whole = k is None or (isinstance(k, (int, np.integer)) and not isinstance(k, bool))
        if not whole or (k is not None and not 1 <= k <= n):
            raise InvalidInputError(f"n_components={k!r}; expected None or a number from 1 to {n}")
        if not callable(name) and name not in KERNELS:
            raise InvalidInputError(f"kernel={name!r}; expected a function or one of {KERNELS}")
        if name == "precomputed" and n != p:
            raise InvalidInputError(f"a precomputed kernel of {n} x {p}; expected a square matrix")
        if callable(name) and easier_axis(matrix) == 1:
            raise InvalidInputError(
                "a function takes whole rows, and the chunks of X hold few features of many "
                "samples: streampca.convert(X, 'rows.zarr') first, or name a kernel"
            )
        known = ("function", name) if callable(name) else (name, None)
        shape = (float(self.degree), float(self.coef0), known[1])
        if self.gamma == "median":
            if name not in METRICS:
                raise InvalidInputError(
                    f"gamma='median' for kernel={name!r}; expected one of {tuple(METRICS)}, which "
                    "have a width, or a number"
                )
            return Kernel(known[0], np.nan, *shape, sampled=seed)
        if isinstance(self.gamma, str):
            raise InvalidInputError(f"gamma={self.gamma!r}; expected a number, 'median' or None")
        gamma = 1.0 / p if self.gamma is None else float(self.gamma)
        if name in METRICS and not gamma >= 0:
            raise InvalidInputError(f"gamma={gamma!r} for kernel={name!r}; expected 0 or more")
        return Kernel(known[0], gamma, *shape)

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
