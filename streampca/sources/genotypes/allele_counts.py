"""What allele counts mean: the ploidy that a source states, and a missing code that is assumed."""

from __future__ import annotations

from dataclasses import replace

from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.sources.stacked import with_code

PLOIDY = "ploidy"  # attribute of the values: most copies in a call
ASSUMED = "missing_code_assumed"  # attribute: nobody said that MISSING_CALL means missing
DIPLOID = 2
MISSING_CALL = -1


def refuse_other_ploidy(matrix: ChunkedMatrix, ploidy: int, model: str = "GenotypePCA") -> None:
    """Raise InvalidInputError where the source states another ploidy than the one asked for.

    model : the call that takes ``ploidy``, for the message.
    """
    stated = matrix.labels.attrs.get(PLOIDY)
    if not isinstance(stated, int) or isinstance(stated, bool) or stated == ploidy:
        return
    repair = f"use {model}(ploidy={stated})"
    if stated == DIPLOID and ploidy == 1:
        repair = "its haploid calls count twice, as in a .bed, which gives the same frequencies: "
        repair += f"use {model}(ploidy=2)"
    raise InvalidInputError(
        f"ploidy={ploidy!r} and a source whose calls have up to {stated} copies: {repair}"
    )


def with_missing_calls(matrix: ChunkedMatrix) -> ChunkedMatrix:
    """The matrix, in which -1 is a missing call if it holds integers and no code was stated.

    What is assumed is remembered: calls that cannot be counts with that code are refused later.
    """
    if matrix.missing_value is not None or matrix.dtype.kind != "i":
        return matrix
    return with_assumed_code(matrix, MISSING_CALL)


def with_assumed_code(matrix: ChunkedMatrix, code: float) -> ChunkedMatrix:
    """The matrix with a missing code that nobody stated."""
    coded = with_code(matrix, code)
    coded.labels = replace(coded.labels, attrs={**coded.labels.attrs, ASSUMED: True})
    return coded


def code_is_assumed(matrix: ChunkedMatrix) -> bool:
    """Whether ``with_missing_calls`` chose the missing code."""
    return matrix.labels.attrs.get(ASSUMED) is True


def copies_are_unstated(matrix: ChunkedMatrix) -> bool:
    """Whether nothing says how many copies a call has: neither the source nor a missing code."""
    stated = matrix.missing_value is not None or PLOIDY in matrix.labels.attrs
    return code_is_assumed(matrix) or not stated
