"""The n x n kernel matrix of samples in memory: the routes by which it is streamed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np

from streampca.accumulators import Gram
from streampca.errors import NonFiniteError
from streampca.kernels import Array, lower_product, probe, row_pieces, sum_error
from streampca.matrix import Block, ChunkedMatrix, Standardize, work_dtype
from streampca.models.decompose.eigenproblem import RowsSink, band_nbytes
from streampca.models.decompose.panels import panel_divisions
from streampca.models.kernel.functions import (
    SHIFTED,
    Kernel,
    Rows,
    refuse_asymmetric,
    refuse_holes,
    remedy_of_rounding,
    squares,
)
from streampca.models.kernel.request import (
    KernelEigenpairs,
    KernelRequest,
    sample_passes,
    with_width,
)
from streampca.passes import (
    Candidate,
    Pass,
    PassSpec,
    Planned,
    Steps,
    all_threads,
    easier_axis,
    pass_spec,
    single_threaded_blas,
)
from streampca.solvers import (
    certify,
    eigh_lower,
    numerical_rank,
    residual_norms,
    signs,
    solver_floor,
)
from streampca.sources.memory.objects import ObjectKernel
from streampca.store import MemorySink


@dataclass(frozen=True)
class KernelSums:
    """lower : (n, n), its lower triangle.  shift : (p,) taken off the rows.

    kernel : with its gamma.  lengths : (n,) squared, of the rows.  dtype : of the sums of their
    products.
    """

    kernel: Kernel
    lower: Array
    shift: Array
    lengths: Array
    dtype: np.dtype[Any]


LANCZOS = 40  # products that look for eigenvalues below 0
IN_WORK_DTYPE = ("linear", "function")  # others may lose what float32 products hold
TERMS = 1 << 14  # features whose products are added in the working dtype, about


def centred(lower: Array) -> Array:
    """Centre a kernel matrix in the feature space, K - 1K - K1 + 1K1, in place; its means (n,)."""
    means = np.asarray(lower_product(lower, np.ones((len(lower), 1)))[:, 0] / len(lower))
    mean = means.mean()
    for i, row in enumerate(lower):
        row[: i + 1] += mean - means[i] - means[: i + 1]
    return means


def _column_means(block: Block) -> Array:
    """(columns, 1) of a block of features without holes."""
    refuse_holes(block)
    return block.stats.mean[:, None]


def exact_candidates(
    matrix: ChunkedMatrix, request: KernelRequest
) -> list[Candidate[KernelEigenpairs]]:
    """The ways to the whole matrix in memory. A copy of rows that are in memory is counted."""
    (n, p), kernel, count = matrix.shape, request.kernel, request.count
    whole = count in (None, n)
    solve = {
        "kernel matrix": n * n * 8,
        "eigenproblem": 4 * n * n * 8 if whole else band_nbytes(n, (count or n) + 1),
        "eigenvectors": 3 * n * ((count or n) + 1) * 8,
        "eigenvalues below 0": 0 if kernel.definite else 2 * LANCZOS * n * 8,
        "training rows": p * n * 8 if matrix.given_nbytes else 0,
    }
    single = work_dtype(matrix.dtype) == np.float32 and kernel.name not in IN_WORK_DTYPE
    rows = kernel.whole_rows or kernel.name == "precomputed"
    rows |= single and easier_axis(matrix) == 0  # panels of rows are float64
    flops = (9.0 if whole else 4 / 3) * n**3
    return [
        Candidate(
            one.solver,
            one.reason,
            one.passes,
            solve,
            flops,
            solve=partial(exact, request=request, sums_of=one),
        )
        for name in (("rows",) if rows else tuple(WAYS))
        for one in WAYS[name](matrix, kernel)
    ]


def exact(
    planned: Planned[Any], *, request: KernelRequest, sums_of: Candidate[KernelSums]
) -> Steps[KernelEigenpairs]:
    """The eigenpairs of the kernel matrix in memory, all or the leading ones."""
    sums = yield from sums_of.solve(planned)
    kernel, lower, terms = sums.kernel, sums.lower, min(planned.matrix.shape[1], TERMS)
    with all_threads():
        _refuse_nonfinite(kernel, lower)
        error = matrix_error(kernel, lower, sums.lengths, sums.dtype, terms)
        means = centred(lower)
        lowest = 0.0 if kernel.definite else _lowest(lower)
        spectrum = eigh_lower(lower, request.count)
        residual = residual_norms(lower, spectrum)
    rank = numerical_rank(spectrum.values, len(means), error / 10.0)
    k = request.count or max(rank, 1)
    spectrum, floor = spectrum.head(k), solver_floor(spectrum.values, len(means))
    largest = float(spectrum.values[0])
    if kernel.name == "linear":
        error += product_error(sums.dtype, terms, sums.lengths, largest, spectrum.total)
    rounding = np.full(k, error)
    found = certify(residual[:k], spectrum, floor, 1.0, len(sums_of.passes), rank, rounding)
    doubt = ""
    if error > request.tol * largest and kernel.name not in AS_THEY_COME:
        doubt = _lost(kernel, sums.dtype, error, largest)
    return KernelEigenpairs(
        np.where(np.arange(k) < rank, spectrum.values, 0.0),
        spectrum.vectors * signs(spectrum.vectors.T @ probe(0, len(means))),
        means,
        sums.shift,
        kernel,
        found.angle_bound,
        found.variance_bound,
        lowest,
        doubt,
    )


def _refuse_nonfinite(kernel: Kernel, lower: Array) -> None:
    for rows in row_pieces(len(lower), 8 * len(lower)):
        if not np.isfinite(np.tril(lower[rows], rows.start)).all():
            raise NonFiniteError(
                f"the {kernel.name} kernel of some rows is infinite or NaN (gamma={kernel.gamma:g},"
                f" degree={kernel.degree:g}); rescale X, or give a whole degree and a smaller gamma"
            )


def _lost(kernel: Kernel, dtype: np.dtype[Any], error: float, largest: float) -> str:
    """What is not certain where rounding is not small compared with the largest eigenvalue."""
    return (
        f"{dtype} rounding of the {kernel.name} kernel may change its eigenvalues by {error:.1e}; "
        f"the largest one is {largest:.3g}. {remedy_of_rounding(dtype)}"
    )


def _lowest(lower: Array) -> float:
    """The least eigenvalue of a symmetric matrix, or little more: the least Ritz value of a Krylov
    space.

    Source: Parlett 1998, "The Symmetric Eigenvalue Problem", section 12.1.
    """
    n = len(lower)
    basis, images = np.zeros((min(n, LANCZOS), n)), np.zeros((min(n, LANCZOS), n))
    fresh = probe(0, n) - 1.0
    for i in range(len(basis)):
        for _ in (0, 1):
            fresh -= basis[:i].T @ (basis[:i] @ fresh)
        basis[i] = fresh / max(float(np.linalg.norm(fresh)), 1e-300)
        images[i] = fresh = lower_product(lower, basis[i][:, None])[:, 0]
    small = basis @ images.T
    return float(np.linalg.eigvalsh((small + small.T) / 2.0)[0])


def feature_candidates(matrix: ChunkedMatrix, kernel: Kernel) -> list[Candidate[KernelSums]]:
    """One pass over streamed features, whose products are summed."""
    n, p = matrix.shape
    gram = Gram(standardize=Standardize(center=kernel.name in SHIFTED))
    spec = pass_spec(
        "kernel", matrix, 1, {"gram": gram}, flops=float(n) * n * p, kept_nbytes=16 * p
    )
    sampled = sample_passes(matrix, kernel)
    solver = partial(by_features, kernel=kernel, sampled=sampled, spec=spec)
    reason = "one pass over features; n x n kernel, then eigh"
    return [Candidate("features", reason, (*sampled, spec), solve=solver)]


def by_features(
    planned: Planned[Any], *, kernel: Kernel, sampled: tuple[PassSpec, ...], spec: PassSpec
) -> Steps[KernelSums]:
    """The kernel matrix from the sums of products over features."""
    matrix = planned.matrix
    kernel = yield from with_width(matrix, kernel, sampled)
    means = MemorySink(matrix.shape[1], 1)
    made = yield Pass(spec, maps={"means": _column_means}, sinks={"means": means})
    lower = made.accumulators.pop("gram").lower()
    lengths = np.diagonal(lower).copy()
    for rows in row_pieces(len(lower), 8 * len(lower)):
        lower[rows] = kernel.of_products(lower[rows], lengths[rows], lengths)
    shift = means.values[:, 0] * (kernel.name in SHIFTED)
    return KernelSums(kernel, lower, shift, lengths, work_dtype(matrix.dtype))


Panel = tuple[PassSpec, PassSpec | None]  # that loads its rows, and that over the rows below


def row_candidates(matrix: ChunkedMatrix, kernel: Kernel) -> list[Candidate[KernelSums]]:
    """Streamed samples: a panel of rows is held in memory while the rows below it are read."""
    (n, p), sampled = matrix.shape, sample_passes(matrix, kernel)

    def spec(name: str, panel: int, *rows: int) -> PassSpec:
        return PassSpec(
            name,
            0,
            scratch=lambda length: 24 * length * (p + panel),
            rows=(rows[0], rows[1]),
            kept_nbytes=8 * (n * n + panel * (p + panel)),
            flops=2.0 * np.ptp(rows) * panel * p,
        )

    if kernel.name == "precomputed":
        whole = spec("panel 1", n, 0, n)
        solve = partial(precomputed, kernel=kernel, spec=whole)
        return [Candidate("rows", _by_panels(1), (whole,), solve=solve)]
    made = []
    for bounds in panel_divisions(matrix):
        longest, panels = int(np.diff(bounds).max()), list[Panel]()
        for i, (first, last) in enumerate(pairwise(map(int, bounds)), 1):
            below = spec(f"below panel {i}", longest, last, n) if last < n else None
            panels.append((spec(f"panel {i}", longest, first, last), below))
        specs = filter(None, chain.from_iterable(panels))
        solve = partial(by_rows, kernel=kernel, sampled=sampled, panels=panels)
        made.append(Candidate("rows", _by_panels(len(panels)), (*sampled, *specs), solve=solve))
    return made


def _by_panels(count: int) -> str:
    return f"n x n kernel by {count} panels of rows, {(count + 1) / 2:g} reads, then eigh"


def precomputed(planned: Planned[Any], *, kernel: Kernel, spec: PassSpec) -> Steps[KernelSums]:
    """The kernel matrix as it is read."""
    n = planned.matrix.shape[0]
    lower, shift, lengths = np.zeros((n, n)), np.zeros(n), np.zeros(n)
    yield Pass(spec, maps={"rows": Rows(shift, lower.dtype)}, sinks={"rows": RowsSink(lower, 0)})
    if not isinstance(planned.matrix, ObjectKernel):  # which has the lower triangle alone
        with single_threaded_blas():
            refuse_asymmetric(lower @ probe(0, n), probe(0, n) @ lower)
    return KernelSums(kernel, lower, shift, lengths, lower.dtype)


def by_rows(
    planned: Planned[Any], *, kernel: Kernel, sampled: tuple[PassSpec, ...], panels: list[Panel]
) -> Steps[KernelSums]:
    """The kernel matrix, filled panel by panel."""
    matrix = planned.matrix
    kernel = yield from with_width(matrix, kernel, sampled)
    (n, p), dtype = matrix.shape, np.dtype(np.float64)
    if kernel.name in IN_WORK_DTYPE:
        dtype = work_dtype(matrix.dtype)
    lower, shift, lengths = np.zeros((n, n)), np.zeros(p), np.zeros(n)
    for own, below in panels:
        first, last = own.rows or (0, n)
        panel = np.empty((last - first, p), dtype)
        yield Pass(own, maps={"rows": Rows(shift, dtype)}, sinks={"rows": RowsSink(panel, first)})
        if first == 0 and kernel.name in SHIFTED:
            shift = panel.mean(axis=0, dtype=np.float64).astype(dtype).astype(np.float64)
            panel -= shift.astype(dtype)
        lengths[first:last] = squares(panel)
        with single_threaded_blas():
            lower[first:last, first:last] = kernel.of_rows(panel, panel)
        if below is not None:
            yield Pass(
                below,
                maps={"kernel": Rows(shift, dtype, kernel)},
                sinks={"kernel": RowsSink(lower[last:, first:last], last)},
                operands={"panel": panel},
            )
    return KernelSums(kernel, lower, shift, lengths, dtype)


# to the kernel matrix, of streamed features or of streamed samples
WAYS: dict[str, Callable[[ChunkedMatrix, Kernel], list[Candidate[KernelSums]]]] = {
    "features": feature_candidates,
    "rows": row_candidates,
}


AS_THEY_COME = ("precomputed", "function")  # kernels whose values are taken as they come
UNIT = float(np.finfo(np.float64).eps)


def value_error(
    kernel: Kernel, values: Array, left: Array, right: Array, relative: float
) -> Array | float:
    """(a, b) bounds of the errors of kernel values; 0 for linear kernels, and for values that are
    taken as they come.

    left, right : squared lengths of the rows.  relative : error of an inner product, relative to
    the product of the lengths.
    """
    if kernel.name in ("linear", *AS_THEY_COME):
        return 0.0
    if kernel.name in ("cosine", "laplacian"):  # t exp(-t) is at most 1 / e
        return 2.0 * relative
    if kernel.name == "rbf":
        apart = 2.0 * relative * kernel.gamma * (left[:, None] + right)
        return np.asarray(np.minimum(values * np.expm1(np.minimum(apart, 700.0)), 1.0))
    inner = abs(kernel.gamma) * np.sqrt(np.multiply.outer(left, right))
    if kernel.name == "sigmoid":  # its slope is at most 1
        return np.asarray(np.minimum(relative * inner, 2.0))
    slope = abs(kernel.degree) * (inner + abs(kernel.coef0)) ** (kernel.degree - 1.0)
    return np.asarray(slope * relative * inner)


def matrix_error(
    kernel: Kernel, lower: Array, lengths: Array, dtype: np.dtype[Any], terms: int
) -> float:
    """A bound of |E|, the error of a kernel matrix (n, n) that is centred in float64.

    lower : its lower triangle.  lengths : (n,) squared, of its rows, products of which were summed
    in ``dtype`` over at most so many ``terms``. The error of a linear kernel's products is apart:
    :func:`product_error`.
    """
    relative, squares = sum_error(dtype, terms), 0.0
    for rows in row_pieces(len(lower), 24 * len(lower)):
        values = np.tril(lower[rows], rows.start)
        made = value_error(kernel, values, lengths[rows], lengths, relative)
        errors = np.tril(made + 4.0 * UNIT * np.abs(values), rows.start)
        squares += 2.0 * float(np.sum(errors**2))  # of both triangles
    return float(np.sqrt(squares))


def product_error(
    dtype: np.dtype[Any], terms: int, lengths: Array, largest: float, total: float
) -> float:
    """A bound of |E v| for products of rows that are not quite centred.

    largest, total : eigenvalue and trace of the centred matrix. What the mean of the rows adds to
    the trace, it adds to the norm at most so: |X| <= |centred X| + sqrt(n) |mean|.
    """
    whole = float(lengths.sum())
    mean = np.sqrt(max(whole - total, 0.0))
    return float(sum_error(dtype, terms) * np.sqrt(whole) * (np.sqrt(max(largest, 0.0)) + mean))
