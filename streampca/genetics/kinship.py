"""KING-robust kinship of all pairs of samples, in one pass over the variants."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from streampca.errors import InvalidInputError
from streampca.genetics.counts import well_called
from streampca.genetics.filters import VariantFilter, filter_genotypes
from streampca.genetics.id_lists import Names
from streampca.genetics.kinship_counts import KinshipCounts
from streampca.genetics.kinship_result import Kinship
from streampca.matrix import ChunkedMatrix, Standardize
from streampca.models.results.result import provenance
from streampca.passes import (
    Candidate,
    PassCost,
    PassResult,
    PassSpec,
    Plan,
    Planned,
    Running,
    choose,
    execute,
    pass_spec,
)
from streampca.sources import as_matrix
from streampca.sources.genotypes.allele_counts import (
    DIPLOID,
    PLOIDY,
    code_is_assumed,
    with_missing_calls,
)

AUTOSOMES = VariantFilter()
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
        calls that belong to them.
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
    matrix = with_missing_calls(as_matrix(X, dim=dim, missing_value=missing_value)).hard_calls()
    keep, exclude = listed_names(keep), listed_names(exclude)
    matrix = filter_genotypes(matrix, variants, keep, exclude)
    refuse_no_kinship(matrix)
    running = Running(memory_limit, scheduler, progress)
    wanted = Standardize(
        scale="hwe", maf=maf, max_missing=max_missing, code_assumed=code_is_assumed(matrix)
    )
    planned = plan_kinship(matrix, wanted, memory_limit)  # refused before anything is read
    before: list[tuple[Plan, PassCost]] = []
    listed = matrix.shape[0]
    matrix = well_called(
        matrix,
        max_sample_missing=max_sample_missing,
        made=before,
        memory_limit=memory_limit,
        scheduler=scheduler,
        progress=progress,
    )
    if matrix.shape[0] < listed:
        refuse_no_kinship(matrix)
        planned = plan_kinship(matrix, wanted, memory_limit)
    done = execute(planned, running)
    settings = {
        "maf": maf,
        "max_missing": max_missing,
        "max_sample_missing": max_sample_missing,
        "variants": variants,
        "keep": keep,
        "exclude": exclude,
    }
    costs = [*(cost for _, cost in before), *done.costs]
    return counted_kinship(
        done.answer[PAIRS],
        matrix,
        wanted,
        settings=settings,
        provenance=provenance(costs, matrix.fingerprint(), done.memory),
        plan=done.plan.after(*(plan for plan, _ in before)).to_dict(),
    )


def counted_kinship(
    counts: KinshipCounts, matrix: ChunkedMatrix, wanted: Standardize, **described: Any
) -> Kinship:
    """The kinship of these counts.  described : further fields.

    Raises InvalidInputError where no variant was counted.
    """
    if not counts.n_variants:
        raise InvalidInputError(
            f"maf={wanted.maf:g} and max_missing={wanted.max_missing:g} leave none of "
            f"{matrix.shape[1]} variants"
        )
    known = {name: getattr(counts, name) for name in counts.fields}
    return Kinship(**known, samples=matrix.labels.samples, **described)


def plan_kinship(
    matrix: ChunkedMatrix, wanted: Standardize, memory_limit: int | str | None
) -> Planned[PassResult]:
    """The pass that counts, planned.  wanted : as :class:`KinshipCounts`.

    Raises MemoryLimitError if it does not fit.
    """
    spec = pairs_pass(matrix, wanted)
    reason = "one pass over features; calls as bits, counted for every pair, exact"
    held = {"counts of pairs": spec.total_nbytes}
    candidate: Candidate[PassResult] = Candidate("bit counts", reason, (spec,), held)
    return choose(matrix, "kinship", [candidate], memory_limit)


def pairs_pass(matrix: ChunkedMatrix, wanted: Standardize) -> PassSpec:
    """The pass that counts.  wanted : as :class:`KinshipCounts`."""
    n, p = matrix.shape
    counts = KinshipCounts(wanted=wanted)
    spec = pass_spec(PAIRS, matrix, 1, {PAIRS: counts}, flops=n * n * p / 16)
    if matrix.sparse:  # blocks are expanded
        spec = replace(
            spec,
            scratch=lambda length: (
                counts.scratch_nbytes((n, p), length) + n * length * matrix.dtype.itemsize
            ),
        )
    return spec


def listed_names(names: Names | None) -> list[str] | str | None:
    """A path, or names in a form that is kept with a result."""
    if names is None or isinstance(names, (str, os.PathLike)):
        return None if names is None else os.fspath(names)
    return [str(one) for one in names]


def refuse_no_kinship(matrix: ChunkedMatrix) -> None:
    """Raise InvalidInputError where kinship is not defined, or its counts do not fit."""
    n, p = matrix.shape
    if n < 2:
        raise InvalidInputError(
            f"kinship needs at least 2 samples; there is {n}. Samples are rows: X.T?"
        )
    if p > MOST_VARIANTS:
        raise InvalidInputError(f"{p} variants; kinship counts at most {MOST_VARIANTS}")
    stated = matrix.labels.attrs.get(PLOIDY, DIPLOID)
    if stated != DIPLOID:
        raise InvalidInputError(
            f"KING-robust kinship is defined for diploid calls; these have up to {stated} copies"
        )
