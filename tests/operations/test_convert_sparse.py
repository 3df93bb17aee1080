"""Sparse matrices are converted as they are: AnnData in Zarr, nothing made dense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import zarr

import streampca
from streampca.errors import InvalidInputError
from streampca.operations.convert import convert
from streampca.store import anndata

X = scipy.sparse.random_array((300, 70), density=0.1, rng=0, format="csr", dtype=np.float32)


def quietly(source: Any, path: Path, **more: Any) -> Any:
    return convert(source, path, progress=False, **more)


@pytest.mark.parametrize("chunk", [64, 1 << 19])
@pytest.mark.parametrize("format_", ["csr", "csc"])
def test_entries_labels_and_codes_come_back(
    tmp_path: Path, chunk: int, format_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anndata, "CHUNK_ENTRIES", chunk)
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 4096)
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_LENGTH", 8)
    scipy.sparse.save_npz(tmp_path / "x.npz", X.asformat(format_), compressed=False)
    source = streampca.open(tmp_path / "x.npz", missing_value=-1)
    done = quietly(source, tmp_path / "out.zarr")
    assert done.plan.passes[0].n_blocks > 3
    assert done.reads == done.plan.reads
    found: Any = streampca.open(str(tmp_path / "out.zarr"))
    assert found.stored == (format_ == "csc")
    assert found.missing_value == -1
    assert found.dtype == np.float32
    dense = X.toarray()
    for axis in (0, 1):
        wanted = dense[:, 3:60] if axis else dense[3:60]
        np.testing.assert_array_equal(found.read(axis, 3, 60).toarray(), wanted)
    group = zarr.open_group(str(tmp_path / "out.zarr"), mode="r")
    assert group.attrs["encoding-type"] == "anndata"
    assert group["X"].attrs["encoding-type"] == f"{format_}_matrix"
    assert group["X/data"].chunks == (chunk,)
    assert group["X/indices"].dtype == group["X/indptr"].dtype == np.int32


def test_a_market_file_keeps_its_order(tmp_path: Path) -> None:
    scipy.io.mmwrite(tmp_path / "x.mtx", X)
    quietly(str(tmp_path / "x.mtx"), tmp_path / "out.zarr")
    whole = streampca.open(str(tmp_path / "out.zarr")).read(0, 0, 300).toarray()
    wanted = scipy.io.mmread(tmp_path / "x.mtx", spmatrix=False).toarray()
    np.testing.assert_array_equal(whole, wanted)


def test_nothing_else_is_replaced_and_nothing_half_written_stays(tmp_path: Path) -> None:
    out = tmp_path / "out.zarr"
    quietly(X, out)
    with pytest.raises(InvalidInputError, match="is there already"):
        quietly(X, out)
    quietly(2 * X, out, overwrite=True)
    np.testing.assert_array_equal(
        streampca.open(str(out)).read(0, 0, 300).toarray(), 2 * X.toarray()
    )
    (tmp_path / "other").mkdir()
    with pytest.raises(InvalidInputError, match="is there already"):
        quietly(X, tmp_path / "other", overwrite=True)
    with pytest.raises(InvalidInputError, match="samples_major"):
        quietly(X, tmp_path / "turned", samples_major=False)

    def stop(advance: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(X, tmp_path / "cut.zarr", progress=stop)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["other", "out.zarr"]
