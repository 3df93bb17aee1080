"""Sums of spans that are kept: a changed chunk costs its span, with the bits of a full fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import streampca
from streampca.models.pca import kept_spans
from streampca.operations import least_work
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
P, ROWS = 6, 8


class Growing:
    """A store that grows and is written to, and jobs over it."""

    def __init__(self, folder: Path, rows: int = 100, **model: Any) -> None:
        self.folder, self.rng = folder, np.random.default_rng(4)
        self.array = zarr.create_array(
            str(folder / "x.zarr"), shape=(0, P), chunks=(ROWS, 3), dtype="f8"
        )
        self.append(rows)
        self.model = {"n_components": 3, **model}

    def append(self, rows: int) -> None:
        self.array.append(self.rng.standard_normal((rows, P)) * np.linspace(4, 1, P) + 3)

    def run(self, name: str = "models", **more: Any) -> Any:
        options = {key: more.pop(key) for key in ("verify", "progress") if key in more}
        entries = {
            "source": {"path": str(self.folder / "x.zarr")},
            "model": self.model,
            "store": str(self.folder / name),
            "settle": 0,
        } | more
        return refresh(check_job(entries, "job"), **options)

    def version(self, name: str = "models") -> Any:
        return streampca.ModelStore(self.folder / name).latest()

    def spans(self) -> Any:
        """All that are kept, in whatever versions."""
        versions = {one.id: one for one in streampca.ModelStore(self.folder / "models").versions()}
        return least_work.spans_of(self.version(), versions)

    def check(self) -> None:
        """Against NumPy, and the total against the spans that are kept."""
        X = self.array[...]
        result = self.version().result()
        variance = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:3] ** 2 / (len(X) - 1)
        np.testing.assert_allclose(np.sort(result.explained_variance)[::-1], variance, rtol=1e-12)
        spans = self.spans()
        assert [span.rows[0] for span in spans] == [0, *(span.rows[1] for span in spans[:-1])]
        assert spans[-1].rows[1] == len(X)
        same(kept_spans.merged([span.state for span in spans]), self.version().state())


def same(a: Any, b: Any) -> None:
    """Two states, bit for bit."""
    first, second = (one.state_to_saved()[0] for one in (a, b))
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


@pytest.fixture
def growing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Growing:
    monkeypatch.setattr(kept_spans, "LEAST_NBYTES", 0)
    monkeypatch.setattr(kept_spans, "MOST", 5)
    return Growing(tmp_path)


@pytest.mark.parametrize("state", ["scatter", "tsqr"])
@pytest.mark.parametrize("verify", ["stat", "full"])
def test_a_changed_chunk_costs_its_span_and_gives_the_bits_of_a_full_fit(
    verify: str, state: str, growing: Growing
) -> None:
    growing.model["state"] = state
    whole = growing.run(verify=verify)
    assert (whole.how, whole.chunk_reads) == ("full", 26)
    growing.check()
    growing.array[41, 2] = 77.0
    done = growing.run(verify=verify, align="none")
    assert (done.status, done.change, done.how) == ("published", "changed", "spans")
    assert "1 of 5 spans of rows are read again" in done.why
    assert done.chunk_reads <= 6
    growing.check()
    assert growing.run("another").how == "full"
    same(growing.version().state(), growing.version("another").state())
    for name in ("components", "explained_variance", "mean"):
        a, b = (getattr(growing.version(one).result(), name) for one in ("models", "another"))
        np.testing.assert_array_equal(a, b)
    assert growing.run(verify="full").status == "unchanged"


def test_appended_rows_make_spans_of_their_own_and_neighbours_are_joined(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nights of appends, changes of old and of new rows, and both at once."""
    monkeypatch.setattr(least_work, "LINKS", 2)
    growing.run()
    for night in range(8):
        growing.append(5 + night)
        if night % 3 == 1:
            growing.array[int(growing.rng.integers(100)), 1] += 1.0
        if night % 3 == 2:
            growing.array[growing.array.shape[0] - 7 - night, 0] += 1.0  # of the night before
        done = growing.run()
        assert done.how == ("append" if night % 3 == 0 else "spans"), night
        assert done.new_samples == 5 + night
        assert done.drift["error_ratio"] == pytest.approx(1, abs=3)
        growing.check()
        assert 5 <= len(growing.spans()) <= 5 + least_work.LINKS
    before = growing.version()
    growing.array[growing.array.shape[0] - 20] += 1.0
    growing.run()
    growing.array[growing.array.shape[0] - 20] -= 1.0
    growing.run()
    same(growing.version().state(), before.state())  # joined parts are folded as they were


