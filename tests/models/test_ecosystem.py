"""What users of scikit-learn, dask-ml and array libraries combine with our classes."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from distributed import Client
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import streampca
from streampca import PCA, FactorAnalysis, IncrementalPCA, KernelPCA, TruncatedSVD
from streampca.errors import InvalidInputError, InvalidTypeError

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::streampca.errors.{one}Warning")
    for one in ("Accuracy", "DominantFeature", "Heywood")
]
rng = np.random.default_rng(0)
X = rng.normal(size=(80, 3)) @ rng.normal(size=(3, 6)) + 0.3 * rng.normal(size=(80, 6))
Y = (X[:, 0] > 0).astype(int)
FRAME = pd.DataFrame(X, columns=list("abcdef"), index=np.arange(80) + 5)
WEIGHTS = np.arange(80.0)
COLUMNS = [("p", PCA(2), ["a", "b", "c"]), ("s", TruncatedSVD(1), ["d", "e", "f"])]

# -- scikit-learn ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PCA, IncrementalPCA, FactorAnalysis, streampca.PPCA])
def test_a_grid_search_finds_the_number_of_components(kind: Any) -> None:
    search = GridSearchCV(kind(), {"n_components": [1, 2, 3]}, cv=4).fit(X)
    assert search.best_params_ == {"n_components": 3}
    held_out = kind(3).fit(X[20:]).score(X[:20])
    assert search.cv_results_["split0_test_score"][2] == pytest.approx(held_out, rel=1e-9)


def test_a_pipeline_is_searched() -> None:
    steps = [("scale", StandardScaler()), ("pca", PCA()), ("fit", LogisticRegression())]
    search = GridSearchCV(Pipeline(steps), {"pca__n_components": [1, 3]}, cv=3).fit(X, Y)
    assert search.best_score_ > 0.9
    assert search.predict(X).shape == (80,)


def test_columns_and_unions() -> None:
    whole = ColumnTransformer(COLUMNS).set_output(transform="pandas").fit_transform(FRAME)
    assert list(whole) == ["p__pca0", "p__pca1", "s__truncatedsvd0"]
    np.testing.assert_allclose(whole.iloc[:, :2], PCA(2).fit_transform(X[:, :3]))
    assert list(whole.index) == list(FRAME.index)
    both = FeatureUnion([("p", PCA(2)), ("f", FactorAnalysis(1))]).fit(X)
    assert list(both.get_feature_names_out()) == ["p__pca0", "p__pca1", "f__factoranalysis0"]
    assert both.transform(X).shape == (80, 3)


@pytest.mark.parametrize("kind", [PCA, TruncatedSVD, FactorAnalysis, KernelPCA])
@pytest.mark.parametrize("data", [X, FRAME, X.tolist()], ids=["numpy", "pandas", "list"])
def test_scores_come_as_the_table_that_was_set(kind: Any, data: Any) -> None:
    names, plain = [f"{kind.__name__.lower()}{i}" for i in range(2)], kind(2).fit_transform(X)
    made = kind(2).set_output(transform="polars").fit_transform(data)
    assert isinstance(made, pl.DataFrame)
    assert made.columns == names
    np.testing.assert_array_equal(made.to_numpy(), plain)
    made = kind(2).set_output(transform="pandas").fit(data).transform(data)
    assert list(made) == names
    assert list(made.index) == list(FRAME.index if data is FRAME else range(80))
    with pytest.raises(InvalidInputError, match="polars"):
        kind(2).set_output(transform="numpy")


def test_the_configured_table_holds_where_nothing_was_set() -> None:
    model = PCA(2).fit(X)
    with sklearn.config_context(transform_output="pandas"):
        assert isinstance(model.transform(X), pd.DataFrame)
        assert isinstance(make_pipeline(StandardScaler(), PCA(2)).fit_transform(X), pd.DataFrame)
        assert isinstance(model.set_output(transform="default").transform(X), np.ndarray)
    copied = clone(PCA(2).set_output(transform="polars"))
    assert isinstance(copied.fit_transform(X), pl.DataFrame)


def test_sample_weights_are_routed() -> None:
    expected = PCA(2).fit(X, sample_weight=WEIGHTS).components_
    with sklearn.config_context(enable_metadata_routing=True):
        pca = PCA(2).set_fit_request(sample_weight=True)
        last = LogisticRegression().set_fit_request(sample_weight=False)
        pipeline = Pipeline([("pca", pca), ("fit", last)]).fit(X, Y, sample_weight=WEIGHTS)
        np.testing.assert_array_equal(pipeline["pca"].components_, expected)
        named = clone(PCA(2).set_fit_request(sample_weight="counts"))
        again = make_pipeline(named).fit(X, counts=WEIGHTS)
        np.testing.assert_array_equal(again["pca"].components_, expected)
        with pytest.raises(sklearn.exceptions.UnsetMetadataPassedError, match="sample_weight"):
            make_pipeline(PCA(2), last).fit(X, Y, sample_weight=WEIGHTS)
        routed = IncrementalPCA(2).set_partial_fit_request(sample_weight=True)
        assert routed.get_metadata_routing().partial_fit.requests == {"sample_weight": True}
        searched = GridSearchCV(pca, {"n_components": [2]}, cv=2).fit(X, sample_weight=WEIGHTS)
        np.testing.assert_array_equal(searched.best_estimator_.components_, expected)
    with pytest.raises(InvalidInputError, match="takes no sample_weight"):
        KernelPCA(2).set_fit_request(sample_weight=True)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_grid_search_on_workers_of_dask() -> None:
    alone = GridSearchCV(PCA(), {"n_components": [1, 3]}, cv=2).fit(X)
    client = Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=None)
    with client, joblib.parallel_config(backend="dask"):
        search = GridSearchCV(PCA(), {"n_components": [1, 3]}, cv=2).fit(X)
    for name in ("mean_test_score", "std_test_score"):
        np.testing.assert_array_equal(search.cv_results_[name], alone.cv_results_[name])


# -- subclasses, dask-ml --------------------------------------------------------------------------


class Named(TruncatedSVD):
    """A class with a constructor of its own."""

    def __init__(self, n_components: int = 2, prefix: str = "topic") -> None:
        super().__init__(n_components, algorithm="tsqr")
        self.prefix = prefix


def test_a_subclass_with_a_constructor_of_its_own(tmp_path: Any) -> None:
    model = Named(3, prefix="t").fit(X)
    np.testing.assert_array_equal(
        model.components_, TruncatedSVD(3, algorithm="tsqr").fit(X).components_
    )
    assert model.plan_.solver == "tsqr"
    assert clone(model).get_params() == {"n_components": 3, "prefix": "t"}
    model.save(tmp_path / "model")
    assert isinstance(streampca.load(tmp_path / "model"), TruncatedSVD)


def test_randomized_without_a_number_gives_all_components() -> None:
    lazy = da.from_array(X, chunks=(40, 6))
    for solver in ("full", "randomized", "auto"):
        assert PCA(svd_solver=solver).fit(lazy).n_components_ == 6


def test_a_fit_is_postponed_as_any_call_is() -> None:
    lazy = da.from_array(X, chunks=(20, 6))
    later, now = dask.delayed(TruncatedSVD(2).fit)(lazy), TruncatedSVD(2).fit(lazy)
    names = ("components_", "singular_values_", "explained_variance_ratio_")
    found = dask.compute(*[getattr(later, name) for name in names], scheduler="sync")
    for name, value in zip(names, found, strict=True):
        np.testing.assert_array_equal(value, getattr(now, name))


# -- tensors --------------------------------------------------------------------------------------


class Tensor:
    """As much of a tensor of PyTorch as is asked of it: there is no PyTorch here."""

    def __init__(self, values: np.ndarray, device: str = "cpu", dtype: str = "float64") -> None:
        self.values, self.dtype = values, f"torch.{dtype}"
        self.device = type("device", (), {"type": device})
        self.shape, self.ndim = values.shape, values.ndim

    def detach(self) -> Tensor:
        return Tensor(self.values, self.device.type, self.dtype[6:])

    def numpy(self) -> np.ndarray:
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values

    def __array__(self, *args: Any, **more: Any) -> np.ndarray:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    def __len__(self) -> int:
        return len(self.values)


Tensor.__module__ = "torch"


def test_tensors_are_converted_or_refused_by_name() -> None:
    expected = PCA(2).fit(X)
    model = PCA(2).fit(Tensor(X))
    np.testing.assert_array_equal(model.components_, expected.components_)
    np.testing.assert_array_equal(model.transform(Tensor(X)), expected.transform(X))
    with pytest.raises(InvalidTypeError, match=r"torch\.Tensor, which lies on a GPU.*X\.cpu\(\)"):
        PCA(2).fit(Tensor(X, device="cuda"))
    with pytest.raises(InvalidTypeError, match=r"torch\.bfloat16.*X\.float\(\)"):
        PCA(2).fit(Tensor(X, dtype="bfloat16"))


def test_an_array_of_another_library_is_converted() -> None:
    class Other:
        """Of the array API, and convertible."""

        def __init__(self, values: np.ndarray) -> None:
            self.values, self.shape, self.dtype = values, values.shape, values.dtype

        def __array_namespace__(self) -> Any:
            return np

        def __array__(self, *args: Any, **more: Any) -> np.ndarray:
            return self.values

    np.testing.assert_array_equal(PCA(2).fit(Other(X)).components_, PCA(2).fit(X).components_)
