"""An interrupted pass goes on at a span boundary, with the same bits, or starts anew."""

from __future__ import annotations

import _thread
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from pass_matrices import Fails, Sum, ToyMatrix, by_hand, run, same_bits, toy_plan, wild

import streampca
from streampca import PCA
from streampca.accumulators import CrossProduct, Gram, Moments, RFactor, Scatter
from streampca.errors import InvalidInputError
from streampca.matrix import Standardize
from streampca.matrix.select import select
from streampca.passes import Advance, Execution, PassResult
from streampca.store import MemorySink, ZarrSink

N, STEP, SPAN = 400, 10, 3  # 40 blocks in 14 spans


@dataclass(frozen=True)
class Times:
    """A map with a setting."""

    factor: float

    def __call__(self, block: Any) -> np.ndarray:
        return self.factor * block.dense()[:, :2]


def execution(folder: Path | None, **more: Any) -> Execution:
    checkpoint = None if folder is None else str(folder)
    return by_hand(**{"scheduler": "threads", "checkpoint": checkpoint, "every": 3600.0, **more})


def values() -> np.ndarray:
    return wild(N, 4)


def fold(matrix: ToyMatrix, how: Execution, **changes: Any) -> PassResult:
    """The pass of these tests; ``changes`` are what a later call may do otherwise."""
    settings: dict[str, Any] = {
        "step": STEP,
        "span": SPAN,
        "center": True,
        "factor": 2.0,
        "q": np.ones(3),
        "y": np.arange(N * 2.0).reshape(N, 2),
        "weights": None,
    }
    settings |= changes
    accumulators: dict[str, Any] = {
        "sum": Sum(),
        "moments": Moments(),
        "r": RFactor(center=settings["center"]),
        "scatter": Scatter(center=settings["center"]),
        "side": Sum("y"),
        "cross": CrossProduct(y="map"),
    }
    return run(
        toy_plan(matrix, step=settings["step"], span=settings["span"]),
        matrix,
        execution=how,
        accumulators=accumulators | settings.get("more", {}),
        maps={"map": Times(settings["factor"])},
        side_inputs={"y": settings["y"]},
        operands={"q": settings["q"]},
        weights=settings["weights"],
    )


def states(done: PassResult) -> dict[str, Any]:
    return {f"{n}.{k}": v for n, a in done.accumulators.items() for k, v in a.state().items()}


def interrupt(folder: Path, at: int = 257, **how: Any) -> None:
    with pytest.raises(OSError, match="on fire"):
        fold(ToyMatrix(values(), fails_at=at), execution(folder, **{"lanes": 1, **how}))


# -- going on ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("lanes", "later"), [(1, 2), (2, 1)])
def test_a_pass_resumes_from_its_checkpoint(tmp_path: Path, lanes: int, later: int) -> None:
    """In worker processes too: see test_cluster.py."""
    goes_on(tmp_path, lanes, {"lanes": later})


def goes_on(tmp_path: Path, lanes: int, how: dict[str, Any]) -> None:
    """An interrupted pass goes on under other settings, from its last span, with the same bits."""
    interrupt(tmp_path, lanes=lanes)
    assert (tmp_path / "pass-toy" / "bundle.json").exists()
    matrix = ToyMatrix(values(), recycled=True)
    seen: list[Advance] = []
    done = fold(matrix, execution(tmp_path, progress=seen.append, **how))
    whole = fold(ToyMatrix(values()), execution(None))
    assert same_bits(states(done), states(whole))
    resumed = done.cost.resumed_blocks
    assert resumed % SPAN == 0
    assert resumed == 24 if lanes == 1 else 0 < resumed <= 24
    assert done.cost.blocks == 40 - resumed
    assert done.cost.reads == N - resumed * STEP
    if "scheduler" not in how:
        assert sorted(matrix.log) == [(i, i + STEP) for i in range(resumed * STEP, N, STEP)]
    assert seen[0].blocks_done > resumed
    assert seen[-1].blocks_done == seen[-1].n_blocks == 40
    assert list(tmp_path.iterdir()) == []


