"""scikit-learn's contract."""

from __future__ import annotations

from functools import partial

import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import (
    check_estimator,
    check_sample_weight_equivalence_on_dense_data,
    check_sample_weight_equivalence_on_sparse_data,
)

from streampca import (
    LSA,
    PCA,
    GenotypePCA,
    IncrementalPCA,
    RandomProjection,
    RotatedPCA,
    TruncatedSVD,
)
from streampca.errors import AccuracyWarning, InvalidInputError
from streampca.models.contract.registry import all_kinds
from streampca.models.contract.request import seed_of
from streampca.models.regression.regression import Regression

# repeated rows are more rows: n_components=None gives more components then (beyond the rank)
MORE_ROWS = {
    "check_sample_weight_equivalence_on_dense_data": "None means min(n, p)",
    "check_sample_weight_equivalence_on_sparse_data": "None means min(n, p)",
}


CELLS = "predict gives all cells of X, (n, p), and not one number for each row"
COMPLETIONS = {
    "check_sample_weight_equivalence_on_sparse_data": "sweeps stop at tol, above the check's 1e-7",
    "check_estimator_sparse_array": CELLS,
    "check_estimator_sparse_matrix": CELLS,
}
COUNTS = "takes counts of alleles, 0, 1, 2 and missing, of 10 or more samples and variants"
GENOTYPES = dict.fromkeys(
    [
        "check_fit_score_takes_y",
        "check_estimators_overwrite_params",
        "check_estimators_pickle",
        "check_estimators_fit_returns_self",
        "check_readonly_memmap_input",
        "check_fit_idempotent",
        "check_n_features_in_after_fitting",
        "check_positive_only_tag_during_fit",
        "check_estimators_dtypes",
        "check_pipeline_consistency",
        "check_estimator_sparse_tag",
        "check_estimator_sparse_array",
        "check_estimator_sparse_matrix",
        "check_dict_unchanged",
        "check_f_contiguous_array_estimator",
        "check_transformer_data_not_an_array",
        "check_transformer_general",
        "check_transformer_preserve_dtypes",
        "check_n_features_in",
        "check_fit_check_is_fitted",
        "check_dont_overwrite_parameters",
        "check_fit2d_1feature",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
        "check_fit2d_predict1d",
        "check_dtype_object",
    ],
    COUNTS,
)
GENOTYPES["check_parameters_default_constructible"] = "the default of variants is a VariantFilter"
EXPECTED = {
    "PCA": MORE_ROWS,
    "IncrementalPCA": MORE_ROWS,
    "ComplexEOF": {
        "check_sample_weight_equivalence_on_dense_data": "None means min(n, p)",
        "check_complex_data": "takes complex data",
    },
    "HardImpute": COMPLETIONS,
    "SoftImpute": COMPLETIONS,
    "GenotypePCA": GENOTYPES,
    "LSA": {"check_n_features_in_after_fitting": "the message names the weights of the fit"},
    "RandomProjection": {"check_estimators_nan_inf": "fit reads no values; transform refuses them"},
}
FEWER_ROWS = {
    "check_sample_weight_equivalence_on_dense_data": "more columns than rows have no one solution",
    "check_sample_weight_equivalence_on_sparse_data": "more columns than rows have no one solution",
}
FOLDS = {
    "check_sample_weight_equivalence_on_dense_data": "repeated rows fall into folds apart",
    "check_sample_weight_equivalence_on_sparse_data": "repeated rows fall into folds apart",
}
EXPECTED |= {"TotalLeastSquares": FEWER_ROWS, "PrincipalComponentRegression": FOLDS}
# other kinds of two matrices take no part: the checks give y as one response, or none
OURS = [
    kind
    for kind in all_kinds().values()
    if kind.__module__.startswith("streampca.")
    and (kind.views == 1 or issubclass(kind, Regression))
]


# one of each family; the others share its fit and its transform
BY_DEFAULT = (
    "PCA",
    "GenotypePCA",
    "HardImpute",
    "KernelPCA",
    "PPCA",
    "RandomProjection",
    "SparsePCA",
    "TotalLeastSquares",
)
KINDS = [
    pytest.param(kind, marks=[] if kind.__name__ in BY_DEFAULT else [pytest.mark.slow])
    for kind in (*OURS, RotatedPCA)
]


@pytest.mark.parametrize("kind", [*KINDS, partial(PCA, scale="std", missing="mean")])
@pytest.mark.filterwarnings("ignore")
def test_check_estimator(kind):
    # by its default it needs more features than checks have; so do scikit-learn's projections
    estimator = kind(2) if kind in (RandomProjection, LSA) else kind()
    expected = EXPECTED.get(type(estimator).__name__, {})
    results = check_estimator(estimator, on_skip=None, expected_failed_checks=expected)
    assert len(results) > 40
    left_out = {r["check_name"] for r in results if r["status"] != "passed"}
    # the first needs SCIPY_ARRAY_API=1 at start-up
    assert left_out - {"check_array_api_input"} == set(expected)


