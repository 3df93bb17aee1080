"""Iterations over matrices in memory: the components of NumPy's SVD, in Krylov blocks."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from streampca import PCA
from streampca.models.decompose import routes
from streampca.solvers import KrylovSpace, start_block

Array = np.ndarray[Any, Any]


def clustered(i: Array) -> Array:
    return np.repeat([5.0, 3.0, 1.0, 0.5], 1 + len(i) // 4)[: len(i)] * (1 - 1e-5 * i)


SPECTRA = {  # singular values
    "steep": lambda i: 0.7**i,
    "1/i": lambda i: 1 / (1 + i),
    "flat": lambda i: 1.1 - 0.1 * i / (1 + i.max()) - 0.01 * np.sin(i) ** 2,
    "clusters larger than a block": clustered,
    "more equal values than vectors": lambda i: np.append(np.full(40, 2.0), 3 / np.sqrt(1 + i)),
    "a gap of 5e-4": lambda i: np.where(i == 1, 1 - 5e-4, 1 / (1 + i)),
    "rank 7": lambda i: np.where(i < 7, 1 / (1 + i), 0.0),
    "noise": None,
}


@pytest.fixture(autouse=True)
def iterated(monkeypatch: pytest.MonkeyPatch) -> None:
    """No exact solver is preferred to an iteration."""
    monkeypatch.setattr(routes, "AFFORDABLE", ())
    monkeypatch.setattr(routes, "GO_OVER", ())


def drawn(kind: str, n: int, p: int, rng: np.random.Generator) -> Array:
    """A matrix with such a spectrum."""
    r = min(n, p) - 1
    if (spectrum := SPECTRA[kind]) is None:
        return np.asarray(rng.standard_normal((n, p)))
    values = np.sort(spectrum(np.arange(float(r))))[::-1][:r]
    u, v = (np.linalg.qr(rng.standard_normal((m, r)))[0] for m in (n, p))
    return np.asarray(30 * (u * values) @ v.T)


@dataclass
class Judged:
    """A fit, and what is true.

    angle, error : (k,) of components and variances.  simple : (k,) whether a direction exists.
    """

    model: PCA
    variance: Array
    angle: Array
    error: Array
    simple: Array

    @property
    def violated(self) -> bool:
        bound = self.model.certificate_.angle_bound
        worse = (self.angle > bound + 1e-7) & (bound < np.pi / 2) & self.simple
        most = self.model.certificate_.variance_bound + 1e-13 * self.variance[0]
        return bool(np.any(worse | (self.error > most)))


def judged(x: Any, k: int, weights: Array | None = None, **more: Any) -> Judged:
    """Fit k components and compare them with NumPy's SVD in float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = PCA(k, **more).fit(x, sample_weight=weights)
    assert model.plan_.solver == "krylov"
    z = (x.toarray() if scipy.sparse.issparse(x) else x).astype(np.float64)
    w = np.ones(len(z)) if weights is None else weights
    center = np.average(z, axis=0, weights=w) if more.get("center", True) else 0.0
    _, s, vt = np.linalg.svd((z - center) * np.sqrt(w)[:, None], full_matrices=False)
    variance = s**2 / (w.sum() - 1)
    found = model.components_
    count = len(found)
    inside = np.sum(found * vt[:count], axis=1)
    outside = np.linalg.norm(found - inside[:, None] * vt[:count], axis=1)
    apart = np.minimum(np.abs(np.diff(variance, prepend=np.inf)), -np.diff(variance, append=-1e300))
    return Judged(
        model,
        variance[:count],
        np.arctan2(outside, np.abs(inside)),
        np.abs(model.explained_variance_ - variance[:count]),
        apart[:count] > 1e-12 * variance[0],
    )


FORMS = ["dense", "float32", "csr", "csc", "wide"]
PAIRS = [(kind, form) for kind in SPECTRA for form in FORMS]


@pytest.mark.parametrize(
    ("kind", "form"),
    [  # every third by default
        pair if number % 3 == 0 else pytest.param(*pair, marks=pytest.mark.slow)
        for number, pair in enumerate(PAIRS)
    ],
)
def test_components_are_those_of_numpy(kind: str, form: str) -> None:
    shape = (180, 300) if form == "wide" else (320, 190)
    x = drawn(kind, *shape, np.random.default_rng(0)) + (form == "dense")
    if form == "float32":
        x = x.astype(np.float32)
    if form in ("csr", "csc", "wide"):
        x[::7] = 0.0  # empty rows
        x = scipy.sparse.coo_array(x).asformat("csc" if form == "csc" else "csr")
    one = judged(x, 12, tol=1e-6)
    assert not one.violated
    np.testing.assert_array_less(one.error, 2e-6 * one.variance[0])
    if form != "float32":
        known = one.model.certificate_.angle_bound < 1
        assert np.all(one.angle[known & one.simple] < 1e-6)


