"""Sweeps of alternating least squares, with and without biases: both factors in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.accumulators import AlternatingStep
from streampca.kernels import Array
from streampca.kernels.least_squares import packed_length, solve_packed, unpacked
from streampca.models.completion.request import CompletionRequest
from streampca.models.completion.trace import CandidateFactors
from streampca.solvers import balanced, relative_change, singular_form


class AlternatingSweeps(CandidateFactors):
    """The factors of the columns (across the lines), updated by every sweep.

    A sweep solves for U line by line with V held, adds up the equations of V with that U held, and
    solves them: |W (Z - U V')|^2 + ridge (|U|^2 + |V|^2) falls in both halves. Then V is balanced:
    of all pairs with the same product the one with least |U|^2 + |V|^2 goes on, which is twice the
    nuclear norm. U follows from V, so that no old U is needed.

    Equations are those of the step of V, and its objective what the pass left less what the step
    gains: no difference of large sums. V is kept in the dtype in which blocks are worked on.

    Where means are fitted, they are solved for with V, and U is taken about its own mean.
    """

    judged = True  # held-out cells are judged in every sweep

    def __init__(
        self, request: CompletionRequest, m: int, compiled: bool = False, dtype: Any = float
    ) -> None:
        self.request, self.m, self.compiled = request, m, compiled
        self.dtype = np.float64 if compiled else dtype
        self.v = np.zeros((m, request.total))
        self.solved = np.zeros((m, request.total))  # V of the last sweep, before balancing
        self.gram = np.zeros((request.total, request.total))
        self.offset = np.zeros(request.total)  # of the factors of the lines, as written
        self.shift = np.zeros(m)  # of the means, in standardised units, since the look
        self.fitted = np.ones(len(request.ranks), bool)  # candidates that are swept

    def begin(self, directions: Array) -> None:
        """Begin with the leading ones of these orthogonal directions (m, most).

        Their lengths matter to a ridge: short ones let the first factors of the lines be small.
        """
        for part, rank in zip(self.request.parts, self.request.ranks, strict=True):
            self.v[:, part.start : part.start + rank] = self._rounded(directions[:, :rank])

    def begin_with(self, lines: Array | None, across: Array | None) -> Array | None:
        """Begin with an estimate; the factors of the lines are not used."""
        if across is None:
            return None
        for part, rank in zip(self.request.parts, self.request.ranks, strict=True):
            given = min(rank, across.shape[1])
            self.v[:, part.start : part.start + given] = self._rounded(across[:, :given])
        return None

    def operands(self) -> dict[str, Any]:
        """The operands of the next pass."""
        return {"v": self.v}

    def take(self, step: AlternatingStep) -> dict[str, Any]:
        """Solve for V; returns the entries of this sweep in the trace."""
        objective, penalised, change = np.zeros((3, len(self.request.ranks)))
        self.gram = np.array(step.gram)
        for c in np.flatnonzero(self.fitted).tolist():
            part, ridge = self.request.parts[c], self.request.ridges[c]
            x, gain = self._stepped(*step.equations(c), self.v[:, part], ridge)
            rss = max(float(step.residual[c]) - gain, 0.0)
            v = np.ascontiguousarray(x[: part.stop - part.start].T)
            if self.request.means:
                self._take_means(step, x[-1], v)
            gram = self.gram[part, part]
            objective[c] = rss
            penalised[c] = rss + ridge * (float(np.trace(gram)) + float(np.sum(v**2)))
            change[c] = relative_change(gram, self.v[:, part], v)
            self.solved[:, part] = v
            values, vectors, _ = singular_form(gram, v)
            self.v[:, part] = self._rounded(balanced(values, vectors))
        singular = np.array(step.singular)
        return {
            "objective": objective,
            "penalised": penalised,
            "change": change,
            "singular": singular,
        }

    def _rounded(self, v: Array) -> Array:
        return v.astype(self.dtype).astype(np.float64)

    def _stepped(
        self, left: Array, right: Array, v: Array, ridge: float | Array, toward: float | Array = 0.0
    ) -> tuple[Array, float]:
        """(the next V, (r, m), and what it gains) from the equations of the step from v (m, r).

        ridge : of all unknowns, or (r,) of each.  toward : where it pulls them to.
        A singular one has its V of least norm, not the step of least norm. Means begin at 0.
        """
        old, ridge = np.zeros_like(right), np.reshape(ridge, (-1, 1))
        pull = ridge * toward
        old[: v.shape[1]] = v.T
        factorise = None
        if self.compiled:
            from streampca.kernels.completion import cholesky_solve as factorise
        step, bad = solve_packed(left, right - ridge * old + pull, ridge, factorise=factorise)
        if len(bad):
            some, before = left[:, bad], old[:, bad]
            whole = right[:, bad] + np.einsum("nij,jn->in", unpacked(some), before)
            whole = whole + np.broadcast_to(pull, right.shape)[:, bad]
            step[:, bad] = solve_packed(some, whole, ridge)[0] - before
        new = old + step
        gain = float(np.sum(step * right)) + float(np.sum(ridge * step * (new - toward)))
        return new, gain

    def _take_means(self, step: AlternatingStep, means: Array, v: Array) -> None:
        """In U V' + 1 m', move the mean of U into m."""
        lines = step.lines
        self.offset = step.sums / lines
        self.gram -= lines * np.outer(self.offset, self.offset)
        self.shift = self.shift + means + v @ self.offset

    def estimate(self, c: int) -> tuple[Array, Array]:
        """(U'U, V) of a candidate, U as the last pass wrote it."""
        part = self.request.parts[c]
        return self.gram[part, part], self.solved[:, part]

    def state(self) -> dict[str, Array]:
        """All that the next sweep needs."""
        known = {"v": self.v, "solved": self.solved, "gram": self.gram}
        return known | {"offset": self.offset, "shift": self.shift, "fitted": self.fitted}


class BiasedSweeps(AlternatingSweeps):
    """With biases of rows (the lines) and columns: x_ij = m + a_i + b_j + u_i'v_j.

    Beside its components every candidate has a bias for each row and each column, which are solved
    for with the factors. Their ridges pull the biases of rows to 0 and those of columns to m, so
    that a row or column of few cells, or of none, keeps close to what all have in common.

    Factors are wider by two: (u, a, 1) of a row, (v, 1, b) of a column, b what the bias adds to the
    mean of the column in the look. m is the mean of the biases of the columns.
    Source: Koren, Bell and Volinsky 2009, "Matrix factorization techniques for recommender
    systems", Computer 42, eq. 5, by alternating least squares.
    """

    def __init__(
        self, request: CompletionRequest, m: int, compiled: bool = False, dtype: Any = float
    ) -> None:
        super().__init__(request, m, compiled, dtype)
        self.center = np.zeros(m)  # of the columns, from which b counts
        self.common = np.zeros(len(request.ranks))  # m of every candidate
        for part in request.parts:
            self.v[:, part.stop - 2] = 1.0

    def begin_about(self, center: Array, mean: float) -> None:
        """Begin with biases of 0 about these means of the columns, and that of all cells."""
        self.center = np.array(center)
        self.common[:] = mean

    def go_on_about(self, center: Array) -> None:
        """Count the biases from these means of the columns; estimates stay what they are."""
        for part in self.request.parts:
            self.v[:, part.stop - 1] += self.center - center
        self.center = np.array(center)

    def take(self, step: AlternatingStep) -> dict[str, Any]:
        """Solve for V and the biases of columns; what the trace keeps of this sweep."""
        objective, penalised, change = np.zeros((3, len(self.request.ranks)))
        self.gram = np.array(step.gram)
        for c in np.flatnonzero(self.fitted).tolist():
            part = self.request.parts[c]
            old = np.array(self.v[:, part])
            new, rss, penalty = self._solve(step, c, old)
            gram = self.gram[part, part]
            objective[c] = rss
            penalised[c] = rss + penalty + self._penalty_of_lines(c, gram)
            change[c] = relative_change(gram, old, new)
            self.solved[:, part] = new
            self._go_on(c, new, step)
        return {
            "objective": objective,
            "penalised": penalised,
            "change": change,
            "singular": np.array(step.singular),
        }

    def _solve(self, step: AlternatingStep, c: int, old: Array) -> tuple[Array, float, float]:
        """((v, 1, b) of every column, squares that are left, penalty of the columns)."""
        rank, pull = self.request.ranks[c], self.request.bias_ridges[1]
        left, right = step.equations(c)
        toward = np.zeros_like(right)
        toward[rank] = self.common[c] - self.center
        free = [*range(rank), rank + 1]
        ridge = np.append(np.full(rank, self.request.ridges[c]), pull)
        x, gain = self._stepped(left, right, old[:, free], ridge, toward)
        observed = left[packed_length(rank + 1) - 1] > 0
        if observed.any():
            self.common[c] = float(np.mean((x[rank] + self.center)[observed]))
        x[rank] = np.where(observed, x[rank], self.common[c] - self.center)
        new = np.array(old)
        new[:, free] = x.T
        apart = x[rank] + self.center - self.common[c]
        penalty = self.request.ridges[c] * float(np.sum(x[:rank] ** 2)) + pull * float(
            apart @ apart
        )
        return new, max(float(step.residual[c]) - gain, 0.0), penalty

    def _penalty_of_lines(self, c: int, gram: Array) -> float:
        rank, pull = self.request.ranks[c], self.request.bias_ridges[0]
        factors = self.request.ridges[c] * float(np.trace(gram[:rank, :rank]))
        return factors + pull * float(gram[rank, rank])

    def _go_on(self, c: int, new: Array, step: AlternatingStep) -> None:
        """What the next sweep begins with: V balanced, the mean of the a_i moved into m."""
        part, rank = self.request.parts[c], self.request.ranks[c]
        values, vectors, _ = singular_form(*self.estimate(c))
        new = np.array(new)
        new[:, :rank] = balanced(values, vectors)
        if step.seen > 0:
            mean = float(step.sums[part.start + rank]) / step.seen
            new[:, rank + 1] += mean
            self.common[c] += mean
        self.v[:, part] = self._rounded(new)

    def estimate(self, c: int) -> tuple[Array, Array]:
        """(U'U, V) of a candidate without its biases, U as the last pass wrote it."""
        factors = self.factors(c)
        return self.gram[factors, factors], self.solved[:, factors]

    def factors(self, c: int) -> slice:
        """Where U and V of a candidate lie, without its biases."""
        start = self.request.parts[c].start
        return slice(start, start + self.request.ranks[c])

    def added(self, c: int) -> Array | float:
        """(m,) what the biases of a candidate add to the centres of the columns."""
        return np.array(self.solved[:, self.request.parts[c].stop - 1])

    def state(self) -> dict[str, Array]:
        """All that the next sweep needs."""
        return super().state() | {"center": self.center, "common": self.common}


# Where sweeps begin.

LEAST = 1e-3  # of the largest first factor: one of 0 stays 0


def first_directions(found: Array, m: int, width: int, rng: np.random.Generator) -> Array:
    """(m, width) orthonormal directions of the first pass, filled up with random ones."""
    found = found[:, :width]
    random = rng.standard_normal((m, width - found.shape[1]))
    return np.asarray(np.linalg.qr(np.hstack([found, random]))[0])


def lengths_of_factors(sizes: Array, width: int, share: float) -> Array:
    """(width,) of the first factors: roots of the singular values of the whole matrix.

    sizes : singular values of the matrix with 0 in its holes: about the observed share of them.
    """
    largest = float(sizes.max(initial=0.0))
    if not (share > 0 and largest > 0):
        return np.ones(width)
    sizes = np.pad(sizes[:width], (0, max(0, width - len(sizes))))
    return np.asarray(np.sqrt(np.maximum(sizes, LEAST * largest) / share))
