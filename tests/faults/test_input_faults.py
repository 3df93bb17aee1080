"""F8, F17, F18: values, types, shapes and settings that cannot be used, or only with care."""

from __future__ import annotations

import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import streampca
from streampca.cli import main
from streampca.errors import InvalidInputError, NonFiniteError, StreamPCAError
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh

N, P = 60, 8


def data() -> Any:
    return np.random.default_rng(8).standard_normal((N, P)) * np.linspace(3, 1, P) + 2


def stored(place: Path, values: Any, **more: Any) -> str:
    options: dict[str, Any] = {"chunks": (15, 4)[: values.ndim], **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # types that Zarr v3 has no specification for
        array = zarr.create_array(
            str(place), shape=values.shape, dtype=values.dtype, overwrite=True, **options
        )
    if values.size:
        array[...] = values
    return str(place)


# -- F8: what is no number -----------------------------------------------------------------------


def holes(value: float) -> Any:
    X = data()
    X[3, 1] = X[20, 1] = X[59, 7] = value
    return X


def an_empty_block() -> Any:
    X = data()
    X[15:30] = np.nan
    return X


def an_empty_column() -> Any:
    X = data()
    X[:, 2] = np.nan
    return X


SOLVERS = ["scatter", "tsqr", "gram", "randomized"]


@pytest.mark.filterwarnings("ignore::streampca.errors.DroppedFeaturesWarning")
@pytest.mark.filterwarnings("ignore::streampca.errors.AccuracyWarning")
@pytest.mark.parametrize("solver", [one for one in SOLVERS if one != "tsqr"])  # takes no holes
@pytest.mark.parametrize("what", ["NaN", "code", "block", "column", "constant"])
def test_no_result_has_nan(what: str, solver: str, tmp_path: Path) -> None:
    """With a policy for holes; and a column that is all the same."""
    X = {
        "NaN": holes(np.nan),
        "code": holes(-9),
        "block": an_empty_block(),
        "column": an_empty_column(),
        "constant": np.where(np.arange(P) == 2, 5.0, data()),
    }[what]
    code = -9 if what == "code" else None
    place = stored(tmp_path / "x", X)
    more = {} if solver != "randomized" else {"max_passes": 12, "random_state": 0}
    model = streampca.PCA(3, svd_solver=solver, missing="mean", scale="std", **more)
    model.fit(streampca.open(place, missing_value=code))
    scores = model.transform(streampca.open(place, missing_value=code))
    for name in ("components_", "explained_variance_", "explained_variance_ratio_", "mean_"):
        found = np.asarray(getattr(model, name))
        absent = np.isnan(found[..., 2]) if what == "column" and found.shape[-1] == P else False
        assert np.all(np.isfinite(found) | np.isnan(found) & np.expand_dims(absent, -1)), name
    assert np.all(np.isfinite(scores))
    filled = np.where(X == -9, np.nan, X) if what == "code" else X
    kept = [j for j in range(P) if not (what in ("column", "constant") and j == 2)]
    filled = filled[:, kept]
    mean = np.nanmean(filled, axis=0)
    C = np.where(np.isnan(filled), 0, filled - mean)
    seen = np.sum(~np.isnan(filled), axis=0)
    C /= np.sqrt(np.nansum((filled - mean) ** 2, axis=0) / (seen - 1))
    expected = np.linalg.svd(C, compute_uv=False)[:3] ** 2 / (N - 1)
    np.testing.assert_allclose(model.explained_variance_, expected, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_without_a_policy_it_is_refused_by_name(
    value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = stored(tmp_path / "x", holes(value))
    for solver in SOLVERS:
        with pytest.raises(NonFiniteError, match="feature 1"):
            streampca.PCA(3, svd_solver=solver).fit(place)
    if np.isinf(value):
        with pytest.raises(NonFiniteError, match="feature 1"):
            streampca.PCA(3, missing="mean").fit(place)
    assert main(["fit", place, "-k", "2", "-o", str(tmp_path / "model")]) == 65
    assert "feature 1" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


# -- F17: types and shapes -----------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, str]] = {
    "object": (np.array([["a", 1.0]] * 4, dtype=object), "dtype object cannot be used"),
    "text": (np.array([["a", "b"]] * 4), "cannot be used; expected real numbers"),
    "complex": (data() * 1j, "Complex data not supported"),
    "dates": (np.zeros((4, 3), "M8[s]"), "cannot be used; expected real numbers"),
    "long double": (data().astype("longdouble"), "cannot be used; expected real numbers"),
    "one dimension": (data()[:, 0], "Expected 2D array, got 1D array"),
    "three dimensions": (data().reshape(N, 4, 2), "Name the sample dimension"),
    "no rows": (data()[:0], r"0 sample\(s\)"),
    "no columns": (data()[:, :0], r"0 feature\(s\)"),
    "one row": (data()[:1], "1 sample"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_before_anything_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values, words = REFUSED[name]

    def read(*_: Any) -> Any:
        raise AssertionError("read")

    monkeypatch.setattr(streampca.sources.memory.arrays.ArrayReader, "read", read)
    with pytest.raises(StreamPCAError, match=words):
        streampca.PCA(1).fit(values)


@pytest.mark.parametrize("dtype", [">f8", ">f4", "<f4", "f2", "?", "u1", "i1", ">i2", "u4", "i8"])
def test_every_real_type_gives_what_float64_gives(dtype: str, tmp_path: Path) -> None:
    X = (np.abs(data()) * 9).round()
    X = (X > 20 if dtype == "?" else np.minimum(X, 120)).astype(dtype)
    place = stored(tmp_path / "x", X, zarr_format=2)
    found = streampca.PCA(3).fit(place)
    C = X.astype("f8") - X.astype("f8").mean(axis=0)
    expected = np.linalg.svd(C, compute_uv=False)[:3] ** 2 / (N - 1)
    np.testing.assert_allclose(found.explained_variance_, expected, rtol=1e-5)
    if dtype[0] == ">":
        native = streampca.PCA(3).fit(X.astype(X.dtype.newbyteorder("=")))
        np.testing.assert_array_equal(found.components_, native.components_)


def test_small_integers_do_not_overflow() -> None:
    """1000 products of 120 and 120, which int8 cannot hold."""
    X = np.full((1000, 2), 120, np.int8)
    X[::2, 1] = -120
    found = streampca.PCA(1, svd_solver="gram").fit(X)
    assert found.explained_variance_[0] == pytest.approx(np.var(X[:, 1].astype(float), ddof=1))


def test_new_data_of_other_columns_are_refused(tmp_path: Path) -> None:
    model = streampca.PCA(2).fit(data())
    for other in (data()[:, :5], np.hstack([data(), data()])):
        with pytest.raises(InvalidInputError, match=f"{other.shape[1]} features.*{P} features"):
            model.transform(other)


def test_columns_that_change_places_are_a_full_fit(tmp_path: Path) -> None:
    """The shape is the same: the labels tell."""
    group = zarr.create_group(str(tmp_path / "g"))
    group.create_array("X", shape=(N, P), dtype="f8", dimension_names=["t", "x"])[...] = data()
    labels = group.create_array("x", shape=(P,), dtype="i8", dimension_names=["x"])
    labels[...] = np.arange(P)
    job = check_job(
        {
            "source": {"path": str(tmp_path / "g"), "variable": "X"},
            "settle": 0,
            "model": {"n_components": 2},
            "store": str(tmp_path / "m"),
        },
        "x",
    )
    refresh(job)
    labels[...] = np.arange(P)[::-1]
    done = refresh(job)
    assert (done.change, done.how, done.status) == ("relaid", "full", "refused")
    assert "the source is another one" in done.gate
    assert refresh(job, accept_source=True).status == "published"


# -- F18: settings -------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [-3, P + 1, N + 1, 1.5, float("nan"), float("inf"), True, "many"])
def test_a_number_of_components_that_cannot_be(k: Any) -> None:
    with pytest.raises(StreamPCAError, match="n_components"):
        streampca.PCA(k).fit(data())


def test_bad_job_files_take_no_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten megabytes, a bomb of aliases, thousands of entries."""
    bomb = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a0]\n" for i in range(1, 40))
    for text in ("x" * (10 << 20), bomb, "".join(f"k{i}: 1\n" for i in range(2000))):
        (tmp_path / "job.yaml").write_text(text)
        tracemalloc.start()
        assert main(["refresh", str(tmp_path / "job.yaml")]) == 78
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100e6
        assert capsys.readouterr().out == ""
