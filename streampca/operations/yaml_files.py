"""YAML files of entries, and the line of each entry."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from streampca.errors import ConfigError
from streampca.paths import read_regular

MOST_BYTES = 1 << 16  # parsed in less than a second
MOST_DEPTH = 64
FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")  # 1e-4, which is text in YAML 1.1
ODD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class Origin:
    """The file of some entries.  lines : entry, such as "gate.max_angle", -> its line."""

    path: str
    lines: Mapping[str, int] = field(default_factory=dict)

    def at(self, entry: str) -> str:
        """``nightly.yaml:14: gate.max_angle``; for an absent entry, the line of its section."""
        inner = entry
        while inner and inner not in self.lines:
            inner = inner.rpartition(".")[0]
        line = f":{self.lines[inner]}" if inner else ""
        return f"{self.path}{line}: {entry}"


def read_yaml(path: str | os.PathLike[str], word: str = "entry") -> tuple[dict[str, Any], Origin]:
    """(entries, origin) of a YAML file of at most 64 KiB, without aliases.

    word : what messages call an entry.  Raises ConfigError.
    """
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # the library has no annotations
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                line = self.peek_event().start_mark.line + 1
                raise ConfigError(
                    f"{path}:{line}: aliases (*name) are not allowed; write the entry out"
                )
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for node_of_key, _ in node.value:
                key = self.construct_object(node_of_key, deep=True)
                line = node_of_key.start_mark.line + 1
                if not isinstance(key, str):
                    raise ConfigError(f"{path}:{line}: expected a name, not {key!r:.80}")
                if key in seen:
                    raise ConfigError(f"{path}:{line}: {key} is there twice; leave one out")
                seen.add(key)
            result: dict[Any, Any] = super().construct_mapping(node, deep)
            return result

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))
    try:
        loader = Loader(_text(path))
        node = loader.get_single_node()
        entries = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_no_yaml(str(path), error)) from None
    except ConfigError:
        raise
    except (yaml.YAMLError, *ODD) as error:  # e.g. the date 2020-99-99, or an empty !!int
        raise ConfigError(f"{path} is not YAML: {error}") from None
    if not isinstance(entries, dict):
        raise ConfigError(f"{path}: expected '{word}: value' lines")
    return entries, Origin(str(path), dict(_lines(node, "")))


def scalar(text: str) -> Any:
    """The value of a text as in a job file: a number, string, true, false, null, or a list."""
    import yaml

    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, *ODD):
        return text


def _text(path: str | os.PathLike[str]) -> str:
    """The text of a regular file of at most 64 KiB."""
    try:
        if os.stat(path).st_size > MOST_BYTES:
            raise ConfigError(f"{path} has more than {MOST_BYTES} bytes: no job file")
        text = read_regular(path, MOST_BYTES).decode("utf-8").replace("\r\n", "\n")
        deep = max(accumulate((c in "[{") - (c in "]}") for c in text), default=0)
        if deep > MOST_DEPTH:  # the parser would be very slow
            raise ConfigError(f"{path} is nested deeper than {MOST_DEPTH}: no job file")
        return text
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def _no_yaml(path: str, error: Any) -> str:
    """The message for a syntax error: where and why the parser stopped, with the line."""
    mark = error.problem_mark or error.context_mark
    context = f" {error.context}" if error.context else ""
    if mark is None:
        return f"{path} is not YAML: {error.problem}{context}"
    shown = (mark.get_snippet(indent=2) or "").partition("\n")[0].strip()
    misplaced = "block" in context or "mapping values" in str(error.problem)
    hint = "; is it indented as the lines around it?" if misplaced else ""
    return f"{path}:{mark.line + 1}: this is not YAML: {shown!r}: {error.problem}{context}{hint}"


def _lines(node: Any, start: str) -> Iterable[tuple[str, int]]:
    """(name, line) of all entries."""
    for key, value in node.value:
        yield f"{start}{key.value}", key.start_mark.line + 1
        if value.id == "mapping":
            yield from _lines(value, f"{start}{key.value}.")
