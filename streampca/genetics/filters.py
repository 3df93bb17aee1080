"""Filters of variants and samples by name, place, and region of long-range linkage.

A principal component can follow such a region (the 8p23 inversion, HLA, lactase) instead of
ancestry, so they are commonly left out before a PCA.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, UnknownChromosomeWarning, shorten, warn_caller
from streampca.genetics.id_lists import Names, names_of, read_names, sample_mask, warn_of_absent
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix, select
from streampca.matrix.columns import Column, as_text, by_pieces, is_among, numbered, textual
from streampca.models.contract.request import whole_number
from streampca.sources.genotypes.variants import (
    DIPLOID,
    HUMAN,
    LETTERS,
    chromosome_name,
    chromosome_names,
)

BUILDS = {
    37: 37,
    38: 38,
    "37": 37,
    "38": 38,
    "b37": 37,
    "b38": 38,
    "hg19": 37,
    "hg38": 38,
    "grch37": 37,
    "grch38": 38,
}

# Chromosome; start and stop in build 37; the same in build 38, in base pairs.
# Build 37: the 24 autosomal regions of Price et al. 2008 and Anderson et al. 2010, as the
# University of Michigan's wiki gives them ("Regions of high linkage disequilibrium"); copies of
# the list in public pipelines have the same rows.
# Build 38: 15 of them as liftOver moves them (Genomics England's siteqc and GenoTools publish the
# same 15 rows). liftOver drops or splits the nine that hold a centromere or an assembly gap (*):
# there each end was moved alone, by the shift of its neighbourhood, and rounded outward to 10 kb,
# which is little for regions of 6 to 15 Mb drawn to half a megabase. (Lists in use lose those
# nine, and plinkQC's for build 38 has fragments in their place and no lactase, 2:134-138 Mb.)
REGIONS = (
    ("1", 48_000_000, 52_000_000, 47_534_328, 51_534_328),
    ("2", 86_000_000, 100_500_000, 85_770_000, 99_890_000),  # *
    ("2", 134_500_000, 138_000_000, 133_742_429, 137_242_430),
    ("2", 183_000_000, 190_000_000, 182_135_273, 189_135_274),
    ("3", 47_500_000, 50_000_000, 47_458_510, 49_962_567),
    ("3", 83_500_000, 87_000_000, 83_450_849, 86_950_850),
    ("3", 89_000_000, 97_500_000, 88_950_000, 97_790_000),  # *
    ("5", 44_500_000, 50_500_000, 44_490_000, 51_210_000),  # *
    ("5", 98_000_000, 100_500_000, 98_664_296, 101_164_296),
    ("5", 129_000_000, 132_000_000, 129_664_307, 132_664_308),
    ("5", 135_500_000, 138_500_000, 136_164_311, 139_164_311),
    ("6", 25_000_000, 35_000_000, 24_999_772, 35_032_223),
    ("6", 57_000_000, 64_000_000, 57_130_000, 63_300_000),  # *
    ("6", 140_000_000, 142_500_000, 139_678_863, 142_178_863),
    ("7", 55_000_000, 66_000_000, 54_930_000, 66_540_000),  # *
    ("8", 7_000_000, 13_000_000, 7_142_478, 13_142_491),
    ("8", 43_000_000, 50_000_000, 43_140_000, 49_090_000),  # *
    ("8", 112_000_000, 115_000_000, 110_987_771, 113_987_771),
    ("10", 37_000_000, 43_000_000, 36_710_000, 42_510_000),  # *
    ("11", 46_000_000, 57_000_000, 45_978_449, 57_232_526),  # * ends as others moved them
    ("11", 87_500_000, 90_500_000, 87_789_108, 90_766_832),
    ("12", 33_000_000, 40_000_000, 32_840_000, 39_610_000),  # *
    ("12", 109_500_000, 112_000_000, 109_062_195, 111_562_196),
    ("20", 32_000_000, 34_500_000, 33_412_194, 35_912_078),
)


def in_long_range_ld(chromosome: Any, position: Any, build: int | str = 37) -> Array:
    """(p,) True where a variant lies in a region of long-range linkage disequilibrium.

    chromosome : (p,) names, such as "6", 6 or "chr6".  position : (p,) base pairs; a region
        holds both its ends.
    build : of the human genome, 37 or 38 (also "hg19", "GRCh38", ...).

    Raises InvalidInputError for another build, or where the lengths differ.
    Source: Price et al. 2008, Am J Hum Genet 83:132; Anderson et al. 2010, Nat Protoc 5:1564.
    """
    known = BUILDS.get(build.lower() if isinstance(build, str) else build)
    if known is None:
        raise InvalidInputError(f"build={build!r}; the regions are known for builds 37 and 38")
    chromosomes, places = np.asarray(chromosome), np.asarray(position)
    if chromosomes.shape != places.shape or places.ndim != 1:
        raise InvalidInputError(
            f"{chromosomes.shape} chromosomes and {places.shape} positions; expected one each, (p,)"
        )
    distinct, which = numbered(as_text(chromosomes))
    names = as_text([name.lower().removeprefix("chr") for name in distinct])[which]
    inside = np.zeros(len(names), dtype=bool)
    for name, *bounds in REGIONS:
        start, stop = bounds[:2] if known == 37 else bounds[2:]
        inside |= (names == name) & (places >= start) & (places <= stop)
    return inside


# The variants and samples that a genotype analysis uses, selected by name and position.
#
# All of it needs labels only: nothing is read.

AUTOSOMES = (26, 29, 31, 38)  # of sheep, cow, horse and dog
UNPLACED = "0"  # the chromosome of variants without a position: PLINK leaves them out
_REGION = re.compile(r"^(?:chr)?([^:]+)(?::([\d,]+)-([\d,]+))?$", re.IGNORECASE)


@dataclass(frozen=True)
class VariantFilter:
    """Variants by chromosome, id and place.

    chromosomes : "autosomes", "all", or names such as ["1", "X"]. The codes after the autosomes
        are PLINK's: with 22, "23" and "X" name one chromosome, "24" and "Y", "25" and "XY", "26"
        and "MT", however the source spells them. "autosomes" are 1 to ``n_autosomes`` and, as in
        plink2's --pca, the pseudo-autosomal XY, PAR1 and PAR2; "0", no known place, is none.
    extract, exclude : variants to keep, to leave out: a sequence of ids, a file of them, or a
        boolean array (p,) over the variants of the source.
    regions, exclude_regions : "6:25,000,000-34,000,000" or "chr6"; both ends included.
    exclude_long_range_ld : None, or the genome build, 37 or 38.

    Examples
    --------
    >>> variants = streampca.VariantFilter(regions=["6:25,000,000-34,000,000"])
    >>> streampca.GenotypePCA(2, variants=variants).variants.regions
    ['6:25,000,000-34,000,000']
    """

    chromosomes: str | Sequence[str] = "autosomes"
    n_autosomes: int = HUMAN
    extract: Names | None = None
    exclude: Names | None = None
    regions: Sequence[str] = ()
    exclude_regions: Sequence[str] = ()
    exclude_long_range_ld: int | str | None = None

    def __post_init__(self) -> None:
        whole_number("n_autosomes", self.n_autosomes)

    def mask(self, labels: AxisLabels) -> Array:
        """(p,) True = used.

        Raises InvalidInputError where a label that is needed is absent, and where nothing is left.
        Warns AbsentNamesWarning of ids that are not in the data, UnknownChromosomeWarning of
        chromosomes that "autosomes" leaves out without knowing them.
        """
        keep = np.ones(len(labels), dtype=bool)
        for what, chosen in self._steps(labels):
            keep &= chosen
            if not keep.any():
                raise InvalidInputError(
                    f"no features are left of {len(keep)} after {what}{_present(labels)}"
                )
        return keep

    def _steps(self, labels: AxisLabels) -> Iterator[tuple[str, Array]]:
        """(name of a setting, (p,) True = kept by it) of each setting that is in use."""
        if (chromosomes := self._chromosomes(labels)) is not None:
            stored, others = _column(labels, "chromosome", "chromosomes"), Counter[str]()

            def among(names: Array) -> Array:
                plain = chromosome_names(names, self.n_autosomes)
                chosen = is_among(plain, chromosomes)
                distinct, codes = numbered(plain[~chosen])
                others.update(dict(zip(distinct, np.bincount(codes).tolist(), strict=True)))
                return chosen

            chosen = by_pieces(among, stored)
            if self.chromosomes == "autosomes":
                _warn_of_unknown(others)
            yield f"chromosomes={self.chromosomes!r}", chosen
        if self.extract is not None:
            yield "extract", _among_ids(labels, self.extract, "extract")
        if self.exclude is not None:
            yield "exclude", ~_among_ids(labels, self.exclude, "exclude")
        if self.regions:
            yield f"regions={self.regions!r}", in_regions(labels, self.regions, self.n_autosomes)
        if self.exclude_regions:
            outside = ~in_regions(labels, self.exclude_regions, self.n_autosomes)
            yield f"exclude_regions={self.exclude_regions!r}", outside
        if self.exclude_long_range_ld is not None:
            chromosome = _column(labels, "chromosome", "exclude_long_range_ld")
            position = _column(labels, "position", "exclude_long_range_ld")
            build = self.exclude_long_range_ld
            inside = by_pieces(lambda c, p: in_long_range_ld(c, p, build), chromosome, position)
            yield f"exclude_long_range_ld={self.exclude_long_range_ld!r}", ~inside

    def _chromosomes(self, labels: AxisLabels) -> list[str] | None:
        """Names of the chromosomes to keep; None for all, or if "autosomes" finds no labels."""
        if isinstance(self.chromosomes, str):
            if self.chromosomes == "all":
                return None
            if self.chromosomes == "autosomes":
                if "chromosome" not in labels.extra:
                    return None
                return [*(str(i) for i in range(1, self.n_autosomes + 1)), *DIPLOID]
            return self._expanded(self.chromosomes)
        return [one for text in self.chromosomes for one in self._expanded(text)]

    def _expanded(self, text: str) -> list[str]:
        return [chromosome_name(one, self.n_autosomes) for one in expand_chromosomes(text)]


def expand_chromosomes(text: str) -> list[str]:
    """ "1-3,X" -> 1, 2, 3, X."""
    found: list[str] = []
    for part in str(text).replace(" ", "").split(","):
        plain = part[3:] if part.lower().startswith("chr") else part
        first, dash, last = plain.partition("-")
        if dash and first.isdigit() and last.isdigit() and int(first) <= int(last):
            found += [str(i) for i in range(int(first), int(last) + 1)]
        elif plain and not dash:
            found.append(plain)
        else:
            raise InvalidInputError(f"chromosomes {text!r}; expected such as '1-22' or '1,2,X'")
    return found


def in_regions(
    labels: AxisLabels, regions: Sequence[str], n_autosomes: int | None = HUMAN
) -> Array:
    """(p,) True where a variant lies in one of the regions, ends included."""
    chromosome = _column(labels, "chromosome", "regions")
    position: Array | Column = np.zeros(len(labels))
    wanted = [_parsed(region, n_autosomes) for region in regions]
    if any(places is not None for _, places in wanted):
        position = _column(labels, "position", "regions")

    def within(names: Array, places: Array) -> Array:
        plain = chromosome_names(names, n_autosomes)
        inside = np.zeros(len(plain), dtype=bool)
        for name, ends in wanted:
            here = plain == name
            if ends is not None:
                here &= (places >= ends[0]) & (places <= ends[1])
            inside |= here
        return inside

    return by_pieces(within, chromosome, position)


def _parsed(region: str, n_autosomes: int | None) -> tuple[str, tuple[int, int] | None]:
    """(chromosome, first and last position or None for all of it)."""
    if (found := _REGION.match(region.strip())) is None:
        raise InvalidInputError(f"region {region!r}; expected such as '6:25000000-34000000'")
    name, first, last = found.groups()
    ends = None if first is None else (int(first.replace(",", "")), int(last.replace(",", "")))
    return chromosome_name(name, n_autosomes), ends


def _among_ids(labels: AxisLabels, names: Names, option: str) -> Array:
    """(p,) True for the named variants.  names : or that itself, a boolean array."""
    if isinstance(names, np.ndarray) and names.dtype == np.bool_:
        if names.shape != (len(labels),):
            raise InvalidInputError(
                f"{option}: an array of {names.shape} booleans for {len(labels)} variants"
            )
        return names
    ids, wanted = names_of(labels), read_names(names)
    chosen = is_among(ids, wanted)
    warn_of_absent(wanted, [ids[chosen]], option)
    return chosen


def _warn_of_unknown(left_out: Counter[str]) -> None:
    """Warn of chromosomes that are neither autosomes nor PLINK's other codes."""
    names = sorted(left_out.keys() - {*LETTERS, UNPLACED})
    if names:
        numbers = [int(name) for name in names if name.isdecimal()]
        among = ""
        if numbers:
            likely = [n for n in AUTOSOMES if n <= max(numbers) <= n + len(LETTERS)]
            among = (
                f", or say how many autosomes there are: n_autosomes={[max(numbers), *likely][-1]}"
            )
            among += " (dog 38, horse 31, cow 29, sheep 26)"
        warn_caller(
            f"{sum(left_out[name] for name in names)} variants are left out with the chromosomes "
            f"that are no autosomes, on {shorten(names, len(names))}, no known code. Take them by "
            f"chromosomes='all'{among}",
            UnknownChromosomeWarning,
        )


