"""Matrices of features that a function makes of whole rows, block by block as they are read."""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.kernels import Array
from streampca.kernels.columns import row_pieces, seeded
from streampca.matrix.block import work_dtype
from streampca.matrix.chunked_matrix import ChunkedMatrix, regular_edges
from streampca.matrix.derived import ComputedView
from streampca.matrix.labels import AxisLabels
from streampca.matrix.preprocessing import RowSums, Step

HELD_NBYTES = 32 << 20  # of frequencies that are kept; more are drawn again for every block
PANEL_NBYTES = 2 << 20  # of frequencies that are drawn at once
FREQUENCIES = 1 << 40  # at most; a feature is counted above them
PIECE_NBYTES = 4 << 20  # of phases that are computed at once
STRIP = 1024  # rows that are mapped at a time where features are streamed
NAMED = 100_000  # columns whose names are compared
FOURIER = ("rbf", "laplacian")


class FeatureMap(ABC):
    """A function from whole rows to as many rows of features."""

    n_features: int

    @abstractmethod
    def features(self, rows: Array) -> Array:
        """(m, n_features) of dense rows (m, p), in their dtype or float64; NaN is missing."""

    @abstractmethod
    def digest(self) -> bytes:
        """What identifies the function and its parameters."""

    @property
    def held_nbytes(self) -> int:
        """Bytes that it holds."""
        return 0

    def scratch_nbytes(self, length: int, width: int) -> int:
        """Bytes that it needs for so many rows of ``width``, without rows and features."""
        return 8 * length * (width + 2 * self.n_features)


class MappedMatrix(ComputedView):
    """The features that a map makes of the rows of another matrix, dense.

    Rows are read whole. Features can be streamed in a single block alone, of all samples.
    """

    computes = True

    def __init__(self, base: ChunkedMatrix, function: FeatureMap) -> None:
        self.base, self.function = base, function
        self.shape = (base.shape[0], function.n_features)
        self.dtype = work_dtype(base.dtype)
        features = AxisLabels.plain("feature", function.n_features)
        self.labels = replace(base.labels.with_axes(base.labels.samples, features), attrs={})
        if isinstance(function, Step):
            self.labels = replace(self.labels, preprocessing=base.preprocessing.then(function))
        self.loads, self.note = base.loads, base.note
        self.resident_nbytes = base.resident_nbytes + function.held_nbytes
        self.given_nbytes = base.given_nbytes

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        if axis == 0:
            return self._rows(start, stop)
        out = np.empty((self.shape[0], stop - start), self.dtype)
        for first, last in pairwise(self._strips().tolist()):
            out[first:last] = self._rows(first, last)[:, start:stop]
        return out

    def _rows(self, start: int, stop: int) -> Array:
        values = self.base.read(0, start, stop)
        dense = values if isinstance(values, np.ndarray) else values.toarray()
        rows = dense.astype(self.dtype, order="C")
        if (code := self.base.missing_value) is not None:
            rows[dense == code] = np.nan
        return self.function.features(rows).astype(self.dtype, copy=False)

    def _strips(self) -> Array:
        edges = self.base.chunk_edges(0)
        return regular_edges(self.shape[0], STRIP) if edges is None else np.asarray(edges)

    def chunk_edges(self, axis: int) -> Array | None:
        return self.base.chunk_edges(0) if axis == 0 else np.array([0, self.shape[1]])

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        if axis == 0:
            return self.base.count_chunks(0, start, stop)
        return self.base.count_span(0, self._strips())

    def count_span(self, axis: int, edges: Array) -> int:
        return self.base.count_span(0, edges) if axis == 0 else super().count_span(1, edges)

    def count_shared(self, axis: int, stop: int, start: int) -> int:
        return self.base.count_shared(0, stop, start) if axis == 0 else 0

    def reach(self, axis: int) -> int:
        return self.base.reach(0) if axis == 0 else 0

    def entry_points(self, axis: int) -> Array | None:
        return self.base.entry_points(0) if axis == 0 else None

    def prepare_reads(self, axis: int) -> Any:
        return self.base.prepare_reads(0)

    def advice(self, axis: int) -> str:
        return self.base.advice(0)

    def row_nbytes(self, axis: int) -> float:
        """Of the wider rows, here or in the base: blocks hold few rows of either."""
        own = super().row_nbytes(axis)
        return max(own, self.base.row_nbytes(0)) if axis == 0 else own

    def read_scratch_nbytes(self, axis: int, length: int) -> int:
        """The rows as they are stored and dense, and what the map needs for them."""
        if axis == 1:
            length = int(np.diff(self._strips()).max(initial=0))
        p = self.base.shape[1]
        stored = int(self.base.spans_nbytes(0, regular_edges(self.shape[0], length)).max(initial=0))
        dense = 2 * length * p * self.dtype.itemsize
        own = self.function.scratch_nbytes(length, p)
        return stored + dense + own + self.base.read_scratch_nbytes(0, length)

    def part(self, axis: int, start: int, stop: int) -> ChunkedMatrix:
        if axis == 1:
            return self
        smaller = copy.copy(self)
        smaller.base = self.base.part(0, start, stop)
        return smaller

    def _digest(self, base: str) -> str:
        code = repr(self.base.missing_value).encode()
        return hashlib.sha256(base.encode() + code + self.function.digest()).hexdigest()


