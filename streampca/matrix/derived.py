"""Matrices derived from another block by block: scaled rows and columns, functions of entries."""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix.block import refuse_inexact, work_dtype
from streampca.matrix.chunked_matrix import ChunkedMatrix, ReadCount, regular_edges
from streampca.matrix.location import Location
from streampca.matrix.preprocessing import RowSums, Step


class MatrixView(ChunkedMatrix):
    """Base class of selections and derivations of the matrix ``base``."""

    base: ChunkedMatrix

    def streamed_below(self, axis: int, edges: np.ndarray[Any, Any]) -> MatrixView:
        """``streamed``, where a block here is one block of the base."""
        laid = copy.copy(self)
        laid.base = self.base.streamed(axis, edges)
        laid.streamed_axis, laid.edges = axis, laid.base.edges
        return laid

    def advice(self, axis: int) -> str:
        return self.base.advice(axis)

    def reach(self, axis: int) -> int:
        return self.base.reach(axis)

    def entry_points(self, axis: int) -> np.ndarray[Any, Any] | None:
        return self.base.entry_points(axis)

    def prepare_reads(self, axis: int) -> ReadCount:
        return self.base.prepare_reads(axis)

    def prepared(self) -> ReadCount:
        return self.base.prepared()

    def column(self, axis: int, name: str) -> Any:
        return self.base.column(axis, name)

    def column_names(self, axis: int) -> list[str]:
        return self.base.column_names(axis)

    @property
    def carried_nbytes(self) -> int:  # type: ignore[override]
        return self.base.carried_nbytes

    @property
    def computes(self) -> bool:  # type: ignore[override]
        return self.base.computes

    def futures(self) -> tuple[Any, ...]:
        return self.base.futures()

    def paths(self) -> tuple[str, ...]:
        return self.base.paths()

    def locations(self) -> tuple[Location, ...]:
        return self.base.locations()

    def reads(self) -> ReadCount:
        return self.base.reads()

    def restart_counts(self) -> None:
        self.base.restart_counts()

    def checksums(self) -> dict[str, int]:
        return self.base.checksums()

    def add_checksums(self, found: Mapping[str, int]) -> None:
        self.base.add_checksums(found)


# Data that a source keeps from one block to the next while a span is read.


class ComputedView(MatrixView):
    """A view whose values are computed from those of the base."""

    @abstractmethod
    def _digest(self, base: str) -> str:
        """Of a digest of the base, and of what is computed."""

    def fingerprint(self) -> str:
        return self._digest(self.base.fingerprint())

    def content_stamp(self) -> str:
        return self._digest(self.base.content_stamp())


class Derivation(ABC):
    """A function of every cell that maps 0 to 0, so that sparse matrices stay sparse."""

    @abstractmethod
    def dense(self, values: Array, rows: slice, columns: slice) -> Array:
        """New values of a dense part of the matrix; may overwrite its argument."""

    @abstractmethod
    def stored(self, data: Array, rows: Array, columns: Array) -> Array:
        """New values of stored entries at these positions; may overwrite its argument."""

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return sum(int(v.nbytes) for v in values if isinstance(v, np.ndarray))

    def digest(self) -> bytes:
        """SHA-256 of its kind and its parameters."""
        found = hashlib.sha256(type(self).__name__.encode())
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            held = isinstance(value, np.ndarray)
            found.update(np.ascontiguousarray(value).tobytes() if held else repr(value).encode())
        return found.digest()


FUNCTIONS = {"log1p": np.log1p, "expm1": np.expm1, "sign": np.sign}


