"""missing_chunks="mask": an absent chunk is missing cells, however chunks are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import zarr

import streampca
from streampca.errors import DamagedSourceError, InvalidInputError, NonFiniteError
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh

ROWS, P = 40, 6
X = np.random.default_rng(0).integers(1, 90, (ROWS, P)).astype("f8")
LAYOUTS: dict[str, dict[str, Any]] = {
    "v2": {"zarr_format": 2},
    "v3": {},
    "shards": {"shards": (20, P)},
    "filtered": {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]},  # which Zarr decodes
}
GONE = {"shards": slice(20, 40)}  # a shard holds two chunks


def with_a_gap(path: Path, layout: str, dtype: str) -> tuple[str, Any]:
    """(the array without its chunk of rows 20 to 29, what it then holds, NaN where nothing)."""
    array = zarr.create_array(
        str(path), shape=X.shape, chunks=(10, P), dtype=dtype, fill_value=7, **LAYOUTS[layout]
    )
    array[...] = X
    rows = GONE.get(layout, slice(20, 30))
    key = array.metadata.encode_chunk_key((rows.start // (rows.stop - rows.start), 0))
    (path / key).unlink()
    expected = X.copy()
    expected[rows] = np.nan
    return str(path), expected


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_absent_chunks_are_missing_cells(layout: str, dtype: str, tmp_path: Path) -> None:
    path, expected = with_a_gap(tmp_path / "x", layout, dtype)
    code = -9 if dtype == "i2" else None
    matrix = streampca.open(path, missing_chunks="mask", missing_value=code)
    pca = streampca.PCA(2, missing="mean").fit(matrix)
    filled = np.where(np.isnan(expected), np.nanmean(expected, axis=0), expected)
    filled -= filled.mean(axis=0)
    variance = np.linalg.svd(filled, compute_uv=False)[:2] ** 2 / (ROWS - 1)
    np.testing.assert_allclose(pca.explained_variance_, variance, rtol=1e-6)
    with pytest.raises(NonFiniteError, match="missing='raise'"):
        streampca.PCA(2).fit(matrix)
    with pytest.raises(DamagedSourceError, match="'mask' for missing cells"):
        streampca.PCA(2).fit(streampca.open(path, missing_value=code))
    model = streampca.HardImpute(1, random_state=0, max_passes=3)
    assert np.isfinite(model.fit(matrix).explained_variance_).all()


def test_chunks_never_written_into_a_shard_are_missing_cells(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    array = zarr.create_array(path, shape=X.shape, chunks=(10, P), shards=(20, P), dtype="f8")
    array[:30] = X[:30]
    values = streampca.open(path, missing_chunks="mask").read(0, 0, ROWS)
    np.testing.assert_array_equal(values[:30], X[:30])
    assert np.isnan(values[30:]).all()


def test_packed_integers_have_their_own_code(tmp_path: Path) -> None:
    path, expected = with_a_gap(tmp_path / "x", "v3", "i2")
    with pytest.raises(InvalidInputError, match="no number means missing"):
        streampca.open(path, missing_chunks="mask")
    with pytest.raises(InvalidInputError, match="no number means missing"):
        streampca.open(path, missing_chunks="mask", missing_value=40_000)
    zarr.open_array(path).attrs.update({"scale_factor": 0.5, "_FillValue": -99})
    values = streampca.open(path, missing_chunks="mask").read(0, 0, ROWS)
    np.testing.assert_array_equal(values, expected / 2)


def test_of_sparse_groups_nothing_is_known(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    group = zarr.create_group(path, attributes={"encoding-type": "csr_matrix", "shape": [3, 4]})
    matrix = scipy.sparse.random(3, 4, 0.5, format="csr", random_state=0)
    for name in ("data", "indices", "indptr"):
        group.create_array(name, data=getattr(matrix, name))
    with pytest.raises(InvalidInputError, match="'mask' of a sparse matrix"):
        streampca.open(path, missing_chunks="mask")


@pytest.mark.parametrize("policy", ["error", "fill", "mask"])
def test_a_refresh_does_with_a_vanished_chunk_what_its_policy_says(
    policy: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "x")
    array = zarr.create_array(path, shape=X.shape, chunks=(10, P), dtype="f8", fill_value=7)
    array[...] = X
    entries = {
        "source": {"path": path, "missing_chunks": policy},
        "settle": 0,
        "model": {"n_components": 2, "missing": "mean"},
        "store": str(tmp_path / "models"),
    }
    job = check_job(entries, "job")
    assert refresh(job).status == "published"
    (tmp_path / "x" / "c" / "2" / "0").unlink()
    if policy == "error":
        with pytest.raises(DamagedSourceError, match="fill or mask"):
            refresh(job)
        return
    done = refresh(job)
    assert (done.status, done.change, done.how) == ("published", "vanished", "full")
    expected = X.copy()
    rest = np.delete(X, slice(20, 30), axis=0)
    expected[20:30] = 7 if policy == "fill" else rest.mean(axis=0)
    variance = np.linalg.svd(expected - expected.mean(axis=0), compute_uv=False)[:2] ** 2
    stored = streampca.ModelStore(job.store).latest().result().explained_variance
    np.testing.assert_allclose(np.sort(stored)[::-1], variance / (ROWS - 1), rtol=1e-12)
    assert refresh(job).status == "unchanged"
