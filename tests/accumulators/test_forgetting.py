"""Rows that were never taken in cannot be forgotten, wherever sums show it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_numbers import fold, normal

from streampca.accumulators import Scatter
from streampca.errors import InvalidInputError


def refused(scatter: Scatter, gone: Scatter, why: str) -> None:
    """Forgetting is refused with these words, and neither side has changed."""
    before = scatter.state(), gone.state()
    with pytest.raises(InvalidInputError, match=why):
        scatter.forget(gone)
    for old, new in zip(before, (scatter.state(), gone.state()), strict=True):
        assert old.keys() == new.keys()
        assert all(np.array_equal(old[name], new[name]) for name in old)


@pytest.mark.parametrize("center", [True, False])
def test_rows_that_were_never_there_are_refused_where_sums_show_it(center: bool) -> None:
    made = partial(Scatter, center=center)
    x, never = normal(21, 60, 6, 0.0), normal(22, 60, 6, 0.0)
    scatter = fold(made(), x, 20)
    refused(scatter, fold(made(), never, 20), "another mean or variance")  # as many as there are
    refused(scatter, fold(made(), x + 1e-6, 20), "another mean or variance")
    refused(scatter, fold(made(), never[:59], 20), "never taken in")  # one would remain
    refused(scatter, fold(made(), never[:57], 20), "never taken in")  # three
    refused(scatter, fold(Scatter(center=not center), x[:30], 20), "center=")
    part = fold(made(), x[:40], 20)
    scatter.forget(part)
    refused(scatter, part, "cannot forget 40 of 20 rows")  # twice
    scatter.forget(fold(made(), x[40:45], 20))
    assert np.allclose(scatter.scatter(), fold(made(), x[45:], 20).scatter(), atol=1e-12)


def test_a_direction_that_is_not_there_cannot_be_forgotten() -> None:
    """Every variance stays positive: it shows between the features alone."""
    both = np.repeat(normal(23, 400, 1, 5.0), 2, axis=1)  # two equal features
    gone = normal(24, 100, 2, 5.0) * 0.1
    gone += both.mean(axis=0) - gone.mean(axis=0)
    refused(fold(Scatter(), both, 90), fold(Scatter(), gone, 90), "variance of a direction")


def test_a_total_that_no_rows_have_is_refused_without_centring_too() -> None:
    """40 rows of ones; of 30 rows that sum to 0, ten of a sum of 40 and squares of 10 remain."""
    ones, signs = np.ones((40, 1)), np.resize([1.0, -1.0], (30, 1))
    refused(
        fold(Scatter(center=False), ones, 9),
        fold(Scatter(center=False), signs, 9),
        "variance would become negative",
    )


def test_missing_columns_must_be_those_that_were_there() -> None:
    x = normal(25, 60, 3, 0.0)
    holed = x.copy()
    holed[:, 1] = np.nan
    refused(fold(Scatter(), holed, 20), fold(Scatter(), x[:20] * [1, 0, 1], 20), "missing cells")
    refused(fold(Scatter(), x * [1, 0, 1], 20), fold(Scatter(), holed[:20], 20), "missing cells")


@given(
    st.integers(0, 2**16),
    st.integers(2, 30),
    st.integers(1, 40),
    st.floats(0.01, 0.99),
    st.sampled_from(["float32", "float64", "int8"]),
    st.sampled_from([0.0, 3.0, 1e3]),
    st.sampled_from([1.0, 1e-3, 1e4]),
    st.booleans(),
    st.booleans(),
)
def test_what_was_taken_in_can_be_forgotten(
    seed: int,
    n: int,
    p: int,
    share: float,
    dtype: str,
    mean: float,
    louder: float,
    center: bool,
    weighted: bool,
) -> None:
    """Nothing is refused that is there, in blocks of another length, down to one row."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, p)) * rng.choice([1e-3, 1.0, 1e3], p)
    cut = min(max(1, round(share * n)), n)
    x[:cut] *= louder
    x = (np.clip(x, -100, 100) if dtype == "int8" else x + mean).astype(dtype)
    weights = rng.integers(1, 4, n).astype(float) if weighted else np.ones(n)
    scatter = fold(Scatter(center=center), x, 7, weights=weights)
    gone = fold(Scatter(center=center), x[:cut], 4, weights=weights[:cut])
    scatter.forget(gone)
    assert scatter.count == n - cut
