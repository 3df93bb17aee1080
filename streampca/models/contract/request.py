"""The request of one fit: checked parameters, and side data bound to the matrix."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from typing import Any, Self

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import ALLELE_SCALES, AxisLabels, ChunkedMatrix, Standardize
from streampca.matrix.alignment import names_of
from streampca.matrix.places import root_cosine_of_latitude
from streampca.models.side_data.by_name import (
    Find,
    named_column,
    root_of_area,
    weights_along,
    with_columns,
)
from streampca.models.side_data.design import Design
from streampca.models.side_data.row_weights import as_counts, refuse_few, split
from streampca.passes.rates import Rates
from streampca.solvers import check_n_components
from streampca.sources.genotypes.allele_counts import copies_are_unstated
from streampca.sources.tables.row_names import rows_named_as


@dataclass(frozen=True)
class SideData:
    """Side data of one fit; None for what is absent.

    weights : (p,) multiply the centred and scaled features.
    sample_weight : (n,) how often each sample counts.
    design : what is projected out of the samples.  basis : (n, r) its columns, of weighted sum 0
        and orthonormal under the sample weights.
    """

    weights: Array | None = None
    sample_weight: Array | None = None
    design: Design | None = None
    basis: Array | None = None

    @property
    def rank(self) -> int:
        """r, what the design takes from the degrees of freedom of the samples."""
        return 0 if self.basis is None else int(self.basis.shape[1])

    def count(self, n: int) -> float:
        """Sum of the weights of n samples."""
        return float(n) if self.sample_weight is None else float(self.sample_weight.sum())


NOTHING = SideData()


def side_data(
    matrix: ChunkedMatrix, *, weights: Any = None, remove: Any = None, sample_weight: Any = None
) -> SideData:
    """The side data that these parameters give for a matrix.

    Text names a column of its samples or features. Cost: those columns are read.
    """
    labels = matrix.labels
    weights = feature_weights(weights, matrix)
    samples = sample_weights(sample_weight, matrix)
    if remove is None:
        return SideData(weights, samples)
    remove = with_columns(remove, Find(matrix), labels.samples)
    design, basis = Design.fit(remove, labels_beside(matrix, 0, remove), samples)
    if not design.rank:  # a single month: nothing but the mean
        return SideData(weights, samples)
    n = len(labels.samples) if samples is None else int(np.count_nonzero(samples))
    if n <= 1 + design.rank:
        raise InvalidInputError(
            f"remove= takes {design.rank} independent columns and the mean out of {n} samples, and "
            "nothing would be left; expected more samples, or fewer columns"
        )
    return SideData(weights, samples, design, basis)


def feature_weights(weights: Any, matrix: ChunkedMatrix) -> Array | None:
    """(p,) from "coslat", an array, a DataArray over feature dimensions, or a column's name; of
    several of these in a list, their product."""
    if isinstance(weights, (list, tuple)) and any(map(_is_factor, weights)):
        product = np.ones(matrix.shape[1])
        for weight in weights:
            if (factor := feature_weights(weight, matrix)) is not None:
                product *= factor
        return weights_along(product, matrix.labels.features, "weights")
    if isinstance(weights, str) and weights == "coslat":
        return root_cosine_of_latitude(matrix.labels.features)
    if isinstance(weights, str):
        weights = root_of_area(matrix, weights)
    return _along(matrix, 1, "weights", "'coslat', 'area' or an array", weights)


def _is_factor(one: Any) -> bool:
    """Whether an entry of a list is weights by itself, and not the weight of one feature."""
    return isinstance(one, (str, Mapping)) or (hasattr(one, "shape") and np.ndim(one) > 0)


def sample_weights(weights: Any, matrix: ChunkedMatrix) -> Array | None:
    """(n,) from an array, a DataArray over sample dimensions, or the name of a column.

    How often each sample counts; see :func:`streampca.relative_weights`.
    """
    if weights is None:
        return None
    weights, relative = split(weights)
    found = _along(matrix, 0, "sample_weight", "an array of (n_samples,)", weights)
    return as_counts(found) if relative and found is not None else found


def _along(
    matrix: ChunkedMatrix, axis: int, name: str, expected: str, weights: Any
) -> Array | None:
    """Weights of one axis; None where there are none.  name, expected : for messages."""
    if weights is None:
        return None
    if not isinstance(weights, str):
        return weights_along(weights, labels_beside(matrix, axis, weights), name)
    labels = matrix.labels.axis(axis)
    values = named_column(matrix, axis, name, expected, weights)
    return weights_along(values, labels, f"{name}={weights!r}")


def labels_beside(matrix: ChunkedMatrix, axis: int, values: Any) -> AxisLabels:
    """The labels of an axis that values stand beside; rows of a table that has no names have those
    of the column that holds the names of the values."""
    return matrix.labels.features if axis else rows_named_as(matrix, names_of(values))


# The request: parameters and side data, checked and bound once before anything is read.

TOL = 1e-4  # radians
MAX_PASSES = 8
ARPACK_TOL = 1e-9
ARPACK_PASSES = 60


def no_tolerance(tol: Any) -> bool:
    """Whether nothing was asked: None, or 0, scikit-learn's default."""
    return tol is None or (isinstance(tol, (int, float)) and not isinstance(tol, bool) and tol == 0)


