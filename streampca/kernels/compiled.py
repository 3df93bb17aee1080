"""How kernels are compiled: by Numba on first use, without the GIL, and kept for later processes.

What was compiled lies in the user's cache directory, never below the package: an installation may
be read-only, shared, or replaced by another one. ``NUMBA_CACHE_DIR`` names another directory. Numba
writes each file whole, so several processes may compile at once. Where nothing can be written, each
process compiles for itself.

A folder belongs to one version of Numba, one processor and one state of the sources of all kernels:
Numba alone would not see that a kernel calls one of another file that has changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numba
import platformdirs
from llvmlite import binding
from numba import njit

ROOM = 1 << 16  # bytes that must be free for kernels to be kept
KEPT = 8  # folders of other versions and processors; older ones are removed


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that compiles a function on its first call; ``options`` are those of ``njit``."""

    def decorate(function: Callable[..., Any]) -> Any:
        folder = _folder()
        with _kept_in(folder):
            return njit(nogil=True, cache=folder is not None, **options)(function)

    return decorate


@contextmanager
def _kept_in(folder: Path | None) -> Iterator[None]:
    """Numba chooses the folder of a function when it is decorated."""
    config: Any = numba.config
    before = config.CACHE_DIR
    if folder is not None:
        config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before


@cache
def _folder() -> Path | None:
    """Where compiled kernels are kept, or None where nothing can be written."""
    root = Path(os.environ.get("NUMBA_CACHE_DIR") or platformdirs.user_cache_path("streampca"))
    folder = root / f"kernels-{numba.__version__}-{binding.get_host_cpu_name()}-{_sources()}"
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            _remove_oldest(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(ROOM))  # a full disk is found here, and not when a fit compiles
    except OSError:
        return None
    return folder


def _sources() -> str:
    """A short digest of the sources of all kernels."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _remove_oldest(folder: Path) -> None:
    """Keep the newest folders only. Numba compiles anew what it does not find."""
    others = [path for path in folder.parent.glob("kernels-*") if path != folder]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[KEPT:]:
        shutil.rmtree(path, ignore_errors=True)
