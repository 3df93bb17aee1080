"""Five small methods written on the pass before any real one: it must carry them all.

Each runs on one lane, on two lanes and on two worker processes with the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import zarr
from pass_matrices import ToyMatrix, run, toy_plan

import streampca.sources
from streampca.accumulators import Accumulator, CrossProduct, Moments, Scatter
from streampca.matrix import concat_features
from streampca.store import MemorySink, ZarrSink

# -- alternating least squares with row state --------------------------------------------------


@dataclass(frozen=True)
class RowFactors:
    """u = argmin |x - V u|^2 over observed cells + damping |u - previous u|^2, row by row."""

    damping: float

    def __call__(self, block: Any) -> np.ndarray:
        v, before = block["v"], block["before"]
        seen = np.ones(block.shape) if block.mask is None else ~block.mask
        x = np.where(seen, block.dense(), 0.0)
        out = np.empty_like(before)
        for i, row in enumerate(seen):
            left = (v * row[:, None]).T @ v + self.damping * np.eye(v.shape[1])
            out[i] = np.linalg.solve(left, v.T @ x[i] + self.damping * before[i])
        return out


class ColumnEquations(Accumulator):
    """Normal equations of every column for fixed row factors: sum u u' and sum x u."""

    fields = ("left", "right")

    def __init__(self) -> None:
        self.left: Any = None  # (p, k, k)
        self.right: Any = None  # (p, k)

    def update(self, block: Any) -> None:
        u = block["u"]
        seen = np.ones(block.shape) if block.mask is None else (~block.mask).astype(float)
        x = np.where(seen > 0, block.dense(), 0.0)
        self._add(np.einsum("ij,ik,il->jkl", seen, u, u), x.T @ u)

    def _add(self, left: np.ndarray, right: np.ndarray) -> None:
        self.left = left.copy() if self.left is None else self.left + left
        self.right = right.copy() if self.right is None else self.right + right

    def merge(self, other: ColumnEquations) -> None:
        if other.left is not None:
            self._add(other.left, other.right)

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return shape[1] * 12 * 8