def is_bounded(max_passes: int | None, iterated_power: Any) -> bool:
    """Whether the user bounds the passes of an iteration."""
    return max_passes is not None or iterated_power != "auto"


def iteration_limits(
    tol: Any = None, max_passes: Any = None, iterated_power: Any = "auto", solver: str = "auto"
) -> tuple[float, int]:
    """(tol, max_passes), where they are None those of the solver, as ``iterated_power`` says.

    q steps of a power method multiply q + 1 times by X'X: a look and q + 1 steps here.
    Raises InvalidInputError for what no iteration can do: a look and one step are the least.
    """
    usual = (ARPACK_TOL, ARPACK_PASSES) if solver == "arpack" else (TOL, MAX_PASSES)
    tol = usual[0] if no_tolerance(tol) else tol
    most = usual[1] if max_passes is None else max_passes
    if isinstance(tol, bool) or not isinstance(tol, (int, float, np.number)) or not 0 < tol < 1:
        raise InvalidInputError(f"tol={tol!r}; expected an angle in radians between 0 and 1")
    if not _is_count(most) or most < 2:
        raise InvalidInputError(f"max_passes={most!r}; expected 2 or more: a look and a step")
    if isinstance(iterated_power, str) and iterated_power == "auto":
        return float(tol), int(most)
    if not _is_count(iterated_power):
        raise InvalidInputError(f"iterated_power={iterated_power!r}; expected 'auto', 0 or more")
    return float(tol), int(iterated_power) + 2


def seed_of(random_state: Any) -> int:
    """The seed of one fit: a given number, or one drawn from a generator or at random.

    Raises InvalidInputError where it is none of these.
    """
    if random_state is None:
        random_state = np.random.default_rng()
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(1 << 32))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(1 << 31))
    if not _is_count(random_state):
        raise InvalidInputError(
            f"random_state={random_state!r}; expected a number from 0, a numpy.random.Generator "
            "or RandomState, or None"
        )
    return int(random_state)


def whole_number(
    name: str, value: Any, least: int = 1, most: int | None = None, beside: str = "", why: str = ""
) -> int:
    """The value, where it is a whole number within these bounds. Raises InvalidInputError.

    beside : what else would do, for the message: "None or ".  why : of these bounds.
    """
    if _is_count(value) and least <= value and (most is None or value <= most):
        return int(value)
    bounds = f"from {least}" if most is None else f"from {least} to {most}"
    raise InvalidInputError(f"{name}={value!r}; expected {beside}a number {bounds}{why}")


