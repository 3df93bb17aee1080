"""LLVM intrinsics for products, conversions and sums in registers, which Numba cannot generate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import RequireLiteralValue
from numba.extending import intrinsic

# Dense products and conversions in vector registers.
#
# ``add_lines`` is the inner kernel of a product of two small panels: its sums stay in registers,
# so that a number of the left panel costs one load and as many fused multiply-adds as there are
# registers of columns. ``lay_calls`` makes sixteen small integers into floats at once. Both are
# called from compiled kernels.

VECTOR_NBYTES = 64  # the compiler splits where registers are shorter
VECTOR = VECTOR_NBYTES // 4  # float32 columns, or calls, at once
_FUSED = ("contract",)  # no "reassoc": sums must begin at 0
_WHOLE, _HALF = ir.IntType(64), ir.IntType(32)


def columns_per_vector(itemsize: int) -> int:
    """Columns in one vector; tables have a multiple of it."""
    return VECTOR_NBYTES // itemsize


@intrinsic
def add_lines(  # type: ignore[no-untyped-def]
    typingctx, z, place, across, along, length, table, first, y, line, column, lines
):
    """y[line + a, column + c] += sum over b < length of z[place + a across + b along] times
    table[first + b, column + c], for a < ``lines`` (a literal) and the columns c of a vector.

    z : flat.  table, y : C order.  All of one floating dtype.
    """
    count = _literal(lines, "lines")
    whole, kind = types.int64, table.dtype
    signature = types.void(
        z, whole, whole, whole, whole, table, whole, y, whole, whole, types.literal(count)
    )

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        size = kind.bitwidth // 8
        vector = ir.VectorType(context.get_value_type(kind), columns_per_vector(size))
        flat, rows, into = (
            context.make_array(sig.args[i])(context, builder, args[i]) for i in (0, 5, 7)
        )
        width = cgutils.unpack_tuple(builder, rows.shape)[1]
        wide = cgutils.unpack_tuple(builder, into.shape)[1]

        def at(data: Any, row: Any, width: Any) -> Any:
            offset = builder.add(builder.mul(row, width), args[9])
            return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())

        numbers = [ir.Constant(_WHOLE, a) for a in range(count)]
        outs = [at(into.data, builder.add(args[8], a), wide) for a in numbers]
        starts = [
            builder.gep(flat.data, [builder.add(args[1], builder.mul(args[2], a))]) for a in numbers
        ]
        # sums begin at 0, not at y: one float32 sum over all terms of y would lose a digit
        zero = ir.Constant(vector, [0.0] * vector.count)
        sums = [cgutils.alloca_once_value(builder, zero) for _ in outs]
        with cgutils.for_range(builder, args[4], intp=_WHOLE) as loop:
            row = _load(builder, at(rows.data, builder.add(args[6], loop.index), width), size)
            step = builder.mul(loop.index, args[3])
            for start, total in zip(starts, sums, strict=True):
                value = _everywhere(builder, builder.load(builder.gep(start, [step])), vector)
                product = builder.fmul(value, row, flags=_FUSED)
                builder.store(builder.fadd(builder.load(total), product, flags=_FUSED), total)
        for out, total in zip(outs, sums, strict=True):
            more = builder.fadd(_load(builder, out, size), builder.load(total))
            builder.store(more, out).align = size
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def lay_calls(  # type: ignore[no-untyped-def]
    typingctx, x, i, j, code, center, factor, k, out, place, single
):
    """out[place + a] = (x[i, j + a] - center[k + a]) factor[k + a], 0 where x is the code.

    For a < VECTOR; rounded once from float64. x : int8 or uint8, its rows contiguous.
    single : a literal; 1 uses center[k] and factor[k] for all.
    """
    one = _literal(single, "single")
    whole = types.int64
    signature = types.void(
        x, whole, whole, types.int32, center, factor, whole, out, whole, types.literal(one)
    )

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        small, half = ir.VectorType(ir.IntType(8), VECTOR), ir.VectorType(_HALF, VECTOR)
        double, float_ = (ir.VectorType(kind, VECTOR) for kind in (ir.DoubleType(), ir.FloatType()))
        cells, centers, factors, made = (
            context.make_array(sig.args[n])(context, builder, args[n]) for n in (0, 4, 5, 7)
        )
        row = builder.mul(args[1], cgutils.unpack_tuple(builder, cells.strides)[0])
        calls = _load(
            builder,
            builder.bitcast(
                builder.gep(
                    builder.bitcast(cells.data, ir.IntType(8).as_pointer()),
                    [builder.add(row, args[2])],
                ),
                small.as_pointer(),
            ),
            1,
        )
        widen = builder.sext if sig.args[0].dtype.signed else builder.zext
        numbers = widen(calls, half)

        def known(array: Any) -> Any:
            pointer = builder.gep(array.data, [args[6]])
            if one:
                return _everywhere(builder, builder.load(pointer), double)
            return _load(builder, builder.bitcast(pointer, double.as_pointer()), 8)

        shifted = builder.fsub(builder.sitofp(numbers, double), known(centers))
        floats = builder.fptrunc(builder.fmul(shifted, known(factors)), float_)
        seen = builder.icmp_signed("!=", numbers, _everywhere(builder, args[3], half))
        floats = builder.select(seen, floats, ir.Constant(float_, [0.0] * VECTOR))
        target = builder.bitcast(builder.gep(made.data, [args[8]]), float_.as_pointer())
        builder.store(floats, target).align = 4
        return context.get_dummy_value()

    return signature, generate


def _literal(kind: Any, name: str) -> int:
    if not isinstance(kind, types.IntegerLiteral):
        raise RequireLiteralValue(f"{name}: a number in the source")
    return int(kind.literal_value)


def _load(builder: Any, pointer: Any, align: int) -> Any:
    loaded = builder.load(pointer)
    loaded.align = align
    return loaded


def _everywhere(builder: Any, value: Any, vector: Any) -> Any:
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_HALF, 0))
    first_of_all = ir.Constant(ir.VectorType(_HALF, vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, undefined, first_of_all)


# Sums of the rows of a sparse line in vector registers.
#
# ``add_gathered`` and ``add_scattered`` are called from compiled kernels. The sum over a line's
# entries, or the row that is added to each, stays in ``COUNT`` registers of ``VECTOR_NBYTES`` (the
# compiler splits them where the machine's are shorter), so that an entry costs one load, or a load
# and a store, of its row. Numba's own loop over columns of unknown number checks overlaps, loads
# and stores the sum, and ends in a scalar remainder, all once per entry: half as fast in float64
# at 64 columns, a third in float32.

_FAST = ("contract", "reassoc", "nsz")


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
        """Pointer to the wanted columns of a row of the table (4) or of y (5)."""
        array = self.context.make_array(self._kinds[which])(
            self.context, self.builder, self._args[which]
        )
        width = cgutils.unpack_tuple(self.builder, array.shape)[1]
        offset = self.builder.add(self.builder.mul(row, width), self._args[7])
        return self.builder.gep(array.data, [offset])

    def _everywhere(self, value: Any) -> Any:
        return _everywhere(self.builder, value, self._vector)

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
