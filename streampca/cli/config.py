"""Options from a YAML file: the same names as on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from streampca.errors import InvalidInputError, SourceError


def apply_config(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Entries of the file that ``--config`` names, where the command line says nothing else.

    Keys are the long option names without the dashes in front (``memory-limit`` or
    ``memory_limit``), and ``source``: a path or a list. Paths are relative to the working
    directory, as on the command line.
    """
    path = arguments.config
    known = {
        name.lstrip("-").replace("-", "_"): action
        for action in parser._actions
        for name in [action.dest, *(o for o in action.option_strings if o.startswith("--"))]
        if action.dest not in ("help", "config")
    }
    for key, value in load_config(path).items():
        action = known.get(key.replace("-", "_"))
        if action is None:
            names = ", ".join(sorted(name.replace("_", "-") for name in known))
            raise InvalidInputError(f"{path}: no option {key!r}; expected one of {names}")
        if getattr(arguments, action.dest) in (action.default, None, []):
            setattr(arguments, action.dest, _typed(action, value, key, path))


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
