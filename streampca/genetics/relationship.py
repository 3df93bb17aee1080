"""The genetic relationship matrix (GRM): over the calls that both of two samples have."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from streampca.accumulators import Gram
from streampca.errors import InvalidInputError
from streampca.genetics.filters import VariantFilter
from streampca.genetics.id_lists import Names
from streampca.genetics.joint_calls import JointCalls, variants_of_both
from streampca.genetics.pair_passes import AUTOSOMES, PairSettings, none_left, sum_over_pairs
from streampca.genetics.tables import identifiers, write_lines
from streampca.kernels import Array
from streampca.matrix import ALLELE_SCALES, AxisLabels, ChunkedMatrix, Standardize
from streampca.passes import Candidate, PassResult, Planned, Running, choose, pass_spec
from streampca.store.bundle import whole_file

GRAM, CALLS = "gram", "calls"  # names of the sums
MISSING = ("pairwise", "mean")


def grm(
    X: Any,
    *,
    scale: str | None = "hwe",
    missing: str = "pairwise",
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
) -> Relationship:
    """The genetic relationship matrix of all pairs, as ``plink2 --make-grm-bin`` and GCTA write it.

    A_ij = sum of z_i z_j / M_ij, with z = (g - 2f) / sqrt(2f(1-f)), f the frequency among the calls
    of these samples, over the M_ij variants that both have calls of. As in PLINK, variants of one
    allele add nothing to the sum and 1 to M_ij; ``maf`` leaves them out.

    X : (n, p) copies of an allele, 0 to 2; anything that :func:`streampca.open` opens.
    scale : "hwe"; None: z = g - 2f, a covariance (PLINK's ``cov``); "eigensoft", as smartpca.
    missing : "pairwise", or "mean": M_ij is the number of all variants, a missing call adds
        nothing (PLINK's ``meanimpute``).
    maf, max_missing, max_sample_missing, keep, exclude : as :class:`GenotypePCA`.
    variants : a :class:`VariantFilter`; by default the autosomes and XY.
    dim, missing_value, memory_limit, scheduler, progress : as :class:`PCA`.

    Cost: one pass, and one before it if max_sample_missing < 1; n^2 p flops in float32, summed in
    float64 (to about 1e-7 of the diagonal), and where calls are missing up to a fifth more; 12 n^2
    bytes, and 8 n^2 for the sums of each lane.
    Raises InvalidInputError for fewer than two samples, for calls of other ploidies and for values
    that are not counts; MemoryLimitError with the smallest limit that would do.
    Source: Yang et al. 2011, American Journal of Human Genetics 88:76; the diagonal is the same
    sum, as in PLINK.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> calls = np.random.default_rng(0).integers(0, 3, size=(4, 500)).astype("int8")
    >>> calls[3] = calls[0]  # a duplicate
    >>> found = streampca.grm(calls)
    >>> found.relationship.shape, bool(found.relationship[3, 0] == found.relationship[0, 0])
    ((4, 4), True)
    """
    if missing not in MISSING:
        raise InvalidInputError(f"missing={missing!r}; expected one of {MISSING}")
    if scale not in (None, *ALLELE_SCALES):
        raise InvalidInputError(f"scale={scale!r}; expected one of {(None, *ALLELE_SCALES)}")
    settings = PairSettings(
        maf=maf,
        max_missing=max_missing,
        max_sample_missing=max_sample_missing,
        variants=variants,
        keep=keep,
        exclude=exclude,
        scale=scale,
    )
    done = sum_over_pairs(
        X,
        settings,
        partial(plan_grm, pairwise=missing == "pairwise"),
        "a relationship matrix",
        dim=dim,
        missing_value=missing_value,
        running=Running(memory_limit, scheduler, progress),
    )
    calls = done.sums[CALLS]
    if not calls.n_variants:
        raise none_left(settings, done.n_read)
    done.described["settings"]["missing"] = missing
    return Relationship.of(done.sums, done.described)


def plan_grm(
    matrix: ChunkedMatrix,
    wanted: Standardize,
    memory_limit: int | str | None,
    pairwise: bool = True,
) -> Planned[PassResult]:
    """The pass that sums, planned.  wanted : how variants are scaled, and which count.

    Raises MemoryLimitError if it does not fit.
    """
    n, p = matrix.shape
    by_alleles = replace(wanted, scale="hwe")  # heterozygotes alone are two alleles, and count
    calls = JointCalls(wanted=by_alleles, pairwise=pairwise)
    sums = {GRAM: Gram(standardize=wanted, missing="mean"), CALLS: calls}
    spec = pass_spec("relationship", matrix, 1, sums, flops=float(p) * n * n)
    reason = "one pass over features; n x n Gram of standardised calls, and calls that both have"
    held = {"Gram matrix and counts of pairs": spec.total_nbytes}
    return choose(matrix, "grm", [Candidate("gram", reason, (spec,), held)], memory_limit)


@dataclass(frozen=True, repr=False, kw_only=True)
class Relationship:
    """The genetic relationship matrix of n samples.

    relationship : (n, n) float64, symmetric; NaN where two samples have no variant in common.
    lost_both : (n, n) int32, its lower triangle: variants missing in both; None where no call is
        missing, or missing calls are taken at the mean.
    n_variants : that count.  samples : labels.
    settings : of :func:`grm`.  provenance : source, cost and versions.  plan : what was run.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> found = streampca.grm(np.random.default_rng(0).integers(0, 3, size=(3, 200)).astype("int8"))
    >>> found.shared(2).tolist(), found.to_dict()["samples"]
    ([200, 200, 200], 3)
    """

    relationship: Array
    lost_both: Array | None = None
    n_variants: int
    samples: AxisLabels
    settings: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, sums: Mapping[str, Any], described: Mapping[str, Any]) -> Relationship:
        """From the sums of the pass, of which the Gram matrix is overwritten."""
        calls, values = sums[CALLS], sums[GRAM].lower()
        for i in range(len(values)):
            with np.errstate(invalid="ignore"):
                values[i, : i + 1] /= calls.shared(i)
            values[:i, i] = values[i, :i]
        counts = {"lost_both": calls.lost_both, "n_variants": calls.n_variants}
        return cls(relationship=values, **counts, **described)

    def shared(self, i: int) -> Array:
        """(i + 1,) int64 variants that the entries of row i up to the diagonal are means over."""
        return variants_of_both(self.lost_both, self.n_variants, i)

    # -- files ----------------------------------------------------------------------------------

    def write(self, prefix: str | os.PathLike[str], overwrite: bool = True) -> tuple[Path, ...]:
        """Write PREFIX.grm.bin, .grm.N.bin (float32, the lower triangle by rows) and .grm.id, as
        GCTA and ``plink2 --make-grm-bin``.

        Raises InvalidInputError as :meth:`LDPruning.write`.
        """
        written = grm_paths(prefix)
        _write_rows(written[0], self._rows(), overwrite)
        counts = (self.shared(i) for i in range(len(self.samples)))
        _write_rows(written[1], counts, overwrite)
        columns = [[*map(str, one)] for _, one in identifiers(self.samples)]
        if len(columns) == 1:
            columns = [["0"] * len(columns[0]), *columns]
        write_lines(written[2], (f"{a}\t{b}\n" for a, b in zip(*columns, strict=True)), overwrite)
        return written

    def _rows(self) -> Iterator[Array]:
        return (row[: i + 1] for i, row in enumerate(self.relationship))

    def to_xarray(self) -> Any:
        """``relationship`` (sample, sample_2), as an xarray.Dataset."""
        from streampca.sources.labelled.to_xarray import to_dataset

        names = self.samples.names()
        axes = [AxisLabels.plain(dim, len(names), names) for dim in ("sample", "sample_2")]
        return to_dataset(
            {"relationship": (self.relationship, axes)}, {"n_variants": self.n_variants}
        )

    # -- in words -------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready summary: samples, variants, and the mean of the diagonal, of samples with
        calls."""
        diagonal = np.diagonal(self.relationship)
        known = diagonal[np.isfinite(diagonal)]
        mean = float(known.mean()) if len(known) else None
        return {"samples": len(self.samples), "variants": self.n_variants, "mean_diagonal": mean}

    def __str__(self) -> str:
        mean = self.to_dict()["mean_diagonal"]
        return self._headline() + ("" if mean is None else f"; mean of the diagonal {mean:.4g}")

    def __repr__(self) -> str:
        return f"<Relationship: {self._headline()}>"

    def _headline(self) -> str:
        return f"{len(self.samples)} samples by {self.n_variants} variants"


def grm_paths(prefix: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
    """The files that :meth:`Relationship.write` writes."""
    stem = f"{os.fspath(prefix)}.grm"
    return Path(f"{stem}.bin"), Path(f"{stem}.N.bin"), Path(f"{stem}.id")


def _write_rows(path: Path, rows: Iterator[Array], overwrite: bool) -> None:
    with whole_file(path, overwrite) as file:
        for row in rows:
            file.write(row.astype("<f4").tobytes())
