"""The columns of a design, term by term, from words, coordinates and arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from streampca.errors import InvalidInputError, shorten
from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.matrix.alignment import along, by_dims, refuse_masked
from streampca.models.side_data.by_name import EXPECTED, WORDS, Find, Named
from streampca.models.side_data.cycles import (
    CYCLES,
    DAY,
    coordinates,
    cycle_of,
    is_date,
    levels_of_cycle,
)
from streampca.sources.stacked import TIME


@dataclass(frozen=True)
class Term:
    """Some columns of a design.

    kind : one of CYCLES or "trend" (of the coordinate ``dim``), "columns" or "levels" (arrays).
    names : of the columns; of levels, the levels.
    source : name of the column of the samples that an array was; "" of others.
    """

    kind: str
    dim: str = ""
    names: tuple[str, ...] = ()
    source: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        found = {"kind": self.kind, "dim": self.dim, "names": list(self.names)}
        return found | ({"source": self.source} if self.source else {})

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """The inverse of ``to_dict``."""
        return cls(saved["kind"], saved["dim"], tuple(saved["names"]), saved.get("source", ""))


def terms_of(remove: Any, samples: AxisLabels) -> tuple[tuple[Term, ...], Array]:
    """(the terms of ``remove`` for these samples, their columns (n, c))."""
    terms: list[Term] = []
    columns: list[Array] = []
    if isinstance(remove, (list, tuple)) and not remove:
        raise InvalidInputError(
            f"remove={remove!r} names nothing; expected 'month', 'trend', ... or an array"
        )
    for item in _items(remove):
        made = [_of_word(item, samples)] if isinstance(item, str) else _of_array(item, samples)
        terms += [term for term, _ in made]
        columns += [values for _, values in made]
    return tuple(terms), np.concatenate(columns, axis=1)


def columns_of(
    terms: Sequence[Term], samples: AxisLabels, arrays: Sequence[Any], find: Find | None = None
) -> Array:
    """(n, c) the columns of known terms at other samples; ``arrays`` stand for those that need one.

    An array may have made several terms (a data frame of numbers and levels).
    find : columns of these samples by name, for terms that had one where no array came for them.
    """
    made = [new for array in arrays for new in _of_array(array, samples)]
    wanted = [term for term in terms if term.kind in ("columns", "levels")]
    if find is not None and len(made) != len(wanted):
        wanted = [term for term in wanted if not term.source]
    if len(made) != len(wanted):
        what = ", ".join(shorten(list(term.names), len(term.names)) for term in wanted)
        raise InvalidInputError(
            f"{len(wanted)} arrays were removed in the fit ({what}), and {len(made)} came: give "
            "those of these samples, remove=array of (n_samples, columns); or remove=False, which "
            "leaves these rows as they are"
        )
    columns = []
    for term in terms:
        if term in wanted:
            found, values = made.pop(0)
            columns.append(_as_in_fit(term, found, values))
        elif term.source and find is not None:
            ((found, values),) = _of_array(Named(term.source, find(term.source)), samples)
            columns.append(_as_in_fit(term, found, values))
        else:
            columns.append(_of_word(term.kind, samples, term.dim)[1])
    return np.concatenate(columns, axis=1)


def arrays_among(remove: Any) -> list[Any]:
    """The items of ``remove`` that are not words."""
    return [] if remove is None else [item for item in _items(remove) if not isinstance(item, str)]


def _items(remove: Any) -> list[Any]:
    """The terms as a list: a list of words or arrays counts as several terms."""
    if isinstance(remove, (list, tuple)) and any(
        isinstance(one, str) or getattr(one, "ndim", 0) for one in remove
    ):
        words = all(isinstance(one, str) for one in remove)
        known = words and set(remove) <= set(WORDS)
        return list(remove) if known or not words else [np.asarray(remove)]
    return [remove]


# -- words ---------------------------------------------------------------------------------------


def _of_word(word: str, samples: AxisLabels, dim: str = "") -> tuple[Term, Array]:
    """A cycle or a trend in a coordinate of the samples."""
    if word in ("trend", "linear"):
        dim, values = _coordinate_for(word, samples, dim, _numbers)
        return Term("trend", dim, (f"trend of {dim}",)), values[:, None]
    if word not in CYCLES:
        raise InvalidInputError(f"remove={word!r}; expected {EXPECTED}")
    names = CYCLES[word].names
    dim, place = _coordinate_for(word, samples, dim, CYCLES[word].places)
    return Term(word, dim, names), (place[:, None] == np.arange(len(names))).astype(np.float64)


def _coordinate_for(word: str, samples: AxisLabels, dim: str, read: Any) -> tuple[str, Array]:
    """(name, values) of the suitable coordinate of the samples, or of the named one.

    Dates come first, then "time", then numbers along the only dimension that has them; numbers
    along a dimension that do not name it (a month, a year of birth) are not taken for its course.
    """
    known = coordinates(samples, dim)
    dates = [name for name, values in known.items() if is_date(values)]
    numbers = (
        [name for name in known if known[name].dtype.kind in "iuf"] if read is _numbers else []
    )
    numbers = [name for name in numbers if dim or name in samples.coords]
    numbers = [name for name in numbers if not _returns(name, known[name])]
    for names in (dates[:1], [name for name in numbers if name == TIME], numbers):
        if len(names) == 1:
            _refuse_gaps(known[names[0]], names[0])
            return names[0], read(known[names[0]])
    if numbers:
        raise InvalidInputError(
            f"remove={word!r} could go along {' or '.join(map(repr, numbers))}: give the numbers "
            "themselves, remove=array of (n_samples, columns)"
        )
    kind = "dates" if word in CYCLES else "dates or numbers"
    wanted = f"the coordinate {dim!r}" if dim else "a coordinate"
    raise InvalidInputError(
        f"remove={word!r} needs {wanted} of the samples with {kind}; the samples have "
        f"{list(samples.coords) or 'none'}. Give X as an xarray.DataArray with its time, or a "
        "pandas frame whose index holds dates (of text, pandas.to_datetime(X.index)), or the "
        "numbers themselves, remove=array of (n_samples, columns)"
    )


def _returns(name: str, values: Array) -> bool:
    """Whether numbers that have the name of a cycle, such as months 1 to 12, begin again."""
    return cycle_of(name) is not None and not np.all(np.diff(values) > 0)


def _numbers(values: Array) -> Array:
    """(n,) float64: numbers as they are, dates in days."""
    if values.dtype.kind == "M":
        return np.asarray((values - np.datetime64(0, "D")) / DAY)
    if values.dtype.kind in "iuf":
        return values.astype(np.float64)
    return np.array([_days(value) for value in values])


def _refuse_gaps(values: Array, name: str) -> None:
    """Refuse a coordinate with NaT or NaN, which are not equal to themselves."""
    gaps = values != values
    if np.any(gaps):
        raise InvalidInputError(
            f"the coordinate {name!r} is missing for {int(np.sum(gaps))} samples, the first at "
            f"place {int(np.argmax(gaps))}: leave them out, X.dropna({name!r}), or fill it in"
        )


def _days(date: Any) -> float:
    """Days of a date in its own calendar (cftime counts fractions itself)."""
    if hasattr(date, "calendar"):
        return float(date.toordinal(fractional=True))
    return float(date.toordinal()) + getattr(date, "hour", 0) / 24.0


# -- arrays --------------------------------------------------------------------------------------


def _of_array(argument: Any, samples: AxisLabels) -> list[tuple[Term, Array]]:
    """Terms of an array, data frame or DataArray: its numbers together, then columns of levels."""
    if isinstance(argument, Named):
        values = along(argument.values, samples, f"remove={argument.name!r}")
        ((term, columns),) = _terms_of_columns([(argument.name, values)], samples)
        return [(replace(term, source=argument.name), columns)]
    return _terms_of_columns(_named_columns(argument, samples), samples)


def _terms_of_columns(
    named: Sequence[tuple[str, Array]], samples: AxisLabels
) -> list[tuple[Term, Array]]:
    """The numbers of columns (n,) together, then columns of levels: text, or parts of a cycle."""
    numbers: list[tuple[str, Array]] = []
    levels: list[tuple[Term, Array]] = []
    for name, values in named:
        values = values if (parts := levels_of_cycle(name, values)) is None else parts
        if values.dtype.kind == "c":
            raise InvalidInputError(
                f"remove holds {values.dtype}; expected real columns, such as the real and "
                "imaginary parts: remove=numpy.column_stack([x.real, x.imag])"
            )
        if values.dtype.kind in "biuf":
            numbers.append((name, values.astype(np.float64)))
            continue
        known, place = np.unique([str(value) for value in values], return_inverse=True)
        term = Term("levels", name, tuple(known.tolist()))
        levels.append((term, (place[:, None] == np.arange(len(known))).astype(np.float64)))
    made = []
    if numbers:
        columns = np.stack([values for _, values in numbers], axis=1)
        if not np.isfinite(columns).all():
            row = int(np.flatnonzero(~np.isfinite(columns).all(axis=1))[0])
            raise InvalidInputError(
                f"remove holds NaN or infinity at {samples.name(row)}; expected finite numbers for "
                "every sample"
            )
        made.append((Term("columns", "", tuple(name for name, _ in numbers)), columns))
    return made + levels


def _named_columns(argument: Any, samples: AxisLabels) -> list[tuple[str, Array]]:
    """The columns of the argument, each (n,), in the order of the samples."""
    if by_dims(argument):
        return _of_dataarray(argument, samples)
    if hasattr(argument, "columns") and hasattr(argument, "index"):
        columns = [(str(name), argument.iloc[:, j]) for j, name in enumerate(argument.columns)]
        return [(name, along(_whole(one, name), samples, "remove")) for name, one in columns]
    if hasattr(argument, "index") and hasattr(argument, "to_numpy"):
        name = str(argument.name or "x0")
        return [(name, along(_whole(argument, name), samples, "remove"))]
    refuse_masked(argument, "remove")
    array = np.asarray(_whole(argument, "x0") if hasattr(argument, "categories") else argument)
    array = array[:, None] if array.ndim == 1 else array
    n = len(samples)
    if array.ndim != 2 or len(array) != n or not array.shape[1]:
        raise InvalidInputError(
            f"remove has shape {np.shape(argument)}; expected ({n},) or ({n}, columns): a row for "
            "every sample"
        )
    return [(f"x{j}", array[:, j]) for j in range(array.shape[1])]


def _whole(column: Any, name: str) -> Any:
    """A column of a data frame, the categories of which are text, whatever they hold.

    Refuses one with missing values, which are no level.
    """
    gaps = np.asarray(column.isna()) if hasattr(column, "isna") else np.zeros(len(column), np.bool_)
    if gaps.any():
        raise InvalidInputError(
            f"remove is missing in column {name!r} for {int(gaps.sum())} samples, the first at "
            f"place {int(np.argmax(gaps))}; expected a value for every one: NaN and None are no "
            "level. Leave those samples out, or use .fillna(...)"
        )
    kind = getattr(column, "dtype", None)
    return column.astype(str) if hasattr(kind, "categories") else column


def _of_dataarray(argument: Any, samples: AxisLabels) -> list[tuple[str, Array]]:
    others = [str(d) for d in argument.dims if str(d) not in samples.dims]
    if len(others) > 1 or len(others) == len(argument.dims):
        raise InvalidInputError(
            f"remove has dimensions {argument.dims}; expected some of {samples.dims} and at most "
            "one for its columns"
        )
    if not others:
        return [(str(argument.name or "x0"), along(argument, samples, "remove"))]
    (dim,) = others
    known = argument.coords[dim].values if dim in argument.coords else range(argument.sizes[dim])
    one = [along(argument.isel({dim: j}), samples, "remove") for j in range(argument.sizes[dim])]
    return [(str(name), values) for name, values in zip(known, one, strict=True)]


def _as_in_fit(term: Term, found: Term, values: Array) -> Array:
    """Columns of a new array in the form of the fit: the same numbers, or the same levels."""
    if (term.kind, len(term.names)) == (found.kind, len(found.names)) and term.kind == "columns":
        return values
    if term.kind == found.kind == "levels":
        if new := sorted(set(found.names) - set(term.names)):
            raise InvalidInputError(
                f"remove has the level {new[0]!r}, which no sample of the fit had: "
                f"{shorten(list(term.names), len(term.names))}"
            )
        places = [term.names.index(name) for name in found.names]
        known = np.zeros((len(values), len(term.names)))
        known[:, places] = values
        return known
    raise InvalidInputError(
        f"remove has {len(found.names)} {found.kind}; the fit had {len(term.names)} {term.kind}"
    )
