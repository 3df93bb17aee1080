"""Dask arrays of unknown chunk sizes: counted by a fit, with a warning, and left as they were."""

from __future__ import annotations

import math

import dask.array as da
import numpy as np
import pytest

from streampca import PCA, PPCA, FactorAnalysis, HardImpute, IncrementalPCA, TruncatedSVD
from streampca.errors import InvalidInputError, UncountedRowsWarning

rng = np.random.default_rng(0)


def selected(n: int, p: int) -> tuple[da.Array, np.ndarray]:
    """Rows chosen by a mask, and what they hold."""
    values = rng.standard_normal((n, 3)) @ rng.standard_normal((3, p)) + rng.standard_normal((n, p))
    array = da.from_array(values, chunks=(7, p))
    return array[array[:, 0] > 0], values[values[:, 0] > 0]


@pytest.mark.parametrize("shape", [(40, 5), (20, 60)])
@pytest.mark.parametrize(
    "model", [PCA(2), PCA(2, missing="mean"), TruncatedSVD(2), IncrementalPCA(2), PPCA(2)]
)
def test_a_fit_counts_the_rows(model, shape):
    x, values = selected(*shape)
    known = type(model)(**model.get_params()).fit(values)
    with pytest.warns(UncountedRowsWarning, match="compute_chunk_sizes") as told:
        scores = model.fit_transform(x)
    assert [w.category for w in told].count(UncountedRowsWarning) == 1
    assert math.isnan(x.shape[0])
    np.testing.assert_allclose(model.explained_variance_, known.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(scores), known.transform(values), atol=1e-10)
    np.testing.assert_allclose(model.transform(x).compute(), known.transform(values), atol=1e-10)


@pytest.mark.filterwarnings("ignore::streampca.errors.HeywoodWarning")
def test_other_models_count_too():
    x, values = selected(60, 6)
    for model in (FactorAnalysis(1), HardImpute(2)):
        with pytest.warns(UncountedRowsWarning):
            assert np.asarray(model.fit_transform(x)).shape[0] == len(values)


def test_what_reads_nothing_refuses():
    x, _ = selected(40, 5)
    with pytest.raises(InvalidInputError, match="compute_chunk_sizes"):
        PCA(2).plan(x)
