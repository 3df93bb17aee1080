"""Lazy concatenation of matrices along samples or features."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import scipy

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.matrix.block import refuse_inexact
from streampca.matrix.chunked_matrix import ChunkedMatrix, ReadCount
from streampca.matrix.labels import AxisLabels, Labels
from streampca.matrix.location import Location
from streampca.matrix.names import difference
from streampca.matrix.preprocessing import RAW, Preprocessing, RowSums, Step
from streampca.matrix.select import select


class JoinedMatrix(ChunkedMatrix):
    """Several matrices as one, along ``joined`` (0 = more samples, 1 = more features).

    Parts of one integer dtype and one missing code keep both. Otherwise integers with a code become
    floats with NaN, because codes may differ, or be a value in another part.
    """

    def __init__(
        self, parts: Sequence[ChunkedMatrix], joined: int, variables: Sequence[str] = ()
    ) -> None:
        other = 1 - joined
        if not parts:
            raise InvalidInputError("nothing to join: expected at least one matrix")
        for part in parts:
            if not isinstance(part, ChunkedMatrix):
                name = ("concat_samples", "concat_features")[joined]
                raise InvalidTypeError(
                    f"cannot join a {type(part).__name__}; expected matrices, one after the other: "
                    f"{name}(streampca.open(X), streampca.open(Y))"
                )
        lengths = {part.shape[other] for part in parts}
        if len(lengths) > 1:
            name = "samples" if joined else "features"
            raise InvalidInputError(f"cannot join matrices with {sorted(lengths)} {name}")
        self.parts = tuple(parts)
        self.loads = tuple(sorted({name for part in parts for name in part.loads}))
        self.sparse = any(part.sparse for part in parts)
        self.resident_nbytes = sum(part.resident_nbytes for part in parts)
        self.given_nbytes = sum(part.given_nbytes for part in parts)
        self.carried_nbytes = sum(part.carried_nbytes for part in parts)
        self.computes = any(part.computes for part in parts)
        counts = [part.multiallelic for part in parts]
        self.multiallelic = sum(counts) if joined else counts[0]
        self.joined = joined
        self.offsets = np.cumsum([0, *(part.shape[joined] for part in parts)])
        size, across = int(self.offsets[-1]), int(parts[0].shape[other])
        self.shape = (across, size) if joined else (size, across)
        self.missing_value = _shared_code(parts)
        as_stored = self.missing_value is not None
        dtypes = [
            p.dtype if as_stored or p.missing_value is None else np.result_type(p.dtype, np.float32)
            for p in parts
        ]
        self.dtype = np.result_type(*dtypes)
        self.into_buffer = any(self._in_place(part) for part in parts)
        axes = [part.labels.axis(joined) for part in parts]
        if variables:
            joint = AxisLabels.of_variables(dict(zip(variables, axes, strict=True)))
        else:
            joint = AxisLabels.concat(axes)
        kept = parts[0].labels.axis(other)
        labels = _one_kind(parts).with_axes(joint, kept)
        if joined:
            labels = Labels(kept, joint, attrs=_shared_attributes(parts))
        if variables:
            attrs_by_part = {
                name: part.labels.attrs for name, part in zip(variables, parts, strict=True)
            }
            labels = replace(labels, attrs=attrs_by_part)
        self.labels = replace(labels, preprocessing=_joint_preprocessing(parts, joined))

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        if axis != self.joined:
            pieces = [self._read_part(part, axis, start, stop) for part in self.parts]
        else:
            crossed = [
                (part, max(start - o, 0), min(stop - o, part.shape[axis]))
                for part, o in zip(self.parts, self.offsets[:-1], strict=True)
                if start < o + part.shape[axis] and stop > o
            ]
            if len(crossed) == 1 and self._in_place(crossed[0][0]):
                part, first, last = crossed[0]
                return part.read(axis, first, last, buffer)
            pieces = [self._read_part(part, axis, first, last) for part, first, last in crossed]
        if len(pieces) == 1:
            return pieces[0].astype(self.dtype, copy=False)  # wherever a block is cut
        if any(scipy.sparse.issparse(piece) for piece in pieces):
            stack = scipy.sparse.hstack if self.joined else scipy.sparse.vstack
            return stack(pieces, format="csc" if axis == 1 else "csr", dtype=self.dtype)
        return np.concatenate(pieces, axis=self.joined, dtype=self.dtype)

    def arranged(self, features: AxisLabels) -> ChunkedMatrix:
        names = list(self.labels.features.parts) if self.joined else []
        if self.joined and (not names or names != list(features.parts)):
            return self
        wanted = [features.parts[name] for name in names] or [features] * len(self.parts)
        parts = [part.arranged(order) for part, order in zip(self.parts, wanted, strict=True)]
        if all(new is old for new, old in zip(parts, self.parts, strict=True)):
            return self
        arranged = JoinedMatrix(parts, self.joined, names)
        arranged.annotations = self.annotations
        return arranged

    def column(self, axis: int, name: str) -> Any:
        if (found := super().column(axis, name)) is not None:
            return found
        columns = [part.column(axis, name) for part in self.parts]
        if axis != self.joined:
            return next((column for column in columns if column is not None), None)
        held = all(isinstance(column, np.ndarray) for column in columns)
        return np.concatenate(columns) if held else None

    def column_names(self, axis: int) -> list[str]:
        own, parts = super().column_names(axis), [part.column_names(axis) for part in self.parts]
        if axis == self.joined:
            parts = [[name for name in parts[0] if all(name in names for names in parts)]]
        return list(dict.fromkeys([*own, *(name for names in parts for name in names)]))

    def _in_place(self, part: ChunkedMatrix) -> bool:
        """Whether a part's values need no decoding and can be put into a caller's buffer."""
        same_code = part.missing_value == self.missing_value
        return part.into_buffer and same_code and part.dtype == self.dtype

    def _read_part(self, part: ChunkedMatrix, axis: int, start: int, stop: int) -> Any:
        values = part.read(axis, start, stop)
        if self.dtype.kind == "f":
            refuse_inexact(values, part.missing_value, "a matrix that is joined with floats")
        if part.missing_value == self.missing_value:
            return values
        decoded = values.astype(self.dtype)
        decoded[values == part.missing_value] = np.nan
        return decoded

    def hard_calls(self) -> ChunkedMatrix:
        parts = [part.hard_calls() for part in self.parts]
        if all(new is old for new, old in zip(parts, self.parts, strict=True)):
            return self
        return JoinedMatrix(parts, self.joined, list(self.labels.features.parts) or ())

    def chunk_edges(self, axis: int) -> np.ndarray[Any, Any] | None:
        every = [part.chunk_edges(axis) for part in self.parts]
        if axis != self.joined:
            known = [edges for edges in every if edges is not None]
            return reduce(np.intersect1d, known) if known else None
        if all(edges is None for edges in every):
            return None
        ends = [
            np.array([0, part.shape[axis]]) if edges is None else edges
            for part, edges in zip(self.parts, every, strict=True)
        ]
        shifted = [end + o for end, o in zip(ends, self.offsets[:-1], strict=True)]
        return np.unique(np.concatenate(shifted))

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        if axis != self.joined:
            return sum(part.count_chunks(axis, start, stop) for part in self.parts)
        return sum(
            part.count_chunks(axis, max(start - o, 0), min(stop - o, part.shape[axis]))
            for part, o in zip(self.parts, self.offsets[:-1], strict=True)
            if start < o + part.shape[axis] and stop > o
        )

    def count_span(self, axis: int, edges: np.ndarray[Any, Any]) -> int:
        if axis != self.joined:
            return sum(part.count_span(axis, edges) for part in self.parts)
        inside = [
            np.unique(np.clip(edges - o, 0, part.shape[axis]))
            for part, o in zip(self.parts, self.offsets[:-1], strict=True)
        ]
        return sum(p.count_span(axis, e) for p, e in zip(self.parts, inside, strict=True))

    def count_shared(self, axis: int, stop: int, start: int) -> int:
        if axis != self.joined:
            return sum(part.count_shared(axis, stop, start) for part in self.parts)
        return sum(
            part.count_shared(axis, stop - o, start - o)
            for part, o in zip(self.parts, self.offsets[:-1], strict=True)
            if o < stop and start < o + part.shape[axis]
        )

    def reach(self, axis: int) -> int:
        return max(part.reach(axis) for part in self.parts)

    def entry_points(self, axis: int) -> np.ndarray[Any, Any] | None:
        every = [part.entry_points(axis) for part in self.parts]
        known = [entries for entries in every if entries is not None]
        if axis != self.joined or not known:
            return reduce(np.intersect1d, known) if known else None
        begins = [
            o + (np.zeros(1, np.int64) if entries is None else entries)
            for entries, o in zip(every, self.offsets[:-1], strict=True)
        ]
        return np.unique(np.concatenate(begins))

    def row_nbytes(self, axis: int) -> float:
        every = [part.row_nbytes(axis) for part in self.parts]
        if axis != self.joined:
            return sum(every)
        pairs = zip(every, self.parts, strict=True)
        return sum(e * part.shape[axis] for e, part in pairs) / max(1, self.shape[axis])

    def spans_nbytes(self, axis: int, edges: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if not self.sparse:
            return super().spans_nbytes(axis, edges)
        total = np.zeros(max(len(edges) - 1, 0), np.int64)
        for part, o in zip(self.parts, self.offsets[:-1], strict=True):
            inside = edges if axis != self.joined else np.clip(edges - o, 0, part.shape[axis])
            total += part.spans_nbytes(axis, inside) * (1 if part.sparse else 3)  # with indices
        return total

    def advice(self, axis: int) -> str:
        return next(filter(None, (part.advice(axis) for part in self.parts)), "")

    def read_scratch_nbytes(self, axis: int, length: int) -> int:
        own = length * self.shape[1 - axis] * self.dtype.itemsize  # the pieces, before they join
        return own + max(part.read_scratch_nbytes(axis, length) for part in self.parts)

    def prepare_reads(self, axis: int) -> ReadCount:
        return sum((part.prepare_reads(axis) for part in self.parts), ReadCount())

    def prepared(self) -> ReadCount:
        return sum((part.prepared() for part in self.parts), ReadCount())

    def part(self, axis: int, start: int, stop: int) -> ChunkedMatrix:
        smaller = copy.copy(self)
        if axis != self.joined:
            smaller.parts = tuple(part.part(axis, start, stop) for part in self.parts)
            return smaller
        first = int(np.searchsorted(self.offsets[1:-1], start, side="right"))
        last = max(first + 1, int(np.searchsorted(self.offsets[:-1], stop, side="left")))
        smaller.offsets = self.offsets[first : last + 1]
        smaller.parts = tuple(
            part.part(axis, max(start - o, 0), min(stop - o, part.shape[axis]))
            for part, o in zip(self.parts[first:last], smaller.offsets[:-1], strict=True)
        )
        return smaller

    def fingerprint(self) -> str:
        return self._digest([part.fingerprint() for part in self.parts])

    def content_stamp(self) -> str:
        return self._digest([part.content_stamp() for part in self.parts])

    def _digest(self, parts: list[str]) -> str:
        text = "|".join([str(self.joined), str(self.missing_value), *parts])
        return hashlib.sha256(text.encode()).hexdigest()

    def futures(self) -> tuple[Any, ...]:
        return tuple(future for part in self.parts for future in part.futures())

    def paths(self) -> tuple[str, ...]:
        return tuple(path for part in self.parts for path in part.paths())

    def locations(self) -> tuple[Location, ...]:
        return tuple(location for part in self.parts for location in part.locations())

    def reads(self) -> ReadCount:
        return sum((part.reads() for part in self.parts), ReadCount())

    def restart_counts(self) -> None:
        for part in self.parts:
            part.restart_counts()


@dataclass(frozen=True)
class PartsBeside(Step, kind="parts side by side"):
    """Separate steps for the features of each of several parts.

    parts : the steps of each.  ends : where the raw features of each end.
    """

    parts: tuple[Preprocessing, ...]
    ends: np.ndarray[Any, Any]

    @property
    def width(self) -> int:
        return int(self.ends[-1])

    @property
    def fitted(self) -> bool:
        return any(part.fitted for part in self.parts)

    def __str__(self) -> str:
        return " | ".join(map(str, self.parts))

    def apply(self, matrix: ChunkedMatrix, row_sums: RowSums) -> ChunkedMatrix:
        variables: tuple[str, ...] = ()
        if isinstance(matrix, JoinedMatrix) and np.array_equal(matrix.offsets[1:], self.ends):
            raw, variables = matrix.parts, tuple(matrix.labels.features.parts)
        else:
            places = np.split(np.arange(self.width), self.ends[:-1])
            raw = tuple(select(matrix, features=place) for place in places)
        made = [one.apply(part, row_sums) for one, part in zip(self.parts, raw, strict=True)]
        return concat_features(*made, variables=variables)


def _one_kind(parts: Sequence[ChunkedMatrix]) -> Labels:
    """Labels with the name and the attributes that all parts share."""
    first = parts[0].labels
    descriptions = {(part.labels.name, repr(part.labels.attrs)) for part in parts}
    return first if len(descriptions) == 1 else Labels(first.samples, first.features)


def _shared_attributes(parts: Sequence[ChunkedMatrix]) -> dict[str, Any]:
    """The attributes of the values that all parts have, such as units, or a ploidy."""
    first, *others = [part.labels.attrs for part in parts]
    return {
        name: value
        for name, value in first.items()
        if all(name in other and repr(other[name]) == repr(value) for other in others)
    }


def _joint_preprocessing(parts: Sequence[ChunkedMatrix], joined: int) -> Preprocessing:
    """The steps of the whole. Raises InvalidInputError where samples had different steps."""
    every = [part.preprocessing for part in parts]
    if joined == 0:
        for one in every[1:]:
            if (left := one.after(every[0])) is None or left:
                raise InvalidInputError(
                    f"samples that were not preprocessed alike cannot be joined ({every[0]}; "
                    f"{one}): join the raw matrices and preprocess the result, or fit once and "
                    "apply it to each: weighting = LogEntropy().fit(X); weighting.transform(Y)"
                )
        return every[0]
    if not any(every):
        return RAW
    widths = [
        part.shape[1] if one.width is None else one.width
        for one, part in zip(every, parts, strict=True)
    ]
    return Preprocessing((PartsBeside(tuple(every), np.cumsum(widths)),))


def _shared_code(parts: Sequence[ChunkedMatrix]) -> float | None:
    """The missing code of parts that all have the same integer dtype and the same code."""
    first = parts[0]
    same = all((p.dtype, p.missing_value) == (first.dtype, first.missing_value) for p in parts)
    return first.missing_value if same and first.dtype.kind in "iu" else None


def concat_features(*parts: ChunkedMatrix, variables: Sequence[str] = ()) -> ChunkedMatrix:
    """As ``streampca.concat_features``, which also asks what the columns of tables tell."""
    joined = JoinedMatrix(parts, joined=1, variables=variables)
    _refuse_other_entries(parts, 0)
    return joined


def concat_samples(*parts: ChunkedMatrix) -> ChunkedMatrix:
    """As ``streampca.concat_samples``, which also asks whether units are the same."""
    joined = JoinedMatrix(parts, joined=0)
    _refuse_other_entries(parts, 1)
    return joined


def _refuse_other_entries(parts: Sequence[ChunkedMatrix], axis: int) -> None:
    """Refuse parts whose names along a shared axis differ."""
    kind, named = ("sample", "feature")[axis], [p for p in parts if p.labels.axis(axis).named]
    for part in named[1:]:
        if reason := difference(named[0].labels.axis(axis), part.labels.axis(axis), kind):
            raise InvalidInputError(
                f"cannot join matrices of other {kind}s, or in another order: {reason}. Put them "
                "in one order before they are opened"
            )