def filter_genotypes(
    matrix: ChunkedMatrix,
    variants: VariantFilter,
    keep: Names | None = None,
    exclude: Names | None = None,
    option: str = "exclude",
) -> ChunkedMatrix:
    """The variants and samples to use, as a matrix that reads only those.

    keep, exclude : samples, as in :func:`sample_mask`.  option : what the user calls the latter.
    """
    samples = np.ones(matrix.shape[0], dtype=bool)
    if keep is not None:
        samples &= sample_mask(matrix.labels.samples, keep, "keep")
    if exclude is not None:
        samples &= ~sample_mask(matrix.labels.samples, exclude, option)
    if not samples.any():
        options = option if keep is None else f"keep and {option}"
        raise InvalidInputError(f"no samples are left of {len(samples)} after {options}")
    chosen = variants.mask(matrix.labels.features)
    return matrix if samples.all() and chosen.all() else select(matrix, samples, chosen)


def _present(labels: AxisLabels) -> str:
    """The chromosomes of the data, for a message."""
    if "chromosome" not in labels.extra:
        return ""
    names, _ = numbered(textual(labels.extra["chromosome"]))
    return (
        f"; the chromosomes present are {shorten(names, len(names))} (chromosomes='all' takes all)"
    )


def _column(labels: AxisLabels, name: str, option: str) -> Any:
    if name not in labels.extra:
        raise InvalidInputError(
            f"{option} needs the {name} of every variant, and this source does not have it; open "
            "a .bed, a VCF Zarr or what `streampca convert` wrote"
        )
    values = labels.extra[name]
    if not isinstance(values, Column):
        values = np.asarray(values)
    return values if values.dtype.kind == "i" else textual(values)
