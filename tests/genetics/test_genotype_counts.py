"""Samples and variants that have enough calls, against a plain NumPy reading of PLINK's rules."""

from __future__ import annotations

import numpy as np
import pytest

from streampca.errors import InvalidInputError
from streampca.genetics.counts import well_called
from streampca.sources import as_matrix
from tests.genotypes import random_calls


def counted(calls, **settings):
    """(samples, variants) kept, found by numbers planted as names."""
    matrix = as_matrix(calls, missing_value=-1)
    kept = well_called(matrix, **settings)
    chosen = getattr(kept, "chosen", (None, None))
    return [np.arange(calls.shape[i]) if one is None else one for i, one in enumerate(chosen)]


def oracle(calls, maf=0.0, max_missing=1.0, max_sample_missing=1.0, rows=None):
    """The same, said in whole numbers per thousand."""
    samples = (calls < 0).sum(axis=1) * 1000 <= round(max_sample_missing * 1000) * calls.shape[1]
    judged = calls[samples] if rows is None else calls[samples & rows]
    seen = (judged >= 0).sum(axis=0)
    copies = np.where(judged >= 0, judged, 0).sum(axis=0)
    rarer = np.minimum(copies, 2 * seen - copies)
    keep = (len(judged) - seen) * 1000 <= round(max_missing * 1000) * len(judged)
    keep &= (rarer * 1000 >= round(maf * 1000) * 2 * seen) & ((seen > 0) | (maf == 0))
    return [np.flatnonzero(samples), np.flatnonzero(keep)]


@pytest.fixture
def calls():
    calls = random_calls(100, 300, missing=0.05)
    calls[:30, ::3] = np.where(np.random.default_rng(1).random((30, 100)) < 0.5, -1, 0)
    calls[7, :290] = -1  # almost no calls: other variants are judged without it
    calls[:, 4], calls[:, 5], calls[:, 6] = -1, 0, 2
    calls[:, 8] = 1
    return calls


@pytest.mark.parametrize(
    "settings",
    [
        {"maf": 0.2},
        {"max_missing": 0.07},
        {"max_sample_missing": 0.3},
        {"maf": 0.1, "max_missing": 0.1},
        {"maf": 0.05, "max_missing": 0.1, "max_sample_missing": 0.4},
    ],
)
@pytest.mark.parametrize("some", [False, True])
@pytest.mark.filterwarnings("ignore:1 of 100 samples")
def test_what_is_left(calls, settings, some):
    rows = np.arange(100) % 3 > 0 if some else None
    given = {} if rows is None else {"rows": rows}
    for found, expected in zip(
        counted(calls, **settings, **given), oracle(calls, **settings, **given)
    ):
        np.testing.assert_array_equal(found, expected)
        assert len(expected)


def test_shares_that_are_met_exactly_are_kept():
    calls = np.zeros((100, 5), np.int8)
    calls[:20, 0] = 1  # 0.1 of the counted allele
    calls[:, 1] = 2
    calls[:20, 1] = 1  # 0.1 of the other one
    calls[:19, 2] = 1
    calls[:29, 3], calls[29:80, 3] = -1, 1  # 0.29 missing
    calls[:30, 4], calls[30:80, 4] = -1, 1
    assert counted(calls, maf=0.1)[1].tolist() == [0, 1, 3, 4]
    assert counted(calls, max_missing=0.29)[1].tolist() == [0, 1, 2, 3]


def test_ill_called_samples_are_named(calls):
    with pytest.warns(UserWarning, match="1 of 100 samples .* left out: sample 7"):
        assert 7 not in counted(calls, max_sample_missing=0.4)[0]


def test_nothing_asked_for_reads_nothing(calls):
    matrix = as_matrix(calls, missing_value=-1)
    assert well_called(matrix) is matrix


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"maf": 0.7}, "maf=0.7"),
        ({"max_missing": 2.0}, "max_missing=2.0"),
        ({"max_sample_missing": -1.0}, "max_sample_missing=-1.0"),
        ({"max_sample_missing": 0.0}, "leaves no sample"),
        ({"maf": 0.499, "max_missing": 0.0}, "leave none of 300"),
        ({"maf": 0.1, "ploidy": 1}, "expects allele counts"),
    ],
)
def test_what_cannot_be_met(calls, settings, words):
    calls = np.where(calls == 0, np.int8(-1), calls) if "sample" in words else calls
    calls[0, 8] = -1
    with pytest.raises(InvalidInputError, match=words):
        counted(calls, **settings)
