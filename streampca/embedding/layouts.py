"""The libraries that lay points out: umap-learn, openTSNE and PaCMAP. None of it is ours."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError, MissingDependencyError
from streampca.kernels import Array
from streampca.passes.memory import MiB

Settings = Mapping[str, float]  # n_neighbors, min_dist, perplexity: each library takes some


@dataclass(frozen=True)
class Library:
    """A library that lays points out, and the memory that it takes: measured, and rounded up.

    module, package : to import, and to install.
    make : (its module, settings, seed) -> an object with ``fit_transform`` and ``transform``.
    defaults : of the settings that it takes.
    needs_rows : of the settings, the fewest rows that it can lay out.
    row_nbytes : of (settings, components), bytes for each row that it lays out at once, the row
        itself included.
    loaded_nbytes : of the library.  working_nbytes : of what it compiles on first use, and its
        tables.
    dense_below : so few rows that were laid out are compared with each row that is placed.
    """

    module: str = ""
    package: str = ""
    make: Callable[[Any, Settings, int], Any] = lambda module, of, seed: module
    defaults: Settings = field(default_factory=dict)
    needs_rows: Callable[[Settings], int] = lambda of: 2
    row_nbytes: Callable[[Settings, int], int] = lambda of, k: 16 * k
    loaded_nbytes: int = 0
    working_nbytes: int = 0
    dense_below: int = 0


@dataclass(frozen=True)
class Layout:
    """How rows are laid out: a library and its settings, or the caller's own object.

    name : of the method.  module : of the library, imported; or the object.
    """

    name: str
    module: Any
    library: Library = Library()
    settings: Settings = field(default_factory=dict)

    def make(self, seed: int) -> Any:
        """An object with ``fit_transform`` and ``transform``."""
        return self.library.make(self.module, self.settings, seed)

    @property
    def needs_rows(self) -> int:
        """The fewest rows that can be laid out."""
        return self.library.needs_rows(self.settings)

    def row_nbytes(self, k: int) -> int:
        """Bytes for each row (k,) that is laid out at once."""
        return self.library.row_nbytes(self.settings, k)

    def placed_nbytes(self, k: int, landmarks: int) -> int:
        """Bytes for each row (k,) that is placed among landmarks."""
        distances = 16 * landmarks if landmarks < self.library.dense_below else 0
        return self.row_nbytes(k) + distances

    def __str__(self) -> str:
        listed = ", ".join(f"{name} {value:g}" for name, value in self.settings.items())
        return f"{self.name}, {listed}" if listed else self.name


def layout_of(method: Any, **settings: float | None) -> Layout:
    """The layout by a library or an object; a library is imported here, before anything is read.

    method : a name of LIBRARIES, or an object with ``fit_transform(rows)`` and ``transform(rows)``.
    settings : None takes the library's own default.
    Raises InvalidInputError, InvalidTypeError, MissingDependencyError.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    if not isinstance(method, str):
        return _own(method, given)
    if method not in LIBRARIES:
        raise InvalidInputError(
            f"method={method!r}; expected one of {tuple(LIBRARIES)}, or an object with "
            "fit_transform(rows) and transform(rows)"
        )
    library = LIBRARIES[method]
    if strange := given.keys() - library.defaults.keys():
        raise InvalidInputError(
            f"method={method!r} takes {', '.join(library.defaults)}; leave out {', '.join(strange)}"
        )
    for name, value in given.items():
        least = LEAST[name]
        if not isinstance(value, (int, float, np.number)) or not value >= least:
            raise InvalidInputError(f"{name}={value!r}; expected a number from {least:g}")
    return Layout(method, _imported(library, method), library, {**library.defaults, **given})


def _own(method: Any, given: Mapping[str, float]) -> Layout:
    name = type(method).__name__
    for needed in ("fit_transform", "transform"):
        if isinstance(method, type) or not callable(getattr(method, needed, None)):
            raise InvalidTypeError(
                f"method is {name}; expected one of {tuple(LIBRARIES)}, or an object with "
                "fit_transform(rows) and transform(rows)"
            )
    if given:
        raise InvalidInputError(f"method is an object: give {', '.join(given)} to {name} itself")
    return Layout(name, method)


def _imported(library: Library, method: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of optional parts of the library
        try:
            return import_module(library.module)
        except ImportError as error:
            raise MissingDependencyError(
                f"method={method!r} needs {library.package} ({error}). Install it: "
                f"pip install 'streampca[{method}]'"
            ) from error


# -- the libraries --------------------------------------------------------------------------------


def _umap(module: Any, of: Settings, seed: int) -> Any:
    return module.UMAP(
        n_neighbors=int(of["n_neighbors"]),
        min_dist=float(of["min_dist"]),
        random_state=seed,
        transform_seed=seed,
        n_jobs=1,  # what a seed makes it anyway, with a warning
    )


@dataclass
class _OpenTSNE:
    """openTSNE by scikit-learn's two methods."""

    tsne: Any
    fitted: Any = None

    def fit_transform(self, rows: Array) -> Array:
        self.fitted = self.tsne.fit(rows)
        return np.asarray(self.fitted)

    def transform(self, rows: Array) -> Array:
        return np.asarray(self.fitted.transform(rows))


def _tsne(module: Any, of: Settings, seed: int) -> _OpenTSNE:
    return _OpenTSNE(module.TSNE(perplexity=of["perplexity"], random_state=seed, n_jobs=1))


@dataclass
class _PaCMAP:
    """PaCMAP, which wants the rows of the fit again in order to place others."""

    pacmap: Any
    basis: Any = None

    def fit_transform(self, rows: Array) -> Array:
        self.basis = rows
        return np.asarray(self.pacmap.fit_transform(rows, init="pca"))

    def transform(self, rows: Array) -> Array:
        return np.asarray(self.pacmap.transform(rows, basis=self.basis))


def _pacmap(module: Any, of: Settings, seed: int) -> _PaCMAP:
    logging.getLogger("pacmap.pacmap").setLevel(logging.ERROR)  # it warns of every seed
    count = int(of["n_neighbors"])
    return _PaCMAP(module.PaCMAP(n_neighbors=count, random_state=seed, save_tree=True))


LEAST = {"n_neighbors": 2, "min_dist": 0.0, "perplexity": 1.0}
LIBRARIES = {
    "umap": Library(
        "umap",
        "umap-learn",
        _umap,
        {"n_neighbors": 15, "min_dist": 0.1},
        needs_rows=lambda of: int(of["n_neighbors"]) + 1,
        row_nbytes=lambda of, k: 16 * k + 700 + 250 * int(of["n_neighbors"]),
        loaded_nbytes=310 * MiB,
        working_nbytes=600 * MiB,
        dense_below=4096,
    ),
    "tsne": Library(
        "openTSNE",
        "openTSNE",
        _tsne,
        {"perplexity": 30.0},
        needs_rows=lambda of: int(3 * of["perplexity"]) + 2,
        row_nbytes=lambda of, k: 16 * k + 700 + 100 * int(3 * of["perplexity"]),
        loaded_nbytes=180 * MiB,
        working_nbytes=200 * MiB,
    ),
    "pacmap": Library(
        "pacmap",
        "pacmap",
        _pacmap,
        {"n_neighbors": 10},
        needs_rows=lambda of: 6 * int(of["n_neighbors"]),
        row_nbytes=lambda of, k: 16 * k + 700 + 250 * int(of["n_neighbors"]),
        loaded_nbytes=310 * MiB,
        working_nbytes=60 * MiB,
    ),
}