def test_an_append_writes_its_own_span_alone(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third version holds all of them, and where one between is gone all rows are read."""
    monkeypatch.setattr(least_work, "LINKS", 2)
    growing.run()
    held = []
    for _ in range(6):
        growing.append(5)
        assert growing.run().how == "append"
        growing.check()
        held.append(len(growing.version().read("spans")[1]["parts"]))
    assert held == [1, 1, 5, 1, 1, 5]
    growing.append(5)
    growing.run(keep=2)  # so few that the next one must hold all: what it needs is still there
    growing.append(5)
    growing.run(keep=2)
    assert len(growing.version().read("spans")[1]["parts"]) == 5
    for _ in range(2):
        growing.append(5)
        growing.run()
    streampca.ModelStore(growing.folder / "models").gc(1, grace=0)
    growing.array[3, 3] += 1.0
    done = growing.run()
    assert (done.how, "no sums of spans were kept" in done.why) == ("full", True)
    growing.check()


@pytest.mark.parametrize("name", ["manifest.json", "files.zip"])
def test_where_the_sums_of_an_earlier_version_are_damaged_all_rows_are_read(
    name: str, growing: Growing
) -> None:
    growing.run()
    first = growing.version()
    growing.append(5)
    assert growing.run().how == "append"
    file = growing.folder / "models" / "versions" / first.id / name
    file.write_bytes(file.read_bytes()[:-9])
    growing.array[3, 3] += 1.0
    done = growing.run()
    assert (done.how, "sums" in done.why) == ("full", True)
    growing.check()


def test_what_was_kept_without_spans_or_within_no_bytes_is_read_again(growing: Growing) -> None:
    growing.run(spans=0)
    assert "spans" not in growing.version().parts
    growing.array[3, 3] = 5.0
    done = growing.run()
    assert (done.how, "no sums of spans were kept" in done.why) == ("full", True)
    assert "spans" in growing.version().parts
    growing.array[3, 3] = 6.0
    assert growing.run(spans=0).how == "full"
    assert "spans" not in growing.version().parts


def test_the_bytes_that_are_kept_are_bounded() -> None:
    estimator = streampca.IncrementalPCA(3)
    assert kept_spans.most_spans(estimator, (10**9, 256), "64MiB") == kept_spans.MOST
    assert kept_spans.most_spans(estimator, (10**9, 1000), "64MiB") == 8
    assert kept_spans.most_spans(estimator, (10**9, 5000), "64MiB") == 0
    limited = streampca.IncrementalPCA(3, memory_limit="128MiB")
    assert kept_spans.most_spans(limited, (10**9, 1000), "64MiB") == 2
    assert (
        kept_spans.with_room_for(limited, (10**9, 1000), 2).memory_limit < (128 << 20) - 16 * 10**6
    )
    assert kept_spans.divide(100, 8, 1, 5) == ((0, 100),)
    edges = kept_spans.divide(10**7 + 3, 1000, 1000, 16)
    assert len(edges) == 16
    assert edges[-1][1] == 10**7 + 3
    assert all(a % 1000 == 0 for a, _ in edges)


def test_an_interrupted_fit_goes_on_in_the_span_it_was_in(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing.append(900)
    growing.model["batch_size"] = ROWS
    advances: list[Any] = []

    def stop(at: Any) -> None:
        advances.append(at)
        if len(advances) == 70:
            raise SystemExit(143)

    with pytest.raises(SystemExit):
        growing.run(progress=stop)
    done = growing.run()
    assert done.status == "published"
    assert 40 < done.resumed_blocks < 75
    blocks = growing.array.shape[0] // ROWS
    assert done.chunk_reads <= 2 * (blocks + 1 - done.resumed_blocks)
    assert not (growing.folder / "models.work").exists()
    growing.check()
    growing.run("another")
    same(growing.version().state(), growing.version("another").state())