def names_of(features: AxisLabels) -> str:
    """A digest of the names of columns, "" where they have none that are text, or very many."""
    names = features.coords.get(features.dims[0], ()) if len(features.dims) == 1 else ()
    if not 0 < len(names) <= NAMED or not all(isinstance(name, str) for name in names):
        return ""
    return hashlib.sha256("\0".join(map(str, names)).encode()).hexdigest()


def _mapped(matrix: ChunkedMatrix, step: RowFunction | FourierFeatures) -> MappedMatrix:
    """Raises InvalidInputError for rows whose columns have other names than those of the fit."""
    came = names_of(matrix.labels.features)
    if came and step.names and came != step.names:
        raise InvalidInputError(
            "the columns of X are not those of the fit, or in another order: X[columns_of_fit]"
        )
    return MappedMatrix(matrix, step)


# A function of the user's.


@dataclass(frozen=True)
class RowFunction(FeatureMap, Step, kind="function of rows"):
    """A function of whole rows, which a saved model knows by its name alone.

    name : module and name.  inputs : p.  names : digest of those of the columns, or "".
    function : of (m, p), gives (m, n_features); None after loading.
    """

    name: str
    inputs: int
    n_features: int
    names: str = ""
    function: Callable[[Array], Any] | None = field(default=None, metadata={"saved": False})

    @property
    def width(self) -> int:
        return self.inputs

    def __str__(self) -> str:
        return f"{self.name} of {self.inputs} features"

    def features(self, rows: Array) -> Array:
        assert self.function is not None
        features = np.asarray(self.function(rows))
        if features.shape != (len(rows), self.n_features):
            raise InvalidInputError(
                f"{self.name} gave an array of shape {features.shape} for {len(rows)} rows; "
                f"expected ({len(rows)}, {self.n_features}): it takes (m, p), gives (m, n_features)"
            )
        if features.dtype.kind not in "biuf":
            raise InvalidTypeError(f"{self.name} gave {features.dtype}; expected real numbers")
        return features

    def digest(self) -> bytes:
        return f"{self.name} {self.inputs} {self.n_features} {code_of(self.function)}".encode()

    def same(self, other: Step) -> bool:
        known = ("name", "inputs", "n_features", "names")
        alike = isinstance(other, RowFunction) and all(
            getattr(self, one) == getattr(other, one) for one in known
        )
        both = alike and None not in (self.function, other.function)  # type: ignore[attr-defined]
        return alike and (not both or self.digest() == other.digest())  # type: ignore[attr-defined]

    def apply(self, matrix: ChunkedMatrix, row_sums: RowSums) -> ChunkedMatrix:
        if self.function is None:
            raise InvalidInputError(
                f"this model was fitted to what {self.name} makes of rows, and a saved model does "
                f"not hold the function. Give rows that it has mapped: "
                f"streampca.map_features(X, {self.name.rpartition('.')[2]}, {self.n_features})"
            )
        return _mapped(matrix, self)


def code_of(function: Any) -> str:
    """A digest of what a function does, as far as Python tells: its code and what it encloses."""
    code = getattr(function, "__code__", None)
    if code is None:
        parts: list[Any] = [type(function).__qualname__]
        parts += [getattr(function, one, None) for one in ("func", "args", "keywords")]
        inner = parts[1]
        return _hashed([code_of(inner) if callable(inner) else parts[0], *parts[2:]])
    enclosed = [cell.cell_contents for cell in function.__closure__ or ()]
    owner = getattr(getattr(function, "__self__", None), "__dict__", {})  # of a bound method
    defaults = [function.__defaults__, function.__kwdefaults__]
    return _hashed([*_instructions(code), *defaults, *enclosed, *owner.values()])


