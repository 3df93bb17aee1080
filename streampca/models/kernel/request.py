"""What is asked of a model with a kernel: its parameters, the width of the kernel, its result.

The width may follow from the data: ``gamma="median"`` takes a pass over some rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, select
from streampca.models.contract import shared_parameters as shared
from streampca.models.contract.estimator import Estimator
from streampca.models.contract.parameters import declared, parameter
from streampca.models.contract.request import whole_number
from streampca.models.kernel.functions import KERNELS, Kernel, Rows
from streampca.models.results.result import Result, shaped
from streampca.passes import Pass, PassSpec, Steps, easier_axis
from streampca.store import MemorySink

NEGATIVE = 1e-5  # of the largest eigenvalue: less is rounding


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

    def as_kernel(self) -> Kernel:
        """Its kernel. Raises InvalidInputError where that is a function, which was not saved."""
        if self.kernel == "function" and self.function is None:
            raise InvalidInputError("a saved model does not hold the function that is its kernel")
        return Kernel(self.kernel, self.gamma, self.degree, self.coef0, self.function)


# The width of a kernel, from distances between sampled rows.

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
