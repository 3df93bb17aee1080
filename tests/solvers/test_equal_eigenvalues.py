"""All that was asked for comes back where eigenvalues are equal: LAPACK's subsets lose some."""

import numpy as np
import pytest

import streampca
from streampca.solvers import spectrum
from streampca.solvers.spectrum import eigh_lower

MATRICES = {
    "projection": lambda n: np.eye(n) - 1 / n,
    "identity": np.eye,
    "zero": lambda n: np.zeros((n, n)),
    "pairs": lambda n: np.kron(np.eye(n // 2), np.ones((2, 2))),
}


@pytest.mark.parametrize("kind", MATRICES)
def test_as_many_pairs_as_asked(kind):
    for n in range(4, 132, 2):
        whole = MATRICES[kind](n)
        for k in {1, 2, n // 2, n - 2}:
            found = eigh_lower(np.tril(whole), k)
            assert found.values.shape == (k,)
            assert found.vectors.shape == (n, k)
            np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(k), atol=1e-12)
            np.testing.assert_allclose(
                whole @ found.vectors, found.vectors * found.values, atol=1e-12
            )


def test_a_subset_that_lapack_cuts_short_is_found_whole(monkeypatch):
    """On every processor, whatever its LAPACK loses."""
    cut, asked = spectrum._leading_by_lapack, []

    def short(a, count):
        asked.append(count)
        values, vectors = cut(a, count)
        return (values, vectors) if count == len(a) else (values[2:], vectors[:, 2:])

    monkeypatch.setattr(spectrum, "_leading_by_lapack", short)
    root = np.random.default_rng(0).standard_normal((30, 30))
    whole = root @ root.T
    found = eigh_lower(np.tril(whole), 4)
    assert asked == [5, 30]
    np.testing.assert_allclose(found.values, np.linalg.eigvalsh(whole)[::-1][:4], rtol=1e-12)


@pytest.mark.parametrize("n", [40, 60])
def test_a_fit_of_singletons(n):
    x = np.tile(np.eye(n), (1, 2))
    for k in (1, 3, 10):
        model = streampca.PCA(k, svd_solver="gram", progress=False).fit(x)
        np.testing.assert_allclose(model.explained_variance_, 2 / (n - 1), rtol=1e-12)
