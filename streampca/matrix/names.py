"""Names of entries, whatever holds them: those of an index, and which of two sides are the same."""

from __future__ import annotations

import datetime
import re
import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, shorten
from streampca.kernels import Array
from streampca.matrix.labels import AxisLabels

WHOLE = re.compile(r"-?[1-9][0-9]{0,17}|0")  # "001" is a name, and no number
GENERIC = ("sample", "feature", "obs", "var")  # dimensions that were not named by the data


def index_names(index: Any, counted: bool = False) -> Any:
    """The names that an index of pandas holds; None where it has none.

    counted : of one that counts from 0, these numbers; else it has none.
    """
    if getattr(index, "nlevels", 1) > 1:
        return index_tuples([index.get_level_values(i) for i in range(index.nlevels)])
    values = index_values(index)
    if values.dtype.kind in "iuf":
        whole = counted or not counts(values)
        return values if whole and not np.isnan(values.astype(float)).any() else None
    if values.dtype.kind == "M":
        return values if not np.isnat(values).any() else None
    if len(values) and all(map(_zone, values)):
        return values
    return [str(_decoded(name)) for name in values]


def index_values(index: Any) -> Array:
    """What an index of pandas holds: periods as the dates at which they begin, dates of a time
    zone as objects, which know their hour there."""
    values = np.asarray(index.to_timestamp() if hasattr(index, "to_timestamp") else index)
    if values.dtype.kind != "O" or not len(values):
        return values
    zoned = getattr(index, "tz", None) is not None
    naive = not zoned and all(isinstance(one, datetime.date) and not _zone(one) for one in values)
    return np.asarray(values.tolist(), "M8[us]") if naive else values


def _zone(date: Any) -> Any:
    return getattr(date, "tzinfo", None)


def index_tuples(levels: Sequence[Any]) -> Array:
    """The names of an index of several levels: tuples of text."""
    every = [list(map(str, np.asarray(level).tolist())) for level in levels]
    names = np.empty(len(every[0]), object)
    names[:] = list(zip(*every, strict=True))
    return names


def counts(names: Any) -> bool:
    """Whether these are the numbers 0, 1, 2, ..., which name nothing."""
    array = np.asarray(names)
    return array.dtype.kind in "iu" and np.array_equal(array, np.arange(len(array)))


def reordered_numbers(names: Any) -> bool:
    """Whether these are the numbers 0, 1, 2, ... in another order, as numbers or as text."""
    array = whole_numbers(names)
    return array is not None and not counts(array) and counts(np.sort(array))


def whole_numbers(names: Any) -> Array | None:
    """Names as whole numbers, or None where one is none; "7" is the number 7, "07" is not."""
    array = _plain(() if names is None else names)
    if array.dtype.kind in "iu" or not len(array):
        return array if array.dtype.kind in "iu" else None
    if array.dtype.kind not in "UT" or not WHOLE.fullmatch(str(array[0])):
        return None
    text = array.tolist()
    return np.array(text, np.int64) if all(map(WHOLE.fullmatch, text)) else None


def difference(one: AxisLabels, other: AxisLabels, kind: str) -> str:
    """The first difference between the names of two axes, "" where they are the same.

    Float coordinates may differ by 1e-6.  kind : what an entry is, for the message.
    """
    if len(one) != len(other):
        return f"{len(one)} and {len(other)} {kind}s"
    flat = len(one.dims) == len(other.dims) == 1
    either = flat and ((one.named and other.named) or {*one.dims, *other.dims} & {*GENERIC})
    if (one.dims != other.dims and not either) or one.sizes != other.sizes:
        return f"dimensions {one.dims} {one.sizes} and {other.dims} {other.sizes}"
    at: Any = None
    if one.parts or other.parts:
        names = zip(one.names(), other.names(), strict=True)
        at = next((i for i, (a, b) in enumerate(names) if a != b), None)
    for d, (a, b) in enumerate(zip(one.dims, other.dims, strict=True) if not one.parts else ()):
        here, there = one.coords.get(a), other.coords.get(b)
        if here is None or there is None or at is not None:
            continue
        same = _equal(*comparable(here, there))
        if not same.all():
            at = int(np.argmin(same)) * int(np.prod(one.sizes[d + 1 :]))
    if at is None:
        return ""
    return f"{kind} {at + 1} is {one.name(at)} in one and {other.name(at)} in the other"


def _equal(a: Array, b: Array) -> Array:
    kinds = {a.dtype.kind, b.dtype.kind}
    if "f" not in kinds or kinds - set("iuf"):
        return np.asarray(a == b)
    largest = float(np.max(np.abs(b), initial=0.0, where=np.isfinite(b)))
    return np.isclose(a, b, rtol=1e-6, atol=1e-9 * largest, equal_nan=True)


