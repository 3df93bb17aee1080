"""How far an answer is from the true one, and whether that is as near as it can be.

Singular values are as near as can be within ``max(n, p, 32) eps`` of the largest one, the rounding
of a backward stable algorithm (and the tolerance of ``numpy.linalg.matrix_rank``), where eps is
that of float32 if float32 holds every number of the matrix's type, else that of float64; among
subnormal numbers an entry may also be rounded to the nearest of them. The largest one is that of
the centred matrix: means can be subtracted without losing what they hide.

Directions are so within twice that over their distance to the next singular value. Those that are
not determined to half a radian are judged together, as the space that they span.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.conformance.matrices import CASES, Array

ANSWERS = Path(__file__).with_name("answers.npz")
LEAST = 32  # dimension that rounding is counted for, at least
WORDS = ("pass", "limit", "refuses", "wrong")  # of verdicts
TURNED = 0.5  # radians by which rounding may turn a direction that is judged alone


def tolerance(x: Array, largest: float) -> float:
    """The rounding of a backward stable algorithm, relative to the largest singular value."""
    work = np.finfo("f4" if np.can_cast(x.dtype, np.float32) else "f8")
    underflow = np.sqrt(x.size) * float(work.smallest_subnormal) / (largest or 1.0)
    return max(*x.shape, LEAST) * float(work.eps) + float(underflow)


@cache
def _kept() -> tuple[dict[str, Any], Array]:
    """By the name of a case: its digest, and for each kind unit, place and sizes of its numbers."""
    with np.load(ANSWERS) as kept:
        return json.loads(str(kept["index"])), kept["numbers"]


def digest(x: Array) -> str:
    """Of a matrix, with its type and shape; -0.0 is 0.0."""
    head = f"{x.dtype} {x.shape}".encode()
    return hashlib.sha256(head + (x + x.dtype.type(0)).tobytes()).hexdigest()


def matrix_of(name: str) -> Array:
    """The matrix of a case, if it is the one that was answered; else ArithmeticError."""
    x = CASES[name].make()
    if digest(x) != _kept()[0][name]["matrix"]:
        raise ArithmeticError(f"{name}: another matrix than that of answers.npz")
    return x


@dataclass(frozen=True)
class Truth:
    """Leading singular values and right singular vectors, as sums of two float64 numbers.

    unit : power of 2, the exponent that the values are multiplied with.
    values : (2, m) all of them, in that unit.  vectors : (2, c, p) the first c; c is at least k
        unless the others belong to values of 0.
    """

    unit: int
    values: Array
    vectors: Array

    @classmethod
    def of(cls, name: str, centred: bool) -> Truth:
        """That of a case."""
        index, numbers = _kept()
        unit, at, m, c, p = index[name]["centred" if centred else "as it is"]
        values, vectors = np.split(numbers[at : at + 2 * (m + c * p)], [2 * m])
        return cls(unit, values.reshape(2, m), vectors.reshape(2, c, p))

    @property
    def largest(self) -> float:
        """The first value."""
        return float(np.ldexp(self.values[0, 0], self.unit))

    @property
    def relative(self) -> Array:
        """(m,) values relative to the first."""
        return self.values[0] / (self.values[0, 0] or 1.0)


def spaces(relative: Array, p: int, rounding: float) -> Iterator[tuple[int, int, float]]:
    """(first, end, gap) of values that rounding cannot tell apart, and their distance to others.

    relative : (m,) decreasing, of the largest.  Where m < p, 0 is a value too.
    """
    every = np.append(relative, np.zeros(int(len(relative) < p)))
    ends = [*(np.flatnonzero(-np.diff(every) > 2 * rounding / TURNED) + 1), len(every)]
    for first, end in zip([0, *ends], ends):
        above = every[first - 1] - every[first] if first else np.inf
        below = every[end - 1] - every[end] if end < len(every) else np.inf
        yield int(first), int(end), float(min(above, below))


@dataclass(frozen=True)
class Errors:
    """Of k components, the smallest that they can be said to have.

    values : (k,) of singular values, relative to the largest.  angles : (k,) radians, to the space
        of its own and of equal values; NaN where every direction is as good.
    allowed : (k,) of angles.  turned : largest deviation of V V' from the identity.
    """

    values: Array
    angles: Array
    allowed: Array
    turned: float

    @classmethod
    def of(cls, values: Array, vectors: Array, truth: Truth, rounding: float) -> Errors:
        """values : (k,) singular values.  vectors : (k, p)."""
        k, p = vectors.shape
        found = np.ldexp(np.asarray(values, np.longdouble), -truth.unit)
        error = np.abs(found - truth.values[0, :k] - truth.values[1, :k])
        v = np.asarray(vectors, np.longdouble)
        angles, allowed = np.full(k, np.nan), np.full(k, np.nan)
        for first, end, gap in spaces(truth.relative, p, rounding):
            if end > truth.vectors.shape[1] or first >= k:
                break
            basis = truth.vectors[0, first:end].astype(np.longdouble) + truth.vectors[1, first:end]
            own = v[first:end]
            inside = own @ basis.T
            rest = np.sqrt(np.sum((own - inside @ basis) ** 2, axis=1))
            angles[first:end] = np.arctan2(rest, np.sqrt(np.sum(inside**2, axis=1)))
            allowed[first:end] = 2 * rounding / gap
        largest = truth.values[0, 0] or 1.0
        turned = float(np.abs(v @ v.T - np.eye(k)).max(initial=0.0))
        return cls((error / largest).astype(float), angles, allowed, turned)


@dataclass(frozen=True)
class Verdict:
    """One of :data:`WORDS`, and what is far from the truth, or what the error says."""

    word: str
    why: str = ""


def judged(
    answer: tuple[Any, ...], warned: set[str], truth: Truth, k: int, rounding: float
) -> tuple[Verdict, Errors | None]:
    """The verdict on (values, vectors) or (values, vectors, bounds), and how far it is.

    bounds : (2, k) errors of singular values, and angles, that the fit says are possible; an angle
        of a radian or more says nothing.  A fit that returns bounds is held to them, whatever it
        warns of.
    """
    values, vectors = (np.atleast_1d(one) for one in answer[:2])
    if vectors.ndim != 2 or len(values) != len(vectors):
        return Verdict("wrong", f"shapes {values.shape} and {vectors.shape}"), None
    if not (np.isfinite(values).all() and np.isfinite(vectors).all()):
        return Verdict("limit" if warned else "wrong", "not finite"), None
    known = int(np.count_nonzero(truth.relative[:k] > rounding))
    if len(values) < known:
        return Verdict("wrong", f"{len(values)} components of {known}"), None
    errors = Errors.of(values[:k], vectors[:k], truth, rounding)
    complaints = list(excesses(errors, rounding))
    if len(answer) > 2:
        broken = list(violations(errors, np.asarray(answer[2]), truth))
        if broken:
            return Verdict("wrong", f"beyond its own bound: {broken[0]}"), errors
        return Verdict("limit" if complaints else "pass", "; ".join(complaints[:1])), errors
    if not complaints:
        return Verdict("pass"), errors
    return Verdict("limit" if warned else "wrong", complaints[0]), errors


def excesses(errors: Errors, rounding: float) -> Iterator[str]:
    """What is further away than rounding explains, the largest first."""
    if not errors.values.max(initial=0.0) <= rounding:
        yield f"values {errors.values.max():.0e}"
    with np.errstate(invalid="ignore"):
        far = np.flatnonzero(errors.angles > np.minimum(errors.allowed, 1.0))
    if far.size:
        yield f"angle {errors.angles[far].max():.0e}"
    if not errors.turned <= rounding:
        yield f"not orthonormal {errors.turned:.0e}"


def violations(errors: Errors, bounds: Array, truth: Truth) -> Iterator[str]:
    """Errors beyond the bounds that came with them; printing an answer in float64 is free."""
    value_bounds, angle_bounds = bounds
    eps = float(np.finfo(float).eps)
    free = 4 * eps * truth.relative[: len(errors.values)]
    relative = np.ldexp(value_bounds, -truth.unit) / (truth.values[0, 0] or 1.0)
    for i in np.flatnonzero(~(errors.values <= relative + free)):
        yield f"value {i + 1} {errors.values[i]:.0e} > {relative[i]:.0e}"
    slack = 4 * eps * np.sqrt(len(angle_bounds) + 64)
    for i in np.flatnonzero((angle_bounds < 1.0) & (errors.angles > angle_bounds + slack)):
        yield f"angle {i + 1} {errors.angles[i]:.0e} > {angle_bounds[i]:.0e}"
