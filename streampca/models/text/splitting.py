"""How a text is split into terms: settings of scikit-learn that can be saved, whole or in pieces.

The terms of a text that comes in pieces are those that scikit-learn finds in the whole text. It is
cut where a cut changes nothing. What is read is cut for the preprocessing, between characters past
which neither lower case nor decomposition looks; what is preprocessed is cut for the splitting, at
blanks that no term holds. N-grams continue from the last of the piece before.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

from streampca.errors import (
    InvalidInputError,
    MemoryLimitError,
    MissingDependencyError,
    SourceError,
)
from streampca.imported import weighing

BLANKS = " \t\n\r\x0b\x0c"
SHORT = 256  # characters at the end of a piece in which a place to cut is looked for first

# Patterns whose matches hold no blank, and look at blanks by \b alone: of literals, \w \d \b \S,
# escaped punctuation, and sets of those or without \s. Neither ., ^ and $ nor look-around.
SET = r"\[(?:\^\\s)?(?:\\[wd]|\\[^\w\s]|[^\x00-\x20\s\\\[\]^])*\]"
CUTTABLE = re.compile(rf"(?:\\[wdbS]|\\[^\w\s]|{SET}|[^\x00-\x20\s\\.^$\[\]])*")
RUNS = re.compile(r"\s\s+")


@dataclass(frozen=True)
class Tokens:
    """Settings of ``sklearn.feature_extraction.text.CountVectorizer``, with its defaults.

    They are plain values, so that they are saved: functions of one's own are not among them.
    """

    lowercase: bool = True
    strip_accents: str | None = None
    stop_words: str | tuple[str, ...] | None = None
    token_pattern: str = r"(?u)\b\w\w+\b"
    ngram_range: tuple[int, int] = (1, 1)
    analyzer: str = "word"

    @classmethod
    def checked(cls, **arguments: Any) -> Self:
        """Of arguments, lists and sets of words among them. Raises InvalidInputError."""
        made = cls(**arguments)
        words = made.stop_words
        if isinstance(words, Iterable) and not isinstance(words, str):
            made = replace(made, stop_words=tuple(sorted(map(str, words))))
        if isinstance(made.ngram_range, Iterable):
            low_high: Any = tuple(made.ngram_range)
            made = replace(made, ngram_range=low_high)
        made._check()
        return made

    @classmethod
    def of(cls, vectorizer: Any) -> Self:
        """Those of a vectorizer of scikit-learn. Raises InvalidInputError for its own functions."""
        own = [n for n in ("tokenizer", "preprocessor") if getattr(vectorizer, n, None) is not None]
        own += ["analyzer"] * callable(getattr(vectorizer, "analyzer", None))
        if own:
            raise InvalidInputError(
                f"the vectorizer has a function as its {own[0]}, which cannot be saved: give "
                "terms=vectorizer.get_feature_names_out(), and search with rows of counts, "
                "model.search(vectorizer.transform([query]))"
            )
        return cls.checked(**{field.name: getattr(vectorizer, field.name) for field in fields(cls)})

    def _check(self) -> None:
        allowed: dict[str, Any] = {
            "lowercase": (True, False),
            "strip_accents": (None, "ascii", "unicode"),
            "analyzer": ("word", "char", "char_wb"),
        }
        for name, choices in allowed.items():
            if getattr(self, name) not in choices:
                raise InvalidInputError(
                    f"{name}={getattr(self, name)!r:.60}; expected one of {choices}"
                )
        if not isinstance(self.stop_words, tuple) and self.stop_words not in (None, "english"):
            raise InvalidInputError(
                f"stop_words={self.stop_words!r:.60}; expected 'english', a list of words, or None"
            )
        low_high = self.ngram_range
        numbers = isinstance(low_high, tuple) and all(type(n) is int for n in low_high)
        if not (numbers and len(low_high) == 2 and 1 <= low_high[0] <= low_high[1]):
            raise InvalidInputError(f"ngram_range={low_high!r:.60}; expected such as (1, 2)")
        try:
            groups = re.compile(self.token_pattern).groups
        except (re.error, TypeError) as error:
            raise InvalidInputError(
                f"token_pattern={self.token_pattern!r:.60} is no regular expression ({error})"
            ) from None
        if groups > 1:
            raise InvalidInputError(
                f"token_pattern={self.token_pattern!r:.60} has {groups} groups; expected one at "
                "most, which is the term. Write the others as (?:...)"
            )

    @cached_property
    def vectorizer(self) -> Any:
        """scikit-learn's, with these settings. Raises MissingDependencyError."""
        try:
            with weighing():
                from sklearn.feature_extraction.text import CountVectorizer
        except ImportError:
            raise MissingDependencyError(
                "texts are split by scikit-learn, which is not installed: "
                "pip install 'streampca[text]'"
            ) from None
        words = list(self.stop_words) if isinstance(self.stop_words, tuple) else self.stop_words
        return CountVectorizer(**asdict(self) | {"stop_words": words})

    @cached_property
    def split(self) -> Callable[[str], list[str]]:
        """The function from a text to its terms. Raises MissingDependencyError."""
        analyse: Callable[[str], list[str]] = self.vectorizer.build_analyzer()
        return analyse

    @property
    def a_character(self) -> int:
        """Terms that begin at a character of a text, at most."""
        return self.ngram_range[1] - self.ngram_range[0] + 1

    def to_json(self) -> str:
        """As JSON; counts of texts keep it, with the options by which terms were chosen."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str, where: str) -> Self:
        """The inverse of ``to_json``. Raises SourceError.  where : for messages."""
        try:
            saved = json.loads(text)
            if not isinstance(saved, Mapping):
                raise TypeError("not an object")
            known = {field.name for field in fields(cls)}
            return cls.checked(**{name: saved[name] for name in known if name in saved})
        except (TypeError, ValueError) as error:
            raise SourceError(f"{where}: how its texts were split is damaged ({error})") from None


# A long text, a piece at a time.


def cuttable(pattern: str) -> bool:
    """Whether a text may be cut behind any blank without a change of what a pattern finds."""
    inside = pattern.removeprefix("(?u)").replace("(?:", "(")
    plain = "(?" not in inside and CUTTABLE.fullmatch(inside) is not None
    return plain and re.search(pattern, " ") is None  # empty matches would be found at each cut


class Pieces:
    """Splits one long text after another into terms, a piece at a time.

    vectorizer : of scikit-learn, with the settings.
    room : bytes that a stretch without a place to cut may take; None: any.
    """

    def __init__(self, vectorizer: Any, room: int | None = None) -> None:
        self.preprocess: Callable[[str], str] = vectorizer.build_preprocessor()
        self.low, self.high = vectorizer.ngram_range
        self.kind, self.room = vectorizer.analyzer, room
        if self.kind == "word":
            self.whole = not cuttable(vectorizer.token_pattern)
            self.tokenize = vectorizer.build_tokenizer()
            self.stop_words = vectorizer.get_stop_words() or frozenset()
        else:
            self.whole = False
            alike = {"lowercase": False, "strip_accents": None}
            self.of_words = type(vectorizer)(**vectorizer.get_params() | alike).build_analyzer()

    def terms(self, parts: Iterable[str], where: str) -> Iterator[list[str]]:
        """The terms of a text, in lists. Raises MemoryLimitError."""
        if self.kind == "char":
            return self._characters(self._preprocessed(parts, where))
        words = _cut(self._preprocessed(parts, where), self._after_blank, self.room, where)
        if self.kind == "char_wb":
            return (self.of_words(text) for text in words)
        return self._words(words)

    def _preprocessed(self, parts: Iterable[str], where: str) -> Iterator[str]:
        return map(self.preprocess, _cut(parts, _inert_place, self.room, where))

    def _after_blank(self, text: str) -> int:
        """Where a text is cut behind a blank: its place, or 0."""
        return 0 if self.whole else 1 + max(map(text.rfind, BLANKS))

    def _words(self, texts: Iterable[str]) -> Iterator[list[str]]:
        held: list[str] = []
        for text in texts:
            found = self.tokenize(text)
            if self.stop_words:
                found = [one for one in found if one not in self.stop_words]
            if self.high == 1:
                yield found
                continue
            yield [" ".join(one) for one in self._grams(held + found, len(held))]
            held = (held + found)[max(0, len(held) + len(found) - self.high + 1) :]

    def _characters(self, texts: Iterable[str]) -> Iterator[list[str]]:
        held, blanks = "", ""
        for text in texts:
            text = blanks + text
            inside = text.rstrip()  # a run of blanks may continue in the next piece
            blanks = text[len(inside) :]
            found = held + RUNS.sub(" ", inside)
            yield self._grams(found, len(held))
            held = found[max(0, len(found) - self.high + 1) :]
        yield self._grams(held + RUNS.sub(" ", blanks), len(held))

    def _grams(self, found: Any, held: int) -> list[Any]:
        """The n-grams that end behind the first ``held`` items."""
        return [
            found[i : i + n]
            for n in range(self.low, self.high + 1)
            for i in range(max(0, held - n + 1), len(found) - n + 1)
        ]


def _cut(
    parts: Iterable[str], place_of: Callable[[str], int], room: int | None, where: str
) -> Iterator[str]:
    """A text in pieces that end where it may be cut.  place_of : the last such place, or 0."""
    held: list[str] = []
    waiting = 0
    for part in parts:
        place = place_of(part)
        if place:
            yield "".join([*held, part[:place]])
            held, waiting, part = [], 0, part[place:]
        held.append(part)
        waiting += len(part)
        if room is not None and 8 * waiting > room:  # of 4 bytes a character, joined
            raise MemoryLimitError(
                f"{where} has {waiting} characters without a place to cut (a blank between words, "
                f"as token_pattern finds them), and the memory limit leaves {room >> 20} MiB for "
                "such a stretch. Set a larger limit"
            )
    yield "".join(held)


def _inert_place(text: str) -> int:
    """The last place between two characters past which preprocessing does not look; or 0."""
    for first in (max(0, len(text) - SHORT), 0):
        for i in range(len(text) - 1, first, -1):
            if _inert(text[i - 1]) and _inert(text[i]):
                return i
    return 0


def _inert(character: str) -> bool:
    """Whether a cut between two such characters leaves preprocessing as it is.

    Lower case of a final sigma looks past characters that have no case and are ignorable (marks,
    apostrophes), and decomposition reorders marks: neither looks past these.
    """
    if character.isascii():
        return character.isalnum() or character in BLANKS
    if unicodedata.category(character) not in ("Lo", "Nd"):
        return False
    return not unicodedata.combining(unicodedata.normalize("NFKD", character)[0])
