"""The factors of a completion: those of the columns as sweeps update them, and those of the lines.

A line is a sample where samples are streamed, else a feature; columns lie across the lines.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from streampca.accumulators import AlternatingStep, FilledStep
from streampca.kernels import Array
from streampca.kernels.least_squares import packed_length, solve_packed, unpacked
from streampca.models.completion.request import CompletionRequest
from streampca.solvers import balanced, change_of_both, eigh_lower, relative_change, singular_form
from streampca.store import MemorySink, Sink, ZarrSink
from streampca.store.sinks import chunk_for, open_written

LEAST = 1e-3  # of the largest first factor: one of 0 stays 0


class Sweeps:
    """The loadings of all candidates, as the sweeps of a solver update them.

    gram : (R, R) U'U of the factors of the lines.  offset : (R,) of these factors, as written.
    shift : (m,) of the means, in standardised units, since the first look.
    fitted : (candidates,) whether each is still swept.
    """

    kept: tuple[str, ...] = ()  # names of the arrays that the next sweep needs
    judged = True  # held-out cells are judged in every sweep

    def __init__(
        self, request: CompletionRequest, m: int, compiled: bool = False, dtype: Any = float
    ) -> None:
        self.request, self.m, self.compiled, self.dtype = request, m, compiled, dtype
        self.gram = np.zeros((request.total, request.total))
        self.offset, self.shift = np.zeros(request.total), np.zeros(m)
        self.fitted = np.ones(len(request.ranks), bool)

    def factors(self, c: int) -> slice:
        """The columns of U and V that belong to a candidate."""
        return self.request.parts[c]

    def added(self, c: int) -> Array | float:
        """What biases add to the column centres: nothing here."""
        return 0.0

    def state(self) -> dict[str, Array]:
        """All that the next sweep needs."""
        known = {name: getattr(self, name) for name in self.kept}
        return {name: value for name, value in known.items() if value is not None}

    def restore(self, state: dict[str, Array]) -> None:
        """Continue from such a state."""
        for name, value in state.items():
            setattr(self, name, np.array(value))


class AlternatingSweeps(Sweeps):
    """Sweeps of alternating least squares, for both factors in one pass.

    A sweep solves for U line by line with V held, adds up the equations of V with that U held, and
    solves them: |W (Z - U V')|^2 + ridge (|U|^2 + |V|^2) falls in both halves. Then V is balanced:
    of all pairs with the same product the sweeps continue with that of least |U|^2 + |V|^2, which
    is twice the nuclear norm. U follows from V, so that no old U is needed.

    Equations are those of the step of V, and its objective what the pass left less what the step
    gains: no difference of large sums. V is kept in the dtype in which blocks are worked on.

    Where means are fitted, they are solved for with V, and U is taken about its own mean.
    """

    kept: tuple[str, ...] = ("v", "solved", "gram", "offset", "shift", "fitted")

    def __init__(
        self, request: CompletionRequest, m: int, compiled: bool = False, dtype: Any = float
    ) -> None:
        super().__init__(request, m, compiled, np.float64 if compiled else dtype)
        self.v = np.zeros((m, request.total))
        self.solved = np.zeros((m, request.total))  # V of the last sweep, before balancing

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
            known = min(rank, across.shape[1])
            self.v[:, part.start : part.start + known] = self._rounded(across[:, :known])
        return None

    def operands(self) -> dict[str, Any]:
        """The operands of the next pass."""
        return {"v": self.v}

    def take(self, step: AlternatingStep) -> dict[str, Any]:
        """Solve for V; returns the entries of this sweep in the trace."""
        objective, penalised, change = np.zeros((3, len(self.request.ranks)))
        self.gram = np.array(step.gram)
        for c in np.flatnonzero(self.fitted).tolist():
            part = self.request.parts[c]
            old = np.array(self.v[:, part])
            new, objective[c] = self._solve(step, c, old)
            gram = self.gram[part, part]
            penalised[c] = self._penalised(c, objective[c], gram, new)
            change[c] = relative_change(gram, old, new)
            self.solved[:, part] = new
            self._continue_from(c, new, step)
        return {
            "objective": objective,
            "penalised": penalised,
            "change": change,
            "singular": np.array(step.singular),
        }

    def _solve(self, step: AlternatingStep, c: int, old: Array) -> tuple[Array, float]:
        """((m, width) V of a candidate, squares that are left)."""
        x, gain = self._stepped(*step.equations(c), old, self.request.ridges[c])
        v = np.ascontiguousarray(x[: old.shape[1]].T)
        if self.request.means:
            self._take_means(step, x[-1], v)
        return v, max(float(step.residual[c]) - gain, 0.0)

    def _penalised(self, c: int, squares: float, gram: Array, v: Array) -> float:
        """The objective with its penalty."""
        return squares + self.request.ridges[c] * (float(np.trace(gram)) + float(np.sum(v**2)))

    def _continue_from(self, c: int, v: Array, step: AlternatingStep) -> None:
        """Set the V with which the next sweep begins: balanced."""
        values, vectors, _ = singular_form(*self.estimate(c))
        self.v[:, self.request.parts[c]] = self._rounded(balanced(values, vectors))

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
        """(U'U, V) of a candidate without biases, U as the last pass wrote it."""
        part = self.factors(c)
        return self.gram[part, part], self.solved[:, part]


class BiasedSweeps(AlternatingSweeps):
    """With biases of rows (the lines) and columns: x_ij = m + a_i + b_j + u_i'v_j.

    Every candidate has a bias for each row and each column, solved for with the factors. Their
    ridges pull the biases of rows to 0 and those of columns to m, so that a row or column of few
    cells, or of none, keeps close to what all have in common.

    Factors are wider by two: (u, a, 1) of a row, (v, 1, b) of a column, b what the bias adds to the
    mean of the column in the look. m is the mean of the biases of the columns.
    Source: Koren, Bell and Volinsky 2009, "Matrix factorization techniques for recommender
    systems", Computer 42, eq. 5, by alternating least squares.
    """

    kept = (*AlternatingSweeps.kept, "center", "common")

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

    def continue_about(self, center: Array) -> None:
        """Count the biases from these means of the columns; estimates stay what they are."""
        for part in self.request.parts:
            self.v[:, part.stop - 1] += self.center - center
        self.center = np.array(center)

    def _solve(self, step: AlternatingStep, c: int, old: Array) -> tuple[Array, float]:
        """((v, 1, b) of every column, squares that are left)."""
        rank = self.request.ranks[c]
        left, right = step.equations(c)
        toward = np.zeros_like(right)
        toward[rank] = self.common[c] - self.center
        free = [*range(rank), rank + 1]
        ridge = np.append(np.full(rank, self.request.ridges[c]), self.request.bias_ridges[1])
        x, gain = self._stepped(left, right, old[:, free], ridge, toward)
        observed = left[packed_length(rank + 1) - 1] > 0
        if observed.any():
            self.common[c] = float(np.mean((x[rank] + self.center)[observed]))
        x[rank] = np.where(observed, x[rank], self.common[c] - self.center)
        new = np.array(old)
        new[:, free] = x.T
        return new, max(float(step.residual[c]) - gain, 0.0)

    def _penalised(self, c: int, squares: float, gram: Array, v: Array) -> float:
        rank, ridge = self.request.ranks[c], self.request.ridges[c]
        of_rows, of_columns = self.request.bias_ridges
        apart = v[:, rank + 1] + self.center - self.common[c]
        loadings = np.ascontiguousarray(v[:, :rank].T)
        columns = ridge * float(np.sum(loadings**2)) + of_columns * float(apart @ apart)
        factors = ridge * float(np.trace(gram[:rank, :rank]))
        return squares + columns + (factors + of_rows * float(gram[rank, rank]))

    def _continue_from(self, c: int, v: Array, step: AlternatingStep) -> None:
        """Set V and b with which the next sweep begins: V balanced, the mean of the a_i in m."""
        part, rank = self.request.parts[c], self.request.ranks[c]
        values, vectors, _ = singular_form(*self.estimate(c))
        v = np.array(v)
        v[:, :rank] = balanced(values, vectors)
        if step.seen > 0:
            mean = float(step.sums[part.start + rank]) / step.seen
            v[:, rank + 1] += mean
            self.common[c] += mean
        self.v[:, part] = self._rounded(v)

    def factors(self, c: int) -> slice:
        """Where U and V of a candidate lie, without its biases."""
        start = self.request.parts[c].start
        return slice(start, start + self.request.ranks[c])

    def added(self, c: int) -> Array | float:
        """(m,) what the biases of a candidate add to the centres of the columns."""
        return np.array(self.solved[:, self.request.parts[c].stop - 1])


class FilledSweeps(Sweeps):
    """Sweeps that fill the holes with the estimate, and take the best approximation of that, Y.

    With the whole Y'Y each sweep is the iteration of Hard- or Soft-Impute to the letter. With a
    subspace, V goes one step of orthogonal iteration on Y'Y instead of all the way. Both stop at
    the same points: there V'(Y'Y) V is diagonal and Y'Y V = V diag, so V spans an invariant
    subspace of Y'Y, and U = Y V (shrunk), which is the fixed point of the iteration; the leading
    one, since others repel.

    old, new : (m, R) V of the previous and of the next estimate.
    """

    kept = ("old", "new", "gram", "values", "turn")

    def __init__(
        self, request: CompletionRequest, m: int, compiled: bool = False, dtype: Any = float
    ) -> None:
        super().__init__(request, m, compiled, dtype)
        self.old, self.new = np.zeros((m, request.total)), np.zeros((m, request.total))
        self.turn: Any = None  # (m, R); None before the first sweep
        self.values = np.zeros(request.total)

    @property
    def judged(self) -> bool:  # type: ignore[override]
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


class LineFactors:
    """(length, width) numbers that one sweep reads and the next one writes.

    A sweep never writes where it reads: a request that is retried finds what it began with.
    folder : of the scratch stores, or None: in memory.
    """

    def __init__(
        self, length: int, width: int, dtype: Any, edges: Array, folder: str | None = None
    ) -> None:
        self.length, self.width, self.dtype, self.folder = length, width, np.dtype(dtype), folder
        self.chunk = chunk_for(edges)
        self.values: Any = np.broadcast_to(np.zeros(1, self.dtype), (length, width))
        self.number = 0  # of the sweep that wrote the values
        self._held: dict[int, MemorySink] = {}
        self._sink: Any = None

    def sink(self, number: int, both: bool = True) -> Sink:
        """Where sweep ``number`` writes. ``both`` False: the old ones are not read meanwhile."""
        turn = number % 2 if both else 0
        if self.folder is None:
            if turn not in self._held:
                self._held[turn] = MemorySink(self.length, self.width, self.dtype)
            self._sink = self._held[turn]
        else:
            self._sink = ZarrSink(
                self.path(turn), self.length, self.width, self.dtype, self.chunk, overwrite=True
            )
        result: Sink = self._sink
        return result

    def written(self, number: int) -> None:
        """Make the factors of a finished sweep the current ones."""
        self.values = self._sink.values if self.folder is None else self._sink.array
        self.number = number

    def begin_with(self, values: Array) -> None:
        """Set the first estimate."""
        self.values = np.ascontiguousarray(values, self.dtype)

    def open(self, number: int) -> None:
        """Open the scratch store that sweep ``number`` of an interrupted fit has written."""
        self.values, self.number = open_written(self.path(number % 2)), number

    def path(self, turn: int) -> str:
        """The path of one of the two stores."""
        return os.path.join(str(self.folder), f"factors-{turn}.zarr")

    def rows(self, part: slice, start: int, stop: int) -> Array:
        """(stop - start, columns) float64 some columns of some lines."""
        return np.asarray(self.values[start:stop, part], np.float64)
