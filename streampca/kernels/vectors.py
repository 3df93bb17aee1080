"""Sums of a sparse line's rows in vector registers: what Numba's loops do not reach.

``add_gathered`` and ``add_scattered`` are called from compiled kernels. The sum over a line's
entries, or the row that is added to each, stays in ``COUNT`` registers of ``VECTOR_NBYTES`` (the
compiler splits them where the machine's are shorter), so that an entry costs one load, or a load
and a store, of its row. Numba's own loop over columns of unknown number checks overlaps, loads and
stores the sum, and ends in a scalar remainder, all once per entry: half as fast in float64 at 64
columns, a third in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import RequireLiteralValue
from numba.extending import intrinsic

VECTOR_NBYTES = 64
_FAST = ("contract", "reassoc", "nsz")


def columns_per_vector(itemsize: int) -> int:
    """Columns in one vector; tables have a multiple of it."""
    return VECTOR_NBYTES // itemsize


@intrinsic
def add_gathered(  # type: ignore[no-untyped-def]
    typingctx, data, indices, first, last, table, y, line, column, count
):
    """y[line, c] += sum of data[j] table[indices[j], c] over first <= j < last.

    For ``count`` (a literal) vectors of columns c from ``column`` on. table and y are of one
    floating dtype and C order; their rows are whole vectors.
    """

    def body(build: _Builder) -> None:
        sums = [build.variable(build.load(build.y, k)) for k in range(build.count)]
        with build.entries() as (value, row):
            for k, total in enumerate(sums):
                product = build.times(value, build.load(row, k))
                build.builder.store(build.plus(build.builder.load(total), product), total)
        for k, total in enumerate(sums):
            build.store(build.builder.load(total), build.y, k)

    return _compiled(body, (data, indices, first, last, table, y, line, column, count))


@intrinsic
def add_scattered(  # type: ignore[no-untyped-def]
    typingctx, data, indices, first, last, table, y, line, column, count
):
    """table[indices[j], c] += data[j] y[line, c] for first <= j < last; as ``add_gathered``."""

    def body(build: _Builder) -> None:
        row_of_y = [build.load(build.y, k) for k in range(build.count)]
        with build.entries() as (value, row):
            for k, mine in enumerate(row_of_y):
                build.store(build.plus(build.load(row, k), build.times(value, mine)), row, k)

    return _compiled(body, (data, indices, first, last, table, y, line, column, count))


def _compiled(body: Any, kinds: tuple[Any, ...]) -> Any:
    """Signature and code generator of an intrinsic of these argument types."""
    data, indices, _, _, table, y, _, _, count = kinds
    if not isinstance(count, types.IntegerLiteral):
        raise RequireLiteralValue("count: a number in the source")
    if y.dtype != table.dtype or table.layout != "C" or y.layout != "C":
        return None
    whole = types.int64
    signature = types.void(data, indices, whole, whole, table, y, whole, whole, count)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        body(_Builder(context, builder, sig.args, args, count.literal_value))
        return context.get_dummy_value()

    return signature, generate


class _Builder:
    """The instructions of one call: vectors of a row of the table and of y."""

    def __init__(self, context: Any, builder: Any, kinds: Any, args: Any, count: int) -> None:
        self.context, self.builder, self.count = context, builder, count
        self._kinds, self._args = kinds, args
        self._number = context.get_value_type(kinds[4].dtype)
        self._align = kinds[4].dtype.bitwidth // 8
        self._columns = columns_per_vector(self._align)
        self._vector = ir.VectorType(self._number, self._columns)
        self.y = self._row(5, args[6])

    @contextmanager
    def entries(self) -> Iterator[tuple[Any, Any]]:
        """The loop over a line's entries: (value in every column, row of the table)."""
        first, last = self._args[2:4]
        one = ir.Constant(first.type, 1)
        with cgutils.for_range_slice(self.builder, first, last, one, first.type) as (j, _):
            yield self._entry(j)

    def _entry(self, j: Any) -> tuple[Any, Any]:
        builder, kinds = self.builder, self._kinds
        data, indices = (
            self.context.make_array(kinds[i])(self.context, builder, self._args[i]).data
            for i in (0, 1)
        )
        value = self.context.cast(
            builder, builder.load(builder.gep(data, [j])), kinds[0].dtype, kinds[4].dtype
        )
        index = builder.load(builder.gep(indices, [j]))
        if kinds[1].dtype.bitwidth < 64:
            index = builder.zext(index, ir.IntType(64))  # indices are not negative
        return self._everywhere(value), self._row(4, index)

    def _row(self, which: int, row: Any) -> Any:
        """Pointer to the asked columns of a row of the table (4) or of y (5)."""
        array = self.context.make_array(self._kinds[which])(
            self.context, self.builder, self._args[which]
        )
        width = cgutils.unpack_tuple(self.builder, array.shape)[1]
        offset = self.builder.add(self.builder.mul(row, width), self._args[7])
        return self.builder.gep(array.data, [offset])

    def _everywhere(self, value: Any) -> Any:
        undefined = ir.Constant(self._vector, ir.Undefined)
        zero = ir.Constant(ir.IntType(32), 0)
        first = self.builder.insert_element(undefined, value, zero)
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self._columns), [0] * self._columns)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def variable(self, value: Any) -> Any:
        return cgutils.alloca_once_value(self.builder, value)

    def times(self, a: Any, b: Any) -> Any:
        return self.builder.fmul(a, b, flags=_FAST)

    def plus(self, a: Any, b: Any) -> Any:
        return self.builder.fadd(a, b, flags=_FAST)

    def _place(self, row: Any, k: int) -> Any:
        place = self.builder.gep(row, [ir.Constant(ir.IntType(64), k * self._columns)])
        return self.builder.bitcast(place, self._vector.as_pointer())

    def load(self, row: Any, k: int) -> Any:
        loaded = self.builder.load(self._place(row, k))
        loaded.align = self._align
        return loaded

    def store(self, value: Any, row: Any, k: int) -> None:
        self.builder.store(value, self._place(row, k)).align = self._align
