"""Settings of a machine or a site, and the one place that sets BLAS thread counts."""

from __future__ import annotations

import difflib
import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import threadpoolctl

from streampca.errors import InvalidInputError

# --------------------------------------------------------------------------------------------------
# The one place that sets BLAS thread counts.

_lock = threading.Lock()
_depth = 0
_before: list[tuple[Any, int]] = []
_known: tuple[int, list[Any]] | None = None  # (number of imported modules then, libraries)


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """One BLAS thread inside the context, in the whole process. Nests, and is thread-safe.

    Parallelism comes from lanes. Skinny products, QR and eigh differ in their bits between numbers
    of threads, so nothing here uses more than one.
    """
    global _depth, _before
    with _lock:
        if _depth == 0:
            _before = [(library, library.num_threads) for library in _libraries()]
            _set([(library, 1) for library, _ in _before])
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _set(_before)
                _before = []


def _libraries() -> list[Any]:
    """The BLAS libraries of this process.

    Searching takes as long as a small decomposition, so it is repeated only after an import.
    """
    global _known
    imported = len(sys.modules)
    if _known is None or _known[0] != imported:
        found = threadpoolctl.ThreadpoolController().select(user_api="blas")
        _known = (imported, found.lib_controllers)
    return _known[1]


def _set(counts: list[tuple[Any, int]]) -> None:
    """Set thread counts, from any thread.

    Since 3.8 threadpoolctl lets only the first thread that asked change OpenBLAS, and silently
    ignores all others: a task of a Dask worker, or the last lane to finish, would change nothing.
    So the controlling thread is cleared before and after.
    """
    openblas = getattr(threadpoolctl, "OpenBLASController", None)
    release = getattr(openblas, "clear_controlling_thread", lambda force: None)
    release(force=True)
    for library, count in counts:
        library.set_num_threads(count)
    release(force=True)


# --------------------------------------------------------------------------------------------------
# Settings of a machine or a site, from Dask's configuration, under ``streampca:``.
#
# They are set in a YAML file of Dask's (``~/.config/dask/*.yaml``, ``DASK_CONFIG``), in the
# environment (``DASK_STREAMPCA__MEMORY_LIMIT=1GiB``), or in a program by
# ``dask.config.set({"streampca.memory-limit": "1GiB"})``. Arguments of a call take precedence.


@dataclass(frozen=True)
class Setting:
    """A setting.  least : the least value of a number; None for other types."""

    default: Any
    meaning: str
    least: float | None = None


SETTINGS = {
    "memory-limit": Setting(None, "of plans, if a call names none: e.g. 512MiB"),
    "scheduler": Setting(None, "'threads' or tcp://host:port, if a call names none"),
    "threads": Setting(None, "of passes and solvers, if a call names no number", 1.0),
    "checkpoint-interval": Setting(60.0, "seconds between the checkpoints of a pass", 0.0),
    "read-timeout": Setting(600.0, "seconds that a worker waits for one block", 0.1),
    "pause-timeout": Setting(60.0, "seconds that a worker with work may be paused or silent", 0.1),
    "span-timeout": Setting(
        3600.0, "seconds for a span, or eight times the longest so far, if that is more", 0.1
    ),
    "span-retries": Setting(2, "times that a span is given to another worker after that", 0.0),
    "worker-timeout": Setting(1800.0, "seconds that a pass waits for a worker if it has none", 0.1),
}


def setting(name: str) -> Any:
    """The value of a setting. Raises InvalidInputError if it is not one that can be used."""
    one = SETTINGS[name]
    if "dask" not in sys.modules and not _configured():
        return one.default
    import dask.config

    _refuse_unknown(dask.config.get("streampca", None) or {})
    value = dask.config.get(f"streampca.{name}", one.default)
    value = one.default if value is None else value
    if one.least is None or value is None:
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number >= one.least:
        raise InvalidInputError(
            f"streampca.{name} in Dask's configuration is {value!r}; expected at least "
            f"{one.least:g}"
        )
    return number


def _refuse_unknown(section: Mapping[str, Any]) -> None:
    """Raise InvalidInputError for unknown names: a misspelt limit would have no effect."""
    for name in section:
        plain = name.replace("_", "-")
        if plain not in SETTINGS:
            like = difflib.get_close_matches(plain, SETTINGS, 1)
            hint = f"; did you mean {like[0]}?" if like else ""
            raise InvalidInputError(
                f"streampca.{name} in Dask's configuration: unknown; expected one of "
                f"{', '.join(SETTINGS)}{hint}"
            )


@cache
def _configured() -> bool:
    """Whether the environment or a file of Dask's mentions streampca. Does not import Dask."""
    if any(name.startswith("DASK_STREAMPCA") for name in os.environ):
        return True
    places = [os.environ.get("DASK_ROOT_CONFIG", "/etc/dask"), os.path.join(sys.prefix, "etc/dask"),
              os.path.expanduser("~/.config/dask"), os.environ.get("DASK_CONFIG")]  # fmt: skip
    for place in map(Path, filter(None, places)):
        for file in [place] if place.is_file() else place.glob("*.y*ml"):
            try:
                if "streampca" in file.read_text(encoding="utf-8"):
                    return True
            except (OSError, UnicodeDecodeError):
                continue
    return False
