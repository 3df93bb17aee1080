"""Cycles of the calendar, as ``remove=`` names them: of dates, or of whole numbers of that name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import AxisLabels

DAY = np.timedelta64(1, "D")
THURSDAY = 3  # of a week that begins with Monday; also 1970-01-01, where NumPy counts from


@dataclass(frozen=True)
class Cycle:
    """A cycle of the calendar.

    names : (c,) of its parts.
    place : (n,) parts from 0 of dates of NumPy.  of_date : that of one date of another calendar.
    whole : the least and the largest number that stands for a part in a column of this name.
    """

    names: tuple[str, ...]
    place: Callable[[Array], Array]
    of_date: Callable[[Any], int]
    whole: tuple[int, int]

    def places(self, dates: Array) -> Array:
        """(n,) parts from 0, of any dates."""
        if dates.dtype.kind == "M":
            return np.asarray(self.place(dates).astype(np.int64))
        return np.array([self.of_date(one) for one in dates], dtype=np.int64)


def _month(dates: Array) -> Array:
    return np.asarray(dates.astype("datetime64[M]").astype(np.int64) % 12)


def _day(dates: Array) -> Array:
    """Days since 1970-01-01."""
    return np.asarray(dates.astype("datetime64[D]").astype(np.int64))


def _day_of_year(dates: Array) -> Array:
    return np.asarray(_day(dates) - _day(dates.astype("datetime64[Y]")))


def _day_of_week(dates: Array) -> Array:
    return np.asarray((_day(dates) + THURSDAY) % 7)


def _week(dates: Array) -> Array:
    """ISO 8601: a week belongs to the year of its Thursday."""
    days = _day(dates)
    thursday = days - (days + THURSDAY) % 7 + THURSDAY
    return np.asarray(_day_of_year(thursday.astype("datetime64[D]")) // 7)


def _week_of_date(date: Any) -> int:
    if hasattr(date, "isocalendar"):
        return int(date.isocalendar()[1]) - 1
    raise InvalidInputError(
        f"remove='week': the calendar {date.calendar!r} has no weeks of a year (ISO 8601); "
        "use remove='dayofyear', or the numbers of your weeks as text: remove=weeks.astype(str)"
    )


def _hour(dates: Array) -> Array:
    return np.asarray(dates.astype("datetime64[h]").astype(np.int64) % 24)


MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
CYCLES = {
    "month": Cycle(MONTHS, _month, lambda date: date.month - 1, (0, 12)),
    "season": Cycle(
        ("DJF", "MAM", "JJA", "SON"),
        lambda dates: (_month(dates) + 1) % 12 // 3,
        lambda date: date.month % 12 // 3,
        (0, 4),
    ),
    "quarter": Cycle(
        ("Q1", "Q2", "Q3", "Q4"),
        lambda dates: _month(dates) // 3,
        lambda date: (date.month - 1) // 3,
        (0, 4),
    ),
    "week": Cycle(tuple(f"week {i}" for i in range(1, 54)), _week, _week_of_date, (0, 53)),
    "dayofyear": Cycle(
        tuple(f"day {i}" for i in range(1, 367)),
        _day_of_year,
        lambda date: date.timetuple().tm_yday - 1,
        (0, 366),
    ),
    "dayofweek": Cycle(DAYS, _day_of_week, lambda date: date.timetuple().tm_wday, (0, 7)),
    "hour": Cycle(
        tuple(f"{i:02} h" for i in range(24)), _hour, lambda date: getattr(date, "hour", 0), (0, 24)
    ),
}
SAME = {"weekday": "dayofweek", "weekofyear": "week", "doy": "dayofyear"}


def cycle_of(name: str) -> str | None:
    """The cycle that a name stands for: "Month", "day_of_year", "weekday"; None for others."""
    plain = re.sub(r"[\W_]", "", name).lower()
    plain = SAME.get(plain, plain)
    return plain if plain in CYCLES else None


def levels_of_cycle(name: str, values: Array) -> Array | None:
    """(n,) text: the levels of numbers under the name of a cycle; None where it is no such name.

    Raises InvalidInputError for numbers that are no parts of the cycle: a line through them and a
    level for each are both possible.
    """
    cycle = cycle_of(name)
    if cycle is None or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        return None
    low, high = CYCLES[cycle].whole
    if np.all((values >= low) & (values <= high) & (values == np.rint(values))):
        return values.astype(np.int64).astype(str)
    raise InvalidInputError(
        f"remove: {name!r} holds {values.min():g} to {values.max():g}, and the numbers of a "
        f"{cycle} are whole, {low} to {high}. Say what is meant: remove=numbers.values for a "
        f"straight line through them, remove=numbers.astype(str) for a level of each, or the "
        f"cycle in the dates of the samples, remove={cycle!r} without such a column"
    )


# The dates of samples.


def is_date(values: Any) -> bool:
    """Whether these are dates, of NumPy or of another calendar."""
    return bool(values.dtype.kind == "M") or (
        values.dtype == object and all(hasattr(value, "toordinal") for value in values)
    )


def coordinates(samples: AxisLabels, name: str = "") -> dict[str, Array]:
    """Name -> (n,) values of the coordinates of the samples, or of one of them."""
    names = [name] if name else [*samples.coords, *samples.extra, *samples.grids]
    found = {one: samples.coordinate(one) for one in names}
    return {one: values for one, values in found.items() if values is not None}


def places_by_dates(word: str, samples: AxisLabels) -> Array | None:
    """(n,) parts of a cycle from 0, by the first dates of the samples; None where they have none,
    or not all of them."""
    dates = next((values for values in coordinates(samples).values() if is_date(values)), None)
    return CYCLES[word].places(dates) if dates is not None and np.all(dates == dates) else None


def same_groups(one: Array, other: Array) -> bool:
    """Whether two columns (n,) divide the samples into the same groups."""
    pairs = np.stack([np.unique(c.astype(str), return_inverse=True)[1] for c in (one, other)])
    return bool(np.unique(pairs, axis=1).shape[1] == pairs[0].max() + 1 == pairs[1].max() + 1)
