"""Labels of genotypes: samples by id, variants by id, position and alleles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streampca.errors import (
    IncompleteSourceWarning,
    InvalidInputError,
    SourceError,
    shorten,
    warn_caller,
)
from streampca.matrix import AxisLabels
from streampca.matrix.columns import (
    Column,
    Mapped,
    Runs,
    Text,
    as_text,
    compact,
    is_among,
    numbered,
    repeated,
    textual,
)

# Labels of genotype matrices: samples by id, variants by id, chromosome, position and alleles.

UNNAMED = "."
NO_PARENT = "0"
HUMAN = 22  # autosomes
LETTERS = ("X", "Y", "XY", "MT")  # PLINK's codes after the autosomes
DIPLOID = ("XY", "PAR1", "PAR2")  # parts of X and Y that everyone has two copies of


def sample_labels(
    family: Text | None, individual: Text, parents: Mapping[str, Text] | None = None
) -> AxisLabels:
    """One dimension "sample", named by individual id; by FAMILY:INDIVIDUAL where that repeats.

    parents : "father" and "mother", the ids of their individuals in the same family, "0" = none.
    Raises InvalidInputError where a sample occurs twice.
    """
    names, extra = individual, dict(parents or {})
    if family is not None:
        extra = {"family": family, "individual": individual, **extra}
        if repeated(individual):
            names = np.strings.add(np.strings.add(family, ":"), individual)
    if twice := repeated(names):
        raise InvalidInputError(
            f"{len(twice)} sample ids occur more than once ({shorten(twice[:4], len(twice))}); "
            "give every sample an id of its own"
        )
    return AxisLabels(("sample",), (len(names),), {"sample": names}, extra=extra)


def variant_labels(
    chromosome: Any, names: Any, position: Any, counted: Any, other: Any, *, unnamed: bool = True
) -> AxisLabels:
    """One dimension "variant"; unnamed variants (".") are called chromosome:position:alleles.

    All are arrays, or columns that are read on demand.
    counted : the allele whose copies the values are.  other : the other one.
    unnamed : whether any name may be ".".
    """
    if isinstance(chromosome, Runs):
        chromosome = chromosome.mapped(plain_chromosome)
    else:
        chromosome = plain_chromosome(np.asarray(chromosome))
    columns = (chromosome, position, counted, other)
    if unnamed and isinstance(names, Column):
        names = Mapped(_named, np.dtypes.StringDType(), names, *columns)
    elif unnamed:
        names = _named(names, *columns)
    extra = {
        "chromosome": chromosome,
        "position": position,
        "counted_allele": counted,
        "other_allele": other,
    }
    return AxisLabels(("variant",), (len(names),), {"variant": names}, extra=extra)


def _named(names: Text, chromosome: Text, position: Any, counted: Text, other: Text) -> Text:
    """The names, others in the place of "."."""
    unnamed = np.flatnonzero(names == UNNAMED)
    if unnamed.size:
        names = as_text(names).copy()
        names[unnamed] = [f"{chromosome[i]}:{position[i]}:{counted[i]}:{other[i]}" for i in unnamed]
    return names


def warn_of_ignored(names: Any, position: Text, where: str) -> None:
    """Warn of variants with a negative position. Raises SourceError where all are."""
    ignored = np.flatnonzero(position < 0)
    if len(ignored) == len(position):
        raise SourceError(f"{where}: all {len(position)} positions are negative: nothing is left")
    warn_caller(
        f"{where}: {len(ignored)} of {len(position)} variants have a negative position and are "
        f"left out, as PLINK does: {shorten([str(names[i]) for i in ignored[:4]], len(ignored))}",
        IncompleteSourceWarning,
    )


def plain_chromosome(names: Text) -> Text:
    """Chromosomes as stored, without "chr": their codes depend on the species."""
    distinct, codes = numbered(as_text(names))
    return compact([_without_prefix(name) for name in distinct])[codes]


def chromosome_name(name: str, n_autosomes: int | None = HUMAN) -> str:
    """One name for all spellings of a chromosome: "chrX", "x" and PLINK's "23" are "X".

    n_autosomes : N. The codes N + 1 to N + 4 are X, Y, XY and MT; None: numbers stay numbers.
    """
    plain = _without_prefix(name).upper()
    if plain in ("0X", "0Y", "0M"):  # of two characters each, as UK Biobank writes them
        plain = plain[1]
    if not (plain.isascii() and plain.isdecimal()):
        return "MT" if plain == "M" else plain
    number = int(plain)
    if n_autosomes is not None and 0 < number - n_autosomes <= len(LETTERS):
        return LETTERS[number - n_autosomes - 1]
    return str(number)


def chromosome_names(names: Text, n_autosomes: int | None = HUMAN) -> Text:
    """(p,) :func:`chromosome_name` of each."""
    distinct, codes = numbered(as_text(names))
    return compact([chromosome_name(name, n_autosomes) for name in distinct])[codes]


def _without_prefix(name: str) -> str:
    return name[3:] if name.lower().startswith("chr") else name


def refuse_shared_variants(
    variants: AxisLabels, sizes: Sequence[int], hashes: np.ndarray[Any, Any] | None = None
) -> None:
    """Raise InvalidInputError where two of the files joined to these variants hold the same one.

    Variants of one id are the same if they have one position and the same alleles.
    sizes : variants of each file.  hashes : of the ids, as ``repeated``.
    """
    names = textual(variants.coords[variants.dims[0]])
    if not (twice := repeated(names, hashes)):
        return
    at = np.flatnonzero(is_among(names, twice))
    known = [variants.extra.get(name) for name in ("chromosome", "position")]
    alleles = [variants.extra.get(name) for name in ("counted_allele", "other_allele")]
    columns = [names[at].tolist(), *(one[at].tolist() for one in known if one is not None)]
    both = [one[at].tolist() for one in alleles if one is not None]
    keys = zip(*columns, map(frozenset, zip(*both, strict=True)) if both else at * 0, strict=True)
    files = np.searchsorted(np.cumsum(sizes), at, side="right").tolist()
    first: dict[Any, int] = {}
    pairs = zip(keys, files, strict=True)
    shared = [key[0] for key, file in pairs if first.setdefault(key, file) != file]
    if shared:
        raise InvalidInputError(
            f"{len(shared)} variants lie in two of the files ({shorten(shared[:4], len(shared))}); "
            "a variant may lie in one of them only"
        )


def refuse_repeated_ids(variants: AxisLabels, what: str) -> None:
    """Raise InvalidInputError where an id names several variants.

    what : that needs an id for each, for the message.
    """
    if not variants.named or len(variants.dims) > 1:
        return
    if twice := repeated(textual(variants.coords[variants.dims[0]])):
        raise InvalidInputError(
            f"{what} needs an id for each variant, and {len(twice)} ids are of several "
            f"({shorten(twice[:4], len(twice))}). Rename them: plink2 --set-all-var-ids "
            "'@:#:$r:$a' --make-bed; or leave them out: exclude='ids.txt'"
        )
