"""Every way to compute a PCA, by name, the Gram matrix by panels of rows included."""

from __future__ import annotations

from typing import Any

import pytest

from streampca import PCA
from streampca.models.pca import pca
from streampca.models.pca.krylov_plan import krylov_candidates
from streampca.models.pca.panels import panel_candidates
from streampca.passes import make_plan

PATHS = ("scatter", "tsqr", "gram", "panels", "krylov samples", "krylov features")


def fit(path: str, X: Any, monkeypatch: pytest.MonkeyPatch, more: Any = None, **settings: Any):
    """A PCA fitted along that path. more : arguments of ``fit``."""
    more = more or {}
    if path in ("scatter", "tsqr", "gram"):
        return PCA(svd_solver=path, **settings).fit(X, **more)

    def plan(matrix, chosen):
        if path == "panels":
            candidates = panel_candidates(matrix, chosen)
            return make_plan(matrix, "PCA", [candidates[min(2, len(candidates) - 1)]])
        axis = ("krylov samples", "krylov features").index(path)
        found = krylov_candidates(matrix, chosen)
        return make_plan(matrix, "PCA", [one for one in found if one.passes[0].axis == axis][:1])

    if path != "panels":
        settings = {"tol": 1e-10, "max_passes": 40, **settings}
    with monkeypatch.context() as patched:
        patched.setattr(pca, "plan_pca", plan)
        model = PCA(**settings).fit(X, **more)
    assert model.plan_.solver == ("gram by panels" if path == "panels" else "krylov")
    return model
