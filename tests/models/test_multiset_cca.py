"""CCA of several fields: SciPy's generalised eigenproblem, CCA of two, xeofs'."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import xarray as xr

import streampca
from streampca import CCA, MultisetCCA
from streampca.errors import InvalidInputError
from tests.models.test_cpcca import SLP, SST, N, anomalies, field, same

AIR = field(0.5, "air")
FIELDS = {"sst": SST, "slp": SLP, "air": AIR}
FITTED: dict[str, Any] = {"weights": "coslat", "remove": "month", "progress": False}


@pytest.mark.parametrize(("pca", "alpha"), [(None, 0.0), (None, 0.7), ((5, 6, 4), 0.3)])
def test_the_generalised_eigenproblem(pca: Any, alpha: float) -> None:
    parts = [anomalies(SST)[:, 1:], anomalies(SLP), anomalies(AIR)]
    bases = [np.linalg.svd(z, full_matrices=False)[2] for z in parts]
    bases = [v[: len(v) if pca is None else pca[i]].T for i, v in enumerate(bases)]
    z = np.hstack([one @ basis for one, basis in zip(parts, bases, strict=True)])
    joint, ends = np.cov(z.T), np.cumsum([basis.shape[1] for basis in bases])
    inside = scipy.linalg.block_diag(
        *(np.cov((a @ b).T) for a, b in zip(parts, bases, strict=True))
    )
    values, vectors = scipy.linalg.eigh(joint - inside, inside + alpha * np.eye(len(joint)))
    kind = MultisetCCA(2, pca=None if pca is None else list(pca), alpha=alpha, **FITTED)
    model = kind.fit(FIELDS, dim="time")
    np.testing.assert_allclose(model.values_, values[::-1][:2], rtol=1e-10)
    leading = np.split(vectors[:, ::-1][:, :2] * np.sqrt(3), ends[:-1])
    scores = model.transform(list(FIELDS.values()), dim="time", remove="month")
    for i, (name, part, basis) in enumerate(zip(FIELDS, parts, bases, strict=True)):
        expected = part @ basis @ leading[i]
        same(scores[i], expected)
        same(model.result_.scores_of_view(name), expected)
        loadings = np.corrcoef(np.hstack([part, np.asarray(scores[i])]).T)
        same(model.loadings_[name][-part.shape[1] :], loadings[:-2, -2:])
        unit = leading[i] / np.linalg.norm(leading[i], axis=0)
        share = np.var(part @ basis @ unit, axis=0, ddof=1) / np.var(part, axis=0, ddof=1).sum()
        np.testing.assert_allclose(model.explained_variance_ratio_[i], share, rtol=1e-9)
    both = np.corrcoef(np.hstack([np.asarray(one) for one in scores]).T)
    np.testing.assert_allclose(model.correlations_[0, 2, 1], both[1, 5], atol=1e-10)


def test_two_fields_are_a_cca_saved_and_labelled(tmp_path: Path) -> None:
    x, y = SST[:, 1:], SLP[20:]
    with pytest.warns(streampca.errors.AbsentNamesWarning):
        two = CCA(2, progress=False).fit(x, y, dim="time")
    model = MultisetCCA(2, progress=False).fit([x, y], dim="time")
    np.testing.assert_allclose(model.values_, two.correlations_, rtol=1e-10)
    same(model.weights_["x2"], two.y_weights_)
    again = streampca.load(model.save(tmp_path / "m"))
    assert isinstance(again, MultisetCCA)
    made = again.transform({"x2": y[:5]})["x2"]
    named = model.result_.to_xarray()["x2"]
    xr.testing.assert_allclose(made.drop_attrs(), named.scores[:5].drop_attrs())
    assert named.weights.dims == ("component", "lat", "lon")
    assert {plan.solver for plan in model.plan([x, y], dim="time").values()} <= {"scatter", "gram"}


def test_what_cannot_be_answered_is_refused() -> None:
    x = np.random.default_rng(0).standard_normal((20, 30))
    with pytest.raises(InvalidInputError, match=r"pca=10.*alpha=0.1"):
        MultisetCCA(2, progress=False).fit([x, x[:, :3]])
    with pytest.raises(InvalidInputError, match="at least two"):
        MultisetCCA(2).fit([x])
    with pytest.raises(InvalidInputError, match="from 1 to 3"):
        MultisetCCA(4, pca=[5, 3], progress=False).fit([x, x[:, :3]])
    model = MultisetCCA(1, pca=[5, None], progress=False).fit([x, x[:, :3]])
    with pytest.raises(InvalidInputError, match="1 fields; expected 2"):
        model.transform([x])


@pytest.mark.skipif(
    any(importlib.util.find_spec(one) is None for one in ("xeofs", "statsmodels")),
    reason="xeofs or statsmodels is not installed: pip install 'streampca[peers]'",
)
@pytest.mark.filterwarnings("ignore")
def test_as_multi_cca_of_xeofs() -> None:
    from xeofs import multi

    c = 0.3
    fields = [
        one.groupby("time.month") - one.groupby("time.month").mean() for one in FIELDS.values()
    ]
    theirs: Any = multi.CCA(n_modes=2, use_coslat=True, pca=False, c=c).fit(fields, dim="time")
    model = MultisetCCA(2, alpha=c / (1 - c), **FITTED).fit(FIELDS, dim="time")
    np.testing.assert_allclose(model.values_ / (1 - c), theirs.eigvals, rtol=1e-6)
    for mine, other in zip(model.result_.names, theirs.scores(), strict=True):
        expected = other.transpose("time", "mode").values
        found = model.result_.scores_of_view(mine)
        same(
            found / np.linalg.norm(found, axis=0), expected / np.linalg.norm(expected, axis=0), 1e-6
        )
    shares = np.array([one.values for one in theirs.explained_variance_ratio()])
    # Theirs divides variances over n by a total over n - 1.
    np.testing.assert_allclose(model.explained_variance_ratio_, shares * N / (N - 1), rtol=1e-6)
