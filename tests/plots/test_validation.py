"""Validation: the held-out curves, and their least."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from streampca import PCA, HardImpute, SoftImpute, plots
from streampca.errors import InvalidInputError


def test_validation_is_the_held_out_curve_and_its_least(frame: pd.DataFrame) -> None:
    holes = frame.mask(np.random.default_rng(0).random(frame.shape) < 0.2)
    model = HardImpute([1, 2, 4], alpha=[0.0, 5.0], validation=0.2, max_passes=4, tol=0.5)
    ax = plots.validation(model.fit(holes))
    *lines, without, best = ax.get_lines()
    assert [line.get_label() for line in lines] == ["penalty 0", "penalty 5"]
    expected = {(one["rank"], one["penalty"]): one["held_out"] for one in model.validation_}
    for line, penalty in zip(lines, (0.0, 5.0), strict=True):
        found = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
        assert found == {rank: expected[rank, penalty] for rank in (1, 2, 4)}
    assert without.get_label() == "no components"
    np.testing.assert_array_equal(without.get_ydata(), expected[0, 0.0])
    assert best.get_xdata()[0] == model.best_rank_
    assert best.get_ydata()[0] == min(expected.values())
    soft = SoftImpute(3, [1.0, 8.0], validation=0.2, max_passes=4, tol=0.5).fit(holes)
    assert plots.validation(soft.result_).get_xlabel() == "Penalty"
    assert plots.validation(SoftImpute(0, validation=0.2).fit(holes)).get_xlabel() == "Rank"


def test_validation_of_a_fit_that_held_nothing_out_is_refused(pca: PCA) -> None:
    with pytest.raises(InvalidInputError, match=r"validation=0\.05"):
        plots.validation(pca)


def test_a_fit_that_keeps_no_components_is_drawn() -> None:
    noise = np.random.default_rng(0).standard_normal((60, 12))
    model = HardImpute(2, alpha=[0.5, 1.0], validation=0.2, random_state=3).fit(noise)
    assert model.best_rank_ == 0
    *_, without, best = plots.validation(model).get_lines()
    np.testing.assert_array_equal(best.get_ydata(), without.get_ydata()[:1])
    plots.r2(model)
    with pytest.raises(InvalidInputError, match=r"plots\.validation shows"):
        plots.scree(model)
