"""One long label among many: none of the others becomes as wide, in memory or in a file."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import streampca
from streampca.errors import InvalidInputError
from streampca.matrix.columns import WIDE, label_array
from streampca.store import array_files, read_bundle, write_bundle

P, LONG = 2000, "z" * 20_000
NAMES = [f"f{i}" for i in range(P - 1)] + [LONG]
VALUES = np.random.default_rng(0).normal(size=(20, P))


def frame() -> Any:
    return pd.DataFrame(VALUES, columns=NAMES)


def array() -> Any:
    return xr.DataArray(VALUES, dims=("s", "f"), coords={"f": np.array(NAMES, object)})


@pytest.mark.parametrize("make", [frame, array])
def test_a_model_of_such_data_is_saved_and_used(make: Any, tmp_path: Path) -> None:
    """They were 160 MB in memory, and no saved model of them could be loaded."""
    x = make()
    streampca.PCA(2).fit(VALUES[:, :9])  # loads what is loaded lazily
    tracemalloc.start()
    try:
        streampca.PCA(2).fit(x).save(tmp_path / "model")
        model = streampca.load(tmp_path / "model")
        scores = np.asarray(model.transform(x))
        assert tracemalloc.get_traced_memory()[1] < 40e6
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(
        scores.T @ scores, np.diag(19 * model.explained_variance_), atol=1e-8
    )
    assert model.result_.labels.features.names() == NAMES
    assert model.result_.to_xarray()["components"].dims[0] == "component"
    other = x.rename(columns={"f5": "q"}) if make is frame else x.isel(f=range(P)[::-1])
    with pytest.raises(InvalidInputError, match="feature"):
        model.transform(other)


def test_few_or_short_labels_stay_plain_strings() -> None:
    assert label_array(NAMES[:-1]).dtype == "U5"
    assert label_array([LONG, "a"]).dtype == "U20000"
    assert label_array([1, 2]).dtype.kind == "i"
    assert label_array(()).shape == (0,)
    wide = ["a" * 16] * (WIDE // 64)
    assert label_array(wide).dtype == "U16"
    assert label_array([*wide, "b"]).dtype.kind == "T"


@pytest.mark.parametrize("kind", ["U", "T", "O"])
def test_chunks_of_long_labels_are_shorter(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a chunk were more than a reader decodes at once."""
    monkeypatch.setattr(array_files, "FREE", 1 << 17)
    rng = np.random.default_rng(0)
    names = ["".join(map(chr, rng.integers(97, 123, 500).tolist())) for _ in range(400)]
    dtype: Any = {"U": "U500", "T": np.dtypes.StringDType(), "O": object}[kind]
    path = write_bundle(tmp_path / "b", {"names": np.array(names, dtype), "few": names[:2]}, {})
    arrays, _ = read_bundle(path)
    assert arrays["names"].tolist() == names
    assert arrays["names"].dtype.kind == "T"
    assert arrays["few"].dtype == "U500"
    with pytest.raises(InvalidInputError, match="Shorten them"):
        write_bundle(tmp_path / "c", {"names": np.array(["z" * (1 << 18), "a"])}, {})
    assert [one.name for one in tmp_path.iterdir()] == ["b"]
