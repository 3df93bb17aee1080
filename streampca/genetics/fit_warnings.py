"""What a genotype fit warns of: short regions, parents, relatives, samples that make components."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import (
    CallCodingWarning,
    LocalComponentWarning,
    NonFounderWarning,
    RelatedSamplesWarning,
    shorten,
    warn_caller,
)
from streampca.genetics.local_loadings import local_components
from streampca.kernels import Array, row_pieces
from streampca.matrix import ALLELE_SCALES, AxisLabels
from streampca.models.results.decomposition import COPIES, holders
from streampca.solvers import Spectrum, concentrations
from streampca.sources.genotypes.allele_counts import DIPLOID
from streampca.sources.genotypes.variants import NO_PARENT


def warn_of_local_components(columns: Any, variants: AxisLabels) -> None:
    """Warn of components that a single short region dominates.

    columns : (p, k) unit columns, an array or one in Zarr; None = there are none.
    """
    if columns is None or "position" not in variants.extra:
        return
    found = local_components(columns, variants.extra["chromosome"], variants.extra["position"])
    if found:
        warn_caller(
            f"{'; '.join(map(str, found))}: likely linkage disequilibrium or an inversion, not "
            "ancestry. Prune, streampca.prune_ld(X), or leave such regions out, "
            "VariantFilter(exclude_long_range_ld=37) or 38.",
            LocalComponentWarning,
        )


def warn_of_inbred(result: Any, scale: str | None) -> None:
    """Warn of calls 0 and 2 without a 1, which Hardy-Weinberg scaling takes for too variable."""
    diploid = result.settings["ploidy"] == DIPLOID
    if scale not in ALLELE_SCALES or not diploid or result.feature_variance is None:
        return
    lost = 0 if result.missing is None else np.asarray(result.missing)
    calls, mean = result.n_samples - lost, np.asarray(result.mean)
    squares = np.asarray(result.feature_variance) * (result.n_samples - result.ddof)
    homozygous = mean * (DIPLOID - mean)  # mean of x (2 - x), 1 for each heterozygote
    heterozygous = np.maximum(homozygous * calls - squares, 0.0).sum()
    expected = float(np.sum(homozygous * calls) / 2.0)
    if expected > 15.0 and heterozygous < max(0.5, 1e-6 * expected):
        warn_caller(
            f"none of the calls is 1, where about {expected:.0f} are expected in outbred diploids: "
            f"scale={scale!r} gives eigenvalues twice as large. If these are inbred lines or "
            "haploids, X // 2 has their counts: GenotypePCA(ploidy=1)",
            CallCodingWarning,
        )


def warn_of_children(samples: AxisLabels) -> None:
    """Warn of samples whose parents are both in the data."""
    names = ("family", "individual", "father", "mother")
    if not set(names) <= set(samples.extra):
        return
    family, individual, father, mother = (np.asarray(samples.extra[c]).tolist() for c in names)
    there = set(zip(family, individual, strict=True))
    children = sum(
        NO_PARENT not in (f, m) and (home, f) in there and (home, m) in there
        for home, f, m in zip(family, father, mother, strict=True)
    )
    if children:
        warn_caller(
            f"{children} of {len(samples)} samples have both parents in the data; PLINK would use "
            "founders only for frequencies, and relatives make components of their own. Fit on "
            "unrelated samples: unrelated='auto'",
            NonFounderWarning,
        )


# Relatives among the fitted samples, from the n x n Gram matrix of a wide fit.

FIRST_DEGREE, COPY = 0.177, 0.354  # kinship; KING's bounds of first degree, and of one person
LEAST_SAMPLES = 8
NEAR = 16  # the so many-th nearest sample is no relative
SMALL, LARGE = 4, 50  # n / 4 of small fits, n / 50 of large ones
LEAST_DISTANCE = 0.2  # of unrelated samples, of the mean distance: copies may be many
STANDARD_ERRORS = 1.0  # above the largest of n^2 / 2 chance values
NOISE_ROWS = 64
REFERENCE_ROWS = 32  # of the lower triangle that are completed at once
PIECE_NBYTES = 1 << 20
MOST_PAIRS = 100_000  # that are kept: the closest


@dataclass(frozen=True)
class Relatives:
    """Pairs of rows (m, 2), the second before the first, and the kinship of each, (m,).

    The closest pair comes first.
    """

    pairs: Array
    kinship: Array

    def among(self, rows: Array | None) -> dict[str, Array]:
        """The fields of a result.  rows : numbers of the fitted samples among all; None: all."""
        pairs = self.pairs if rows is None else rows[self.pairs]
        return {"relatives": pairs, "relatives_kinship": self.kinship}


def relatives_in(lower: Array, spectrum: Spectrum) -> Relatives:
    """The pairs of samples whose kinship is at least .177: first degree, or the same person.

    lower : (n, n) Gram matrix G of the centred (and scaled) variants, its lower triangle.
    spectrum : its leading eigenpairs.

    The kinship of i and j is the smaller of two estimates. Half the correlation,
    G_ij / (2 sqrt(G_ii G_jj)), is too large where both belong to a group far from the others. Then
    1/2 - D_ij / (R_i + R_j) is not: D_ij = G_ii + G_jj - 2 G_ij is their squared distance, R_i that
    of i and its 16th nearest sample (in small fits the n / 4th, in large ones the n / 50th), which
    stands for the unrelated ones of its own ancestry; of a sample in many copies, a fifth of the
    mean distance. This is KING-robust's estimate with distances in place of heterozygous calls. It
    is too large where many calls of both are missing; then the correlation is not. Relatives in
    groups larger than that count as a population, and smaller populations as relatives where they
    differ from all others by F_ST > .35. The bound rises where chance correlations, judged by the
    median of what the components leave, could reach it: few variants, strong linkage, few samples.
    Fewer than 8 samples have no relatives here.

    Cost: n^2 / 2 comparisons, and 10 n operations for each sample with a pair of that correlation;
    about 1 kB n of memory, which the eigenproblem has freed.
    Source: Manichaikul et al. 2010, Bioinformatics 26:2867, equations 9 and 11.
    """
    n = len(lower)
    diagonal = np.diagonal(lower).copy()
    seen = diagonal > 1e-9 * diagonal.max(initial=0.0)  # of the others every call is missing
    root = np.sqrt(np.where(seen, diagonal, np.inf))
    near = np.zeros(0, np.int64)
    if n >= LEAST_SAMPLES:
        near = _correlated(lower, root, 2.0 * FIRST_DEGREE)
    found, least = [], FIRST_DEGREE
    if len(near):
        least = max(least, _largest_by_chance(lower, spectrum))
        reference = _reference(lower, diagonal, near)
        found = [*_pairs(lower, diagonal, root, near, reference, least)]
    if not found:
        return Relatives(np.zeros((0, 2), np.int64), np.zeros(0))
    pairs, kinship = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.argsort(-kinship, kind="stable")[:MOST_PAIRS]
    return Relatives(pairs[order], kinship[order])


def _correlated(lower: Array, root: Array, least: float) -> Array:
    """The samples that correlate so with another, in increasing order."""
    n, near = len(lower), np.zeros(len(lower), np.bool_)
    for rows in row_pieces(n, 9 * n, PIECE_NBYTES):
        above = lower[rows, : rows.stop] >= (least * root[rows])[:, None] * root[: rows.stop]
        for i in range(len(above)):  # a sample with itself, and what lies above the diagonal
            above[i, rows.start + i :] = False
        near[rows] |= above.any(axis=1)
        near[: rows.stop] |= above.any(axis=0)
    return np.flatnonzero(near)


def _largest_by_chance(lower: Array, spectrum: Spectrum) -> float:
    """The kinship that the largest of n (n - 1) / 2 unrelated pairs may appear to have."""
    n = len(lower)
    k = min(len(spectrum.values), (n - 1) // 4)
    rows = np.unique(np.linspace(0, n - 1, min(n, NOISE_ROWS)).astype(np.int64))
    left, vectors, values = _whole_rows(lower, rows), spectrum.vectors[:, :k], spectrum.values[:k]
    left -= (vectors[rows] * values) @ vectors.T
    own = np.sqrt(np.maximum(np.diagonal(lower) - vectors**2 @ values, np.diagonal(lower) * 1e-3))
    left /= own[rows, None] * own
    left[np.arange(len(rows)), rows] = np.nan
    left -= np.nanmedian(left)  # centring makes it -1 / (n - 1)
    error = 1.4826 * float(np.nanmedian(np.abs(left)))
    return 0.5 * error * (math.sqrt(2.0 * math.log(n * (n - 1) / 2.0)) + STANDARD_ERRORS)


def _reference(lower: Array, diagonal: Array, rows: Array) -> Array:
    """Of each of these rows, the squared distance of the nearest sample that is no relative."""
    n, found = len(lower), []
    rank = max(min(max(NEAR, n // LARGE), n // SMALL), 2)
    for start in range(0, len(rows), REFERENCE_ROWS):
        some = rows[start : start + REFERENCE_ROWS]
        distance = _whole_rows(lower, some)
        distance *= -2.0
        distance += diagonal[some, None] + diagonal
        distance[np.arange(len(some)), some] = np.inf
        found.append(np.partition(distance, rank - 1, axis=1)[:, rank - 1])
    least = LEAST_DISTANCE * (diagonal[rows] + diagonal.mean())
    return np.asarray(np.maximum(np.concatenate(found), least))


def _whole_rows(lower: Array, rows: Array) -> Array:
    """(len(rows), n) rows of a symmetric matrix, by its lower triangle; rows increase."""
    found = np.empty((len(rows), len(lower)))
    first, last = int(rows[0]), int(rows[-1])
    found[:, : first + 1] = lower[rows, : first + 1]
    found[:, last:] = lower[last:, rows].T
    for row, i in zip(found, rows.tolist(), strict=True):
        row[first + 1 : i + 1] = lower[i, first + 1 : i + 1]
        row[i:last] = lower[i:last, i]
    return found


def _pairs(
    lower: Array, diagonal: Array, root: Array, near: Array, reference: Array, least: float
) -> Iterator[tuple[Array, Array]]:
    """(pairs, kinship) of those with at least this kinship, of some rows after others.

    near : the samples that may have one, and reference of these.
    """
    for rows in row_pieces(len(near), 64 * len(near), PIECE_NBYTES):
        some, earlier = near[rows], near[: rows.stop]
        shared = lower[some[:, None], earlier]
        above = shared >= (2.0 * least * root[some])[:, None] * root[earlier]
        above &= earlier < some[:, None]
        i, j = np.nonzero(above)
        shared, first, second = shared[i, j], some[i], earlier[j]
        apart = diagonal[first] + diagonal[second] - 2.0 * shared
        apart /= reference[rows][i] + reference[j]
        kinship = np.minimum(0.5 - apart, shared / (2.0 * root[first] * root[second]))
        kept = kinship >= least
        if kept.any():
            yield np.stack([first[kept], second[kept]], axis=1), kinship[kept]


# What a few samples do to the components, in words.


def sample_findings(result: Any) -> list[str]:
    """Sentences on relatives among the fitted samples, and on components that few samples make."""
    rows, scores = result.fitted_scores()
    pairs, kinship, samples = result.relatives, result.relatives_kinship, result.labels.samples
    related = pairs is not None and len(pairs) > 0
    groups: list[Any] = [None]
    if related:
        whole = [_families(pairs[kinship >= one], len(samples)) for one in (COPY, FIRST_DEGREE)]
        groups = [family[rows] for family in whole]
    said: dict[int, str] = {}
    for group, kind in zip(groups, (COPIES, "relatives"), strict=False):
        for one in concentrations(scores, group):
            said.setdefault(one.component, holders(one, samples, rows, kind))
    lines = [said[component] for component in sorted(said)]
    return [*lines, closest_pairs(pairs, kinship, samples)] if related else lines


def closest_pairs(pairs: Array, kinship: Array, samples: AxisLabels) -> str:
    """How many pairs of relatives there are, and the closest of them."""
    closest = [
        f"{samples.name(int(i))} and {samples.name(int(j))} {phi:.2f}"
        for (i, j), phi in zip(pairs[:4], kinship, strict=False)
    ]
    count = f"{'at least ' * (len(pairs) == MOST_PAIRS)}{len(pairs)}"
    have = "pairs of fitted samples have" if len(pairs) > 1 else "pair of fitted samples has"
    return f"{count} {have} kinship {FIRST_DEGREE} or more: {shorten(closest, len(pairs))}"


def _families(pairs: Array, n: int) -> Array:
    """(n,) a number for each sample, the same for those that a chain of pairs connects."""
    family = np.arange(n)
    while True:
        before = family.copy()
        least = family[pairs].min(axis=1)
        np.minimum.at(family, pairs[:, 0], least)
        np.minimum.at(family, pairs[:, 1], least)
        family = family[family]
        if np.array_equal(family, before):
            return family


def warn_of_samples(findings: list[str]) -> None:
    """Warn of what :func:`sample_findings` says."""
    if findings:
        warn_caller(
            f"{'; '.join(findings)}. Relatives and outliers make components of their own, not "
            "ancestry. Fit on unrelated samples and score all, unrelated='auto', or leave some "
            "out, exclude='samples.txt'; streampca.kinship(X) has the kinship of all pairs.",
            RelatedSamplesWarning,
        )
