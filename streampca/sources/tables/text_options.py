"""How a text is written: what a caller says of it, and the words that mean a missing value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.sources.text_files import codec_named

BLANKS = r"\s+"  # a delimiter: one or more blanks or tabs, as of pandas
SAID = {"\t": "tab", BLANKS: "blanks"}  # as messages name them
NAMED = {"\\t": "\t", "tab": "\t", "blanks": BLANKS, " ": BLANKS}  # delimiters as people type them

STATED = re.compile(r'("?)sep=([^"\r\n])\1[\r\n]*', re.IGNORECASE)
MOST_BLANKS = 40  # of a cell that holds nothing else

# What stands for a missing number, as pandas.read_csv has it
NULLS = frozenset(
    """
    #N/A #NA -1.#IND -1.#QNAN -NaN -nan 1.#IND 1.#QNAN <NA> N/A NA NULL NaN None n/a nan null
    """.split()
) | {"", "#N/A N/A"}
SIGNS = frozenset(["?", "-", "--", "---", ".", "..", "...", "*", "**", "\u2013", "\u2014"])
# Other words that people write for one; read as such only where na_values says so
WORDS = frozenset(
    r"""
    none missing unknown n.a. n.a n.d. nd n/d na nan null nil blank empty <null> (null) \n nat
    #div/0! #value! #ref! #null! #num! #name? #n/a bdl bd tnp undefined
    """.split()
) | {"not available", "not applicable"}


@dataclass(frozen=True)
class TextOptions:
    """What a caller says of a text; None where it is to be recognised.

    header : whether the first line names the columns.  na_values : cells that mean "missing",
    besides :data:`NULLS`.  decimal, thousands : marks within numbers.  strip : characters that do
    not belong to a number, such as "$%".  comment : begins what is ignored of a line.
    delimiter : one character, or ``\\s+``.  encoding : one of Python's.
    """

    header: bool | None = None
    na_values: tuple[str, ...] = ()
    decimal: str = "."
    thousands: str | None = None
    strip: str = ""
    comment: str | None = None
    delimiter: str | None = None
    encoding: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TextOptions:
        """From options of ``streampca.open``. Raises InvalidInputError, InvalidTypeError."""
        stated = {name: option for name, option in options.items() if option is not None}
        if not isinstance(stated.get("header", True), bool):
            raise InvalidTypeError(f"header={stated['header']!r}; expected True or False")
        if "na_values" in stated:
            words = stated["na_values"]
            words = [words] if isinstance(words, (str, int, float)) else words
            stated["na_values"] = tuple(str(word).strip() for word in words)
        for name in ("decimal", "thousands", "strip", "comment", "delimiter", "encoding"):
            if not isinstance(stated.get(name, ""), str) or stated.get(name) == "":
                raise InvalidTypeError(f"{name}={stated[name]!r}; expected text such as ','")
        for name in ("decimal", "thousands", "comment"):
            if len(stated.get(name, ",")) != 1:
                raise InvalidInputError(f"{name}={stated[name]!r}; expected one character")
        if "delimiter" in stated:
            stated["delimiter"] = _delimiter(stated["delimiter"])
        if "encoding" in stated:
            stated["encoding"] = codec_named(stated["encoding"])
        found = cls(**stated)
        if found.decimal == (found.thousands or ""):
            raise InvalidInputError(
                f"decimal={found.decimal!r} and thousands={found.thousands!r} are the same; "
                "expected two marks, or thousands= left out"
            )
        return found

    @property
    def stated(self) -> dict[str, Any]:
        """The options that say something."""
        default = TextOptions()
        pairs = {field.name: getattr(self, field.name) for field in fields(self)}
        stated = {name: v for name, v in pairs.items() if v != getattr(default, name)}
        if "delimiter" in stated:
            stated["delimiter"] = SAID.get(stated["delimiter"], stated["delimiter"])
        return {name: list(v) if isinstance(v, tuple) else v for name, v in stated.items()}

    @property
    def nulls_set(self) -> frozenset[str]:
        """Cells that mean a missing number."""
        return NULLS.union(self.na_values) if self.na_values else NULLS

    @property
    def codes(self) -> list[float]:
        """Numbers that mean a missing one, however they are written: -99 is -99.0 too."""
        found = []
        for word in self.na_values:
            try:
                found.append(float(word.replace(self.decimal, ".")))
            except ValueError:
                continue
        return found

    @property
    def nulls(self) -> list[str]:
        """The cells of ``nulls_set``, also with a blank at either side, and blanks alone."""
        words = [*sorted(self.nulls_set), *(" " * i for i in range(1, MOST_BLANKS + 1))]
        sides = [word for word in words if word.strip()]
        return [*words, *(f" {side}" for side in sides), *(f"{side} " for side in sides)]

    @property
    def plain(self) -> bool:
        """Whether numbers are written as Arrow reads them."""
        return self.thousands is None and not self.strip


def stated_delimiter(line: str) -> str | None:
    """The delimiter that a first line states for Excel, such as "sep=;", and holds no more."""
    found = STATED.fullmatch(line.lstrip("\ufeff"))
    return None if found is None else found[2]


TEXT_OPTIONS = tuple(field.name for field in fields(TextOptions))


def line_to_open(path: str, opener: str = "open", **options: Any) -> str:
    """The line of Python that opens a table with these options."""
    said = "".join(f", {name}={value!r}" for name, value in options.items())
    return f"streampca.{opener}({path!r}{said})"


def _delimiter(text: str) -> str:
    found = NAMED.get(text, text)
    if found != BLANKS and (len(found) != 1 or found in '\r\n"'):
        raise InvalidInputError(
            f"delimiter={text!r}; expected one character, 'tab' or 'blanks' (one or more)"
        )
    return found