def ratings() -> tuple[np.ndarray, np.ndarray]:
    """A rank-2 matrix with noise and holes; and the holes."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(57, 2)) @ rng.normal(size=(2, 12)) + 0.01 * rng.normal(size=(57, 12))
    hole = rng.random(x.shape) < 0.2
    return np.where(hole, np.nan, x), hole


def objective(x: np.ndarray, hole: np.ndarray, u: np.ndarray, v: np.ndarray) -> float:
    return float(np.sum((x - u @ v.T)[~hole] ** 2))


SWEEPS, DAMPING = 12, 0.05


def numpy_als(x: np.ndarray, hole: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    u, k = np.zeros((len(x), v.shape[1])), v.shape[1]
    for _ in range(SWEEPS):
        for i in range(len(x)):
            a = v[~hole[i]]
            u[i] = np.linalg.solve(
                a.T @ a + DAMPING * np.eye(k), a.T @ x[i, ~hole[i]] + DAMPING * u[i]
            )
        v = np.array(
            [np.linalg.lstsq(u[~h], column[~h])[0] for h, column in zip(hole.T, x.T, strict=True)]
        )
    return u, v


def test_alternating_least_squares_with_row_state(everywhere: Any) -> None:
    x, hole = ratings()
    start = np.random.default_rng(0).normal(size=(x.shape[1], 2))

    def program(execution: Any) -> dict[str, Any]:
        matrix = ToyMatrix(x, recycled=True)
        plan = toy_plan(matrix, step=7, span=2)
        u, v = np.zeros((len(x), 2)), start
        for _ in range(SWEEPS):
            # a sink of its own per sweep: a retried task must find the factors it began with
            sink = MemorySink(len(x), 2)
            done = run(
                plan,
                matrix,
                maps={"u": RowFactors(DAMPING)},
                operands={"v": v},
                side_inputs={"before": u},
                sinks={"u": sink},
                execution=execution(),
                accumulators={"v": ColumnEquations()},
            )["v"]
            u, v = sink.values, np.linalg.solve(done.left, done.right[:, :, None])[:, :, 0]
        return {"u": u, "v": v}

    found = everywhere(program)
    u, v = numpy_als(x, hole, start)
    np.testing.assert_allclose(found["u"] @ found["v"].T, u @ v.T, atol=1e-9)
    reached, expected = objective(x, hole, found["u"], found["v"]), objective(x, hole, u, v)
    assert reached == pytest.approx(expected, rel=1e-8)
    assert reached < 2e-4 * np.nansum(x**2)


# -- a Krylov step with an operand -------------------------------------------------------------


@dataclass(frozen=True)
class Image:
    """Rows of (X - center) Q."""

    def __call__(self, block: Any) -> np.ndarray:
        q = block["q"].astype(block.work_dtype)
        out = np.empty((block.length, q.shape[1]), block.work_dtype)
        for tile in block.tiles(block.work_dtype, center=block["center"]):
            out[tile.start - block.start : tile.stop - block.start] = tile.values @ q
        return out


def krylov_step(plan: Any, matrix: Any, q: np.ndarray, center: np.ndarray, execution: Any) -> Any:
    return run(
        plan,
        matrix,
        maps={"xq": Image()},
        operands={"q": q, "center": center},
        accumulators={"z": CrossProduct(y="xq", center="center")},
        execution=execution,
    )["z"].cross_product()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_krylov_step_with_an_operand(everywhere: Any, dtype: str) -> None:
    rng = np.random.default_rng(5)
    spectrum = np.array([50.0, 20.0, 8.0, *np.linspace(1.0, 0.1, 21)])
    u, v = (np.linalg.qr(rng.normal(size=(m, 24)))[0] for m in (210, 24))
    x = ((u * spectrum) @ v.T + 3.0).astype(dtype)
    centred = x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)
    tolerance = 1e-11 if dtype == "float64" else 1e-4

    def program(execution: Any) -> dict[str, Any]:
        matrix = ToyMatrix(x, recycled=True)
        plan = toy_plan(matrix, step=20)
        center = run(plan, matrix, accumulators={"m": Moments()}, execution=execution())["m"].mean()
        q = np.linalg.qr(np.random.default_rng(1).normal(size=(24, 6)))[0]
        first = krylov_step(plan, matrix, q, center, execution())
        np.testing.assert_allclose(first, centred.T @ (centred @ q), atol=tolerance * 2500, rtol=0)
        q = np.linalg.qr(first)[0]
        for _ in range(5):
            q = np.linalg.qr(krylov_step(plan, matrix, q, center, execution()))[0]
        return {"first": first, "q": q}

    found = everywhere(program)
    leading = np.linalg.svd(centred)[2][:3]
    cosines = np.linalg.svd(leading @ found["q"])[1]
    assert np.all(1.0 - cosines < (1e-9 if dtype == "float64" else 1e-6))


# -- a transform into a sink -------------------------------------------------------------------


@dataclass(frozen=True)
class Project:
    """X Q of a block; a view of the block where ``columns`` are only picked."""

    columns: int | None = None

    def __call__(self, block: Any) -> np.ndarray:
        if self.columns is not None:
            return block.dense()[:, : self.columns]  # lies in the block's buffer
        return block.dense() @ block["q"]


@pytest.mark.parametrize(
    ("kind", "chunk"),
    [("memory", 0), ("zarr", 10), ("zarr", 30), ("zarr", 7), ("zarr", 100)],
    ids=lambda c: f"sink chunks of {c}" if isinstance(c, int) else c,
)
def test_transform_into_a_sink(everywhere: Any, tmp_path: Any, kind: str, chunk: int) -> None:
    rng = np.random.default_rng(0)
    x, q = rng.normal(size=(95, 6)), rng.normal(size=(6, 3))
    made = []

    def sink(name: str) -> Any:
        if kind == "memory":
            return MemorySink(len(x), 3)
        made.append(tmp_path / f"{len(made)}-{name}.zarr")
        return ZarrSink(made[-1], len(x), 3, chunk=chunk)

    def program(execution: Any) -> dict[str, Any]:
        matrix = ToyMatrix(x, recycled=True, sleep=0.001)
        sinks = {"scores": sink("scores"), "view": sink("view")}
        run(
            toy_plan(matrix, step=10, span=2),
            matrix,
            operands={"q": q},
            sinks=sinks,
            maps={"scores": Project(), "view": Project(3)},
            execution=execution(),
        )
        return {
            name: one.values if kind == "memory" else zarr.open_array(one.path, mode="r")[...]
            for name, one in sinks.items()
        }

    found = everywhere(program)
    np.testing.assert_allclose(found["scores"], x @ q, rtol=1e-13)
    np.testing.assert_array_equal(found["view"], x[:, :3])
    assert all(zarr.open_array(path, mode="r").attrs["streampca_complete"] for path in made)


def test_sink_of_streamed_features(everywhere: Any) -> None:
    x = np.random.default_rng(0).normal(size=(9, 64))

    def program(execution: Any) -> dict[str, Any]:
        sink = MemorySink(64, 9)
        matrix = ToyMatrix(x, recycled=True)
        run(
            toy_plan(matrix, axis=1, step=9),
            matrix,
            maps={"t": transposed},
            sinks={"t": sink},
            execution=execution(),
        )
        return {"t": sink.values}

    np.testing.assert_array_equal(everywhere(program)["t"], x.T)


def transposed(block: Any) -> np.ndarray:
    return block.dense().T


# -- a scan -----------------------------------------------------------------------------------


class WindowedR2(Accumulator):
    """r^2 of each streamed row with its ``window`` predecessors, NaN where there are fewer, and how
    many exceed a bound. It remembers the last rows, so blocks come in order and nothing merges."""

    axis = None
    settings = ("window", "bound")
    fields = ("pairs", "blocks", "last")
    makes = ("r2",)

    def __init__(self, *, window: int, bound: float) -> None:
        self.window, self.bound = window, bound
        self.pairs = self.blocks = 0
        self.last: Any = None

    def update(self, block: Any) -> None:
        rows = block.dense().T if block.axis else block.dense()
        last = rows[:0] if self.last is None else self.last
        joined, before = np.concatenate([last, rows]), len(last)
        out = np.full((block.length, self.window), np.nan)
        for i in range(block.length):
            for lag in range(1, min(self.window, before + i) + 1):
                pair = joined[before + i], joined[before + i - lag]
                out[i, lag - 1] = np.corrcoef(*pair)[0, 1] ** 2
        block.arrays["r2"] = out
        self.last = joined[-self.window :].copy()
        self.pairs += int(np.nansum(out > self.bound))
        self.blocks += 1

    def merge(self, other: WindowedR2) -> None:
        assert self.blocks == 0, "merged"
        self.pairs, self.blocks, self.last = other.pairs, other.blocks, other.last

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 16


def r2_with_predecessors(rows: np.ndarray, window: int) -> np.ndarray:
    square = np.corrcoef(rows) ** 2
    out = np.full((len(rows), window), np.nan)
    for i in range(len(rows)):
        for lag in range(1, min(window, i) + 1):
            out[i, lag - 1] = square[i, i - lag]
    return out


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("step", "window"), [(10, 3), (4, 9), (1, 5), (64, 70), (10, 10)])
def test_scan_in_order(everywhere: Any, axis: int, step: int, window: int) -> None:
    steps = np.random.default_rng(2).normal(size=(53, 30)).cumsum(axis=0)  # neighbours correlate
    x = steps.T.copy() if axis else steps

    def program(execution: Any) -> dict[str, Any]:
        matrix = ToyMatrix(x, recycled=True, sleep=0.001)
        sink = MemorySink(53, window)
        plan = replace(toy_plan(matrix, axis=axis, step=step, span=2), ordered=True)
        done = run(
            plan,
            matrix,
            accumulators={"scan": WindowedR2(window=window, bound=0.5)},
            sinks={"r2": sink},
            execution=execution(),
        )
        assert done.cost.blocks == done["scan"].blocks == plan.n_blocks
        assert done.cost.reads == 53
        return {"r2": sink.values, "strong": done["scan"].pairs}

    found = everywhere(program)
    expected = r2_with_predecessors(steps, window)
    np.testing.assert_allclose(found["r2"], expected, atol=1e-12)
    assert found["strong"] == np.nansum(expected > 0.5) > 0


# -- accumulators over a joined [X, Y] ---------------------------------------------------------


def test_joint_scatter_of_joined_matrices(everywhere: Any, tmp_path: Any) -> None:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(120, 5)).astype(np.float32) + 2
    y = (x[:, :3] @ rng.normal(size=(3, 4)) + rng.normal(size=(120, 4))).astype(np.float64)
    codes = rng.integers(-1, 3, size=(120, 2)).astype(np.int8)  # -1 is missing in no column whole
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(15, 2))

    def program(execution: Any) -> dict[str, Any]:
        left = streampca.sources.open(str(tmp_path / "x.zarr"))
        joint = concat_features(left, ToyMatrix(y, chunk=10), ToyMatrix(codes, chunk=30))
        np.testing.assert_array_equal(joint.chunk_edges(0), [0, 30, 60, 90, 120])
        done = run(
            toy_plan(joint, step=30, span=1),
            joint,
            execution=execution(),
            accumulators={"joint": Scatter(), "columns": Moments()},
        )
        assert done.cost.reads == 8 * 3 + 12 + 4
        return {"scatter": done["joint"].scatter(), "mean": done["columns"].mean()}

    found = everywhere(program)
    joint = np.hstack([x.astype(np.float64), y, codes])
    centred = joint - joint.mean(axis=0)
    np.testing.assert_allclose(found["scatter"], centred.T @ centred, atol=1e-10)
    np.testing.assert_allclose(found["mean"], joint.mean(axis=0), rtol=1e-12)
