"""Dense products and conversions in vector registers: what Numba's loops do not reach.

``add_lines`` is the inner kernel of a product of two small panels: its sums stay in registers, so
that a number of the left panel costs one load and as many fused multiply-adds as there are
registers of columns. ``lay_calls`` makes sixteen small integers into floats at once. Both are
called from compiled kernels. Numba's cache on disk does not see that this file has changed: delete
``kernels/__pycache__/*.nb*`` then.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import RequireLiteralValue
from numba.extending import intrinsic

VECTOR = 16  # float32 columns, or calls, at once: the compiler splits where registers are shorter
_FUSED = ("contract",)  # no "reassoc": sums are to begin at 0
_WHOLE, _HALF = ir.IntType(64), ir.IntType(32)
_FIRST = ir.Constant(ir.VectorType(_HALF, VECTOR), [0] * VECTOR)


@intrinsic
def add_lines(  # type: ignore[no-untyped-def]
    typingctx, z, place, across, along, length, table, first, y, line, column, lines
):
    """y[line + a, column + c] += sum over b < length of z[place + a across + b along] times
    table[first + b, column + c], for a < ``lines`` (a literal) and c < VECTOR.

    z : flat.  table, y : C order.  All float32.
    """
    count = _literal(lines, "lines")
    whole = types.int64
    signature = types.void(
        z, whole, whole, whole, whole, table, whole, y, whole, whole, types.literal(count)
    )

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.FloatType(), VECTOR)
        flat, rows, into = (context.make_array(sig.args[i])(context, builder, args[i])
                            for i in (0, 5, 7))  # fmt: skip
        width = cgutils.unpack_tuple(builder, rows.shape)[1]
        wide = cgutils.unpack_tuple(builder, into.shape)[1]

        def at(data: Any, row: Any, size: Any) -> Any:
            offset = builder.add(builder.mul(row, size), args[9])
            return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())

        numbers = [ir.Constant(_WHOLE, a) for a in range(count)]
        outs = [at(into.data, builder.add(args[8], a), wide) for a in numbers]
        starts = [builder.gep(flat.data, [builder.add(args[1], builder.mul(args[2], a))])
                  for a in numbers]  # fmt: skip
        # sums begin at 0, and not at y: one float32 sum over all that y gets would lose a digit
        sums = [cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * VECTOR))
                for _ in outs]  # fmt: skip
        with cgutils.for_range(builder, args[4], intp=_WHOLE) as loop:
            row = _load(builder, at(rows.data, builder.add(args[6], loop.index), width), 4)
            step = builder.mul(loop.index, args[3])
            for start, total in zip(starts, sums, strict=True):
                value = _everywhere(builder, builder.load(builder.gep(start, [step])), vector)
                product = builder.fmul(value, row, flags=_FUSED)
                builder.store(builder.fadd(builder.load(total), product, flags=_FUSED), total)
        for out, total in zip(outs, sums, strict=True):
            more = builder.fadd(_load(builder, out, 4), builder.load(total))
            builder.store(more, out).align = 4
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def lay_calls(  # type: ignore[no-untyped-def]
    typingctx, x, i, j, code, center, factor, k, out, place, single
):
    """out[place + a] = (x[i, j + a] - center[k + a]) factor[k + a], 0 where x is the code.

    For a < VECTOR; rounded once from float64. x : int8 or uint8, its rows contiguous.
    single : a literal; 1 takes center[k] and factor[k] for all.
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
    return builder.shuffle_vector(first, undefined, _FIRST)
