"""Sweeps of alternating least squares with biases: x_ij = m + a_i + b_j + u_i'v_j.

Beside its components every candidate has a bias for each row and each column, which are solved for
with the factors. Their ridges pull the biases of rows to 0 and those of columns to m, so that a row
or column of few cells, or of none, keeps close to what all have in common.

Factors are wider by two: (u, a, 1) of a row, (v, 1, b) of a column, b what the bias adds to the
mean of the column in the look. m is the mean of the biases of the columns.
Source: Koren, Bell and Volinsky 2009, "Matrix factorization techniques for recommender systems",
Computer 42, eq. 5, by alternating least squares.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.accumulators import AlternatingStep
from streampca.kernels import Array
from streampca.kernels.least_squares import packed_length
from streampca.models.completion.als import AlternatingSweeps
from streampca.models.completion.request import CompletionRequest
from streampca.solvers import balanced, relative_change, singular_form


class BiasedSweeps(AlternatingSweeps):
    """As AlternatingSweeps, with biases of rows (the lines) and columns."""

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

    def take(self, step: AlternatingStep) -> dict[str, Any]:
        """Solve for V and the biases of columns; what the trace keeps of this sweep."""
        objective, penalised, change = [], [], []
        self.gram = np.array(step.gram)
        for c, part in enumerate(self.request.parts):
            old = np.array(self.v[:, part])
            new, rss, penalty = self._solve(step, c, old)
            gram = self.gram[part, part]
            objective.append(rss)
            penalised.append(rss + penalty + self._penalty_of_lines(c, gram))
            change.append(relative_change(gram, old, new))
            self.solved[:, part] = new
            self._go_on(c, new, step)
        return {"objective": objective, "penalised": penalised, "change": change,
                "singular": np.array(step.singular)}  # fmt: skip

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
