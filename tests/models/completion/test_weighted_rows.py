"""Row weights in a completion: weight 2 is the row twice, weight 0 the row not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import zarr

from streampca import HardImpute, SoftImpute
from streampca.errors import InvalidInputError
from tests.models.completions import estimate_of, with_holes

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning")


def sparse(x: np.ndarray) -> Any:
    seen = ~np.isnan(x)
    return scipy.sparse.coo_matrix((x[seen], np.nonzero(seen)), x.shape)


MODELS: dict[str, Any] = {
    "als": lambda: HardImpute(2, alpha=0.3, tol=1e-8, max_passes=60),
    "exact": lambda: HardImpute(2, solver="exact", tol=0, max_passes=12),
    "soft": lambda: SoftImpute(3, 2.0, solver="exact", tol=0, max_passes=12),
    "scaled": lambda: HardImpute(2, alpha=0.3, scale="std", tol=1e-8, max_passes=60),
    "fitted": lambda: HardImpute(2, center="fitted", tol=1e-10, max_passes=150),
    "as it is": lambda: HardImpute(2, alpha=0.3, center=False, tol=1e-8, max_passes=60),
    "both": lambda: HardImpute(
        2, alpha=0.3, center="both", scale="both", tol=1e-10, max_passes=240
    ),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("shape", [(40, 14), (14, 40)])
def test_whole_weights_are_rows_that_are_repeated(
    make: Any, shape: tuple[int, int], tmp_path: Any
) -> None:
    x, _ = with_holes(*shape, 2)
    weights = np.random.default_rng(1).integers(0, 4, shape[0]).astype(float)
    counted = weights > 0
    alone = make().fit(np.repeat(x, weights.astype(int), axis=0))
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(shape[0], 5))
    sources = [x, sparse(x).tocsr() if shape[0] < shape[1] else sparse(x).tocsc()]
    for source in sources if "both" not in str(make()) else [*sources, str(tmp_path / "x.zarr")]:
        model = make().fit(source, sample_weight=weights)
        first = np.unique(np.repeat(np.arange(len(x)), weights.astype(int)), return_index=True)[1]
        expected = alone.result_.scores[first]
        np.testing.assert_allclose(model.mean_, alone.mean_, atol=1e-8)
        np.testing.assert_allclose(model.singular_values_, alone.singular_values_, rtol=1e-6)
        np.testing.assert_allclose(model.components_, alone.components_, atol=1e-5)
        np.testing.assert_allclose(model.result_.scores[counted], expected, atol=1e-4)
        np.testing.assert_array_equal(model.result_.scores[~counted], 0.0)
        assert model.trace_[-1].objective[0] == pytest.approx(
            alone.trace_[-1].objective[0], rel=1e-6
        )
        variances = (model.result_.total_variance, alone.result_.total_variance)
        assert variances[0] == pytest.approx(variances[1], rel=1e-6)
        if model.result_.row_mean is not None:
            rows = alone.result_.row_mean[first]
            np.testing.assert_allclose(model.result_.row_mean[counted], rows, atol=1e-7)


def test_weights_with_held_out_cells_and_a_start() -> None:
    x, _ = with_holes(60, 15, 2)
    weights = np.where(np.arange(60) % 3, 1.0, 0.0)
    held = np.random.default_rng(2).random(x.shape) < 0.1
    model = HardImpute(2, validation=held, alpha=0.1).fit(x, sample_weight=weights)
    alone = HardImpute(2, validation=held[weights > 0], alpha=0.1).fit(x[weights > 0])
    assert model.trace_[-1].held_out[0] == pytest.approx(alone.trace_[-1].held_out[0], rel=1e-3)
    start = (model.result_.scores, model.components_.T)
    one = HardImpute(2, solver="exact", init=start, tol=0, max_passes=3)
    again = one.fit(x, sample_weight=2.0 * np.ones(60))
    np.testing.assert_allclose(estimate_of(again), estimate_of(one.fit(x)), atol=1e-10)


def test_weights_that_are_none() -> None:
    x, _ = with_holes(30, 8, 2)
    for wrong in (np.ones(29), -np.ones(30), np.full(30, np.nan), np.zeros(30)):
        with pytest.raises(InvalidInputError, match="sample_weight"):
            HardImpute(1).fit(x, sample_weight=wrong)
