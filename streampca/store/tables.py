"""Text tables in the layout of PLINK's .eigenvec and .eigenval."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 4096  # formatted at once


def write_eigenvec(
    path: str | os.PathLike[str],
    identifiers: Sequence[tuple[str, Sequence[Any]]],
    values: np.ndarray[Any, Any],
    kind: str,
) -> None:
    """Samples x components as tab-separated text, whole or not at all.

    identifiers : (column name, one entry per sample), such as ("FID", ...), ("IID", ...).
    values : (n, k).  kind : what they are, for the first line ("eigenvectors", "scores").

    The first line is a comment that says so; the second is PLINK 2's header.
    """
    n, k = values.shape
    head = [name for name, _ in identifiers] + [f"PC{i + 1}" for i in range(k)]
    columns = [entries for _, entries in identifiers]

    def lines() -> Iterable[str]:
        yield f"##streampca {kind}\n"
        yield "#" + "\t".join(head) + "\n"
        for start in range(0, n, ROWS):
            for i in range(start, min(start + ROWS, n)):
                numbers = "\t".join(f"{x:.9g}" for x in values[i].tolist())
                yield "\t".join([*(str(c[i]) for c in columns), numbers]) + "\n"

    write_lines(path, lines())


def write_eigenval(path: str | os.PathLike[str], values: np.ndarray[Any, Any]) -> None:
    """One eigenvalue a line, as PLINK writes them."""
    write_lines(path, (f"{value:.9g}\n" for value in np.asarray(values).tolist()))


def write_lines(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
    """A text file that is there whole or not at all. Its folder is made where it is absent."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    try:
        with open(staged, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(target)
    finally:
        staged.unlink(missing_ok=True)
