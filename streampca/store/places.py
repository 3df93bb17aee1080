"""Paths that an output is to take: whether something lies there, and where to write meanwhile."""

from __future__ import annotations

import os
import uuid

from streampca.errors import InvalidInputError


def unfinished_name(path: str) -> str:
    """A name for what will take the place of ``path``: renaming needs the same file system."""
    folder, name = os.path.split(os.path.realpath(path))
    return os.path.join(folder, f".{name}.{uuid.uuid4().hex}.partial")


def settled(path: str) -> str:
    """A path that is the same in every folder; a URL as it is."""
    return path if "://" in path else os.path.abspath(path)


def exists_already(path: str) -> InvalidInputError:
    """The refusal of a path where something lies."""
    return InvalidInputError(f"{path} exists already; remove it or choose another output")


def occupied(path: str) -> bool:
    """Whether something other than an empty directory lies at this local path."""
    if "://" in path or not os.path.lexists(path):
        return False
    return not os.path.isdir(path) or bool(os.listdir(path))
