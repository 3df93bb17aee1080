"""Options from a YAML file: the same names as on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streampca.errors import InvalidInputError, SourceError


class read_config(argparse.Action):
    """``--config FILE``: its entries become defaults, so that the command line goes before them.

    Keys are the long option names without the dashes in front (``memory-limit`` or
    ``memory_limit``), and ``source``: a path or a list. Paths are relative to the working
    directory, as on the command line.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        path = str(values)
        for key, value in load_config(path).items():
            self._take(parser, namespace, key, value, path)
        setattr(namespace, self.dest, path)

    def _take(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        key: str,
        value: Any,
        path: str,
    ) -> None:
        name = key.replace("-", "_")
        actions = {action.dest: action for action in parser._actions if action.dest != "help"}
        actions |= {
            option[2:].replace("-", "_"): action
            for action in parser._actions
            for option in action.option_strings
            if option.startswith("--") and option != "--help"
        }
        if name not in actions or name == self.dest:
            known = ", ".join(sorted(n.replace("_", "-") for n in actions if n != self.dest))
            raise InvalidInputError(f"{path}: no option {key!r}; expected one of {known}")
        action = actions[name]
        if getattr(namespace, action.dest, None) in (action.default, None, []):
            setattr(namespace, action.dest, _typed(action, value, key, path))


def load_config(path: str) -> dict[str, Any]:
    """The entries of a YAML file. Raises SourceError, InvalidInputError."""
    import yaml

    try:
        entries = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
    except yaml.YAMLError as error:
        raise InvalidInputError(f"{path} is not YAML: {error}") from None
    if not isinstance(entries, dict):
        raise InvalidInputError(f"{path}: expected 'option: value' lines")
    return entries


def _typed(action: argparse.Action, value: Any, key: str, path: str) -> Any:
    """The value as the command line would have given it."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise InvalidInputError(f"{path}: {key} is true or false, not {value!r}")
        return value
    listed = value if isinstance(value, list) else [value]
    convert: Any = action.type or str
    try:
        typed = [None if one is None else convert(str(one)) for one in listed]
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise InvalidInputError(f"{path}: {key}: {error}") from None
    for one in typed:
        if action.choices is not None and one not in action.choices:
            raise InvalidInputError(
                f"{path}: {key}: {one!r}; expected one of {', '.join(map(str, action.choices))}"
            )
    return typed if action.nargs in ("*", "+") or isinstance(value, list) else typed[0]
