"""Kernels of rows, and the rows that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import Block, ChunkedMatrix, select
from streampca.models.contract import shared_parameters as shared
from streampca.models.contract.estimator import Estimator
from streampca.models.contract.parameters import declared, parameter
from streampca.models.contract.request import whole_number
from streampca.models.decompose.panels import feature_products
from streampca.models.results.result import Result, shaped
from streampca.models.results.row_maps import RowMap
from streampca.passes import Pass, PassSpec, Steps, easier_axis
from streampca.store import MemorySink

KERNELS = ("linear", "poly", "rbf", "laplacian", "sigmoid", "cosine", "precomputed")
NEGATIVE = 1e-5  # of the largest eigenvalue: less is rounding
SYMMETRIC = 1e-5  # of the length of K v: as much as K'v may differ
SHIFTED = ("linear", "rbf")  # products may be of shifted rows


@dataclass(frozen=True)
class Kernel:
    """k(x, y) of rows.

    function : of two rows, where ``name`` is "function".
    sampled : seed of the rows whose distances give gamma, which is not known yet; or None.
    gamma_note : how the data gave gamma, in words; "" where the user chose it.
    """

    name: str
    gamma: float
    degree: float
    coef0: float
    function: Callable[..., float] | None = None
    sampled: int | None = None
    gamma_note: str = ""

    @classmethod
    def of_result(cls, result: KernelModelResult) -> Kernel:
        """That of a fitted model. Raises InvalidInputError where a function was not saved."""
        if result.kernel == "function" and result.function is None:
            raise InvalidInputError("a saved model does not hold the function that is its kernel")
        return cls(result.kernel, result.gamma, result.degree, result.coef0, result.function)

    def fields(self) -> dict[str, Any]:
        """Those of a :class:`KernelModelResult`."""
        return {
            "kernel": self.name,
            "gamma": self.gamma,
            "gamma_found": self.gamma_note,
            "degree": self.degree,
            "coef0": self.coef0,
            "function": self.function,
        }

    @property
    def whole_rows(self) -> bool:
        """Whether it does not follow from inner products."""
        return self.name in ("function", "laplacian")

    @property
    def definite(self) -> bool:
        """Whether its matrix is positive semi-definite, whatever the rows."""
        if self.name == "poly":
            return self.degree == int(self.degree) and self.coef0 >= 0 and self.gamma >= 0
        return self.name in ("linear", "rbf", "laplacian", "cosine")

    def of_rows(self, x: Array, y: Array) -> Array:
        """(len(x), len(y)) values, float64."""
        if self.function is not None:
            call = self.function
            return np.array([[float(call(a, b)) for b in y] for a in x])
        if self.name == "laplacian":
            distances = scipy.spatial.distance.cdist(x, y, "cityblock")
            return np.asarray(np.exp(-self.gamma * distances))
        return self.of_products(feature_products(x, y), squares(x), squares(y))

    def of_products(self, products: Array, left: Array, right: Array) -> Array:
        """The same from inner products (a, b) and the squared lengths of the rows."""
        if self.name == "rbf":
            distances = left[:, None] + right - 2.0 * products
            return np.asarray(np.exp(-self.gamma * np.maximum(distances, 0.0)))
        if self.name == "cosine":
            lengths = np.sqrt(np.multiply.outer(left, right))
            return np.asarray(products / np.where(lengths > 0, lengths, 1.0))
        if self.name == "linear":
            return products
        inner = self.gamma * products + self.coef0
        with np.errstate(invalid="ignore", over="ignore"):  # the caller refuses them
            return np.asarray(np.tanh(inner) if self.name == "sigmoid" else inner**self.degree)

    # -- tiles, in the dtype of the rows -----------------------------------------------------------

    def prepared(self, rows: Array) -> Array:
        """Rows as ``tile`` takes them: of length 1 for the cosine."""
        if self.name != "cosine":
            return rows
        lengths = np.sqrt(squares(rows))
        return np.asarray(rows / np.where(lengths > 0, lengths, 1.0).astype(rows.dtype)[:, None])

    def tile(self, x: Array, y: Array, left: Array, right: Array) -> Array:
        """(len(x), len(y)) values of prepared rows.  left, right : their squared lengths."""
        single = x.dtype == np.float32
        if self.function is not None or (self.name == "laplacian" and not single):
            return self.of_rows(x, y).astype(x.dtype, copy=False)
        if self.name == "laplacian":
            from streampca.kernels.kernel_values import laplacian

            out = np.empty((len(x), len(y)), x.dtype)
            laplacian(x, np.ascontiguousarray(y.T), x.dtype.type(self.gamma), out)
            return out
        products = np.asarray(x @ y.T)
        if self.name == "rbf" and single:
            from streampca.kernels.kernel_values import gaussian

            gaussian(products, left, right, x.dtype.type(self.gamma))
        elif self.name == "rbf":
            products *= -2.0
            products += left[:, None]
            products += right
            np.maximum(products, 0.0, out=products)
            products *= -self.gamma
            np.exp(products, out=products)
        elif self.name in ("poly", "sigmoid"):
            products *= self.gamma
            products += self.coef0
            products = np.tanh(products) if self.name == "sigmoid" else products**self.degree
        return products

    def exact(self, x: Array, y: Array) -> Array:
        """(len(x), len(y)) values of prepared rows in float64, distances from differences."""
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        if self.name == "rbf":
            apart = scipy.spatial.distance.cdist(x, y, "sqeuclidean")
            return np.asarray(np.exp(-self.gamma * apart))
        return self.of_rows(x, y)

    def diagonal(self, rows: Array) -> Array:
        """(len(rows),) k(x, x) of prepared rows."""
        if self.name in ("rbf", "laplacian"):
            return np.ones(len(rows))
        if self.function is not None:
            return np.array([float(self.function(one, one)) for one in rows])
        inner = squares(rows)
        return inner if self.name == "cosine" else self.of_products(inner, inner, inner)


@dataclass(frozen=True, repr=False, kw_only=True)
class KernelModelResult(Result):
    """A model in the feature space of a kernel.

    gamma_found : how the data gave gamma, in words; "" where the user chose it.
    shift : (p,) taken off the rows before products.
    function : the kernel, where it is a function; it is not saved.
    """

    kernel: str
    gamma: float
    gamma_found: str = ""
    degree: float
    coef0: float
    shift: Array = shaped("p")
    function: Any = None

    def gamma_lines(self) -> list[str]:
        """A line on gamma, where the data gave it."""
        return [f"gamma {self.gamma:.6g}, {self.gamma_found}"] if self.gamma_found else []


@dataclass(frozen=True)
class Rows(RowMap):
    """Shifted rows of a block, or their kernel with the rows of a panel."""

    shift: Array
    dtype: Any
    kernel: Kernel | None = None

    @property
    def width(self) -> int:
        return len(self.shift)

    def __call__(self, block: Block) -> Array:
        refuse_holes(block)
        rows = np.asarray(block.dense(), self.dtype) - self.shift.astype(self.dtype)
        return rows if self.kernel is None else self.kernel.of_rows(rows, block["panel"])

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        return lambda length: 3 * length * self.width * 8


def squares(rows: Array) -> Array:
    """(len(rows),) squared lengths, float64."""
    return np.asarray(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))


def refuse_holes(block: Block) -> None:
    if (holes := np.flatnonzero(block.stats.missing)).size:
        lost = int(block.stats.missing.sum())
        raise block.refuse_missing(holes, lost, block.shape[0] * len(holes) - lost)


def refuse_asymmetric(image: Array, transposed: Array) -> None:
    """Raise InvalidInputError where K v and K'v (n,) differ."""
    length = float(np.linalg.norm(image))
    apart = float(np.linalg.norm(image - transposed)) / max(length, 1e-300)
    if apart > SYMMETRIC:
        raise InvalidInputError(
            f"the precomputed kernel is not symmetric: K v and K'v differ by {apart:.1e} of "
            "their length. Expected the values of all pairs; (K + K') / 2 is symmetric"
        )