@dataclass(frozen=True)
class Function(Derivation):
    """A function of each cell with f(0) = 0: "log1p", "expm1", "sign", or "x log x".

    factor : of the result (1 / log(base) for logarithms of another base).
    """

    name: str
    factor: float = 1.0

    def dense(self, values: Array, rows: slice, columns: slice) -> Array:
        return self._of(values)

    def stored(self, data: Array, rows: Array, columns: Array) -> Array:
        return self._of(data)

    def _of(self, x: Array) -> Array:
        if self.name in ("log1p", "x log x") and x.size and np.nanmin(x) < 0:
            raise InvalidInputError(
                f"Negative values in data: {self.name} of {np.nanmin(x):g}; expected counts. "
                "Has the matrix been scaled already?"
            )
        if self.name == "expm1" and x.size and np.nanmax(x) > np.log(np.finfo(x.dtype).max):
            raise InvalidInputError(
                f"exp({np.nanmax(x):g}) overflows; expected logarithms of counts, not counts: "
                "streampca.preprocess.log1p(X)"
            )
        if self.name == "x log x":
            positive = x > 0
            return np.where(positive, x * np.log(np.where(positive, x, 1.0)), x * 0)
        out = FUNCTIONS[self.name](x, out=x)
        return out if self.factor == 1.0 else np.multiply(out, self.factor, out=out)


@dataclass(frozen=True)
class Scale(Derivation):
    """Every cell times a factor of its row (axis 0) or of its column (axis 1)."""

    factors: Array
    axis: int

    def dense(self, values: Array, rows: slice, columns: slice) -> Array:
        mine = self.factors[columns if self.axis == 1 else rows].astype(values.dtype)
        return np.asarray(
            np.multiply(values, mine if self.axis == 1 else mine[:, None], out=values)
        )

    def stored(self, data: Array, rows: Array, columns: Array) -> Array:
        mine = self.factors.astype(data.dtype)[columns if self.axis == 1 else rows]
        return np.asarray(np.multiply(data, mine, out=data))


class DerivedMatrix(ComputedView):
    """Another matrix with a derivation applied to each block as it is read.

    Values are float32 where that holds the stored values exactly, else float64; a missing code
    becomes NaN. Sparse stays sparse, with the entries that the other matrix stores.
    """

    def __init__(self, base: ChunkedMatrix, derivation: Derivation) -> None:
        if base.missing_value == 0 and base.sparse:
            raise InvalidInputError("cannot transform a matrix whose missing code is 0: store NaN")
        self.base, self.derivation = base, derivation
        self.shape, self.labels = base.shape, base.labels
        self.dtype = work_dtype(base.dtype)
        self.sparse, self.loads, self.note = base.sparse, base.loads, base.note
        self.resident_nbytes = base.resident_nbytes + derivation.nbytes
        self.given_nbytes = base.given_nbytes

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        values = self.base.read(axis, start, stop)
        refuse_inexact(values, self.base.missing_value)
        part = slice(start, stop)
        every = (slice(0, self.shape[0]), part) if axis == 1 else (part, slice(0, self.shape[1]))
        if isinstance(values, np.ndarray):
            fresh = values.astype(self.dtype, order="C")
            if self.base.missing_value is not None:
                fresh[values == self.base.missing_value] = np.nan
            return self.derivation.dense(fresh, *every)
        values = values.asformat("csc" if axis == 1 else "csr")
        data = values.data.astype(self.dtype)
        if self.base.missing_value is not None:
            data[values.data == self.base.missing_value] = np.nan
        lines = np.repeat(np.arange(start, stop), np.diff(values.indptr))
        places = (values.indices, lines) if axis == 1 else (lines, values.indices)
        data = self.derivation.stored(data, *places)
        return type(values)((data, values.indices, values.indptr), shape=values.shape)

    def chunk_edges(self, axis: int) -> Array | None:
        return self.base.chunk_edges(axis)

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        return self.base.count_chunks(axis, start, stop)

    def count_span(self, axis: int, edges: Array) -> int:
        return self.base.count_span(axis, edges)

    def count_pass(self, axis: int, spans: Sequence[Array]) -> int:
        return self.base.count_pass(axis, spans)

    def streamed(self, axis: int, edges: Array) -> ChunkedMatrix:
        return self.streamed_below(axis, edges)

    def count_shared(self, axis: int, stop: int, start: int) -> int:
        return self.base.count_shared(axis, stop, start)

    def row_nbytes(self, axis: int) -> float:
        if not self.sparse:
            return super().row_nbytes(axis)
        return self._grown() * self.base.row_nbytes(axis)

    def spans_nbytes(self, axis: int, edges: Array) -> Array:
        if not self.sparse:
            return super().spans_nbytes(axis, edges)
        spans = self.base.spans_nbytes(axis, edges)
        return np.ceil(spans * self._grown()).astype(np.int64)

    def _grown(self) -> float:
        """Upper bound of the bytes of an entry here over those in the base (4-byte indices)."""
        return max(1.0, (self.dtype.itemsize + 4) / (self.base.dtype.itemsize + 4))

    def read_scratch_nbytes(self, axis: int, length: int) -> int:
        """The base's block, and positions of the entries or a mask of the cells."""
        edges = regular_edges(self.shape[axis], length)
        below = int(self.base.spans_nbytes(axis, edges).max(initial=0))
        return self.base.read_scratch_nbytes(axis, length) + below + 2 * below * self.sparse

    def part(self, axis: int, start: int, stop: int) -> ChunkedMatrix:
        smaller = copy.copy(self)
        smaller.base = self.base.part(axis, start, stop)
        return smaller

    def _digest(self, base: str) -> str:
        code = repr(self.base.missing_value).encode()
        return hashlib.sha256(base.encode() + code + self.derivation.digest()).hexdigest()