def test_an_interval_of_zero_writes_every_span(tmp_path: Path, monkeypatch: Any) -> None:
    from streampca.passes import checkpoint

    kept = []

    def write(path: Path, arrays: Any, document: Any) -> None:
        kept.append((document["next_span"], int(arrays["s.rows"])))

    monkeypatch.setattr(checkpoint, "write_bundle", write)
    matrix = ToyMatrix(values())
    run(
        toy_plan(matrix, step=STEP, span=SPAN),
        matrix,
        accumulators={"s": Sum()},
        execution=execution(tmp_path, every=0.0, lanes=2),
    )
    assert kept == [(i, i * SPAN * STEP) for i in range(1, 14)]  # at the end there is the result


def test_a_pass_resumes_twice(tmp_path: Path) -> None:
    interrupt(tmp_path, at=100)
    interrupt(tmp_path, at=300, every=0.0)
    done = fold(ToyMatrix(values()), execution(tmp_path))
    assert done.cost.resumed_blocks == 30
    assert same_bits(states(done), states(fold(ToyMatrix(values()), execution(None))))


def test_interrupted_in_the_last_span_and_after_the_first_block(tmp_path: Path) -> None:
    interrupt(tmp_path, at=5)
    assert list(tmp_path.iterdir()) == []  # nothing was folded: nothing to keep
    interrupt(tmp_path, at=N - 1)
    assert fold(ToyMatrix(values()), execution(tmp_path)).cost.resumed_blocks == 39


@pytest.mark.parametrize("lanes", [1, 2])
def test_ctrl_c_leaves_a_checkpoint_however_young_the_last_one(tmp_path: Path, lanes: int) -> None:
    matrix = ToyMatrix(np.ones((10_000, 2)), sleep=0.004)

    def press(advance: Advance) -> None:
        if advance.blocks_done == 10:
            _thread.interrupt_main()

    plan = toy_plan(matrix, step=STEP, span=SPAN)
    accumulators = {"s": Sum()}
    with pytest.raises(KeyboardInterrupt):
        run(
            plan,
            matrix,
            accumulators=accumulators,
            execution=execution(tmp_path, lanes=lanes, progress=press),
        )
    done = run(plan, matrix, accumulators=accumulators, execution=execution(tmp_path))
    assert 3 <= done.cost.resumed_blocks < 1000
    assert done["s"].rows == 10_000
    assert done["s"].total.tolist() == [10_000.0, 10_000.0]


class FailsToMerge(Sum):
    """Stops in the middle of a merge, when a part of the total already holds the span."""

    def merge(self, other: Sum) -> None:
        if self.rows > 100:
            raise RuntimeError("half of it is merged")
        super().merge(other)


def test_a_half_merged_total_is_not_kept(tmp_path: Path) -> None:
    matrix = ToyMatrix(values())
    plan = toy_plan(matrix, step=STEP, span=SPAN)
    with pytest.raises(RuntimeError):
        run(
            plan,
            matrix,
            accumulators={"a": Sum(), "b": FailsToMerge()},
            execution=execution(tmp_path, lanes=1),
        )
    assert list(tmp_path.iterdir()) == []


def test_a_pass_of_features_resumes(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, N)).astype(np.float32)
    accumulators = {"g": Gram(standardize=Standardize(scale="std")), "m": Moments()}

    def go(matrix: ToyMatrix, folder: Path | None) -> PassResult:
        return run(
            toy_plan(matrix, axis=1), matrix, accumulators=accumulators, execution=execution(folder)
        )

    with pytest.raises(OSError, match="on fire"):
        go(ToyMatrix(x, fails_at=300), tmp_path)
    done = go(ToyMatrix(x), tmp_path)
    assert done.cost.resumed_blocks > 0
    assert same_bits(states(done), states(go(ToyMatrix(x), None)))


# -- not used ----------------------------------------------------------------------------------

