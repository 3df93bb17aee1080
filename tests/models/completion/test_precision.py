"""What a completion says of itself: its objective in float32, estimates beyond the data."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from streampca import HardImpute, SoftImpute
from streampca.errors import AccuracyWarning
from tests.models.completions import estimate_of, with_holes


@pytest.mark.parametrize("shape", [(1500, 40), (40, 1500)])
@pytest.mark.parametrize(("mean", "noise"), [(100.0, 0.01), (1000.0, 0.1)])
def test_the_objective_of_small_residuals_of_large_values(
    shape: tuple[int, int], mean: float, noise: float
) -> None:
    """In float32 the squares of the data have an error as large as all of the residual."""
    n, p = shape
    rng = np.random.default_rng(0)
    x = mean + rng.standard_normal((n, 2)) @ rng.standard_normal((2, p))
    x = (x + noise * rng.standard_normal((n, p))).astype(np.float32)
    x[rng.random(x.shape) < 0.3] = np.nan
    model = HardImpute(3, center=False, tol=1e-7, max_passes=40).fit(x)
    told = model.trace_[-1].objective[0]
    left = np.nansum((x.astype(np.float64) - estimate_of(model)) ** 2)
    assert told == pytest.approx(left, rel=2e-5)
    double = HardImpute(3, center=False, tol=1e-9, max_passes=60).fit(x.astype(np.float64))
    assert told == pytest.approx(double.trace_[-1].objective[0], rel=1e-4)
    falls = np.array([one.objective[0] for one in model.trace_])
    assert np.all(np.diff(falls) < 1e-4 * falls[-1])


@pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning")
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("turned", [False, True])
def test_estimates_beyond_the_data_warn_once(kind: str, turned: bool) -> None:
    x, _ = with_holes(300, 60, 5, share=0.85)
    x = np.ascontiguousarray(x.T) if turned else x
    seen, source = ~np.isnan(x), x
    if kind == "sparse":
        source = scipy.sparse.coo_matrix((x[seen], np.nonzero(seen)), x.shape).tocsr()
    with pytest.warns(AccuracyWarning, match=r"larger alpha=, for example alpha=1,") as told:
        model = HardImpute(5, max_passes=30).fit(source)
    far = [one for one in told if one.category is AccuracyWarning]
    assert len(far) == 1
    assert far[0].filename == __file__
    estimate = estimate_of(model)
    reach = np.nanmax(np.abs(x - model.mean_))
    counts = [int(np.sum(np.sqrt(np.mean(estimate**2, axis=a)) > reach)) for a in (1, 0)]
    words = str(far[0].message)
    assert words.startswith(f"{counts[0]} rows and {counts[1]} columns are estimated beyond")
    ratio = float(words.split("up to ")[1].split(" times")[0])
    assert ratio <= np.abs(estimate).max() / reach * 1.01
    assert ratio > 3.0


@pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning")
def test_what_the_cells_determine_is_not_warned_of() -> None:
    few, _ = with_holes(300, 60, 5, share=0.85)
    fits: list[tuple[Any, Any]] = [
        (HardImpute(5, alpha=1.0, max_passes=30), few),
        (SoftImpute(5, 1.0, max_passes=30), few),
        (HardImpute(5, max_passes=30), with_holes(300, 60, 5, share=0.3)[0]),
        (HardImpute(3, max_passes=30), with_holes(300, 100, 3, share=0.8)[0]),
        (HardImpute(1, center="both", scale="both", max_passes=30), few),
    ]
    for model, x in fits:
        with warnings.catch_warnings():
            warnings.simplefilter("error", AccuracyWarning)
            model.fit(x)
