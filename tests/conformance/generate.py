"""The exact answers: ``python -m tests.conformance.generate`` writes ``answers.npz``; needs mpmath.

A stored matrix is integers over a power of 2. Its Gram matrix, centred too, is formed in integers,
so that nothing is rounded before mpmath finds its eigenpairs, to 50 digits of the smallest one that
is not 0; how many are 0 is found by elimination modulo a prime. Where a formula says what the
values are, it agrees to 50 digits. Two float64 numbers hold 32 digits of each.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from mpmath import mp

from tests.conformance.judge import ANSWERS, Truth, digest, spaces, tolerance
from tests.conformance.matrices import CASES, Array, Case, as_integers

DIGITS = 50
PRIME = 2**521 - 1


def rank_of(gram: Any) -> int:
    """Of an integer matrix, modulo a prime of 521 bits."""
    rows, rank = [[value % PRIME for value in row] for row in gram.tolist()], 0
    for column in range(len(rows)):
        pivot = next((i for i in range(rank, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        inverse = pow(rows[rank][column], -1, PRIME)
        for i in range(rank + 1, len(rows)):
            factor = rows[i][column] * inverse % PRIME
            if factor:
                rows[i] = [(a - factor * b) % PRIME for a, b in zip(rows[i], rows[rank])]
        rank += 1
    return rank


def exact(x: Array, centred: bool) -> tuple[list[Any], Any, int]:
    """Singular values (m,) of mpmath, right vectors as columns (p, rank) of mpmath, rank."""
    whole, below = as_integers(x)
    n, p = x.shape
    if centred:
        whole, below = n * whole - whole.sum(axis=0), n * below
    wide = p > n
    gram = whole @ whole.T if wide else whole.T @ whole
    rank = rank_of(gram)
    if not rank:
        return [mp.mpf(0)] * min(n, p), mp.matrix(p, 0), 0
    largest, mp.dps = max(abs(value) for value in gram.ravel()), 2 * DIGITS
    while True:
        values, vectors = mp.eigsy(mp.matrix(gram.tolist()) / largest)
        if values[len(values) - rank] > values[len(values) - 1] * mp.mpf(10) ** (
            DIGITS + 10 - mp.dps
        ):
            break
        mp.dps *= 2
    order = range(len(values) - 1, len(values) - 1 - rank, -1)
    singular = [mp.sqrt(values[i] * largest) / below for i in order]
    right = mp.matrix(p, rank)
    for j, i in enumerate(order):
        column = vectors[:, i]
        if wide:
            column = mp.matrix(whole.T.tolist()) * column / (singular[j] * below)
        for row in range(p):
            right[row, j] = column[row]
    return singular + [mp.mpf(0)] * (min(n, p) - rank), right, rank


def pair(value: Any) -> tuple[float, float]:
    """Two float64 numbers, whose sum it is."""
    high = float(value)
    return high, float(value - high)


def answer(case: Case, x: Array, centred: bool) -> Truth:
    """The singular values and leading vectors of a case."""
    n, p = x.shape
    if case.right is not None:
        size, diagonal = case.closed
        values = [mp.sqrt(size) * mp.mpf(value) for value in diagonal]
        right, rank = mp.matrix(case.right().tolist()), p
    else:
        values, right, rank = exact(x, centred)
    if case.closed is not None:
        agree(values, *case.closed)
    unit = int(mp.floor(mp.log(values[0], 2))) + 1 if values[0] else 0
    scaled = np.array([pair(value / mp.mpf(2) ** unit) for value in values]).T
    alike = spaces(scaled[0] / (scaled[0, 0] or 1.0), p, tolerance(x, float(values[0])))
    c = min(rank, next(end for _, end, _ in alike if end >= min(case.k, n, p)))
    vectors = np.array([[pair(right[i, j]) for i in range(p)] for j in range(c)]).reshape(c, p, 2)
    return Truth(unit, scaled, vectors.transpose(2, 0, 1))


def agree(values: list[Any], size: int, diagonal: Array) -> None:
    """Raise ArithmeticError where the formula says otherwise."""
    for value, formula in zip(values, np.sort(diagonal)[::-1], strict=True):
        if abs(value / (mp.sqrt(size) * mp.mpf(formula)) - 1) > mp.mpf(10) ** -DIGITS:
            raise ArithmeticError(f"{value}, but sqrt({size}) x {formula}")


def main() -> None:
    mp.dps = 2 * DIGITS
    index: dict[str, Any] = {}
    numbers: list[float] = []
    for name, case in CASES.items():
        x = case.make()
        index[name] = {"matrix": digest(x)}
        for centred, kind in ((True, "centred"), (False, "as it is")):
            true = answer(case, x, centred)
            sizes = true.values.shape[1], *true.vectors.shape[1:]
            index[name][kind] = [true.unit, len(numbers), *sizes]
            numbers += [*true.values.ravel(), *true.vectors.ravel()]
        print(name, x.shape, x.dtype, flush=True)
    np.savez_compressed(ANSWERS, index=np.array(json.dumps(index)), numbers=np.array(numbers))


if __name__ == "__main__":
    main()
