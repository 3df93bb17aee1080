"""scikit-learn's contract."""

from __future__ import annotations

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

from streampca import PCA, IncrementalPCA, RotatedPCA

# repeated rows are more rows: n_components=None gives more components then (beyond the rank)
MORE_ROWS = {
    "check_sample_weight_equivalence_on_dense_data": "None means min(n, p)",
    "check_sample_weight_equivalence_on_sparse_data": "None means min(n, p)",
}


@pytest.mark.parametrize(
    "estimator", [PCA(), IncrementalPCA(), PCA(scale="std", missing="mean"), RotatedPCA()]
)
@pytest.mark.filterwarnings("ignore")
def test_check_estimator(estimator):
    results = check_estimator(estimator, on_skip=None, expected_failed_checks=MORE_ROWS)
    assert len(results) > 40
    left_out = {r["check_name"] for r in results if r["status"] != "passed"}
    # the first needs SCIPY_ARRAY_API=1 at start-up
    assert left_out <= {"check_array_api_input", *MORE_ROWS}


@pytest.mark.parametrize("estimator", [PCA(6), IncrementalPCA(6), PCA(6, svd_solver="gram")])
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