def _instructions(code: Any) -> list[Any]:
    inner = [one for one in code.co_consts if hasattr(one, "co_code")]
    plain = [one for one in code.co_consts if not hasattr(one, "co_code")]
    return [code.co_code, code.co_names, *plain, *(x for one in inner for x in _instructions(one))]


def _hashed(parts: list[Any]) -> str:
    found = hashlib.sha256()
    for part in parts:
        if callable(part):
            found.update(getattr(part, "__qualname__", type(part).__qualname__).encode())
        elif isinstance(part, np.ndarray):
            found.update(np.ascontiguousarray(part).tobytes())
        else:  # an address says nothing
            found.update(repr(part).partition(" at 0x")[0].encode())
    return found.hexdigest()


# Random Fourier features.


@dataclass(frozen=True)
class FourierFeatures(FeatureMap, Step, kind="random Fourier features"):
    """cos(w'x) and sin(w'x) over the root of their number, for frequencies w that a seed gives.

    Products of such rows are kernels of the rows, on average over seeds: exp(-gamma |x - y|^2) for
    normal frequencies ("rbf"), exp(-gamma |x - y|_1) for Cauchy ones ("laplacian"). Frequency j
    follows from the seed and j alone.
    names : digest of those of the columns, or "".
    """

    kernel: str
    gamma: float
    inputs: int
    n_features: int
    seed: int
    names: str = ""

    @property
    def width(self) -> int:
        return self.inputs

    def __str__(self) -> str:
        return f"{self.n_features} random Fourier features of {self.inputs} features"

    def features(self, rows: Array) -> Array:
        """Phases are summed in float64, for those of large values are many turns."""
        half = self.n_features // 2
        out = np.empty((len(rows), self.n_features), rows.dtype)
        for piece in self._pieces(len(rows)):
            phases = np.zeros((piece.stop - piece.start, half))
            for part in self._panels():
                phases += rows[piece, part].astype(np.float64, copy=False) @ self._frequencies(part)
            if rows.dtype == np.float32:
                phases -= 2.0 * np.pi * np.rint(phases / (2.0 * np.pi))
            phases = phases.astype(rows.dtype, copy=False)
            np.cos(phases, out=out[piece, :half])
            np.sin(phases, out=out[piece, half:])
        out /= np.sqrt(rows.dtype.type(half))
        return out

    def _pieces(self, length: int) -> list[slice]:
        """Of the rows; all at once where frequencies are drawn for each piece."""
        row = 4 * (self.n_features + 2 * self.inputs)
        return row_pieces(length, row, PIECE_NBYTES) if self._held else [slice(0, length)]

    @property
    def _held(self) -> bool:
        return 4 * self.inputs * self.n_features <= HELD_NBYTES

    @cached_property
    def _kept(self) -> Array:
        return self._made(slice(0, self.inputs))

    def __getstate__(self) -> dict[str, Any]:
        """Without the frequencies, which are drawn again."""
        return {name: value for name, value in self.__dict__.items() if name != "_kept"}

    def _panels(self) -> list[slice]:
        if self._held:
            return [slice(0, self.inputs)]
        return row_pieces(self.inputs, 4 * self.n_features, PANEL_NBYTES)

    def _frequencies(self, part: slice) -> Array:
        return self._kept if self._held else self._made(part)

    def _made(self, part: slice) -> Array:
        """(features of the part, n_features / 2) frequencies."""
        rows = np.arange(part.start, part.stop, dtype=np.uint64)[:, None]
        columns = np.arange(self.n_features // 2, dtype=np.uint64)
        random = seeded(self.seed, columns * np.uint64(FREQUENCIES) + rows)
        uniform = ((random >> np.uint64(12)).astype(np.float64) + 0.5) / 2**52  # never 0 or 1
        if self.kernel == "laplacian":
            return np.asarray(self.gamma * np.tan(np.pi * (uniform - 0.5)))
        return np.asarray(np.sqrt(2.0 * self.gamma) * scipy.special.ndtri(uniform))

    @property
    def held_nbytes(self) -> int:
        held = 4 * self.inputs * self.n_features if self._held else 0
        return held + 6 * PANEL_NBYTES

    def scratch_nbytes(self, length: int, width: int) -> int:
        longest = max((piece.stop - piece.start for piece in self._pieces(length)), default=0)
        return longest * (16 * self.n_features + 8 * width)

    def digest(self) -> bytes:
        return repr(self).encode()

    def apply(self, matrix: ChunkedMatrix, row_sums: RowSums) -> ChunkedMatrix:
        return _mapped(matrix, self)
