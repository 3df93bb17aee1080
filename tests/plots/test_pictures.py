"""What every picture does: where it is drawn, saved, refused, and without Matplotlib."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from pictures import K, saved

from streampca import PCA, Decomposition, plots
from streampca.errors import InvalidTypeError, MissingDependencyError, NotFittedError
from streampca.plots.canvas import counting_ticks

DRAW: dict[str, Any] = {
    "scree": plots.scree,
    "scores": lambda result, ax=None: plots.scores(result, np.zeros((4, K)), ax=ax),
    "loadings": lambda result, ax=None: plots.loadings(result, ax=ax),
    "r2": plots.r2,
}
draws = pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)


@draws
def test_a_picture_goes_where_it_is_told(draw: Any, pca: PCA) -> None:
    figure, (left, right) = plt.subplots(1, 2)
    assert draw(pca, ax=right) is right
    assert right.has_data()
    assert not left.has_data()
    assert plt.get_fignums() == [figure.number]


@draws
@pytest.mark.parametrize("kind", ["svg", "pdf"])
def test_a_picture_can_be_saved_and_settings_stay(draw: Any, kind: str, pca: PCA) -> None:
    before = dict(matplotlib.rcParams)
    assert saved(draw(pca), kind) > 2000
    assert dict(matplotlib.rcParams) == before


@draws
def test_a_picture_needs_one_axes(draw: Any, pca: PCA) -> None:
    figure, several = plt.subplots(1, 2)
    for wrong in (figure, several):
        with pytest.raises(InvalidTypeError, match="expected one Matplotlib Axes"):
            draw(pca, ax=wrong)
    with pytest.raises(InvalidTypeError, match="3 dimensions and the picture has 2"):
        draw(pca, ax=plt.figure().add_subplot(projection="3d"))


def test_space_needs_axes_in_space(pca: PCA, projected: Any) -> None:
    with pytest.raises(InvalidTypeError, match="projection='3d'"):
        plots.scores(pca, projected, components=(1, 2, 3), ax=plt.figure().add_subplot())
    ax = plt.figure().add_subplot(projection="3d")
    assert plots.scores(pca, projected, components=(1, 2, 3), ax=ax) is ax


@draws
def test_an_unfitted_estimator_and_other_things_are_refused(draw: Any) -> None:
    with pytest.raises(NotFittedError, match="This PCA instance is not fitted yet"):
        draw(PCA())
    with pytest.raises(InvalidTypeError, match="expected"):
        draw("model.zarr")
    assert not plt.get_fignums()


def test_a_class_is_no_result() -> None:
    with pytest.raises(InvalidTypeError, match="the class PCA"):
        plots.scree(PCA)


@draws
def test_without_matplotlib_the_message_says_what_to_install(
    draw: Any, pca: PCA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'streampca\[plots\]'") as caught:
        draw(pca)
    assert isinstance(caught.value, ImportError)


def test_dates_without_matplotlib(pca: PCA, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("matplotlib.pyplot", "matplotlib.dates"):
        monkeypatch.setitem(sys.modules, module, None)
    days = np.arange(4).astype("M8[D]")
    with pytest.raises(MissingDependencyError):
        plots.scores(pca, np.zeros((4, K)), labels=days)


def test_importing_plots_does_not_load_matplotlib() -> None:
    code = "import sys, streampca.plots; sys.exit('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_ticks_of_a_count_are_whole_and_few() -> None:
    assert counting_ticks(0, 5) == [0, 1, 2, 3, 4, 5]
    assert counting_ticks(1, 50) == [1, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50]
    for last in (17, 99, 100, 3192, 10**6):
        ticks = counting_ticks(1, last)
        assert ticks[0] == 1
        assert ticks[-1] <= last
        assert 3 <= len(ticks) <= 14


def test_a_loaded_result_draws_the_same(pca: PCA, tmp_path: Any) -> None:
    pca.save(tmp_path / "model")
    again = Decomposition.load(tmp_path / "model")
    first, second = plots.loadings(pca), plots.loadings(again)
    assert [t.get_text() for t in first.get_yticklabels()] == [
        t.get_text() for t in second.get_yticklabels()
    ]
