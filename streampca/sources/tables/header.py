"""Whether the first line of a text holds the names of its columns, where it could be data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streampca.errors import shorten
from streampca.matrix.columns import is_number
from streampca.sources.tables.text_options import NULLS, SIGNS, line_to_open

ROWS = 200  # that the first line is compared with
WHOLE = re.compile(r"\s*[+-]?\d+\s*")
YEARS = (1500, 2200)
RARE, MOST = 0.05, 0.9  # shares of the rows
OF_ROWS = ("id", "name", "sample", "index", "label", "gene", "date", "time", "species", "class")

# Points for names, from what tells a line of numeric names from a row of the table
FINER = 2  # the line holds whole numbers, nine rows of ten have decimals
COARSER = 1  # two decimals less than nine rows of ten
APART = 2  # all its numbers lie outside the range of their column by three times that range
EVEN = 1, 2  # steps are equal, as in hardly any row; of five numbers or more
RISING = 1  # five or more rise or fall, as in hardly any row
POWERS = 2  # written with exponents, as in hardly any row
COUNTING = 1  # 0, 1, 2, ...: what pandas writes for columns without names
CALENDAR = 1  # even steps within the calendar
ENOUGH, SURE = 2, 3


class Decision(NamedTuple):
    """names : whether the line holds names.  sure : else the caller should be told.  why : a
    reason, for messages; "" where none is needed."""

    names: bool
    sure: bool
    why: str = ""

    def note(self, line: int, cells: Sequence[str], row: str) -> str:
        """What was decided, in a few words.  line : its number.  row : what a row is called."""
        what = "as names of columns" if self.names else f"as the first {row}"
        return f"line {line} ({shorten(list(cells))}) is read {what}"

    def doubt(
        self,
        path: str,
        line: int,
        cells: Sequence[str],
        row: str,
        options: Mapping[str, Any],
        opener: str = "open",
    ) -> str:
        """The warning.  options : those that decide otherwise."""
        other = f"it is a {row}" if self.names else "it holds the names of the columns"
        why = f": {self.why}" if self.why else ""
        repair = line_to_open(path, opener, **options)
        return f"{path}: {self.note(line, cells, row)}{why}. If {other}: {repair}"


def decide(first: Sequence[str], rows: Sequence[Sequence[str]], quoted: bool = False) -> Decision:
    """Whether a first line is of names.

    first : its cells.  rows : the cells of the lines after it, with "." for the decimal mark.
    quoted : whether its cells are in quotes, and the numbers after it are not.

    A text over numbers is a name. Numbers over numbers are compared: names are different, and are
    finer, apart, even or rising where rows are not (see above). They count as names with 2 points,
    and are beyond doubt with 3, as data are with none.
    """
    rows = [row for row in rows[:ROWS] if len(row) == len(first)]
    texts = [j for j, cell in enumerate(first) if not _missing(cell) and not is_number(cell)]
    if quoted or not rows:
        return Decision(quoted or bool(texts), True)
    values = np.array([[_number(cell) for cell in row] for row in rows])
    numeric = np.isfinite(values).any(axis=0)
    known = np.array([[not _missing(cell) for cell in row] for row in rows])
    if any(numeric[j] and 2 * np.isfinite(values[:, j]).sum() > known[:, j].sum() for j in texts):
        return Decision(True, True)
    if len(first) > 1 and first[0].strip() == "" and known[:, 0].all():
        return Decision(True, True)  # over the names of the rows, as pandas and R write them
    places = [j for j, cell in enumerate(first) if numeric[j] and is_number(cell)]
    if not places:
        return Decision(bool(texts), True)
    if any(first[j] in {row[j] for row in rows} for j in texts):
        return Decision(False, True)  # a category, as further down
    tokens = [first[j] for j in places]
    cells = [[row[j] for j in places] for row in rows]
    points, why = _points(tokens, cells, values[:, places])
    points += ENOUGH * any(first[j].strip().lower() in OF_ROWS for j in texts)
    unnamed = [j for j, cell in enumerate(first) if j and _missing(cell)]
    points -= ENOUGH * bool(unnamed)
    return Decision(points >= ENOUGH, points >= SURE or (points <= 0 and not texts), why)


def _points(tokens: Sequence[str], cells: Sequence[Sequence[str]], values: Any) -> tuple[int, str]:
    """(points for names, the reasons)."""
    first = np.array([float(token) for token in tokens])
    if not np.isfinite(first).all():
        return 0, ""
    found: list[tuple[int, str]] = []
    whole = all(WHOLE.fullmatch(token) for token in tokens)
    own = max(map(_decimals, tokens))
    finer = np.array([max(map(_decimals, row)) - own for row in cells])
    if whole and np.mean(finer > 0) >= MOST:
        found.append((FINER, "whole numbers over decimals"))
    elif np.mean(finer > 1) >= MOST:
        found.append((COARSER, "of fewer decimals"))
    low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
    reach = 3 * (high - low)
    if len(values) > 1 and ((first < low - reach) | (first > high + reach)).all():
        found.append((APART, "far from the values"))
    counting = whole and np.array_equal(first, np.arange(len(first)))
    years = whole and YEARS[0] <= first.min() and first.max() <= YEARS[1]
    even = _even(first[None])[0] and _even(values).mean() <= RARE
    ratios = _in_ratios(first[None])[0] and _in_ratios(values).mean() <= RARE
    if even:
        found.append((EVEN[len(first) > 4], "in equal steps"))
    elif ratios:
        found.append((EVEN[len(first) > 4], "in equal ratios"))
    elif len(first) > 4 and _rising(first[None])[0] and _rising(values).mean() <= RARE:
        found.append((RISING, "in order"))
    if counting:
        found.append((COUNTING, "counting from 0"))
    if even and years:
        found.append((CALENDAR, "years"))
    written = [any("e" in cell.lower() for cell in row) for row in (tokens, *cells)]
    if written[0] and np.mean(written[1:]) <= RARE:
        found.append((POWERS, "with exponents over numbers without"))
    points = sum(one for one, _ in found) - (len(set(tokens)) < len(tokens))
    points = min(points, ENOUGH) if len(first) == 1 else points  # one number tells little
    return points, ", ".join(reason for _, reason in found)


def _even(rows: Any) -> Any:
    """(rows,) whether the steps between three or more numbers are equal."""
    steps = np.diff(rows, axis=1)
    if steps.shape[1] < 2:
        return np.zeros(len(rows), bool)
    mean = steps.mean(axis=1, keepdims=True)
    return (np.abs(steps - mean) <= 0.01 * np.abs(mean)).all(axis=1) & (mean[:, 0] != 0)


def _in_ratios(rows: Any) -> Any:
    """(rows,) whether the ratios of three or more positive numbers are equal."""
    return _even(np.log(np.where(rows > 0, rows, np.nan)))


def _rising(rows: Any) -> Any:
    """(rows,) whether the numbers rise, or fall."""
    steps = np.diff(rows, axis=1)
    return (steps > 0).all(axis=1) | (steps < 0).all(axis=1)


def _missing(cell: str) -> bool:
    return cell.strip() in NULLS or cell.strip() in SIGNS


def _decimals(cell: str) -> int:
    """How many digits a number has after its point."""
    number, _, power = cell.strip().lower().partition("e")
    return max(0, len(number.partition(".")[2]) - int(power or 0)) if is_number(cell) else 0


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")
