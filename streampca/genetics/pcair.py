"""PC-AiR: unrelated samples that represent every ancestry, and the relatives to be projected."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, UncertainKinshipWarning, warn_caller
from streampca.genetics.tables import identifiers
from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.matrix.columns import label_array

THRESHOLD = 2.0**-5.5  # of kinship: half way from relatives of the third degree to the fourth
CLEAR = 3.0  # standard errors
PairsWithEarlier = Callable[[int], Array]  # i -> (i,) kinship of sample i with each before it


@dataclass(frozen=True, repr=False, kw_only=True)
class SamplePartition:
    """Samples of which no two are related, and the others. All arrays are (n,).

    unrelated : True for the samples to fit.
    relatives : int64 number of samples with a kinship above ``kinship_threshold``.
    divergent : int64 number of unrelated samples with one below ``divergence_threshold``, counted
        for samples that have relatives; 0 for the others.
    samples : labels.  estimator : of the kinship.  n_variants : that it was estimated from.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> phi = np.eye(3) / 2
    >>> phi[0, 2] = phi[2, 0] = 0.25
    >>> parts = streampca.pcair_partition(phi)
    >>> parts.unrelated.tolist(), parts.relatives.tolist()
    ([False, True, True], [1, 0, 1])
    >>> calls = np.random.default_rng(0).integers(0, 3, size=(3, 50)).astype("int8")
    >>> streampca.GenotypePCA(1, unrelated=parts).fit(calls).result_.fitted.tolist()
    [False, True, True]
    """

    unrelated: Array
    relatives: Array
    divergent: Array
    kinship_threshold: float
    divergence_threshold: float
    samples: AxisLabels
    estimator: str = ""
    n_variants: int | None = None

    def columns(self) -> dict[str, Array]:
        """Columns (n,) of a table: ids, UNRELATED (1 or 0), RELATIVES, DIVERGENT."""
        ids = {name: label_array([*map(str, one)]) for name, one in identifiers(self.samples)}
        counts = {"RELATIVES": self.relatives, "DIVERGENT": self.divergent}
        return {**ids, "UNRELATED": self.unrelated.astype(int), **counts}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: how the samples were divided, and how many are in each part."""
        fitted = int(np.count_nonzero(self.unrelated))
        return {
            "method": "PC-AiR",
            "estimator": self.estimator,
            "variants": self.n_variants,
            "kinship_threshold": self.kinship_threshold,
            "divergence_threshold": self.divergence_threshold,
            "unrelated": fitted,
            "related": len(self.unrelated) - fitted,
        }

    def __repr__(self) -> str:
        fitted = np.count_nonzero(self.unrelated)
        return (
            f"<SamplePartition: {fitted} of {len(self.unrelated)} samples unrelated, no two of a "
            f"kinship above {self.kinship_threshold:.4g}>"
        )


def pcair_partition(
    kinship: Any,
    divergence: Any = None,
    *,
    kinship_threshold: float = THRESHOLD,
    divergence_threshold: float = -THRESHOLD,
) -> SamplePartition:
    """Divide samples into unrelated ones that represent every ancestry, and their relatives.

    The sample with most relatives leaves the unrelated set, until no two in it are related. Of
    several, the one with fewest divergent pairs leaves: pairs of different ancestry have a
    negative KING-robust kinship. Then the one with the smallest sum of kinship to its relatives,
    then the first. Divergent pairs and sums are counted among all samples, once.

    kinship : what :func:`kinship` or :func:`pc_relate` returned, or an (n, n) symmetric array.
    divergence : KING-robust kinship in one of these forms; None = ``kinship``, where that is KING.
    kinship_threshold : pairs above it are related.
    divergence_threshold : unrelated pairs below it are divergent; -inf is below, nan is neither.

    Cost: n^2 comparisons, and m log m for m related pairs. Memory: some rows, and the m pairs.
    Warns UncertainKinshipWarning where too few variants were counted for the threshold.
    Raises InvalidInputError for matrices of other shapes, and for thresholds of the wrong sign.
    Source: Conomos, Miller and Thornton 2015, "Robust inference of population structure for
    ancestry prediction and correction of stratification in the presence of relatedness", Genetic
    Epidemiology 39:276; thresholds of GENESIS.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> phi = np.full((4, 4), -0.1)
    >>> phi[0, 1] = phi[1, 0] = phi[1, 2] = phi[2, 1] = 0.25  # 1 is related to 0 and 2
    >>> streampca.pcair_partition(phi).unrelated.tolist()
    [True, False, True, True]
    """
    if not 0.0 <= kinship_threshold <= 0.5:
        raise InvalidInputError(
            f"kinship_threshold={kinship_threshold!r}; expected one from 0 to 0.5, such as 2**-5.5"
        )
    if not divergence_threshold <= 0.0:
        raise InvalidInputError(
            f"divergence_threshold={divergence_threshold!r}; expected a number up to 0, such as "
            "-(2**-5.5): pairs of different ancestry have a negative KING-robust kinship"
        )
    near, samples = _rows_of(kinship, "kinship")
    if divergence is None and not getattr(kinship, "measures_divergence", True):
        raise InvalidInputError(
            "kinship adjusted for ancestry does not show which pairs are divergent; add "
            "divergence=streampca.kinship(X)"
        )
    apart, others = (near, samples) if divergence is None else _rows_of(divergence, "divergence")
    if len(others) != len(samples) or (
        samples.named and others.named and samples.names() != others.names()
    ):
        raise InvalidInputError(
            f"kinship of {len(samples)} samples and divergence of {len(others)}, or in another "
            "order; expected the same samples"
        )
    _warn_of_chance(kinship, kinship_threshold)
    first, second, phi = _related(near, len(samples), kinship_threshold)
    relatives = _count(len(samples), first, second)
    divergent = _divergent(apart, relatives > 0, divergence_threshold, first, second)
    return SamplePartition(
        unrelated=without_relatives(first, second, phi, divergent),
        relatives=relatives,
        divergent=divergent,
        kinship_threshold=float(kinship_threshold),
        divergence_threshold=float(divergence_threshold),
        samples=samples,
        estimator=getattr(kinship, "estimator", ""),
        n_variants=getattr(kinship, "n_variants", None),
    )


