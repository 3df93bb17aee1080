"""Complex EOFs are the singular vectors of the complex matrix, however it is stored and cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import streampca
from streampca import ComplexEOF
from streampca.kernels import probe
from tests.each import each

rng = np.random.default_rng(0)
SIZES = {"tall": (70, 12), "wide": (12, 70)}
SOLVERS = ("scatter", "tsqr", "gram")


def noise(*shape: int) -> Any:
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def field(n: int, p: int) -> Any:
    """Of decreasing singular values, with a mean."""
    few = min(n, p)
    return noise(n, few) @ (0.7 ** np.arange(few)[:, None] * noise(few, p)) + 5 * noise(1, p)


def months(n: int) -> Any:
    return np.eye(3)[np.arange(n) % 3]


def oracle(z: Any, w: Any = None, weights: Any = None, remove: Any = None) -> tuple[Any, ...]:
    """(residuals, s, vh) of rows with weights w, features with weights, without columns."""
    root = np.sqrt(np.ones(len(z)) if w is None else w)[:, None]
    columns = np.ones((len(z), 1)) if remove is None else remove
    fitted = columns @ np.linalg.lstsq(root * columns, root * z, rcond=None)[0]
    left = (z - fitted) * (1.0 if weights is None else weights)
    return left, *np.linalg.svd(root * left, full_matrices=False)[1:]


def check(model: Any, z: Any, found: Any, w: Any = None, **known: Any) -> None:
    """Values, vectors up to phase, its convention, scores, shares and rows."""
    left, s, vh = oracle(z, w, **known)
    k = model.n_components_
    c = model.components_
    np.testing.assert_allclose(model.singular_values_, s[:k], rtol=1e-10)
    np.testing.assert_allclose(np.abs(np.sum(c * vh[:k].conj(), axis=1)), 1, atol=1e-10)
    turn = c @ probe(0, c.shape[1])
    np.testing.assert_allclose(turn.imag, 0, atol=1e-10)
    assert (turn.real > 0).all()
    np.testing.assert_allclose(found, left @ c.conj().T, atol=1e-10 * s[0])
    ratio = s[:k] ** 2 / np.sum(s**2)
    np.testing.assert_allclose(model.explained_variance_ratio_, ratio, rtol=1e-10)
    if model.result_.scores is not None and w is None:
        np.testing.assert_allclose(model.result_.scores, found, atol=1e-10 * s[0])
    assert model.certificate_.determined.all()


@each("size", SIZES)
@each("solver", SOLVERS)
def test_as_the_svd_of_the_centred_matrix(size: str, solver: str) -> None:
    n, p = SIZES[size]
    z, w, weights = field(n, p), rng.integers(1, 4, n) + 0.0, rng.uniform(0.5, 2, p)
    model = ComplexEOF(3, solver=solver, progress=False).fit(z)
    check(model, z, model.transform(z))
    rows = model.mean_ + model.transform(z) @ model.components_
    np.testing.assert_allclose(model.inverse_transform(model.transform(z)), rows, atol=1e-10)
    heavy = ComplexEOF(3, solver=solver, weights=weights, progress=False).fit(z, sample_weight=w)
    check(heavy, z, heavy.transform(z), w, weights=weights)
    named = {"solver": solver, "progress": False}
    less = ComplexEOF(3, remove=months(n)[:, 1:], **named).fit(z)
    check(less, z, less.transform(z, remove=months(n)[:, 1:]), remove=months(n))
    scaled = ComplexEOF(3, scale="std", **named).fit(z)
    check(scaled, z, scaled.transform(z), weights=1 / z.std(axis=0, ddof=1))


@each("size", SIZES)
@each("missing", ["raise", "mean"])
def test_land_and_holes(size: str, missing: str) -> None:
    z = field(*SIZES[size])
    z[:, 4].imag = np.nan  # a cell is missing where either part is
    sea = np.delete(np.arange(z.shape[1]), 4)
    if missing == "mean":
        z[3, 7] = z[5, 7] = z[0, 0] = np.nan
    means = np.nanmean(z[:, sea], axis=0)
    filled = np.where(np.isnan(z[:, sea]), means, z[:, sea])
    for solver in ("scatter", "gram"):
        model = ComplexEOF(2, solver=solver, missing=missing, progress=False)
        with pytest.warns(streampca.errors.DroppedFeaturesWarning):
            model.fit(z)
        assert not model.components_[:, 4].any()
        assert model.result_.dropped.tolist() == [4]
        _, s, vh = oracle(filled)
        np.testing.assert_allclose(model.singular_values_, s[:2], rtol=1e-10)
        inner = np.abs(np.sum(model.components_[:, sea] * vh[:2].conj(), axis=1))
        np.testing.assert_allclose(inner, 1, atol=1e-10)
        if missing == "mean":
            counts = model.result_.missing_by_sample
            assert counts[[0, 1, 3, 5]].tolist() == [2, 1, 2, 2]