OTHERWISE: dict[str, dict[str, Any]] = {
    "other blocks": {"step": 20},
    "other spans": {"span": 4},
    "other settings": {"center": False},
    "another accumulator": {"more": {"extra": Moments()}},
    "another map": {"factor": 3.0},
    "an unknown map": {"factor": None},
    "another side input": {"y": np.zeros((N, 2))},
    "another operand": {"q": np.zeros(3)},
    "weights": {"weights": np.ones(N)},
}


@pytest.mark.parametrize("changes", OTHERWISE.values(), ids=OTHERWISE.keys())
def test_a_checkpoint_of_other_settings_is_ignored(
    tmp_path: Path, changes: dict[str, Any], monkeypatch: Any
) -> None:
    interrupt(tmp_path)
    if changes.get("factor", 0) is None:  # a lambda cannot be told from another lambda
        monkeypatch.setitem(
            globals(), "Times", lambda factor: lambda block: 2.0 * block.dense()[:, :2]
        )
    done = fold(ToyMatrix(values()), execution(tmp_path), **changes)
    assert done.cost.resumed_blocks == 0
    assert same_bits(states(done), states(fold(ToyMatrix(values()), execution(None), **changes)))


def test_a_checkpoint_of_other_data_is_ignored(tmp_path: Path) -> None:
    interrupt(tmp_path)
    other = values()
    other[0, 0] += 1.0
    assert fold(ToyMatrix(other), execution(tmp_path)).cost.resumed_blocks == 0


