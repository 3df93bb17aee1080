"""Saved documents become objects: what is malformed ends in one kind of error, and is named."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np

from streampca.errors import DamagedSourceError, StreamPCAError

NUMBERS = "biuf"  # kinds of arrays that hold them
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


@contextlib.contextmanager
def understood(where: str) -> Iterator[None]:
    """Around code that makes an object of a saved document: what it raises, as SourceError.

    Entries that are absent, or of a type or shape that nothing here writes, show themselves by many
    exceptions. Errors that are raised on purpose pass through.
    """
    try:
        yield
    except StreamPCAError:
        raise
    except MALFORMED as error:
        raise DamagedSourceError(
            f"{where} is damaged, or was not saved by streampca: {type(error).__name__}: "
            f"{error!s:.300}"
        ) from error


def check_fields(made: Any, where: str) -> None:
    """Look at the plain fields of a dataclass: their types must be those that it declares.

    Arrays must hold numbers. Fields of other types are left to whoever made them.
    Raises DamagedSourceError.
    """
    for one in fields(made):
        value, declared = getattr(made, one.name), str(one.type)
        if value is None and declared.endswith("| None"):
            continue
        if not _is(value, declared.removesuffix(" | None")):
            raise DamagedSourceError(
                f"{where} is damaged: {one.name} is {value!r:.80}, expected {declared}"
            )


def check_shapes(made: Any, shapes: dict[str, tuple[int | None, ...]], where: str) -> None:
    """Look at arrays of an object; None of a shape is any length, and None or another type passes.

    Raises DamagedSourceError.
    """
    for name, shape in shapes.items():
        value = getattr(made, name, None)
        if not isinstance(value, np.ndarray):
            continue
        same = value.ndim == len(shape) and all(
            n in (None, m) for n, m in zip(shape, value.shape, strict=True)
        )
        if not same:
            raise DamagedSourceError(
                f"{where} is damaged: {name} has the shape {value.shape}, expected {shape}"
            )


def _is(value: Any, declared: str) -> bool:
    if declared == "Array":
        return isinstance(value, np.ndarray) and value.dtype.kind in NUMBERS
    if declared == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if declared == "Mapping[str, Any]":
        return isinstance(value, dict)
    plain = {"int": int, "str": str, "bool": bool}
    return declared not in plain or type(value) is plain[declared]
