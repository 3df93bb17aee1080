"""A refresh that is ended in the middle: what it leaves, and how little is done again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr

import streampca
from streampca.cli import main
from streampca.models.pca import kept_spans
from streampca.operations import least_work
from streampca.passes.checkpoint import Checkpoint
from streampca.passes.execution import Fold
from streampca.sources.zarr.reader import ZarrReader

P, ROWS, CHUNKS = 5, 8, 120  # one chunk is one block
SPAN, LANES, INTERVAL = 7, 2, 3  # blocks of a span, lanes of the plan, spans between checkpoints
IN_FLIGHT = LANES * (SPAN + 2)  # spans that were not merged, and what was read ahead


ENDS = [
    ("terminated", 70),
    ("killed", 70),
    *(  # 20 of each, with one pass and with five spans
        pytest.param(how, 50 + 5 * i, marks=pytest.mark.soak)
        for how in ("terminated", "interrupted", "killed")
        for i in range(10)
    ),
]


@pytest.fixture
def _handler() -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs have none
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    array = zarr.create_array(
        str(tmp_path / "x.zarr"), shape=(ROWS * CHUNKS, P), chunks=(ROWS, P), dtype="f8"
    )
    array[...] = np.random.default_rng(1).standard_normal(array.shape) * np.linspace(3, 1, P) + 2
    path = tmp_path / "job.yaml"
    model = {"n_components": 2, "batch_size": ROWS}
    for name in ("models", "beside"):
        entries = {
            "source": {"path": str(tmp_path / "x.zarr")},
            "model": model,
            "settle": 0,
            "store": str(tmp_path / name),
        }
        path.with_name(f"{name}.yaml").write_text(yaml.safe_dump(entries))
    return path.with_name("models.yaml")


def end_at(block: int, monkeypatch: pytest.MonkeyPatch, by: int = signal.SIGTERM) -> list[Any]:
    """This process gets a signal when it reads that many blocks; what was read is listed."""
    read, seen = ZarrReader.read, []

    def counted(self: Any, index: Any, buffer: Any = None) -> Any:
        seen.append(index[0])
        if len(seen) == block:
            os.kill(os.getpid(), by)
        return read(self, index, buffer)

    monkeypatch.setattr(ZarrReader, "read", counted)
    return seen


def code_of(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as stop:
        return int(stop.code or 0)


def same_as_uninterrupted(job: Path) -> None:
    assert main(["refresh", str(job.with_name("beside.yaml")), "-q"]) == 0
    a, b = (
        streampca.ModelStore(job.with_name(name)).latest().state().state_to_saved()[0]
        for name in ("models", "beside")
    )
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.usefixtures("_handler")
@pytest.mark.parametrize("spans", [1, 5], ids=["one pass", "five spans that are kept"])
@pytest.mark.parametrize(("how", "blocks"), ENDS)
def test_at_most_one_checkpoint_interval_is_done_again(
    how: str, blocks: int, spans: int, job: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A SIGTERM, or Ctrl-C, leaves a checkpoint of all that was merged and exits with 143, or 130;
    after a death without a word there is the last one that was due."""
    monkeypatch.setattr(kept_spans, "LEAST_NBYTES", 0)
    monkeypatch.setattr(kept_spans, "MOST", spans)
    if how == "killed":
        monkeypatch.setattr(least_work, "EVERY", 0.0)
    with monkeypatch.context() as patch:
        seen = end_at(blocks, patch, signal.SIGINT if how == "interrupted" else signal.SIGTERM)
        if how == "killed":
            save = lambda self, n, total: n % INTERVAL or self.save(n, total)  # noqa: E731
            patch.setattr(Checkpoint, "save_if_due", save)
            patch.setattr(Fold, "interrupted", lambda self, error: setattr(self, "_closed", True))
        assert code_of(["refresh", str(job), "-q"]) == (130 if how == "interrupted" else 143)
        first = len(seen)
    assert blocks <= first < CHUNKS, "a block was under way when the signal came"
    left = sorted(one.name for one in job.with_name("models.work").iterdir())
    left.remove("streampca-work.json")
    expected = ["pass-append"] if spans == 1 else ["pass-append", "spans"]
    assert left == expected or (blocks != 70 and left == expected[1:] == ["spans"])
    assert not job.with_name("models").exists()
    assert main(["refresh", str(job), "-q"]) == 0
    told = json.loads(capsys.readouterr().out)
    again = first + told["chunk_reads"] - CHUNKS
    allowed = IN_FLIGHT + (INTERVAL * SPAN if how == "killed" else 0)
    assert 0 <= again <= allowed
    assert told["chunk_reads"] == CHUNKS - told["resumed_blocks"]
    assert not job.with_name("models.work").exists()
    same_as_uninterrupted(job)


@pytest.mark.usefixtures("_handler")
def test_a_terminated_fit_leaves_a_checkpoint(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """As a refresh does: 143, and the same command goes on from there, to the same answer."""
    before, folder = signal.getsignal(signal.SIGTERM), job.with_name("kept")
    words = [
        "fit",
        str(job.with_name("x.zarr")),
        "-k",
        "2",
        "--json",
        "--model",
        "incremental-pca",
        "--batch-size",
        str(ROWS),
    ]
    with monkeypatch.context() as patch:
        first = end_at(70, patch)
        assert code_of([*words, "--checkpoint", str(folder)]) == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert f"--checkpoint {folder} the same command goes on" in capsys.readouterr().err
    assert [one.name.split("-")[0] for one in folder.iterdir()] == ["pass"]
    with monkeypatch.context() as patch:
        again = end_at(0, patch)  # counts only
        assert main([*words, "--checkpoint", str(folder)]) == 0
    assert len(first) < CHUNKS <= len(first) + len(again) <= CHUNKS + IN_FLIGHT
    resumed = json.loads(capsys.readouterr().out)
    assert main(words) == 0
    whole = json.loads(capsys.readouterr().out)
    np.testing.assert_array_equal(resumed["explained_variance"], whole["explained_variance"])


@pytest.mark.usefixtures("_handler")
def test_no_resume_begins_anew(job: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with monkeypatch.context() as patch:
        end_at(70, patch)
        with pytest.raises(SystemExit):
            main(["refresh", str(job), "-q"])
    assert main(["refresh", str(job), "-q", "--no-resume"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["resumed_blocks"], told["chunk_reads"]) == (0, CHUNKS)
    same_as_uninterrupted(job)
