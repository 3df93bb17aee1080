"""Terms of texts that come in pieces: those that scikit-learn finds in the whole text.

A text is cut where a cut changes nothing. What is read is cut for the preprocessing, between
characters past which neither lower case nor decomposition looks; what is preprocessed is cut for
the splitting, at blanks that no term holds. N-grams go on from the last of the piece before.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from streampca.errors import MemoryLimitError

BLANKS = " \t\n\r\x0b\x0c"
SHORT = 256  # characters at the end of a piece in which a place to cut is looked for first

# Patterns whose matches hold no blank, and look at blanks by \b alone: of literals, \w \d \b \S,
# escaped punctuation, and sets of those or without \s. Neither ., ^ and $ nor look-around.
SET = r"\[(?:\^\\s)?(?:\\[wd]|\\[^\w\s]|[^\x00-\x20\s\\\[\]^])*\]"
CUTTABLE = re.compile(rf"(?:\\[wdbS]|\\[^\w\s]|{SET}|[^\x00-\x20\s\\.^$\[\]])*")
RUNS = re.compile(r"\s\s+")


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
            inside = text.rstrip()  # a run of blanks may go on in the next piece
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
    """Whether a cut beside a character, towards another such, leaves preprocessing as it is.

    Lower case of a final sigma looks past characters that have no case and are ignorable (marks,
    apostrophes), and decomposition reorders marks: neither looks past these.
    """
    if character.isascii():
        return character.isalnum() or character in BLANKS
    if unicodedata.category(character) not in ("Lo", "Nd"):
        return False
    return not unicodedata.combining(unicodedata.normalize("NFKD", character)[0])