def array_of_numbers(values: Any, name: str, expected: str) -> Array:
    """Values as float64. Raises InvalidInputError where they are no numbers."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{name}={values!r:.60}; expected {expected}") from None


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


@dataclass(frozen=True, kw_only=True)
class Request:
    """The request of a decomposition; solvers read nothing else, and check nothing again.

    Parameters are as :class:`streampca.PCA` describes them, resolved: limits of an iteration are
    numbers, the random state is a seed.
    iterate : the user bounded the iteration, so no exact solver comes first.
    may_go_over : an iteration that cannot certify its answer may go over to an exact solver.
    exact_first : an exact solver that fits the memory comes first, however long it takes.
    side : arrays of this matrix: weights, sample weights, the design.
    standardize : how columns are centred and scaled, which follows from the others.

    Raises InvalidInputError where the columns cannot be standardised so.
    """

    n_components: int | float | str | None = None
    solver: str = "auto"
    center: bool = True
    scale: str | None = None
    ddof: int = 1
    missing: str = "raise"
    components: bool = True
    tol: float = TOL
    max_passes: int = MAX_PASSES
    n_oversamples: int = 10
    random_state: int = 0
    rates: Any = None
    memory_limit: int | str | None = None
    warm_start: bool = False
    iterate: bool = False
    may_go_over: bool = True
    exact_first: bool = False
    side: SideData = NOTHING
    standardize: Standardize = field(init=False)

    def __post_init__(self) -> None:
        check_ddof(self.ddof)
        object.__setattr__(self, "standardize", self._standardized())

    def _standardized(self) -> Standardize:
        return Standardize(self.center, self.scale, self.ddof)

    def refuse_unused(self, used: int, total: int) -> None:
        """Raise InvalidInputError where so few features that vary are no data to fit."""

    def relatives_in(self, lower: Array, spectrum: Any) -> Any:
        """Pairs of samples that are too close, where a method looks for them; None: it does not.

        lower : (n, n) Gram matrix of the samples.  spectrum : its leading eigenpairs.
        """
        return None

    @classmethod
    def of(cls, model: Any, **resolved: Any) -> Self:
        """The parameters of an estimator.  resolved : what takes the place of some of them."""
        taken = {one.name for one in fields(cls) if one.init} - set(resolved)
        return cls(**{n: getattr(model, n) for n in taken if hasattr(model, n)}, **resolved)

    def bound(self, **found: Any) -> Self:
        """This request with values that are now known or drawn; it is not checked again.

        found : ``side``, ``random_state`` or ``standardize``.
        """
        made = copy.copy(self)
        for name, value in found.items():
            object.__setattr__(made, name, value)
        return made

    @property
    def unbounded(self) -> bool:
        """Whether an iteration may make as many passes as are worth their time: the solver is
        "auto", and no limit was set."""
        return self.solver == "auto" and self.may_go_over and not self.exact_first

    @property
    def count(self) -> int | None:
        """The requested number of components; None for a share or a rule."""
        k = self.n_components
        return int(k) if isinstance(k, (int, np.integer)) else None

    def check(self, shape: tuple[int, int], least: int = 1) -> None:
        """Refuse parameters that no data, or no data of this shape, can satisfy.

        least : components that may be asked.  Raises InvalidInputError.
        """
        n, p = shape
        if self.missing not in ("raise", "mean"):
            raise InvalidInputError(
                f"missing={self.missing!r}; expected 'raise' or 'mean' (PCA: or 'impute')"
            )
        if self.missing == "mean" and not self.center:
            raise InvalidInputError(
                "missing='mean' needs center=True: holes hold the mean, 0 after it"
            )
        check_n_components(self.n_components, n, p, least)
        if not _is_count(self.n_oversamples):
            raise InvalidInputError(
                f"n_oversamples={self.n_oversamples!r}; expected a number of vectors, such as 10"
            )
        if self.rates is not None:
            Rates.of(self.rates)
        if n - self.ddof <= 0:
            raise InvalidInputError(
                f"n_samples={n} with ddof={self.ddof} leaves no degree of freedom: expected at "
                f"least {self.ddof + 1} samples (got 1 sample)"
                if n == 1
                else f"n_samples={n} with ddof={self.ddof} leaves no degree of freedom"
            )

    def with_side_data(
        self,
        matrix: ChunkedMatrix,
        *,
        weights: Any = None,
        remove: Any = None,
        sample_weight: Any = None,
    ) -> Self:
        """This request, checked, with the side data of a matrix. Raises InvalidInputError."""
        exact = self.center and self.solver not in ("randomized", "arpack")
        self.check(matrix.shape, least=0 if exact else 1)
        side = side_data(matrix, weights=weights, remove=remove, sample_weight=sample_weight)
        if side.sample_weight is not None:
            refuse_few(side.sample_weight, self.ddof, f"ddof={self.ddof}")
        self.divisor(side.count(matrix.shape[0]))
        if self.scale in ALLELE_SCALES:
            unstated = copies_are_unstated(matrix)
            counts = replace(self.standardize, code_assumed=unstated)
            return self.bound(side=side, standardize=counts)
        return self.bound(side=side)

    def divisor(self, weight: float) -> float:
        """n - ddof for rows of total weight n. Raises InvalidInputError if nothing is left."""
        return degrees_of_freedom(weight, self.ddof)


def degrees_of_freedom(weight: float, ddof: int) -> float:
    """n - ddof. Raises InvalidInputError where nothing is left."""
    if weight - ddof <= 0:
        raise InvalidInputError(
            f"{weight:g} samples with ddof={ddof} leave no degree of freedom (n_samples = "
            f"{weight:g}); a variance needs at least {ddof + 1}"
        )
    return weight - ddof


def check_ddof(ddof: Any) -> None:
    """Refuse a ``ddof`` that is not a count."""
    if isinstance(ddof, bool) or not isinstance(ddof, (int, np.integer)) or ddof < 0:
        raise InvalidInputError(f"ddof={ddof!r}; expected 0, 1 or another count")