def test_a_checkpoint_of_an_ordered_pass_is_ignored(tmp_path: Path) -> None:
    matrix, failing = ToyMatrix(values()), ToyMatrix(values(), fails_at=257)
    with pytest.raises(OSError, match="on fire"):
        run(toy_plan(failing), failing, accumulators={"s": Sum()}, execution=execution(tmp_path))
    scan = replace(toy_plan(matrix), ordered=True)
    done = run(scan, matrix, accumulators={"s": Sum()}, execution=execution(tmp_path))
    assert done.cost.resumed_blocks == 0
    assert done["s"].rows == N


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "garbage", "empty index"])
def test_a_damaged_checkpoint_is_ignored(tmp_path: Path, damage: str) -> None:
    interrupt(tmp_path)
    bundle = tmp_path / "pass-toy"
    chunk = max(
        (f for f in bundle.rglob("*") if f.is_file()),
        key=lambda f: ("c" in f.parts, f.stat().st_size),
    )
    if damage == "flip":
        raw = bytearray(chunk.read_bytes())
        raw[len(raw) // 2] ^= 1
        chunk.write_bytes(raw)
    elif damage == "truncate":
        chunk.write_bytes(chunk.read_bytes()[:-3])
    elif damage == "remove":
        chunk.unlink()
    else:
        (bundle / "bundle.json").write_text("" if damage == "empty index" else "{'no': json")
    done = fold(ToyMatrix(values()), execution(tmp_path))
    assert done.cost.resumed_blocks == 0
    assert same_bits(states(done), states(fold(ToyMatrix(values()), execution(None))))
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_folder_with_other_content_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pass-toy").mkdir()
    (tmp_path / "pass-toy" / "thesis.txt").write_text("years of work")
    matrix = ToyMatrix(values())
    with pytest.raises(InvalidInputError, match="is not a checkpoint"):
        fold(matrix, execution(tmp_path))
    assert not matrix.log
    assert (tmp_path / "pass-toy" / "thesis.txt").exists()


def with_sink(sink: Any, folder: Path, fails_at: int | None = None) -> PassResult:
    matrix = ToyMatrix(values(), fails_at=fails_at)
    return run(
        toy_plan(matrix),
        matrix,
        accumulators={"s": Sum()},
        maps={"t": Times(1.0)},
        sinks={"t": sink},
        execution=execution(folder),
    )


def test_a_checkpoint_keeps_sinks_in_memory(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="on fire"):
        with_sink(MemorySink(N, 2), tmp_path, fails_at=300)
    other = MemorySink(N, 2, np.float32)  # another result
    assert with_sink(other, tmp_path).cost.resumed_blocks == 0
    with pytest.raises(OSError, match="on fire"):
        with_sink(MemorySink(N, 2), tmp_path, fails_at=300)
    sink = MemorySink(N, 2)
    done = with_sink(sink, tmp_path)
    assert done.cost.resumed_blocks > 0
    np.testing.assert_array_equal(sink.values, values()[:, :2])


def test_a_pass_with_sinks_on_disk_has_no_checkpoint(tmp_path: Path) -> None:
    """What is in the file is not in the checkpoint; such a pass starts anew, and may."""
    with pytest.raises(OSError, match="on fire"):
        with_sink(ZarrSink(tmp_path / "out", N, 2), tmp_path / "c", fails_at=300)
    assert not (tmp_path / "c").exists()


def test_an_unwritable_folder_does_not_hide_the_error(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    matrix = ToyMatrix(values(), fails_at=257)
    with pytest.raises(OSError, match="on fire") as caught:
        fold(matrix, execution(folder, progress=lambda _: folder.touch()))
    assert any("no checkpoint could be written" in note for note in caught.value.__notes__)
    with pytest.raises(InvalidInputError, match="folder' is a file; choose a folder"):
        fold(matrix, execution(folder))


# -- through an estimator ----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4000, 6), (20, 9000)], ids=["tall", "wide"])
def test_pca(tmp_path: Path, shape: tuple[int, int], monkeypatch: Any) -> None:
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 16 * 1024)
    x = np.random.default_rng(0).normal(size=shape)
    path = str(tmp_path / "x.npy")
    np.save(path, x)
    folder = tmp_path / "checkpoints"

    def stop(advance: Advance) -> None:
        if advance.pass_number == 1 and advance.blocks_done == advance.n_blocks - 1:
            raise InterruptedError("the night is over")

    with pytest.raises(InterruptedError):
        PCA(3, scheduler="threads", checkpoint=str(folder), progress=stop).fit(path)
    assert len(list(folder.iterdir())) == 1
    again = PCA(3, scheduler="threads", checkpoint=str(folder), progress=False).fit(path)
    plain = PCA(3, scheduler="threads", progress=False).fit(path)
    assert again.cost_[0].resumed_blocks > 0
    assert again.cost_[0].nbytes < plain.cost_[0].nbytes
    assert same_bits(again.components_, plain.components_)
    assert same_bits(again.explained_variance_, plain.explained_variance_)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("missing", ["raise", "mean"])
def test_an_interrupted_second_pass_does_not_repeat_the_first(
    tmp_path: Path, monkeypatch: Any, missing: str
) -> None:
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 16 * 1024)
    x = np.random.default_rng(0).normal(size=(20, 9000))
    if missing == "mean":
        x[3, ::7] = np.nan
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, shape=x.shape, chunks=(20, 100), dtype="f8")[...] = x
    cut_short(tmp_path / "c", path, pass_number=2, missing=missing)
    assert "pass-gram" in [p.name for p in (tmp_path / "c").iterdir()]
    settings: dict[str, Any] = {"scheduler": "threads", "progress": False, "missing": missing}
    again = PCA(3, checkpoint=str(tmp_path / "c"), **settings).fit(path)
    plain = PCA(3, **settings).fit(path)
    assert [c.reads for c in plain.cost_] == [90, 90]
    assert again.cost_[0].reads == 0
    assert again.cost_[0].resumed_blocks == again.plan_.passes[0].n_blocks
    assert same_bits(again.components_, plain.components_)
    assert same_bits(again.explained_variance_, plain.explained_variance_)
    assert same_bits(again.transform(path), plain.transform(path))
    assert list((tmp_path / "c").iterdir()) == []


def test_time_left_is_that_of_the_blocks_read_now() -> None:
    half = Advance("toy", 1, 1, 60, 100, 0, 10.0, blocks_resumed=50)
    assert "40 s left" in str(half)