OF_ARRAYS, OF_FRAMES = (".reindex_like(X)", ".values"), (".reindex(...)", ".to_numpy()")


def match(wanted: Array, known: Array, what: str, repairs: tuple[str, str] = OF_ARRAYS) -> Array:
    """(len(wanted),) positions of the wanted names among the known ones.

    repairs : what puts them in order, and what gives them up, for the message.
    Raises InvalidInputError for names that are absent, or there twice.
    """
    found = places(wanted, known, what)
    if (absent := found < 0).any():
        raise absent_names(np.asarray(wanted)[absent], what, *repairs)
    return found


def places(wanted: Any, known: Any, what: str) -> Array:
    """(len(wanted),) positions of names among the known ones, -1 where one is absent.

    Raises InvalidInputError where a wanted name is there twice.
    """
    a, b = comparable(wanted, known)
    if np.array_equal(a, b):
        return np.arange(len(a))
    mine, others = a.tolist(), b.tolist()
    number = {one: i for i, one in enumerate(others)}
    found = np.array([number.get(one, -1) for one in mine], np.int64)
    if len(number) < len(others):
        own = set(mine)
        again = [one for i, one in enumerate(others) if number[one] != i and one in own]
        if again:
            raise InvalidInputError(
                f"{what} names {shorten([repr(one) for one in dict.fromkeys(again)])} twice; "
                "expected each once"
            )
    return found


def absent_names(absent: Array, what: str, repair: str, plain: str) -> InvalidInputError:
    """The error for names that an argument lacks.  repair, plain : how to say otherwise."""
    return InvalidInputError(
        f"{what} has no entry for {shorten([str(one) for one in absent[:4]], len(absent))}; "
        f"expected the names of the data. Use {repair}, or {plain} to go by position"
    )


def comparable(a: Any, b: Any) -> tuple[Array, Array]:
    """Names of both sides in one form, in which the same names are equal.

    Text of any kind is text; dates are dates whatever their resolution, and those of another
    calendar go by what they read as; a whole number is the text that it is written as.
    """
    a, b = _plain(a), _plain(b)
    kinds = {a.dtype.kind, b.dtype.kind}
    if kinds <= set("biuf") or kinds <= set("UT"):
        return a, b
    if kinds == {"M"}:
        unit = a.dtype if a.dtype == b.dtype else np.dtype("M8[us]")
        return a.astype(unit).view(np.int64), b.astype(unit).view(np.int64)
    if "M" in kinds and kinds & set("UT"):
        try:
            return comparable(_as_dates(a), _as_dates(b))
        except ValueError:
            pass
    return _as_text(a), _as_text(b)


def _plain(values: Any) -> Array:
    """Names with the dtype of what they are."""
    array = np.asarray(values)
    if array.dtype.kind == "S":
        return np.asarray(np.strings.decode(array, "utf-8"))
    if array.dtype.kind != "O" or not len(array):
        return array
    every = [_decoded(one) for one in array.tolist()]
    if all(isinstance(one, Integral) for one in every):
        return np.asarray(every)
    if all(isinstance(one, Real) for one in every):
        return np.asarray(every, np.float64)
    if all(isinstance(one, datetime.date) for one in every):
        return _instants(every)
    if all(isinstance(one, str) for one in every):
        return np.asarray(every, np.dtypes.StringDType())
    return array


def _decoded(one: Any) -> Any:
    return one.decode("utf-8", "replace") if isinstance(one, bytes) else one


def _as_dates(values: Array) -> Array:
    return values if values.dtype.kind == "M" else _instants(values.tolist())


def _instants(dates: list[Any]) -> Array:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*timezones")  # dates of a time zone become UTC
        return np.asarray(dates, "M8[us]")


def _as_text(values: Array) -> Array:
    """Names as they are written."""
    texts = np.empty(len(values), object)
    if values.dtype.kind == "M":
        texts[:] = np.datetime_as_string(values.astype("M8[s]")).tolist()
    elif values.dtype.kind == "f":
        texts[:] = [str(int(one)) if one.is_integer() else repr(one) for one in values.tolist()]
    else:
        texts[:] = [_written(value) for value in values.tolist()]
    return texts


def _written(one: Any) -> str:
    if hasattr(one, "isoformat"):
        return str(one.isoformat()).replace(" ", "T")
    return str(tuple(map(str, one)) if isinstance(one, tuple) else _decoded(one))