@dataclass(frozen=True)
class KernelRequest:
    """A kernel PCA as it was requested, checked.

    count : components, or None for all.  tol : radians.  steps : at most.
    scratch : folder for a kernel matrix, or None.  solver : one of SOLVERS.
    path : of the rows, where X is one.
    """

    kernel: Kernel
    count: int | None
    tol: float = 1e-4
    steps: int = 12
    seed: int = 0
    scratch: str | None = None
    solver: str = "auto"
    path: str = ""

    def iterates(self, n: int) -> bool:
        """Whether an iteration can give as many components, of n samples."""
        return self.count is not None and self.count + 1 < n


@dataclass(frozen=True)
class KernelEigenpairs:
    """Leading eigenpairs of a centred kernel matrix.

    Its arrays are those of the result: see :class:`KernelResult`.
    doubt : what is not certain, in words.
    """

    eigenvalues: Array
    eigenvectors: Array
    means: Array
    shift: Array
    kernel: Kernel
    angle_bound: Array
    eigenvalue_bound: Array
    lowest_eigenvalue: float
    doubt: str = ""

    def fields(self) -> dict[str, Any]:
        """Those of a result."""
        return {name: one for name, one in vars(self).items() if name not in ("kernel", "doubt")}

    def cut(self) -> str:
        """A sentence on wanted components whose eigenvalues lie below 0; "" without."""
        values, lowest = self.eigenvalues, self.lowest_eigenvalue
        largest = float(values.max(initial=0.0))
        if self.kernel.definite or values.all() or not -lowest > NEGATIVE * largest:
            return ""
        return (
            f"the {self.kernel.name} kernel is not positive semi-definite here: of "
            f"{len(values)} components {np.count_nonzero(values)} have an eigenvalue "
            f"above 0; the lowest is {lowest:.3g}, the largest {largest:.3g}. Those below "
            "0 are no directions in a feature space and have no scores; ask for fewer components"
        )