def _warn_of_chance(kinship: Any, threshold: float) -> None:
    """Warn where the kinship of many unrelated pairs is above the threshold by chance."""
    error = float(getattr(kinship, "standard_error", 0.0))
    if threshold < CLEAR * error:
        chance = 0.5 * math.erfc(threshold / error / math.sqrt(2))
        warn_caller(
            f"kinship from {kinship.n_variants} variants has a standard error of {error:.2g} or "
            f"more: about {chance:.2%} of the unrelated pairs are above kinship_threshold="
            f"{threshold:.3g} by chance. Use all variants, not pruned ones",
            UncertainKinshipWarning,
        )


def without_relatives(first: Array, second: Array, kinship: Array, divergent: Array) -> Array:
    """(n,) False for the samples that leave the unrelated set.

    first, second, kinship : (m,) the related pairs.  divergent : (n,) divergent pairs of each.
    """
    n = len(divergent)
    relatives: list[set[int]] = [set() for _ in range(n)]
    shared: list[list[float]] = [[] for _ in range(n)]
    for i, j, phi in zip(first.tolist(), second.tolist(), kinship.tolist(), strict=True):
        relatives[i].add(j)
        relatives[j].add(i)
        shared[i].append(phi)
        shared[j].append(phi)
    # exactly rounded, so that equal sums are equal in any order of their terms
    fixed = [(int(divergent[i]), math.fsum(shared[i]), i) for i in range(n)]
    waiting = [(-len(relatives[i]), *fixed[i]) for i in range(n) if relatives[i]]
    heapq.heapify(waiting)
    unrelated = np.ones(n, bool)
    while waiting:
        number, *_, i = heapq.heappop(waiting)
        if len(relatives[i]) != -number:  # it has lost relatives, and waits with fewer
            continue
        unrelated[i] = False
        for j in relatives[i]:
            relatives[j].discard(i)
            if relatives[j]:
                heapq.heappush(waiting, (-len(relatives[j]), *fixed[j]))
        relatives[i].clear()
    return unrelated


def _related(rows: PairsWithEarlier, n: int, threshold: float) -> tuple[Array, Array, Array]:
    """(first, second, kinship) of the pairs above the threshold."""
    found: list[tuple[Array, Array, Array]] = []
    for i in range(1, n):
        phi = rows(i)
        close = np.flatnonzero(phi > threshold)
        if close.size:
            found.append((np.full(close.size, i), close, phi[close]))
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    first, second, phi = (np.concatenate(column) for column in zip(*found, strict=True))
    return first, second, phi


def _divergent(
    rows: PairsWithEarlier, wanted: Array, threshold: float, first: Array, second: Array
) -> Array:
    """(n,) divergent pairs of each wanted sample; related pairs are not divergent."""
    n, counts = len(wanted), np.zeros(len(wanted), np.int64)
    if not wanted.any():
        return counts
    edges = np.searchsorted(first, np.arange(n + 1))  # first increases
    for i in range(1, n):
        below = rows(i) < threshold
        below[second[edges[i] : edges[i + 1]]] = False
        counts[:i] += below
        counts[i] += np.count_nonzero(below)
    counts[~wanted] = 0
    return counts


def _count(n: int, *members: Array) -> Array:
    """(n,) how often each sample is among them."""
    return np.asarray(sum(np.bincount(one, minlength=n) for one in members))


def _rows_of(given: Any, name: str) -> tuple[PairsWithEarlier, AxisLabels]:
    """Rows of the lower triangle, and the labels of the samples."""
    if hasattr(given, "pairs_of"):
        return (lambda i: given.pairs_of(i).kinship), given.samples
    phi = np.asarray(given)
    square = phi.ndim == 2 and phi.shape[0] == phi.shape[1] > 0 and phi.dtype.kind in "fiu"
    if not square or not np.array_equal(phi, phi.T, equal_nan=phi.dtype.kind == "f"):
        raise InvalidInputError(
            f"{name} is an array {phi.shape} of {phi.dtype}; expected a symmetric (n, n) matrix of "
            "numbers, or what streampca.kinship(X) returned"
        )
    return (lambda i: phi[i, :i]), AxisLabels.plain("sample", len(phi))
