"""KING-robust kinship of all pairs of samples, in one pass over the variants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streampca.errors import CallCodingWarning, InvalidInputError, warn_caller
from streampca.genetics.filters import VariantFilter
from streampca.genetics.id_lists import Names
from streampca.genetics.kinship_counts import KinshipCounts
from streampca.genetics.kinship_result import Kinship
from streampca.genetics.pair_passes import AUTOSOMES, PairSettings, none_left, sum_over_pairs
from streampca.matrix import ChunkedMatrix, Standardize
from streampca.passes import Candidate, PassResult, PassSpec, Planned, Running, choose, pass_spec

METHOD = "KING-robust kinship"
PAIRS = "pairs"  # the name of the pass, and of its sums
MOST_VARIANTS = 2**31 - 1  # that int32 counts hold


def kinship(
    X: Any,
    *,
    maf: float = 0.0,
    max_missing: float = 1.0,
    max_sample_missing: float = 1.0,
    variants: VariantFilter = AUTOSOMES,
    keep: Names | None = None,
    exclude: Names | None = None,
    dim: Any = None,
    missing_value: float | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
) -> Kinship:
    """KING-robust kinship of all pairs of samples, as ``plink2 --make-king-table`` counts it.

    phi = 0.5 - (4 IBS0 + a + b) / (4 (HETHET + min(a, b))), where a and b are the variants at which
    one of the two is heterozygous and the other homozygous, over the variants called in both. It
    needs no allele frequencies. Use all variants that pass filters, not those that LD pruning
    leaves.

    X : (n, p) calls 0, 1, 2 or missing; anything that :func:`streampca.open` opens. Of dosages, the
        calls that belong to them; maf and max_missing then judge the dosages, in a pass before.
    maf, max_missing, max_sample_missing, keep, exclude : as :class:`GenotypePCA`.
    variants : a :class:`VariantFilter`; by default the autosomes and XY. PLINK also counts variants
        on chromosome 0.
    dim, missing_value, memory_limit, scheduler, progress : as :class:`PCA`.

    Cost: one pass, and one before it if max_sample_missing < 1; 12 n^2 bytes for the result, for
    the sums of each lane, and n^2 p / 1e11 seconds or so of one core. Counts are integers: the
    same for any number of threads and workers.
    Raises InvalidInputError for fewer than two samples, for calls of other ploidies and for values
    that are not calls; MemoryLimitError with the smallest limit that would do.
    Source: Manichaikul et al. 2010, Bioinformatics 26:2867, equation 11.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> calls = np.random.default_rng(0).integers(0, 3, size=(4, 500)).astype("int8")
    >>> calls[3] = calls[0]  # a duplicate
    >>> found = streampca.kinship(calls)
    >>> found.kinship.shape, found.related("duplicate").columns()["IID1"].tolist()
    ((4, 4), ['4'])
    >>> found.unrelated(0.0884).tolist()
    [True, True, True, False]
    """
    settings = PairSettings(
        maf=maf,
        max_missing=max_missing,
        max_sample_missing=max_sample_missing,
        variants=variants,
        keep=keep,
        exclude=exclude,
    )
    done = sum_over_pairs(
        X,
        settings,
        plan_kinship,
        METHOD,
        dim=dim,
        missing_value=missing_value,
        hard_calls=True,
        running=Running(memory_limit, scheduler, progress),
    )
    return counted_kinship(done.sums[PAIRS], settings, done.n_read, done.described)


def counted_kinship(
    counts: KinshipCounts, settings: PairSettings, n_read: int, described: Mapping[str, Any]
) -> Kinship:
    """The kinship of these counts.

    n_read : variants among which ``settings`` chose.  described : samples and further fields.
    Raises InvalidInputError where no variant was counted; warns of calls that are of inbred lines.
    """
    if not counts.n_variants:
        raise none_left(settings, n_read)
    if not counts.het.any() and counts.shared.any():
        warn_caller(
            f"none of the calls is heterozygous: {METHOD} is not defined for inbred lines, nor for "
            "haploids whose calls count twice",
            CallCodingWarning,
        )
    return Kinship.of(counts, described)


def plan_kinship(
    matrix: ChunkedMatrix, wanted: Standardize, memory_limit: int | str | None
) -> Planned[PassResult]:
    """The pass that counts, planned.  wanted : as :class:`KinshipCounts`.

    Raises MemoryLimitError if it does not fit, InvalidInputError for too many variants.
    """
    refuse_many(matrix.shape[1])
    return choose(matrix, "kinship", [whole_kinship(matrix, wanted)], memory_limit)


def whole_kinship(matrix: ChunkedMatrix, wanted: Standardize) -> Candidate[PassResult]:
    """All pairs in one pass."""
    spec = pairs_pass(matrix, wanted)
    reason = "one pass over features; calls as bits, counted for every pair, exact"
    held = {"counts of pairs": spec.total_nbytes}
    return Candidate("bit counts", reason, (spec,), held)


def pairs_pass(matrix: ChunkedMatrix, wanted: Standardize) -> PassSpec:
    """The pass that counts.  wanted : as :class:`KinshipCounts`."""
    n, p = matrix.shape
    counts = KinshipCounts(wanted=wanted)
    return pass_spec(PAIRS, matrix, 1, {PAIRS: counts}, True, flops=n * n * p / 16)


def refuse_many(n_variants: int) -> None:
    """Raise InvalidInputError for more variants than int32 counts hold."""
    if n_variants > MOST_VARIANTS:
        raise InvalidInputError(f"{n_variants} variants; kinship counts at most {MOST_VARIANTS}")
