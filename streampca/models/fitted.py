"""What the solvers of a PCA share: their result, and the choices that do not depend on the path."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import stored_eps, work_dtype
from streampca.models.request import Request
from streampca.solvers import (
    MLE,
    TRACY_WIDOM,
    Certificate,
    Spectrum,
    by_gap,
    by_mle,
    by_share,
    count_significant,
    eigh_lower,
    known_count,
    tracy_widom_test,
)

LEADING = 100  # eigenvalues that are tested for significance before all are computed


@dataclass(kw_only=True)
class Fitted:
    """What a solver hands to the estimator, before labels and provenance."""

    spectrum: Spectrum  # of the scatter, the k kept components
    all_values: Array | None = None  # every eigenvalue, where the solver made them
    mean: Array
    scale: Array | None = None  # divisors, weights of the features included
    weight: float
    rank: int
    dropped: Array
    constant: Array
    certificate: Certificate
    column_variance: Array  # (p,) unscaled
    gap: int | None = None
    components: Array | None = None  # (k, p)
    scores: Array | None = None  # (n, k), or (everyone, k) with a cohort
    filtered: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    missing: Array | None = None  # (p,) missing cells of each column
    missing_by_sample: Array | None = None  # (n,)
    deviation: Array | None = None  # (p,) the scale before weights entered it
    column_mean: Array | None = None  # (p,) whether it was subtracted or not
    uncertain: str = ""  # what an iterative solver could not certify, in words
    removed: Array | None = None  # (r, p) coefficients of the basis of the design


def solve_symmetric(lower: Array, request: Request, limit: int) -> tuple[Spectrum, Array, bool]:
    """(leading pairs, the eigenvalues that are known, whether those are all)."""
    k = known_count(request.n_components, limit, limit)
    if request.n_components == TRACY_WIDOM and len(lower) > 2 * LEADING:
        spectrum = eigh_lower(lower, LEADING)
        if significant(spectrum, len(lower) - 1) < LEADING:
            return spectrum, np.append(spectrum.values, spectrum.next_value), False
    if k is None or k >= len(lower):
        spectrum = eigh_lower(lower)
        return spectrum, spectrum.values, True
    spectrum = eigh_lower(lower, max(k, 1))  # of none asked the largest tells the scale
    return spectrum, np.append(spectrum.values, spectrum.next_value), k + 1 >= len(lower)


def significant(spectrum: Spectrum, count: int) -> int:
    """Leading components that the Tracy-Widom test finds, of ``count`` non-zero eigenvalues."""
    test = tracy_widom_test(
        spectrum.values, total=spectrum.total, squares=spectrum.squares, count=count
    )
    return count_significant(test)


def count_components(
    request: Request,
    values: Array,
    spectrum: Spectrum,
    n: int | None,
    limit: int,
    rank: int,
) -> tuple[int, int | None]:
    """(components to keep, the gap's k if one was asked and found).

    values : the eigenvalues that are known.  n : rows, if known.  limit : the most components
    there can be: rows, or features that vary.  Where the Tracy-Widom test was asked, its k takes
    the place of the gap's.
    """
    wanted: Any = request.n_components
    known = known_count(wanted, limit, limit)
    if known is not None:
        return min(known, limit), None
    if wanted == "gap":
        known_values = values[: max(rank, 1)]
        room = limit if n is None else min(limit, n - int(request.center))
        if 0 < rank < room:  # the data could hold more: the drop to zero is one like any other
            known_values = np.append(known_values, 0.0)
        gap = by_gap(known_values, n)
        return (max(rank, 1) if gap is None else gap), gap
    if wanted == MLE:
        return by_mle(values, limit, n, rank), None
    if wanted == TRACY_WIDOM:
        found = significant(spectrum, limit if n is None else min(n - 1, limit))
        return max(found, 1), found or None
    return min(by_share(values, spectrum.total, float(wanted)), limit), None


def refuse_no_variant(request: Request, used: int, total: int) -> None:
    """Raise InvalidInputError where a fit of genotypes, which have a ploidy, uses no variant."""
    if used or request.ploidy is None:
        return
    raise InvalidInputError(
        f"none of {total} variants is left: all are monomorphic, without a call, rarer than "
        f"maf={request.maf:g}, or with more than max_missing={request.max_missing:g} of "
        "their calls missing"
    )


@dataclass(frozen=True)
class Resolution:
    """How finely values were stored, and in which dtype blocks of them are summed."""

    eps: float
    work: np.dtype[Any]

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> Resolution:
        """Of stored values of this dtype."""
        return cls(stored_eps(dtype), work_dtype(dtype))

    def joined(self, other: Resolution) -> Resolution:
        """That of sums over both: the coarser."""
        work = min(self.work, other.work, key=lambda dtype: dtype.itemsize)
        return Resolution(max(self.eps, other.eps), work)
