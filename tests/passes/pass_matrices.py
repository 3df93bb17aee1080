"""A matrix that counts, tracks, sleeps and fails, and what the tests of the pass do with it.

A module of its own, not a conftest: worker processes import it to unpickle the matrix.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
import weakref
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from streampca import passes
from streampca.accumulators import Accumulator
from streampca.matrix import ChunkedMatrix, Labels, ReadCount, regular_edges
from streampca.passes import Execution, Pass, PassPlan, PassResult, PassSpec, Plan, Running


class ToyMatrix(ChunkedMatrix):
    """An array in memory that pretends to be stored in chunks of ``chunk`` streamed rows.

    ``log`` lists every read; ``most_alive`` is the largest number of raw blocks that ever lived
    at once, counted by the garbage collector and not by the pass. ``recycled`` puts blocks into
    the buffer that the pass lends, so that a view that outlives its block sees other data.
    """

    def __init__(
        self,
        values: np.ndarray,
        chunk: int = 1,
        *,
        sleep: float = 0.0,
        fails_at: int | None = None,
        recycled: bool = False,
    ) -> None:
        self.values, self.chunk = values, chunk
        self.sleep, self.fails_at = sleep, fails_at
        self.into_buffer = recycled
        self.shape = values.shape
        self.dtype = values.dtype
        self.labels = Labels.plain(self.shape)
        self._reset()

    def _reset(self) -> None:
        self.state: dict[str, Any] = {
            "log": [],
            "alive": 0,
            "most": 0,
            "count": ReadCount(),
            "lock": threading.Lock(),
        }

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "state"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def __copy__(self) -> ToyMatrix:
        other: ToyMatrix = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)  # counts are shared, as those of real sources are
        return other

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        with self.state["lock"]:
            self.state["log"].append((start, stop))
            self.state["alive"] += 1
            self.state["most"] = max(self.state["most"], self.state["alive"])
        if self.sleep:
            time.sleep(random.random() * self.sleep)
        if self.fails_at is not None and start <= self.fails_at < stop:
            self._gone()
            raise OSError("the disk is on fire")
        part = self.values[:, start:stop] if axis else self.values[start:stop]
        if buffer is None:
            values = part.copy()
        else:
            values = buffer[: part.nbytes].view(part.dtype).reshape(part.shape)
            values[...] = part
        weakref.finalize(values, self._gone)
        with self.state["lock"]:
            self.state["count"].chunks += self.count_chunks(axis, start, stop)
            self.state["count"].nbytes += part.nbytes
        return values

    def _gone(self) -> None:
        self.state["alive"] -= 1

    @property
    def log(self) -> list[tuple[int, int]]:
        return self.state["log"]

    @property
    def most_alive(self) -> int:
        return self.state["most"]

    def chunk_edges(self, axis: int) -> np.ndarray | None:
        return regular_edges(self.shape[axis], self.chunk)

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        return -(-stop // self.chunk) - start // self.chunk

    def fingerprint(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.values).tobytes()).hexdigest()

    def reads(self) -> ReadCount:
        with self.state["lock"]:
            return ReadCount() + self.state["count"]

    def restart_counts(self) -> None:
        self.state["count"] = ReadCount()


class Unread(ToyMatrix):
    """A large matrix that nobody may read: a plan must not need to."""

    def __init__(
        self, shape: tuple[int, int], dtype: str, chunks: tuple[int, int] = (1, 1)
    ) -> None:
        super().__init__(np.broadcast_to(np.zeros((), dtype), shape))
        self.chunks = chunks

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        raise AssertionError("a plan reads nothing")

    def chunk_edges(self, axis: int) -> Any:
        return np.append(np.arange(0, self.shape[axis], self.chunks[axis]), self.shape[axis])

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        across = -(-self.shape[1 - axis] // self.chunks[1 - axis])
        return (-(-stop // self.chunks[axis]) - start // self.chunks[axis]) * across

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.shape} {self.dtype} {self.chunks}".encode()).hexdigest()


def toy_plan(
    matrix: ChunkedMatrix, axis: int = 0, step: int = 10, span: int = 3, ordered: bool = False
) -> PassPlan:
    """A pass in blocks of ``step`` and spans of ``span`` blocks."""
    edges = regular_edges(matrix.shape[axis], step)
    reads = sum(matrix.count_chunks(axis, int(a), int(b)) for a, b in pairwise(edges))
    return PassPlan("toy", axis, edges, span, reads, matrix.nbytes, 0.0, ordered)


def make_plan(*request: Any) -> Plan:
    """The plan of what ``choose`` chooses."""
    return passes.choose(*request).plan


PROCESS = dict.fromkeys(("interpreter", "compiled kernels", "labels", "source", "X in memory"), 0)


def by_hand(
    lanes: int = 2,
    blocks_ahead: int = 1,
    scheduler: Any = None,
    progress: Any = None,
    checkpoint: str | None = None,
    **more: Any,
) -> Execution:
    """The execution of passes that no fit has planned."""
    plan = Plan(
        "X", "", "", (0, 0), "float64", "float64", "", lanes, blocks_ahead, (), {"process": PROCESS}
    )
    running = Running(scheduler=scheduler, checkpoint=checkpoint)
    return Execution(running, plan, more.pop("threads", lanes), progress, **more)


def run(
    plan: PassPlan,
    matrix: ChunkedMatrix,
    *,
    accumulators: Any = None,
    weights: Any = None,
    execution: Execution | None = None,
    **arrays: Any,
) -> PassResult:
    """One pass in these blocks, by itself.  arrays : as :class:`Pass` takes them."""
    execution = execution or by_hand()
    spec = PassSpec(plan.name, plan.axis, 0, 0, accumulators=accumulators or {}, weights=weights)
    memory = {"process": PROCESS, plan.name: {"partial accumulators": 0, "folded accumulators": 0}}
    execution.plan = replace(execution.plan, passes=(plan,), memory=memory)
    given = {name: values for name, values in arrays.items() if values is not None}
    return passes.run(plan, Pass(spec, matrix=matrix, **given), execution)


class Sum(Accumulator):
    """Column sums in the order of arrival: its bits tell the fold order apart."""

    axis = 0
    settings = ("name",)
    fields = ("total", "rows")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.total: Any = None
        self.rows = 0

    def update(self, block: Any) -> None:
        values = block.dense() if not self.name else block[self.name]
        self._add(values.sum(axis=0, dtype=np.float64), len(values))

    def merge(self, other: Sum) -> None:
        if other.total is not None:
            self._add(other.total, other.rows)

    def _add(self, total: np.ndarray, rows: int) -> None:
        self.total = total.copy() if self.total is None else self.total + total
        self.rows += rows

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return shape[1] * 8


class Fails(Sum):
    """Fails at one block."""

    settings = ("at",)

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def update(self, block: Any) -> None:
        if block.index == self.at:
            raise RuntimeError("cannot fold this")
        super().update(block)


def wild(n: int, p: int, seed: int = 0) -> np.ndarray:
    """Values of very different sizes: their sum depends on the order in its last bits."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, p)) * 10.0 ** rng.integers(-8, 9, size=(n, p))


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays, or dictionaries of arrays, are equal bit for bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_bits(a[k], b[k]) for k in a)
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
