"""Every way to compute a PCA, by name, the Gram matrix by panels of rows included."""

from __future__ import annotations

from typing import Any

import pytest

from streampca import PCA
from streampca.models import pca, pca_plan
from streampca.passes import make_plan

PATHS = ("scatter", "tsqr", "gram", "panels")


def fit(path: str, X: Any, monkeypatch: pytest.MonkeyPatch, more: Any = None, **settings: Any):
    """A PCA fitted along that path. more : arguments of ``fit``."""
    more = more or {}
    if path != "panels":
        return PCA(svd_solver=path, **settings).fit(X, **more)

    def plan(matrix, chosen):
        candidates = pca_plan._panels(matrix, chosen)
        return make_plan(matrix, "PCA", [candidates[min(2, len(candidates) - 1)]])

    with monkeypatch.context() as patched:
        patched.setattr(pca, "plan_pca", plan)
        model = PCA(**settings).fit(X, **more)
    assert model.plan_.solver == "gram by panels"
    return model
