"""Kinship of all samples in the read of a fit, over variants that the fit may leave out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.genetics.filters import VariantFilter, filter_genotypes
from streampca.genetics.id_lists import Names
from streampca.genetics.kinship import refuse_many
from streampca.genetics.kinship_counts import KinshipCounts
from streampca.genetics.kinship_result import Kinship
from streampca.genetics.pair_passes import AUTOSOMES, PairSettings, refuse_pairs
from streampca.kernels import Array
from streampca.matrix import Block, ChunkedMatrix, select
from streampca.models.decompose.gram_outputs import SameRead

KINSHIP, FITTED, COUNTED = "kinship", "fitted", "counted"  # sums, and parts of a block


@dataclass(frozen=True)
class JointRead:
    """Variants that are read once, for a fit and for kinship.

    matrix : all that are read.  fitted, counted : (p,) True for those of the fit, of the kinship.
    """

    matrix: ChunkedMatrix
    fitted: Array
    counted: Array

    @classmethod
    def of(
        cls,
        source: ChunkedMatrix,
        variants: VariantFilter,
        kinship: VariantFilter | bool,
        keep: Names | None,
        exclude: Names | None,
    ) -> JointRead:
        """Some samples of a source.  variants : of the fit.  kinship : of the kinship; True: the
        autosomes."""
        labels = source.labels.features
        fitted = variants.mask(labels)
        counted = (AUTOSOMES if kinship is True else kinship).mask(labels)  # type: ignore[union-attr]
        read = fitted | counted
        matrix = filter_genotypes(select(source, features=read), EVERY, keep, exclude)
        refuse_pairs(matrix, "kinship")
        if matrix.hard_calls() is not matrix:
            raise InvalidInputError(
                "kinship= counts calls, and this fit takes dosages: count it alone, "
                "streampca.kinship(X), or fit the calls, streampca.open(X, dosages=False)"
            )
        refuse_many(int(counted.sum()))
        return cls(matrix, fitted[read], counted[read])

    def with_samples(self, samples: Array) -> JointRead:
        """Some of the samples.  samples : (n,) True."""
        return replace(self, matrix=select(self.matrix, samples=samples))

    @property
    def of_fit(self) -> ChunkedMatrix:
        """The variants of the fit."""
        return select(self.matrix, features=self.fitted)

    def same_read(self, rows: Array | None, maf: float, max_missing: float) -> SameRead:
        """What the pass of the fit sums for the kinship.

        rows : numbers of the fitted samples; None = all.
        maf, max_missing : of the variants that count, among all samples.
        """
        parts: dict[str, Part] = {}
        if rows is not None or not self.fitted.all():
            parts[FITTED] = Part(np.flatnonzero(self.fitted), rows)
        if not self.counted.all():
            parts[COUNTED] = Part(np.flatnonzero(self.counted))
        settings = PairSettings(maf=maf, max_missing=max_missing)
        wanted = settings.wanted(self.matrix, "kinship")
        counts = KinshipCounts(wanted=wanted, part=COUNTED if COUNTED in parts else None)
        if FITTED not in parts:
            return SameRead(self.matrix, {KINSHIP: counts}, parts)
        return SameRead(self.matrix, {KINSHIP: counts}, parts, FITTED, parts[FITTED].place)


EVERY = VariantFilter(chromosomes="all")


@dataclass(frozen=True)
class Part:
    """The part of a block with these features and samples, by increasing numbers: a map.

    rows : None = all samples.
    """

    columns: Array
    rows: Array | None = None

    def __call__(self, block: Block) -> Block:
        first, last = self.place(block.start), self.place(block.stop)
        part = block.take_columns(self.columns[first:last] - block.start, first)
        return part if self.rows is None else part.take_rows(self.rows)

    def place(self, start: int) -> int:
        """How many of the features come before this one."""
        return int(np.searchsorted(self.columns, start))


def kinship_of(sums: Mapping[str, Any], described: Mapping[str, Any]) -> Kinship:
    """The kinship among the other sums of a fit.  described : the fields of its result."""
    names = ("maf", "max_missing", "max_sample_missing", "keep", "exclude")
    settings = {name: described["settings"][name] for name in names}
    settings["variants"] = described["settings"]["kinship"]
    about = {name: described[name] for name in ("provenance", "plan")}
    samples = described["labels"].samples
    return Kinship.of(sums[KINSHIP], {**about, "samples": samples, "settings": settings})
