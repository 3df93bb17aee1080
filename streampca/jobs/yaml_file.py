"""YAML files of entries, and on which line of its file each entry stands."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from streampca.errors import InvalidInputError
from streampca.regular_file import read_regular

MOST_BYTES = 1 << 16  # parsed in less than a second
MOST_DEPTH = 64
FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")  # 1e-4, which YAML 1.1 takes for text
ODD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


class ConfigError(InvalidInputError):
    """A job file that cannot be used: exit code 78."""


@dataclass(frozen=True)
class Origin:
    """Where entries come from.  lines : of the entries, by names such as "gate.max_angle"."""

    path: str
    lines: Mapping[str, int] = field(default_factory=dict)

    def at(self, entry: str) -> str:
        """``nightly.yaml:14: gate.max_angle``; of an entry that is absent, the line it lacks in."""
        inner = entry
        while inner and inner not in self.lines:
            inner = inner.rpartition(".")[0]
        line = f":{self.lines[inner]}" if inner else ""
        return f"{self.path}{line}: {entry}"


def nearest(name: object, known: Iterable[str]) -> str:
    """``; did you mean n_components?`` where one of the known names is like it, else ""."""
    names = {one.lower(): one for one in known}
    found = difflib.get_close_matches(str(name).lower(), names, 1)
    return f"; did you mean {names[found[0]]}?" if found else ""


def read_yaml(path: str | os.PathLike[str], word: str = "entry") -> tuple[dict[str, Any], Origin]:
    """The entries of a YAML file without aliases, of at most 64 KiB, and their lines.

    word : for an entry.  Raises ConfigError.
    """
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # the library has no annotations
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                line = self.peek_event().start_mark.line + 1
                raise ConfigError(
                    f"{path}:{line}: aliases (*name) are not taken; write the entry out"
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
    except (yaml.YAMLError, *ODD) as error:  # such as the date 2020-99-99, or !!int of nothing
        raise ConfigError(f"{path} is not YAML: {error}") from None
    if not isinstance(entries, dict):
        raise ConfigError(f"{path}: expected '{word}: value' lines")
    return entries, Origin(str(path), dict(_lines(node, "")))


def scalar(text: str) -> Any:
    """A number, a word, true, false, null, or a list of such, as a job file would have it."""
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
        if deep > MOST_DEPTH:  # for which the parser takes its time
            raise ConfigError(f"{path} is nested deeper than {MOST_DEPTH}: no job file")
        return text
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def _no_yaml(path: str, error: Any) -> str:
    """Where and why the parser stopped, and the line itself."""
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