def test_fold_errors_leave_a_checkpoint_too(tmp_path: Path) -> None:
    matrix = ToyMatrix(values())
    plan = toy_plan(matrix, step=STEP, span=SPAN)
    with pytest.raises(RuntimeError, match="cannot fold"):
        run(plan, matrix, accumulators={"s": Fails(25)}, execution=execution(tmp_path, lanes=1))
    assert [p.name for p in tmp_path.iterdir()] == ["pass-toy"]


# -- data that changed while nobody looked -----------------------------------------------------


def cut_short(folder: Path, source: Any, pass_number: int = 1, **settings: Any) -> None:
    """A fit that is interrupted shortly before the end of one of its passes."""

    def stop(advance: Advance) -> None:
        late = advance.blocks_done >= advance.n_blocks - 2
        if advance.pass_number == pass_number and late:
            raise InterruptedError("the night is over")

    with pytest.raises(InterruptedError):
        PCA(3, scheduler="threads", checkpoint=str(folder), progress=stop, **settings).fit(source)


def stored(path: Path, x: np.ndarray, rows: int = 50) -> str:
    zarr.create_array(
        str(path), shape=x.shape, chunks=(rows, x.shape[1]), dtype=x.dtype, overwrite=True
    )[...] = x
    return str(path)


def sources(tmp_path: Path, kind: str, x: np.ndarray) -> Any:
    path = str(tmp_path / "x.zarr")
    if kind == "memory":
        return x
    stored(tmp_path / "x.zarr", x)
    if kind == "joined":
        return streampca.concat_samples(streampca.open(path), streampca.open(path))
    if kind == "selected":
        return select(streampca.open(path), np.arange(0, len(x), 2))
    if kind == "dask":
        import dask.array as da

        return da.from_zarr(path)
    if kind == "labelled dask":
        import xarray

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Zarr's, of consolidated metadata in format 3
            xarray.Dataset({"v": (("a", "b"), x)}).to_zarr(tmp_path / "l.zarr", mode="w")
            return xarray.open_dataset(tmp_path / "l.zarr", engine="zarr", chunks={"a": 50})["v"]
    return streampca.open(path)


@pytest.mark.parametrize("kind", ["zarr", "memory", "dask", "labelled dask", "joined", "selected"])
def test_a_source_rewritten_in_place_is_read_again(
    tmp_path: Path, monkeypatch: Any, kind: str
) -> None:
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 16 * 1024)
    x = np.random.default_rng(0).normal(size=(4000, 6))
    cut_short(tmp_path / "c", sources(tmp_path, kind, x))
    x[17, 3] += 1
    changed = sources(tmp_path, kind, x)
    settings: dict[str, Any] = {"scheduler": "threads", "progress": False}
    again = PCA(3, checkpoint=str(tmp_path / "c"), **settings).fit(changed)
    assert again.cost_[0].resumed_blocks == 0
    plain = PCA(3, **settings).fit(changed)
    assert same_bits(again.explained_variance_, plain.explained_variance_)


def test_another_missing_code_or_stacking_is_another_matrix(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 16 * 1024)
    x = np.random.default_rng(0).integers(-1, 3, size=(4000, 6)).astype("i1")
    path = stored(tmp_path / "x.zarr", x)
    cut_short(tmp_path / "c", path, missing="mean", missing_value=-1)
    settings: dict[str, Any] = {"scheduler": "threads", "progress": False, "missing": "mean"}
    again = PCA(3, checkpoint=str(tmp_path / "c"), **settings).fit(path)
    assert again.cost_[0].resumed_blocks == 0
    assert streampca.open(path).fingerprint() == streampca.open(path).fingerprint()
    assert streampca.open(path, dim=1).fingerprint() != streampca.open(path).fingerprint()


def test_a_relative_path_is_the_same_source(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 16 * 1024)
    path = stored(tmp_path / "x.zarr", np.random.default_rng(0).normal(size=(4000, 6)))
    cut_short(tmp_path / "c", path)
    monkeypatch.chdir(tmp_path)
    here = PCA(3, checkpoint="c", scheduler="threads", progress=False)
    assert here.plan("x.zarr").to_json() == here.plan(path).to_json()
    assert here.fit("./x.zarr").cost_[0].resumed_blocks > 0
