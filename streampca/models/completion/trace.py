"""The record of the sweeps of a completion: trace, factors of the lines, a state to resume from."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import tempfile
import weakref
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import SourceError
from streampca.kernels import Array, ColumnStats
from streampca.matrix import ChunkedMatrix
from streampca.models.completion.request import CompletionRequest
from streampca.models.completion.two_way import TwoWay
from streampca.passes import Plan
from streampca.store import (
    MemorySink,
    Sink,
    ZarrSink,
    is_bundle,
    read_bundle,
    remove_bundle,
    write_bundle,
)
from streampca.store.sinks import chunk_for, open_written

# sweeps for which an error is assumed to fall as it did in the better of the last two: of sweeps
# that begin with directions of length 1, and with balanced ones, from which no ridge is slow
AHEAD, AHEAD_BALANCED = 8, 2
# of the least held-out error, which may rise: a candidate as near to it may yet be the best
NEAR = 0.005
FLOOR = {"float32": 1e-7, "float64": 1e-14}  # of the squares of the data: an objective of rounding


@dataclass(frozen=True)
class Sweep:
    """One sweep; a number for every candidate.

    number : of the iterate, from 1.  passes : over the data until here, the look included.
    objective : sum of squared residuals over the observed cells, in standardised units.
    penalised : the objective with its penalty, which every sweep lowers.
    change : of the estimate, |Xhat - Xhat_before| / |Xhat|; by "als", of the step of the factors
        across the lines, with those of the lines held.
    held_out : root mean square error in the held-out cells, in the units of the data, of what would
        be predicted there; NaN without, and where these cells have been given back.
    chosen : number of the candidate that is kept, by these errors.
    fitted : whether each candidate was in this sweep; the numbers of others are their last.
    """

    number: int
    passes: int
    objective: tuple[float, ...]
    penalised: tuple[float, ...]
    change: tuple[float, ...]
    held_out: tuple[float, ...]
    singular: tuple[int, ...]
    seconds: float
    chosen: int = 0
    fitted: tuple[bool, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Sweep:
        """The inverse of ``to_dict``."""
        known: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in saved.items()
        }
        return cls(**known)


def next_sweep(
    trace: list[Sweep], told: dict[str, Any], fitted: Array, held: Any, simplest: int | None
) -> Sweep:
    """The entry after those of ``trace``; passes and seconds are still 0.

    told : numbers of every candidate.  fitted : (candidates,) which of them count.
    held : the :class:`HeldOutError` of the sweep, or None.  simplest : a candidate, or None.
    """
    nothing = np.full(len(fitted), np.nan)
    told = told | {"held_out": nothing if held is None else held.rmse()}
    if trace and not fitted.all():
        told = {name: np.where(fitted, one, getattr(trace[-1], name)) for name, one in told.items()}
    kept = trace[-1].chosen if trace else 0
    numbers = {name: tuple(np.asarray(one).tolist()) for name, one in told.items()}
    return Sweep(
        len(trace) + 1,
        0,
        seconds=0.0,
        fitted=tuple(fitted.tolist()),
        chosen=kept if held is None else held.best(simplest),
        **numbers,
    )


def settled(trace: list[Sweep], tol: float, floor: float, left: int = 0) -> Array:
    """(candidates,) whether each has converged, or can no longer be the best.

    It has stopped when a sweep changes neither its estimate nor its objective by more than ``tol``,
    or two sweeps its held-out error. It cannot be the best one where its held-out error would stay
    above the least if it fell in each of the ``left`` sweeps as much as in the last one.
    floor : an objective below this is rounding, and cannot fall any further.
    """
    now = trace[-1]
    change = np.array(now.change)
    if len(trace) == 1:
        return np.asarray(change == 0.0)
    before, after = np.array(trace[-2].penalised), np.array(now.penalised)
    done = (change <= tol) & ((np.abs(before - after) <= tol * after) | (after <= floor))
    held = np.array([one.held_out for one in trace[-3:]])
    if not np.isnan(held).any():
        falls, last = -np.diff(held, axis=0), held[-1]
        if len(falls) == 2:
            done |= np.all(np.abs(falls) <= tol * last, axis=0)
        done |= last - left * np.maximum(falls[-1], 0.0) > last.min()
    return np.asarray(done)


def hopeless(trace: list[Sweep], balanced: bool = False) -> Array:
    """(candidates,) whether each is too far behind to be fitted any further.

    It is where its held-out error would stay above the least by a share of NEAR if it fell in AHEAD
    more sweeps as much as in the better one of the last two.
    balanced : the first sweep began with factors of the length that they come to have.
    """
    held = np.array([one.held_out for one in trace[-3:]])
    if len(held) < (2 if balanced else 3) or np.isnan(held).any():
        return np.zeros(held.shape[1], bool)
    falls = np.maximum(-np.diff(held, axis=0), 0.0).max(axis=0)
    ahead = AHEAD_BALANCED if balanced else AHEAD
    return np.asarray(held[-1] - ahead * falls > (1.0 + NEAR) * held[-1].min())


def judged(trace: list[Sweep]) -> list[Sweep]:
    """The sweeps that had held-out cells; all, where there were none."""
    return [one for one in trace if not np.isnan(one.held_out).any()] or trace


PATIENCE = 2  # sweeps that the best held-out error may lie back


def stops_early(trace: list[Sweep], ranks: tuple[int, ...]) -> bool:
    """Whether the best held-out error was reached more than PATIENCE sweeps ago.

    Of candidates with components: without, the first sweeps may have the least error of all.
    """
    some = [c for c, rank in enumerate(ranks) if rank or not any(ranks)]
    best = [min(one.held_out[c] for c in some) for one in trace]
    return len(best) > PATIENCE and int(np.argmin(best)) < len(best) - PATIENCE


FOUND = tuple[int, ColumnStats, dict[str, Array], list[Sweep]]


class SavedSweeps:
    """A bundle ``sweeps`` in the checkpoint folder, keyed by data, plan and request."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key

    @classmethod
    def of(
        cls, folder: str | None, plan: Plan, matrix: ChunkedMatrix, request: CompletionRequest
    ) -> SavedSweeps | None:
        """The saved sweeps of this fit; None without a checkpoint."""
        if folder is None:
            return None
        digest = hashlib.sha256(plan.to_json().encode())
        digest.update(f"{matrix.content_stamp()} {matrix.absent}".encode())
        digest.update(pickle.dumps(request))
        return cls(Path(folder) / "sweeps", digest.hexdigest())

    def write(
        self,
        number: int,
        stats: ColumnStats,
        state: dict[str, Array],
        trace: list[Sweep],
        factors: LineFactors | None,
        effects: TwoWay | None = None,
    ) -> None:
        """After ``number`` sweeps.

        factors : of the lines, where the next sweep reads them.  effects : of rows and columns.

        Those in a scratch store stay there, and are known by their path.
        """
        arrays = {f"state {name}": value for name, value in state.items()}
        if effects is not None:
            arrays |= {f"effects {name}": value for name, value in effects.state().items()}
        columns = [getattr(stats, one.name) for one in fields(ColumnStats)]
        arrays["columns"] = np.stack([np.asarray(one, np.float64) for one in columns])
        document: dict[str, Any] = {"key": self.key, "number": number}
        document["trace"] = [one.to_dict() for one in trace]
        if factors is not None and number and factors.folder is not None:
            document["factors"] = os.path.abspath(factors.path(number % 2))
        elif factors is not None:
            arrays["factors"] = np.asarray(factors.values)
        write_bundle(self.path, arrays, document)

    def read(self, factors: LineFactors, effects: TwoWay | None = None) -> FOUND | None:
        """(sweeps made, column statistics, state, trace); factors and effects in their place.

        None if nothing is saved, or if it is damaged or of another fit.
        """
        if not is_bundle(self.path):
            return None
        try:
            arrays, document = read_bundle(self.path)
        except SourceError:
            return None
        if document.get("key") != self.key:
            return None
        number = int(document["number"])
        if (path := document.get("factors")) is not None:
            if not os.path.isdir(path) or path != os.path.abspath(factors.path(number % 2)):
                return None
            factors.open(number)
        elif "factors" in arrays:
            factors.begin_with(arrays["factors"])
        if effects is not None:
            effects.restore({k[8:]: v for k, v in arrays.items() if k.startswith("effects ")})
        columns = list(arrays["columns"])
        counts = [one.astype(np.int64) for one in columns[:2]]
        stats = ColumnStats(*counts, *columns[2:])
        state = {k[6:]: v for k, v in arrays.items() if k.startswith("state ")}
        return number, stats, state, [Sweep.from_dict(one) for one in document["trace"]]

    def clear(self) -> None:
        """Remove them: the fit is done."""
        remove_bundle(self.path)


class CandidateFactors:
    """The loadings of all candidates, which the sweeps of a solver update: arrays by name.

    fitted : (candidates,) whether each is still swept.
    """

    request: CompletionRequest
    fitted: Array

    def factors(self, c: int) -> slice:
        """The columns of U and V that belong to a candidate."""
        return self.request.parts[c]

    def added(self, c: int) -> Array | float:
        """What biases add to the column centres: nothing here."""
        return 0.0

    def restore(self, state: dict[str, Array]) -> None:
        """Continue from such a state."""
        for name, value in state.items():
            setattr(self, name, np.array(value))


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


def scratch_folder(owner: object, wanted: str | None) -> str:
    """A folder for scratch stores; a temporary one is removed with its owner."""
    if wanted is not None:
        os.makedirs(wanted, exist_ok=True)
        return wanted
    made = tempfile.mkdtemp(prefix="streampca-")
    weakref.finalize(owner, shutil.rmtree, made, ignore_errors=True)
    return made
