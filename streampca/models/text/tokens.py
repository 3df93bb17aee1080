"""How a text is split into terms: settings of scikit-learn that can be saved."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

from streampca.errors import InvalidInputError, MissingDependencyError, SourceError
from streampca.imported import weighing


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
        return cls.checked(**{one.name: getattr(vectorizer, one.name) for one in fields(cls)})

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
            known = {one.name for one in fields(cls)}
            return cls.checked(**{name: saved[name] for name in known if name in saved})
        except (TypeError, ValueError) as error:
            raise SourceError(f"{where}: how its texts were split is damaged ({error})") from None
