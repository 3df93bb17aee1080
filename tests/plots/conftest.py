"""The model whose pictures are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from pictures import NAMES, K, N, P

from streampca import PCA


@pytest.fixture(autouse=True)
def _closed_figures() -> Iterator[None]:
    plt.close("all")  # what tests of other rooms left
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    random = np.random.default_rng(5)
    return pd.DataFrame(random.normal(size=(N, P)) * np.linspace(3, 1, P), columns=NAMES)


@pytest.fixture(scope="module")
def pca(frame: pd.DataFrame) -> PCA:
    return PCA(K).fit(frame)


@pytest.fixture(scope="module")
def projected(pca: PCA, frame: pd.DataFrame) -> np.ndarray[Any, Any]:
    return np.asarray(pca.transform(frame))


@pytest.fixture(scope="module", params=["estimator", "decomposition"])
def source(request: pytest.FixtureRequest, pca: PCA) -> Any:
    return pca if request.param == "estimator" else pca.result_
