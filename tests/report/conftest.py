"""A fit with labels, whose report is tested."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from streampca import PCA

GROUPS = np.array(["east", "west", "<b>north</b>"])


@pytest.fixture(scope="session")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    group = np.arange(90) % 3
    values = rng.normal(size=(90, 8)) + 8 * np.eye(3, 8)[group]
    return pd.DataFrame(values, columns=["</script><script>alert(1)</script>", *"abcdefg"])


@pytest.fixture(scope="session")
def model(table: pd.DataFrame) -> PCA:
    return PCA(4).fit(table.assign(constant=1.0))


@pytest.fixture(scope="session")
def scores(model: PCA, table: pd.DataFrame) -> Any:
    return np.asarray(model.transform(table.assign(constant=1.0)))


@pytest.fixture(scope="session")
def labels() -> np.ndarray[Any, Any]:
    return GROUPS[np.arange(90) % 3]
