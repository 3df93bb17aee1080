"""Gram matrix and turn of a few stacked rows, both panel by panel in registers.

The rows are those of a factor F, and new rows R below them. Both are held with the entries of all
rows at one place side by side: ``factor`` (m, whole_vectors(width)) and ``rows`` (m, b), float32
in C order. BLAS, for which such matrices are too thin, takes more than twice as long.
"""

from __future__ import annotations

import numpy as np

from streampca.kernels.blas import Array
from streampca.kernels.call_products import _add_lines, _add_panel, whole_vectors
from streampca.kernels.calls import _compile
from streampca.kernels.registers import VECTOR

PLACES = 96  # of a panel


@_compile
def _fill(factor, rows, first, last, place, count, room):  # type: ignore[no-untyped-def]
    """room[i] = the factor's entries at place + i, those of the rows, and zeros."""
    width, wide = factor.shape[1], room.shape[1]
    for i in range(count):
        for c in range(width):
            room[i, c] = factor[place + i, c]
        for c in range(last - first):
            room[i, width + c] = rows[place + i, first + c]
        for c in range(width + last - first, wide):
            room[i, c] = 0.0


@_compile
def _add_gram(factor, rows, first, last, room, gram):  # type: ignore[no-untyped-def]
    """Add to the lower triangle of ``gram``, and to what else lies in its tiles."""
    wide, flat = room.shape[1], room.reshape(-1)
    for place in range(0, len(factor), PLACES):
        count = min(PLACES, len(factor) - place)
        _fill(factor, rows, first, last, place, count, room)
        for c in range(0, wide, VECTOR):
            a = max(c - (c - wide) % 6, 0)  # some lines above the diagonal, that sixes come out
            _add_lines(flat, a, 1, wide, count, room, 0, gram, a, c, wide - a)


@_compile
def _turn(factor, rows, first, last, room, turn):  # type: ignore[no-untyped-def]
    """factor = [factor, rows] turn."""
    wide, flat = room.shape[1], room.reshape(-1)
    for place in range(0, len(factor), PLACES):
        count = min(PLACES, len(factor) - place)
        _fill(factor, rows, first, last, place, count, room)
        factor[place : place + count] = 0.0
        _add_panel(flat, wide, 1, count, wide, turn, 0, factor, place)


def stacked_gram(factor: Array, rows: Array, part: slice) -> Array:
    """(width + b, width + b) float64 Gram matrix of F and R; its lower triangle.

    part : of the columns of ``rows``, those that count.
    """
    room = _room(factor, part)
    gram = np.zeros((room.shape[1], room.shape[1]), np.float32)
    _add_gram(factor, rows, part.start, part.stop, room, gram)
    total = factor.shape[1] + part.stop - part.start
    return gram[:total, :total].astype(np.float64)


def turn_stacked(factor: Array, rows: Array, part: slice, turn: Array) -> None:
    """Put the rows turn @ [F; R] in the place of F. turn : (at most width, width + b)."""
    room = _room(factor, part)
    into = np.zeros((room.shape[1], factor.shape[1]), np.float32)
    into[: turn.shape[1], : len(turn)] = turn.T
    _turn(factor, rows, part.start, part.stop, room, into)


def _room(factor: Array, part: slice) -> Array:
    wide = factor.shape[1] + whole_vectors(part.stop - part.start)
    return np.empty((PLACES, wide), np.float32)