def remedy_of_rounding(dtype: np.dtype[Any]) -> str:
    """Why products of rows lose what tells the rows apart, and what helps."""
    repair = "take off X what all rows share, or rescale it"
    if dtype == np.float32:
        repair = "convert with X.astype('float64')"
    return f"Rows are long compared with their distances, or equal: {repair}"


METRICS = {"rbf": "euclidean", "laplacian": "cityblock"}  # kernels that have a width
SAMPLED = 1000  # rows
SAMPLED_NBYTES = 32 << 20  # of them, at most


def sampled_rows(matrix: ChunkedMatrix, seed: int) -> Array:
    """The numbers of the rows whose distances are taken, increasing."""
    n, p = matrix.shape
    m = min(n, SAMPLED, max(2, SAMPLED_NBYTES // (8 * p)))
    return np.sort(np.random.default_rng(seed).choice(n, m, replace=False))


def sample_passes(matrix: ChunkedMatrix, kernel: Kernel) -> tuple[PassSpec, ...]:
    """The pass over the sampled rows; none where gamma is known.

    Chunks without such a row are not read.
    """
    if kernel.sampled is None:
        return ()
    some = select(matrix, samples=sampled_rows(matrix, kernel.sampled))
    m, p = some.shape
    scratch = Rows(np.zeros(p), np.dtype(np.float64)).scratch_nbytes(some)
    spec = PassSpec(
        "sample",
        0,
        scratch=scratch,
        kept_nbytes=8 * m * (p + m),
        matrix=some,
        flops=1.5 * m * m * p,
    )
    return (spec,)


def with_width(
    matrix: ChunkedMatrix, kernel: Kernel, passes: tuple[PassSpec, ...]
) -> Steps[Kernel]:
    """The kernel with its gamma.

    passes : those of :func:`sample_passes`.
    The width is the median distance d between two sampled rows: gamma is 1 / (2 d^2) of Euclidean
    distances, 1 / d of those of the laplacian kernel.
    Raises InvalidInputError where d is 0.
    Source: Garreau, Jitkrittum and Kanagawa 2017, "Large sample analysis of the median heuristic",
    section 1.
    """
    if not passes:
        return kernel
    (spec,) = passes
    assert spec.matrix is not None
    sink = MemorySink(*spec.matrix.shape, np.float64)
    rows = Rows(np.zeros(matrix.shape[1]), np.dtype(np.float64))
    yield Pass(spec, maps={"rows": rows}, sinks={"rows": sink})
    distances = scipy.spatial.distance.pdist(sink.values, METRICS[kernel.name])
    middle = float(np.median(distances)) if len(distances) else 0.0
    if not middle > 0.0:
        raise InvalidInputError(
            f"the median distance between {len(sink.values)} sampled rows is 0: most of them "
            "repeat others. Give a number, gamma=..."
        )
    note = (
        f"from the median of {len(distances)} distances, "
        f"{middle:.6g}, between {len(sink.values)} of "
        f"{matrix.shape[0]} rows (seed {kernel.sampled})"
    )
    gamma = 0.5 / middle**2 if kernel.name == "rbf" else 1.0 / middle
    return replace(kernel, gamma=gamma, sampled=None, gamma_note=note)


@declared
class KernelParameters(Estimator):
    """The parameters and attributes that all methods with a kernel share."""

    gamma: float | str | None = parameter(
        default=None,
        meaning="""of a kernel; None: 1 / features. "median": 1 / (2 d^2) for "rbf", 1 / d for
            "laplacian", where d is the median distance between 1000 rows (fewer where they are
            long), drawn by ``random_state``.""",
    )
    degree: float = parameter(default=3.0, meaning="of the polynomial kernel.")
    coef0: float = parameter(default=1.0, meaning="added by the polynomial and sigmoid kernels.")
    random_state: Any = shared.RANDOM_STATE

    @property
    def gamma_(self) -> float:
        """Of the kernel, as it was used. ``result_.gamma_found`` says how "median" gave it."""
        return float(self._result_as(KernelModelResult).gamma)


def checked_kernel(
    name: Any, parameters: KernelParameters, matrix: ChunkedMatrix, seed: int
) -> Kernel:
    """The kernel of this name, or function, with these parameters.

    Raises InvalidInputError for a kernel that is not known, or that these rows cannot have.
    """
    n, p = matrix.shape
    if not callable(name) and not (isinstance(name, str) and name in KERNELS):
        raise InvalidInputError(f"kernel={name!r:.60}; expected a function or one of {KERNELS}")
    if name == "precomputed" and n != p:
        raise InvalidInputError(f"a precomputed kernel of {n} x {p}; expected a square matrix")
    if callable(name) and easier_axis(matrix) == 1:
        raise InvalidInputError(
            "a function takes whole rows, and the chunks of X hold few features of many "
            "samples: `streampca convert X -o rows.zarr` first, or name a kernel"
        )
    known = ("function", name) if callable(name) else (name, None)
    shape = (finite("degree", parameters.degree), finite("coef0", parameters.coef0), known[1])
    if parameters.gamma == "median":
        if name not in METRICS:
            raise InvalidInputError(
                f"gamma='median' for kernel={name!r}; expected one of {tuple(METRICS)}, which "
                "have a width, or a number"
            )
        return Kernel(known[0], np.nan, *shape, sampled=seed)
    if isinstance(parameters.gamma, str):
        raise InvalidInputError(f"gamma={parameters.gamma!r}; expected a number, 'median' or None")
    gamma = 1.0 / p if parameters.gamma is None else finite("gamma", parameters.gamma)
    if name in METRICS and not gamma >= 0:
        raise InvalidInputError(f"gamma={gamma!r} for kernel={name!r}; expected 0 or more")
    return Kernel(known[0], gamma, *shape)


def finite(name: str, value: Any) -> float:
    """Raises InvalidInputError unless the value is a finite number."""
    if isinstance(value, (int, float, np.integer, np.floating)) and np.isfinite(value):
        return float(value)
    raise InvalidInputError(f"{name}={value!r:.60}; expected a finite number")


def check_count(k: Any, most: int) -> None:
    """Raises InvalidInputError unless k is None or a number of components up to ``most``."""
    if k is not None:
        whole_number("n_components", k, 1, most, beside="None or ")
