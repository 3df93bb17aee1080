"""What a night's messages say: which rows, which file, and the line of the job file."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from streampca.cli import main
from streampca.operations import refresh as refresh_module
from streampca.store.backend import LocalBackend

X = np.random.default_rng(0).standard_normal((400, 4))


class Night:
    """A job on a Zarr array in chunks of 20 rows."""

    def __init__(self, folder: Path, **model: Any) -> None:
        self.array = zarr.create_array(folder / "x.zarr", shape=X.shape, chunks=(20, 4), dtype="f8")
        self.array[:] = X
        self.folder, self.file = folder, folder / "job.yaml"
        self.file.write_text(
            json.dumps(
                {
                    "source": {"path": str(folder / "x.zarr")},
                    "model": {"n_components": 2, **model},
                    "store": str(folder / "models"),
                    "settle": 0,
                }
            )
        )

    def run(self) -> int:
        return main(["refresh", str(self.file)])


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (np.nan, "IncrementalPCA", "sample 430 holds NaN in feature 2. model.missing: mean"),
        (np.nan, "PCA", "sample 430 holds NaN in feature 2. model.missing: mean"),
        (-np.inf, "IncrementalPCA", "sample 430 holds infinity in feature 2. Replace it by NaN"),
        (np.nan, "SparsePCA", "sample 430 holds NaN in feature 2."),
    ],
)
def test_a_cell_that_is_no_number_is_named_by_its_row(
    tmp_path: Path, value: float, kind: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    night = Night(tmp_path, kind=kind)
    assert night.run() == 0
    rows = X[:60].copy()
    rows[30, 2] = value
    night.array.append(rows)
    assert night.run() == 65
    told = capsys.readouterr().err
    assert words in told
    assert "missing='" not in told
    if "missing: mean" in words:
        job = json.loads(night.file.read_text())
        job["model"]["missing"] = "mean"
        night.file.write_text(json.dumps(job))
        assert night.run() == 0


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        ((5,), "chunks of rows 100 to 119 are absent"),
        ((5, 6, 9), "chunks of rows 100 to 139, 180 to 199 are absent"),
        ((19,), "chunks of rows 380 to 399 are absent"),
        ((1, 3, 5, 7, 9), "rows 20 to 39, 60 to 79, 100 to 119 and 2 further spans are absent"),
    ],
)
def test_absent_chunks_are_named_by_their_rows_alone(
    tmp_path: Path, absent: tuple[int, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    night = Night(tmp_path)
    for number in absent:
        os.unlink(tmp_path / "x.zarr" / "c" / str(number) / "0")
    assert night.run() == 0
    assert words in capsys.readouterr().err


def test_a_log_that_may_not_be_changed_is_not_a_file_system_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, link = LocalBackend(tmp_path), os.link

    def refused(source: Any, target: Any, **more: Any) -> None:
        if Path(target).parent.name == "log":
            raise PermissionError(errno.EPERM, "Operation not permitted", source, None, target)
        link(source, target, **more)

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(PermissionError, match=r"not permitted: '.*/log/1'"):
        backend.put_if_absent("log/1", b"x")
    assert backend.put_if_absent("other/1", b"x")

    def nowhere(source: Any, target: Any, **more: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", source, None, target)

    monkeypatch.setattr(os, "link", nowhere)
    with pytest.raises(OSError, match="no hard links"):
        backend.put_if_absent("log/2", b"x")


def test_a_full_disk_names_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    night = Night(tmp_path)

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(refresh_module, "look", full)
        assert night.run() == 74
        told = capsys.readouterr().err
        assert "No space left" in told
        assert f"{tmp_path}/models, or temporary files in" in told
    monkeypatch.setattr("streampca.models.pca.pca.PCA.fit", full)
    assert main(["fit", str(tmp_path / "x.zarr"), "-k", "2", "-o", str(tmp_path / "m")]) == 74
    assert f"{tmp_path}/m, or temporary files in" in capsys.readouterr().err
