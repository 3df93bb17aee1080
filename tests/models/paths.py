"""Every way to compute a PCA, by name, the Gram matrix by panels of rows included."""

from __future__ import annotations

from typing import Any

import pytest

from streampca import PCA
from streampca.models.decompose.krylov import krylov_candidates
from streampca.models.decompose.panels import panel_candidates
from streampca.models.pca import pca

PATHS = ("scatter", "tsqr", "gram", "panels", "krylov samples", "krylov features")


def fit(path: str, X: Any, monkeypatch: pytest.MonkeyPatch, more: Any = None, **settings: Any):
    """A PCA fitted along that path. more : arguments of ``fit``."""
    more = more or {}
    if path in ("scatter", "tsqr", "gram"):
        return PCA(svd_solver=path, **settings).fit(X, **more)

    def chosen(matrix, request):
        if path == "panels":
            candidates = panel_candidates(matrix, request)
            candidates = [candidates[min(2, len(candidates) - 1)]]
        else:
            axis = ("krylov samples", "krylov features").index(path)
            found = krylov_candidates(matrix, request)
            candidates = [one for one in found if one.passes[0].axis == axis][:1]
        side = request.side
        return [one.weighted(side.sample_weight, side.weights) for one in candidates]

    if path != "panels":
        settings = {"tol": 1e-10, "max_passes": 40, **settings}
    with monkeypatch.context() as patched:
        patched.setattr(pca, "pca_candidates", chosen)
        model = PCA(**settings).fit(X, **more)
    assert model.plan_.solver == ("gram by panels" if path == "panels" else "krylov")
    return model
