"""Sweeps of alternating least squares: both factors are solved for in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.accumulators import AlternatingStep
from streampca.kernels import Array
from streampca.kernels.least_squares import solve_packed, unpacked
from streampca.models.completion.request import CompletionRequest
from streampca.solvers import balanced, relative_change, singular_form


class AlternatingSweeps:
    """The factors across the lines, from one sweep to the next.

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
        self.solved = np.zeros((m, request.total))  # of the last sweep, before it was balanced
        self.gram = np.zeros((request.total, request.total))
        self.offset = np.zeros(request.total)  # of the factors of the lines, as they were written
        self.shift = np.zeros(m)  # of the means, in standardised units, since the look

    def begin(self, directions: Array) -> None:
        """Begin with the leading ones of these orthonormal directions (m, most)."""
        for part, rank in zip(self.request.parts, self.request.ranks, strict=True):
            self.v[:, part.start : part.start + rank] = self._rounded(directions[:, :rank])

    def begin_with(self, lines: Array | None, across: Array | None) -> Array | None:
        """Begin with an estimate; the factors of the lines do not matter."""
        if across is None:
            return None
        for part, rank in zip(self.request.parts, self.request.ranks, strict=True):
            given = min(rank, across.shape[1])
            self.v[:, part.start : part.start + given] = self._rounded(across[:, :given])
        return None

    def operands(self) -> dict[str, Any]:
        """What the next pass needs."""
        return {"v": self.v}

    def take(self, step: AlternatingStep) -> dict[str, Any]:
        """Solve for V; what the trace keeps of this sweep."""
        objective, penalised, change = [], [], []
        self.gram = np.array(step.gram)
        for c, part in enumerate(self.request.parts):
            ridge = self.request.ridges[c]
            x, gain = self._stepped(*step.equations(c), self.v[:, part], ridge)
            rss = max(float(step.residual[c]) - gain, 0.0)
            v = np.ascontiguousarray(x[: part.stop - part.start].T)
            if self.request.means:
                self._take_means(step, x[-1], v)
            gram = self.gram[part, part]
            objective.append(rss)
            penalised.append(rss + ridge * (float(np.trace(gram)) + float(np.sum(v**2))))
            change.append(relative_change(gram, self.v[:, part], v))
            self.solved[:, part] = v
            values, vectors, _ = singular_form(gram, v)
            self.v[:, part] = self._rounded(balanced(values, vectors))
        singular = np.array(step.singular)
        return {"objective": objective, "penalised": penalised, "change": change,
                "singular": singular}  # fmt: skip

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
        step, bad = solve_packed(left, right - ridge * old + pull, ridge, compiled=self.compiled)
        if len(bad):
            some, before = left[:, bad], old[:, bad]
            whole = right[:, bad] + np.einsum("nij,jn->in", unpacked(some), before)
            whole = whole + np.broadcast_to(pull, right.shape)[:, bad]
            step[:, bad] = solve_packed(some, whole, ridge)[0] - before
        new = old + step
        gain = float(np.sum(step * right)) + float(np.sum(ridge * step * (new - toward)))
        return new, gain

    def _take_means(self, step: AlternatingStep, means: Array, v: Array) -> None:
        """Of U V' + 1 m', move what the mean of U makes into m."""
        lines = step.lines
        self.offset = step.sums / lines
        self.gram -= lines * np.outer(self.offset, self.offset)
        self.shift = self.shift + means + v @ self.offset

    def factors(self, c: int) -> slice:
        """Where U and V of a candidate lie."""
        return self.request.parts[c]

    def added(self, c: int) -> Array | float:
        """What biases add to the centres of the columns: nothing."""
        return 0.0

    def estimate(self, c: int) -> tuple[Array, Array]:
        """(U'U, V) of a candidate, U as the last pass wrote it."""
        part = self.request.parts[c]
        return self.gram[part, part], self.solved[:, part]

    def state(self) -> dict[str, Array]:
        """All that the next sweep needs."""
        known = {"v": self.v, "solved": self.solved, "gram": self.gram}
        return known | {"offset": self.offset, "shift": self.shift}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on with that."""
        for name, value in state.items():
            setattr(self, name, np.array(value))
