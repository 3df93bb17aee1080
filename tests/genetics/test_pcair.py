"""PC-AiR's partition against the text of the paper, and fits on the unrelated samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streampca
from streampca.errors import InvalidInputError
from streampca.genetics.pcair import THRESHOLD, pcair_partition


def by_the_text(
    phi: np.ndarray, apart: np.ndarray, kinship: float = THRESHOLD, divergence: float = -THRESHOLD
) -> list[bool]:
    """The algorithm of Conomos et al. 2015, one sentence a line."""
    n = len(phi)
    everyone = set(range(n))
    related = {i: {j for j in everyone - {i} if phi[i, j] > kinship} for i in everyone}
    gamma = {i: sum(phi[i, j] for j in sorted(related[i])) for i in everyone}
    delta = {
        i: sum(bool(apart[i, j] < divergence) for j in everyone - {i} - related[i])
        for i in everyone
    }
    unrelated = set(everyone)
    while True:
        eta = {i: len(related[i] & unrelated) for i in unrelated}
        most = max(eta.values())
        if most == 0:
            return [i in unrelated for i in range(n)]
        among = [i for i in sorted(unrelated) if eta[i] == most]
        among = [i for i in among if delta[i] == min(delta[j] for j in among)]
        among = [i for i in among if gamma[i] == min(gamma[j] for j in among)]
        unrelated.remove(among[0])


@st.composite
def kinships(draw: st.DrawFn, n: int) -> np.ndarray:
    """(n, n) symmetric, of few different values, so that there are ties of every kind."""
    values = draw(
        st.lists(
            st.sampled_from([-np.inf, -0.25, -0.03125, 0.0, 0.03125, 0.125, 0.25, np.nan]),
            min_size=n * (n - 1) // 2,
            max_size=n * (n - 1) // 2,
        )
    )
    phi = np.full((n, n), 0.5)
    phi[np.tril_indices(n, -1)] = values
    return np.where(np.tri(n, dtype=bool), phi, phi.T)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9).flatmap(lambda n: st.tuples(kinships(n), kinships(n))))
def test_the_partition_is_that_of_the_text(both):
    phi, apart = both
    found = pcair_partition(phi)
    assert found.unrelated.tolist() == by_the_text(phi, phi)
    assert not (phi[np.ix_(found.unrelated, found.unrelated)] > THRESHOLD)[
        ~np.eye(found.unrelated.sum(), dtype=bool)
    ].any()
    other = pcair_partition(phi, apart, kinship_threshold=0.125, divergence_threshold=-0.1)
    assert other.unrelated.tolist() == by_the_text(phi, apart, 0.125, -0.1)


def test_the_partition_of_larger_graphs_with_ties_is_that_of_the_text():
    for seed in range(4):
        rng = np.random.default_rng(seed)
        n = 60
        phi = rng.choice([-0.125, 0.0, 0.125, 0.25], (n, n), p=[0.3, 0.6, 0.08, 0.02])
        phi = np.tril(phi, -1) + np.tril(phi, -1).T + 0.5 * np.eye(n)
        found = pcair_partition(phi)
        assert found.unrelated.tolist() == by_the_text(phi, phi)
        off = phi - np.eye(n)
        assert found.relatives.tolist() == (off > THRESHOLD).sum(axis=1).tolist()


def test_a_kinship_and_its_matrix_give_the_same_partition():
    calls = np.random.default_rng(0).binomial(2, 0.4, (12, 500)).astype(np.int8)
    calls[5] = calls[2]
    calls[7, :300] = calls[2, :300]
    king = streampca.kinship(calls)
    found, same = pcair_partition(king), pcair_partition(king.kinship)
    assert found.unrelated.tolist() == same.unrelated.tolist()
    assert not found.unrelated.all()
    assert found.to_dict() == {
        "method": "PC-AiR",
        "estimator": "KING-robust",
        "variants": 500,
        "kinship_threshold": THRESHOLD,
        "divergence_threshold": -THRESHOLD,
        "unrelated": int(found.unrelated.sum()),
        "related": int((~found.unrelated).sum()),
    }
    assert list(found.columns()) == ["IID", "UNRELATED", "RELATIVES", "DIVERGENT"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kinship_threshold": -0.1}, "from 0 to 0.5"),
        ({"divergence_threshold": 0.1}, "up to 0"),
        ({"divergence": np.eye(4)}, "kinship of 3 samples and divergence of 4"),
        ({"divergence": np.arange(9.0).reshape(3, 3)}, "symmetric"),
    ],
)
def test_a_partition_refuses(settings, words):
    with pytest.raises(InvalidInputError, match=words):
        pcair_partition(np.eye(3), **settings)
