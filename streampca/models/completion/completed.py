"""What the sweeps of a completion leave: the best candidate in its singular form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streampca.kernels import Array, ColumnStats, reciprocal, row_pieces
from streampca.matrix import Scaling
from streampca.models.completion.request import CompletionRequest
from streampca.models.completion.trace import LineFactors, Sweep
from streampca.models.completion.two_way import TwoWay

PIECE_NBYTES = 1 << 20  # of the factors of lines that are looked at together


@dataclass
class Completed:
    """What the last sweep left.

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
        """(n,) what rows have beside the means of the columns; None where nothing was asked."""
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
        """Those of some lines."""
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
