"""A table of ratings that is handed to a fit is recognised by the names of its columns."""

from __future__ import annotations

import os
import re
from typing import Any

from streampca.errors import InvalidInputError, hide_secrets
from streampca.paths import PARQUET
from streampca.sources.tables.frames import column_names, is_frame

DELIMITERS = ("::", "\t", ";", "|", ",")  # of text; what nobody writes into an id comes first
EXAMPLE = "streampca.open_ratings({}, user={!r}, item={!r}, rating={!r})"

# names by which a column of ratings is recognised, without case, spaces and underscores
WORDS = (
    """
    user userid uid customer customerid reviewerid memberid personid viewer reader profilename
    """.split(),
    """
    item itemid iid movie movieid product productid book bookid isbn song songid track trackid
    artist artistid joke jokeid asin business businessid film filmid game gameid anime animeid
    recipeid restaurant restaurantid
    """.split(),
    "rating ratings stars score rate overall bookrating".split(),
)
MOST_COLUMNS = 6  # of a table of ratings; a wider one is a matrix of measurements


def refuse_ratings(source: Any) -> None:
    """Raise for a frame or a file whose columns are users, items and ratings.

    Raises InvalidInputError with the line to write.
    """
    if (found := recognised(source)) is not None:
        shown = "X" if is_frame(source) else repr(hide_secrets(os.fspath(source)))
        raise InvalidInputError(
            f"the columns {', '.join(found)} are those of ratings, one in each line, and no "
            f"matrix of measurements. Open them as users x items: {EXAMPLE.format(shown, *found)}. "
            f"If they are measurements, streampca.open({shown}) says so"
        )


def recognised(source: Any) -> tuple[str, str, str] | None:
    """(user, item, rating) among the columns of a frame or file; None where it has no ratings."""
    names = [str(name) for name in column_names(source)] if is_frame(source) else _names_in(source)
    if not 3 <= len(names) <= MOST_COLUMNS:
        return None
    plain = [re.sub(r"[^a-z]", "", name.lower()) for name in names]
    found = [
        next((n for n, p in zip(names, plain, strict=True) if p in words), None) for words in WORDS
    ]
    return None if None in found else tuple(found)  # type: ignore[return-value]


def _names_in(source: str | os.PathLike[str]) -> list[str]:
    """The names of the columns of a local file; none where they cannot be read."""
    path = os.fspath(source)
    if not os.path.isfile(path) or path.lower().endswith(".gz"):
        return []
    if path.lower().endswith(PARQUET):
        import pyarrow.parquet

        try:
            return list(pyarrow.parquet.read_schema(path).names)
        except (OSError, ValueError):  # the door says what is wrong with it
            return []
    with open(path, "rb") as file:
        first = file.readline(1 << 16).decode("utf-8-sig", "replace").rstrip("\r\n")
    mark = next((delimiter for delimiter in DELIMITERS if delimiter in first), ",")
    return [one.strip().strip('"') for one in first.split(mark)]
