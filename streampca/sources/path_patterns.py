"""Paths of a list or a glob pattern, in the order of the numbers in their names."""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from streampca.errors import IncompleteSourceWarning, InvalidInputError, SourceError, shorten


def expand(sources: str | Sequence[str]) -> list[str]:
    """Paths of a list or a glob pattern. Raises SourceError where nothing matches.

    Warns IncompleteSourceWarning where the files of a pattern are numbered, with a few left out.
    """
    listed = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    paths: list[str] = []
    for source in map(os.fspath, listed):
        if not glob.has_magic(source) or os.path.exists(source):
            paths.append(source)
        elif found := sorted(glob.glob(source), key=_natural):
            _warn_of_holes(source, found)
            paths += found
        else:
            raise SourceError(f"{source}: no file matches")
    if not paths:
        raise SourceError("an empty list of paths; name at least one file")
    if len(set(paths)) < len(paths):
        twice = sorted({path for path in paths if paths.count(path) > 1})
        raise InvalidInputError(f"{shorten(twice)} is named twice")
    return paths


def _warn_of_holes(pattern: str, paths: Sequence[str]) -> None:
    """Name the numbers that are left out, unless they are many or left out at even steps."""
    families: dict[tuple[str, ...], list[list[int]]] = {}
    for path in paths:
        parts = re.split(r"([0-9]+)", Path(path).name)
        families.setdefault(tuple(parts[::2]), []).append([int(d) for d in parts[1::2]])
    for text, numbers in families.items():
        varying = [sorted(set(one)) for one in zip(*numbers, strict=True) if len(set(one)) > 1]
        if len(varying) != 1 or varying[0][-1] - varying[0][0] >= 2 * len(varying[0]):
            continue
        there = varying[0]
        if len(there) > 2 and len(set(np.diff(there).tolist())) == 1:
            continue  # every second year, say
        if holes := sorted(set(range(there[0], there[-1] + 1)) - set(there)):
            warnings.warn(
                f"{pattern}: {len(there)} files from {there[0]} to {there[-1]} of the form "
                f"{'*'.join(text)}, without {shorten([str(i) for i in holes], len(holes))}. If "
                "that is meant, give a list of the files.",
                IncompleteSourceWarning,
                stacklevel=5,
            )


def _natural(path: str) -> list[tuple[int, str]]:
    """A sort key that puts chr2 before chr10."""
    digits = "".join(c if c.isdigit() else " " for c in Path(path).name).split()
    return [*((int(d), "") for d in digits), (0, path)]