@pytest.mark.soak
@pytest.mark.parametrize("copies", [9, 60])
@pytest.mark.parametrize("form", [scipy.sparse.csr_array, np.asarray, np.float32])
def test_equal_eigenvalues_that_a_block_cannot_hold_are_all_found(copies: int, form: Any) -> None:
    few = np.random.default_rng(1).integers(0, 4, (5, 4))
    x = form(scipy.sparse.block_diag([few] * copies).toarray())
    one = judged(x, 20, center=False)
    np.testing.assert_array_less(one.error, 1e-6 * one.variance[0])
    assert not one.violated


def test_equal_categories_and_noise_keep_their_variances() -> None:
    rng = np.random.default_rng(2)
    own = scipy.sparse.csr_array((np.full(600, 3.0), (np.arange(600), np.repeat(range(30), 20))))
    noise = scipy.sparse.random_array((600, 300), density=0.02, rng=rng)
    one = judged(scipy.sparse.hstack([own, noise]).tocsr(), 20)
    np.testing.assert_array_less(one.error, 1e-9 * one.variance[0])


@pytest.mark.parametrize("form", [scipy.sparse.csr_array, np.float32])
def test_any_number_of_threads_gives_the_same_bits(form: Any) -> None:
    x = form(drawn("flat", 260, 240, np.random.default_rng(3)))
    alone, both = (PCA(9, threads=threads).fit(x) for threads in (1, 2))
    assert len(alone.cost_) == len(both.cost_)
    np.testing.assert_array_equal(alone.components_, both.components_)
    np.testing.assert_array_equal(alone.explained_variance_, both.explained_variance_)


def test_an_interrupted_iteration_goes_on_to_the_same_bits(tmp_path: Any) -> None:
    x = scipy.sparse.csr_array(drawn("flat", 260, 240, np.random.default_rng(4)))
    folder = str(tmp_path / "checkpoint")
    whole = PCA(9).fit(x)
    assert len(whole.cost_) > 8

    def stop(advance: Any) -> None:
        if advance.pass_name == "step 6":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PCA(9, checkpoint=folder, progress=stop).fit(x)
    resumed = PCA(9, checkpoint=folder).fit(x)
    np.testing.assert_array_equal(resumed.components_, whole.components_)
    assert [one.reads for one in resumed.cost_[:5]] == [0] * 5


def test_entries_in_any_order_and_twice_are_those_of_their_sum() -> None:
    x = scipy.sparse.csr_array(drawn("1/i", 150, 130, np.random.default_rng(5)))
    mixed = scipy.sparse.csr_array(
        (
            np.repeat(x.data / 2, 2)[::-1],
            np.repeat(x.indices, 2)[::-1],
            2 * (x.indptr[-1] - x.indptr[::-1]),
        ),
        shape=x.shape,
    )
    before = mixed.indices.copy()
    found, plain = PCA(5).fit(mixed[::-1]), PCA(5).fit(x)
    np.testing.assert_allclose(found.explained_variance_, plain.explained_variance_, rtol=1e-10)
    np.testing.assert_array_equal(mixed.indices, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_follows_gives_the_residuals_of_a_krylov_space(dtype: Any) -> None:
    rng = np.random.default_rng(6)
    values = 1 / np.arange(1.0, 151)
    values[40:] = 0.0  # the last blocks are random
    true = np.linalg.qr(rng.standard_normal((150, 150)))[0]
    matrix = (true * values) @ true.T
    space = KrylovSpace(150, 64, dtype, held=np.float64)
    block = start_block(np.zeros((150, 0)), 8, np.ones(150, bool), rng).astype(dtype)
    for _ in range(14):
        space.add(block, matrix @ block)
        block = space.following(rng)
        quick, exact = space.ritz(exact=False), space.ritz()
        np.testing.assert_array_equal(quick.values, exact.values)
        np.testing.assert_allclose(quick.residual, exact.residual, atol=20 * np.finfo(dtype).eps)
        if space.size + 8 > space.capacity:
            space.restart(quick, 24)
    np.testing.assert_allclose(exact.values[:10], values[:10], rtol=1e-6)


@pytest.mark.parametrize(
    "seeds",
    [
        range(4),
        pytest.param(range(4, 40), marks=pytest.mark.soak),
        pytest.param(range(40, 2000), marks=pytest.mark.soak),
    ],
    ids=["few", "100", "2000"],
)
def test_no_certificate_is_violated(seeds: range) -> None:
    violated = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        n, p = (int(m) for m in rng.integers(60, 300, 2))
        x = drawn(list(SPECTRA)[seed % len(SPECTRA)], n, p, rng) + rng.choice([0.0, 10.0])
        if rng.random() < 0.4:
            x = scipy.sparse.csr_array(x * (rng.random((n, p)) < 0.2))
        x = x.astype(rng.choice(["f4", "f8"]))
        weights = rng.random(n) + 0.1 if rng.random() < 0.2 else None
        k, tol = int(rng.integers(1, min(25, n - 1, p - 1))), float(rng.choice([1e-3, 1e-6]))
        if judged(x, k, weights, tol=tol, random_state=seed).violated:
            violated.append(seed)
    assert violated == []
