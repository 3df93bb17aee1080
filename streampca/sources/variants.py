"""Labels of genotype matrices: samples by id, variants by id, chromosome, position and alleles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, shorten
from streampca.matrix import AxisLabels
from streampca.matrix.columns import Column, Mapped, Runs
from streampca.matrix.text import Text, as_text, compact, numbered, repeated

UNNAMED = "."
MISSING_CALL = -1
NO_PARENT = "0"
HUMAN = 22  # autosomes
LETTERS = ("X", "Y", "XY", "MT")  # PLINK's codes after the autosomes


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
    refuse_duplicates(names, "sample ids", "give every sample an id of its own")
    return AxisLabels(("sample",), (len(names),), {"sample": names}, extra=extra)


def variant_labels(
    chromosome: Any,
    names: Any,
    position: Any,
    counted: Any,
    other: Any,
    *,
    hashes: np.ndarray[Any, Any] | None = None,
) -> AxisLabels:
    """One dimension "variant"; unnamed variants (".") are called chromosome:position:alleles.

    All are arrays, or columns that are read when they are asked for.
    counted : the allele whose copies the values are.  other : the other one.
    hashes : (p,) of the names, where they are known and none is ".": overwritten.
    Raises InvalidInputError where an id occurs twice.
    """
    if isinstance(chromosome, Runs):
        chromosome = chromosome.mapped(plain_chromosome)
    else:
        chromosome = plain_chromosome(np.asarray(chromosome))
    if hashes is None:  # some may be unnamed
        beside = (chromosome, position, counted, other)
        if isinstance(names, Column):
            names = Mapped(_named, np.dtypes.StringDType(), names, *beside)
        else:
            names = _named(names, *beside)
    repair = "rename them: plink2 --set-all-var-ids '@:#:$r:$a' --make-bed"
    refuse_duplicates(names, "variant ids", repair, hashes)
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


def plain_chromosome(names: Text) -> Text:
    """Chromosomes as they are stored, without "chr": only who knows the species can say more."""
    distinct, codes = numbered(as_text(names))
    return compact([_without_prefix(name) for name in distinct])[codes]


def chromosome_name(name: str, n_autosomes: int | None = HUMAN) -> str:
    """One name for all spellings of a chromosome: "chrX", "x" and PLINK's "23" are "X".

    n_autosomes : N. The codes N + 1 to N + 4 are X, Y, XY and MT; None: numbers stay numbers.
    """
    plain = _without_prefix(name).upper()
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


def refuse_duplicates(
    names: Any, what: str, repair: str, hashes: np.ndarray[Any, Any] | None = None
) -> None:
    """Raise InvalidInputError where a name occurs more than once.  hashes : as ``repeated``."""
    if twice := repeated(names, hashes):
        shown = shorten(twice[:4], len(twice))
        raise InvalidInputError(f"{len(twice)} {what} occur more than once ({shown}); {repair}")
