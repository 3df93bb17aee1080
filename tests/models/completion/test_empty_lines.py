"""Rows and columns of sparse data in which nothing is stored."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from streampca import HardImpute, SoftImpute

pytestmark = [
    pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::streampca.errors.DroppedFeaturesWarning"),
    pytest.mark.filterwarnings("ignore::streampca.errors.AccuracyWarning"),
]
VARIANTS: list[dict[str, Any]] = [
    {},
    {"center": "both"},
    {"center": "both", "scale": "both"},
    {"scale": "std"},
    {"absent": "zero"},
]


def ratings(empty: str, dtype: str) -> Any:
    """(30, 8) stars, one row, one column or everything of which is not stored."""
    rng = np.random.default_rng(0)
    x = rng.integers(1, 6, (30, 8)) * (rng.random((30, 8)) < 0.4)
    where: Any = {"row": 3, "column": (slice(None), 2), "most rows": slice(5, 25), "all": ...}
    x[where[empty]] = 0
    return scipy.sparse.csr_array(x.astype(dtype))


@pytest.mark.parametrize(
    ("empty", "dtype"),
    [
        ("row", "f8"),
        ("column", "f8"),
        ("most rows", "f8"),
        ("all", "f8"),
        ("row", "i4"),
        ("all", "i4"),
    ],
)
@pytest.mark.parametrize("kind", [HardImpute, SoftImpute])
def test_lines_without_cells_are_filled(kind: Any, empty: str, dtype: str) -> None:
    x = ratings(empty, dtype)
    known = inspect.signature(kind).parameters
    for settings in VARIANTS:
        if not set(settings) <= set(known):
            continue
        model = kind(1, max_passes=6, **settings).fit(x)
        whole = model.impute(x)
        assert np.isfinite(whole).all()
        for rows in (slice(3, 4), slice(10, 12)):  # blocks of no entry at all
            np.testing.assert_allclose(model.impute(x[rows]), whole[rows], atol=1e-9)
            assert np.isfinite(model.transform(x[rows])).all()
            assert np.isfinite(model.reconstruction_error(x[rows]))