@pytest.mark.parametrize("estimator", [PCA(6), IncrementalPCA(6), PCA(6, solver="gram")])
@pytest.mark.filterwarnings("ignore")
def test_sample_weights_are_repeated_rows(estimator):
    check_sample_weight_equivalence_on_dense_data("PCA", estimator)
    check_sample_weight_equivalence_on_sparse_data("PCA", estimator)


def test_pipeline_clone_and_pandas():
    X = np.random.default_rng(0).standard_normal((50, 4))
    pipeline = make_pipeline(StandardScaler(), PCA(2)).fit(X)
    assert pipeline.transform(X).shape == (50, 2)
    copy = clone(PCA(3, scale="std", memory_limit="1GiB"))
    assert copy.get_params()["memory_limit"] == "1GiB"
    frame = PCA(2).set_output(transform="pandas").fit(X).transform(X)
    assert list(frame.columns) == ["pca0", "pca1"]
    assert repr(PCA(2, whiten=True)) == "PCA(n_components=2, whiten=True)"


def test_a_long_parameter_is_abbreviated():
    names = [f"sample{i}" for i in range(3000)]
    shown = repr(GenotypePCA(4, keep=names))
    assert shown.startswith("GenotypePCA(n_components=4, keep=['sample0', 'sample1', ")
    assert shown.endswith("'sample29', ...])")
    assert len(repr(PCA(2, weights=np.linspace(0, 1, 900)))) < 800
    some = names[:20]
    assert repr(GenotypePCA(4, keep=some)).endswith(f"keep={some})")
    secret = repr(GenotypePCA(4, keep="https://user:secret@host/" + 900 * "x"))
    assert "secret" not in secret
    assert len(secret) < 800


def test_iterated_power_and_n_iter_are_reads():
    X = np.random.default_rng(4).standard_normal((400, 300)) * 0.97 ** np.arange(300)
    with pytest.warns(AccuracyWarning, match="max_passes=4"):
        model = PCA(3, svd_solver="randomized", tol=1e-9, iterated_power=2).fit(X)
    assert model.plan_.n_passes == 4
    assert model.result_.settings["max_passes"] == 4
    with pytest.warns(AccuracyWarning, match="max_passes=4"):
        same = PCA(3, svd_solver="randomized", tol=1e-9, max_passes=4).fit(X)
    np.testing.assert_array_equal(model.components_, same.components_)
    svd = TruncatedSVD(3, algorithm="randomized", n_iter=1)
    assert svd.plan(X).n_passes == 3
    assert TruncatedSVD(3, algorithm="randomized").plan(X).n_passes == 8
    with pytest.raises(InvalidInputError, match=r"iterated_power=-1; expected 'auto', 0 or more"):
        PCA(3, iterated_power=-1).fit(X)


@pytest.mark.parametrize(
    "kind",
    [np.random.default_rng, np.random.RandomState, lambda seed: None],
    ids=["generator", "legacy", "none"],
)
def test_random_state_of_any_kind_becomes_a_seed(kind, tmp_path):
    X = np.random.default_rng(0).standard_normal((90, 70)) * 0.8 ** np.arange(70)
    state = kind(3)
    model = PCA(3, svd_solver="randomized", random_state=state).fit(X)
    seed = model.result_.settings["random_state"]
    again = PCA(3, svd_solver="randomized", random_state=seed).fit(X)
    np.testing.assert_array_equal(model.components_, again.components_)
    model.save(tmp_path / "model")
    if state is not None:  # it moves on, and begins the same again
        assert seed_of(state) != seed
        assert seed_of(kind(3)) == seed


@pytest.mark.parametrize("state", [-1, 1.5, "0", True])
def test_a_random_state_of_another_kind_is_refused(state):
    with pytest.raises(InvalidInputError, match=r"random_state=.*Generator"):
        PCA(1, random_state=state).fit(np.eye(4))


@pytest.mark.parametrize("solver", ["scatter", "gram", "randomized"])
@pytest.mark.parametrize("model", [PCA, TruncatedSVD])
def test_fit_transform_of_dask_is_dask_on_every_path(model, solver):
    X = np.random.default_rng(1).standard_normal((60, 40)) * 0.8 ** np.arange(40) + 2
    X = X.astype(np.float32)
    lazy = da.from_array(X, chunks=(25, 40))
    name = "algorithm" if model is TruncatedSVD else "svd_solver"
    made = model(2, tol=1e-2, **{name: solver})  # what float32 resolves of these
    scores = made.fit_transform(lazy)
    assert isinstance(scores, da.Array)
    assert scores.chunks == ((25, 25, 10), (2,))
    assert scores.dtype == np.float32
    centred = X - X.mean(axis=0) if model is PCA else X
    np.testing.assert_allclose(scores.compute(), centred @ made.components_.T, atol=2e-5)
