"""The regions of the human genome where linkage reaches over megabases.

A principal component can follow one of them (the 8p23 inversion, HLA, lactase) instead of
ancestry, so they are commonly left out before a PCA.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix.text import as_text, numbered

BUILDS = {37: 37, 38: 38, "37": 37, "38": 38, "b37": 37, "b38": 38, "hg19": 37, "hg38": 38,
          "grch37": 37, "grch38": 38}  # fmt: skip

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
