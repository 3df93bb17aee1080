"""The result of the sweeps of a completion, and the sweeps that fill the holes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.accumulators import FilledStep
from streampca.kernels import Array, ColumnStats, reciprocal, row_pieces
from streampca.matrix import Scaling
from streampca.models.completion.request import CompletionRequest
from streampca.models.completion.trace import CandidateFactors, LineFactors, Sweep
from streampca.models.completion.two_way import TwoWay
from streampca.solvers import change_of_both, eigh_lower

PIECE_NBYTES = 1 << 20  # of the factors of lines that are processed together


@dataclass
class Completed:
    """The result of the last sweep.

    chosen : number of the best candidate.  values (r,), vectors (m, r), turn (r, r) : its singular
    form; the factors of the lines are ``factors`` less ``offset``, times ``turn``.
    center : (p,) means of the columns.  request : with the penalties that the look has found.
    """

    chosen: int
    values: Array
    vectors: Array
    turn: Array
    offset: Array
    center: Array
    factors: LineFactors
    part: slice
    stats: ColumnStats
    scaling: Scaling
    trace: list[Sweep]
    converged: bool
    axis: int
    request: CompletionRequest
    effects: TwoWay | None = None

    @property
    def weights(self) -> Array | None:
        """(n,) of the samples, or None."""
        return self.request.weights

    @property
    def row_mean(self) -> Array | None:
        """(n,) row means in addition to the column means; None if not requested."""
        if self.effects is not None:
            return self.effects.row_center
        if not self.request.biases:
            return None
        at, length = slice(self.part.stop, self.part.stop + 1), self.factors.length
        found = np.empty(length)
        for lines in row_pieces(length, 8 * self.factors.width, PIECE_NBYTES):
            biases = self.factors.rows(at, lines.start, lines.stop)
            found[lines] = self.unweighted(biases, lines.start, lines.stop)[:, 0]
        return found

    def line_factors(self) -> Array:
        """(lines, r) of the chosen candidate, float64, orthogonal columns; in memory."""
        return self.rows(0, self.factors.length)

    def rows(self, start: int, stop: int) -> Array:
        """The same for some lines."""
        found = self.factors.rows(self.part, start, stop)
        if self.axis:
            return np.asarray((found - self.offset) @ self.turn)
        ones = 1.0 if self.weights is None else np.sqrt(self.weights[start:stop])[:, None]
        return self.unweighted((found - ones * self.offset) @ self.turn, start, stop)

    def unweighted(self, scores: Array, start: int, stop: int) -> Array:
        """Scores of samples start..stop, of which the factors of the fit are root(weight) times."""
        if self.weights is None:
            return scores
        return np.asarray(scores * reciprocal(np.sqrt(self.weights[start:stop]))[:, None])


# Sweeps of Hard- and Soft-Impute: fill the holes with the estimate, take its best approximation.
#
# With the whole Y'Y each sweep is the iteration to the letter. With a subspace, V goes one step
# of
# orthogonal iteration on Y'Y instead of all the way. Both stop at the same points: there V'(Y'Y)
# V is
# diagonal and Y'Y V = V diag, so V spans an invariant subspace of Y'Y, and U = Y V (shrunk),
# which is
# the fixed point of the iteration; the leading one, since others repel.


class FilledSweeps(CandidateFactors):
    """The loadings of the previous and the next estimate, updated by every sweep."""

    def __init__(
        self, request: CompletionRequest, m: int, compiled: bool = False, dtype: Any = float
    ) -> None:
        self.request, self.m = request, m
        self.fitted = np.ones(len(request.ranks), bool)
        self.old, self.new = np.zeros((m, request.total)), np.zeros((m, request.total))
        self.turn: Any = None  # (m, R); None before the first sweep
        self.gram = np.zeros((request.total, request.total))
        self.values = np.zeros(request.total)
        self.offset, self.shift = np.zeros(request.total), np.zeros(m)  # no means are fitted

    @property
    def judged(self) -> bool:
        """Whether the next pass evaluates an estimate; the first pass has only the start."""
        return self.turn is not None

    def begin(self, directions: Array) -> None:
        """The estimate 0; a subspace begins with these orthonormal directions (m, most)."""
        for part, rank in zip(self.request.parts, self.request.ranks, strict=True):
            self.new[:, part] = directions[:, :rank]
        self.old = self.new.copy()

    def begin_with(self, lines: Array | None, across: Array | None) -> Array | None:
        """Begin with the estimate lines across'; the factors of the lines that belong to it."""
        if lines is None or across is None:
            if across is not None:
                self._span(across)
            return None
        first = np.zeros((len(lines), self.request.total))
        turn = self._span(across)
        for part, rank in zip(self.request.parts, self.request.ranks, strict=True):
            inside = (lines @ turn.T)[:, :rank]
            first[:, part.start : part.start + inside.shape[1]] = inside
        return first

    def _span(self, across: Array) -> Array:
        """Take the span of these columns into every candidate; R of their QR factorisation."""
        q, upper = np.linalg.qr(across)
        for part, rank in zip(self.request.parts, self.request.ranks, strict=True):
            joint = np.linalg.qr(np.hstack([q, self.new[:, part]]))[0][:, :rank]
            joint[:, : q.shape[1]] = q[:, :rank]
            self.new[:, part] = joint
        self.old = self.new.copy()
        return np.asarray(upper)

    def operands(self) -> dict[str, Any]:
        """What the next pass needs."""
        known = {"old": self.old, "new": self.new}
        return known if self.turn is None else known | {"turn": self.turn}

    def take(self, step: FilledStep) -> dict[str, Any] | None:
        """Compute the next estimate; returns the trace entries of the one just evaluated."""
        entry = None if self.turn is None else self._trace_entry(step)
        self.gram = np.array(step.gram)
        self.old, turn = self.new.copy(), np.zeros_like(self.new)
        fresh = np.zeros_like(self.new)
        for c, part in enumerate(self.request.parts):
            values, vectors = self._leading(step, c)
            shrunk = (
                np.maximum(values - self.request.ridges[c], 0.0) if self.request.soft else values
            )
            share = np.divide(shrunk, values, out=np.zeros_like(values), where=values > 0)
            fresh[:, part], turn[:, part] = vectors, vectors * share
            self.values[part] = shrunk
        self.new, self.turn = fresh, turn
        return entry

    def _leading(self, step: FilledStep, c: int) -> tuple[Array, Array]:
        """(values (r,), vectors (m, r)) of Y: its leading ones, or one step towards them."""
        rank = self.request.ranks[c]
        if not rank:
            return np.zeros(0), np.zeros((self.m, 0))
        if self.request.solver == "exact":
            found = eigh_lower(step.lower(c), rank)
            return np.sqrt(found.values), found.vectors
        product, inner = step.subspace(c)
        spread, e = np.linalg.eigh(inner)
        root = np.sqrt(np.maximum(spread, 0.0))
        inverse = np.divide(1.0, root, out=np.zeros_like(root), where=root > 1e-8 * root[-1])
        vectors, values, _ = np.linalg.svd(product @ (e * inverse), full_matrices=False)
        return values, vectors

    def _trace_entry(self, step: FilledStep) -> dict[str, Any]:
        penalised, change = [], []
        for c, part in enumerate(self.request.parts):
            inside = (part, part)
            old = (step.old_gram[inside], self.old[:, part])
            new = (step.gram[inside], self.new[:, part])
            change.append(change_of_both(old, new, step.cross[inside]))
            penalty = 0.0
            if self.request.soft:  # |U V'| in the nuclear norm: V has orthonormal columns
                spread = np.linalg.eigvalsh(step.gram[inside])
                penalty = 2.0 * self.request.ridges[c] * float(np.sqrt(np.maximum(spread, 0)).sum())
            penalised.append(float(step.residual[c]) + penalty)
        return {
            "objective": np.array(step.residual),
            "penalised": penalised,
            "change": change,
            "singular": np.zeros(len(self.request.ranks), int),
        }

    def estimate(self, c: int) -> tuple[Array, Array]:
        """(U'U, V) of a candidate, U as the last pass wrote it."""
        part = self.request.parts[c]
        return self.gram[part, part], self.old[:, part]

    def state(self) -> dict[str, Array]:
        """The state that the next sweep needs."""
        known = {"old": self.old, "new": self.new, "gram": self.gram, "values": self.values}
        return known if self.turn is None else known | {"turn": self.turn}