# Steps of preprocessing that change values: logarithms, weights of features, scales of rows.


@dataclass(frozen=True)
class Logarithm(Step, kind="log1p"):
    """log(1 + x) times ``factor`` (1 / log(base) for a base other than e)."""

    factor: float = 1.0

    def apply(self, matrix: ChunkedMatrix, row_sums: RowSums) -> ChunkedMatrix:
        return _after(self, matrix, Function("log1p", self.factor))


@dataclass(frozen=True)
class FeatureWeights(Step, kind="feature weights"):
    """Every feature times its weight.

    weights : (p,) estimated from the rows of the fit.  name : of the method.
    """

    weights: Array
    name: str

    @property
    def width(self) -> int:
        return len(self.weights)

    @property
    def fitted(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"{self.name} weights of {self.width} features"

    def apply(self, matrix: ChunkedMatrix, row_sums: RowSums) -> ChunkedMatrix:
        return _after(self, matrix, Scale(self.weights, 1))


@dataclass(frozen=True)
class RowTotals(Step, kind="row totals"):
    """Every row times target / its sum; a row of zeros stays.

    from_rows : the target is the median of the sums of the fit.
    """

    target: float
    from_rows: bool = False

    @property
    def fitted(self) -> bool:
        return self.from_rows

    def __str__(self) -> str:
        return f"rows of total {self.target:g}"

    def apply(self, matrix: ChunkedMatrix, row_sums: RowSums) -> ChunkedMatrix:
        sums = row_sums(matrix, False)
        return _after(self, matrix, Scale(self.target / np.where(sums == 0, self.target, sums), 0))


@dataclass(frozen=True)
class RowLengths(Step, kind="rows of length 1"):
    """Every row divided by its Euclidean length; a row of zeros stays."""

    def apply(self, matrix: ChunkedMatrix, row_sums: RowSums) -> ChunkedMatrix:
        lengths = np.sqrt(row_sums(matrix, True))
        return _after(self, matrix, Scale(1.0 / np.where(lengths > 0, lengths, 1.0), 0))


def _after(step: Step, matrix: ChunkedMatrix, derivation: Derivation) -> ChunkedMatrix:
    """The matrix after a step, which its labels record."""
    derived = DerivedMatrix(matrix, derivation)
    derived.labels = replace(derived.labels, preprocessing=derived.preprocessing.then(step))
    return derived
