"""Derived count matrices and highly variable features against NumPy, SciPy and scikit-learn."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfTransformer

import streampca
from streampca import preprocess
from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix

rng = np.random.default_rng(0)
COUNTS = rng.poisson(rng.gamma(0.4, 1.0, size=40), size=(60, 40)).astype(np.float64)
COUNTS[7] = 0
COUNTS[:, 3] = 0
KINDS = {
    "csr": lambda x: scipy.sparse.csr_array(x),
    "csc": lambda x: scipy.sparse.csc_array(x),
    "dense": lambda x: x,
}

every_kind = pytest.mark.parametrize("kind", KINDS)


def whole(matrix: ChunkedMatrix, axis: int = 0) -> np.ndarray:
    """All of it, put together of three blocks."""
    size = matrix.shape[axis]
    ends = [0, size // 3, size // 2, size]
    parts = [matrix.read(axis, a, b) for a, b in pairwise(ends)]
    return np.concatenate([p if isinstance(p, np.ndarray) else p.toarray() for p in parts], axis)


def check(matrix: ChunkedMatrix, expected: np.ndarray, kind: str) -> None:
    for axis in (0, 1):
        np.testing.assert_allclose(whole(matrix, axis), expected, rtol=1e-12, atol=1e-14)
    assert matrix.sparse == (kind != "dense")


def normalised(x: np.ndarray, target: float | None) -> np.ndarray:
    sums = x.sum(axis=1, keepdims=True)
    target = np.median(sums[sums > 0]) if target is None else target
    return np.where(sums > 0, x / np.where(sums > 0, sums, 1.0) * target, x)


@every_kind
@pytest.mark.parametrize("target", [None, 1e4])
def test_normalize_total(kind: str, target: float | None) -> None:
    check(preprocess.normalize_total(KINDS[kind](COUNTS), target), normalised(COUNTS, target), kind)


@every_kind
@pytest.mark.parametrize("base", [None, 2.0])
def test_log1p_of_normalised_counts(kind: str, base: float | None) -> None:
    matrix = preprocess.log1p(preprocess.normalize_total(KINDS[kind](COUNTS), 100.0), base)
    expected = np.log1p(normalised(COUNTS, 100.0)) / (1.0 if base is None else np.log(base))
    check(matrix, expected, kind)


@every_kind
@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("norm", ["l2", None])
def test_tf_idf_is_that_of_scikit_learn(kind: str, smooth: bool, norm: str | None) -> None:
    x = COUNTS[:, COUNTS.any(axis=0)]  # a term of no document has no weight without smoothing
    expected = TfidfTransformer(norm=norm, smooth_idf=smooth).fit_transform(x).toarray()
    check(preprocess.tf_idf(KINDS[kind](x), smooth=smooth, norm=norm), expected, kind)


@every_kind
def test_log_entropy(kind: str) -> None:
    total = COUNTS.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = COUNTS / total
        information = np.where(p > 0, p * np.log(p), 0.0).sum(axis=0)
    weight = np.where(total > 0, 1.0 + information / np.log(60), 0.0)
    check(preprocess.log_entropy(KINDS[kind](COUNTS)), np.log1p(COUNTS) * weight, kind)


def by_pandas(x: np.ndarray, flavor: str, n_bins: int = 20) -> tuple[np.ndarray, ...]:
    """scanpy's published steps, on data frames, as an oracle of their own."""
    import pandas as pd

    x = np.expm1(x) if flavor == "seurat" else x
    mean, var = x.mean(axis=0), x.var(axis=0, ddof=1)
    mean = np.where(mean == 0, 1e-12, mean)
    dispersion = var / mean
    if flavor == "seurat":
        dispersion = np.log(np.where(dispersion == 0, np.nan, dispersion))
        mean = np.log1p(mean)
        bins: Any = n_bins
    else:
        bins = np.r_[-np.inf, np.percentile(mean, np.arange(10, 105, 5)), np.inf]
    frame = pd.DataFrame({"mean": mean, "dispersion": dispersion})
    frame["bin"] = pd.cut(frame["mean"], bins=bins)
    groups = frame.groupby("bin", observed=True)["dispersion"]
    if flavor == "seurat":
        middle, spread = groups.transform("mean"), groups.transform("std")
        alone = spread.isna()
        spread[alone], middle[alone] = middle[alone], 0.0
    else:
        middle = groups.transform("median")
        spread = groups.transform(lambda d: (d - d.median()).abs().median() / 0.6744897501960817)
    with np.errstate(divide="ignore", invalid="ignore"):
        return mean, dispersion, ((frame["dispersion"] - middle) / spread).to_numpy()


@every_kind
@pytest.mark.parametrize("flavor", ["seurat", "cell_ranger"])
def test_highly_variable_features(kind: str, flavor: str) -> None:
    many = rng.poisson(rng.gamma(0.5, 2.0, size=300), size=(80, 300)).astype(np.float64)
    many = many[:, many.sum(axis=0) > 2][:, :223]  # equal means would fall on the ends of bins
    x = np.log1p(normalised(many, None) * rng.uniform(0.9, 1.1, size=(80, 1)))
    found = preprocess.highly_variable(KINDS[kind](x), flavor=flavor)
    mean, dispersion, norm = by_pandas(x, flavor)
    np.testing.assert_allclose(found.means, mean, rtol=1e-11)
    np.testing.assert_allclose(found.dispersions, dispersion, rtol=1e-10)
    np.testing.assert_allclose(found.dispersions_norm, norm, rtol=1e-9)
    known = np.nan_to_num(norm)
    chosen = (mean > 0.0125) & (mean < 3) & (known > 0.5)
    np.testing.assert_array_equal(found.highly_variable, chosen)
    top = preprocess.highly_variable(KINDS[kind](x), flavor=flavor, n_top=25)
    largest = np.argsort(np.nan_to_num(norm, nan=-np.inf))[::-1][:25]
    assert set(largest) <= set(np.flatnonzero(top.highly_variable))
    kept = top.of(KINDS[kind](x))
    np.testing.assert_array_equal(whole(kept), x[:, top.highly_variable])


def test_features_of_zeros_are_not_variable() -> None:
    found = preprocess.highly_variable(np.log1p(COUNTS))
    assert not found.highly_variable[3]
    assert (
        repr(found)
        == f"<HighlyVariable: {found.highly_variable.sum()} of {COUNTS.shape[1]} features>"
    )
    assert np.isnan(found.dispersions_norm[3])


def test_a_fit_of_derived_counts_and_its_labels() -> None:
    sparse = scipy.sparse.csr_array(COUNTS.astype(np.int32))
    matrix = preprocess.log1p(preprocess.normalize_total(sparse, 50.0))
    expected = streampca.PCA(4).fit(np.log1p(normalised(COUNTS, 50.0)))
    found = streampca.PCA(4).fit(matrix)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-10)
    scores = expected.transform(whole(matrix))
    np.testing.assert_allclose(found.transform(matrix), scores, atol=1e-10)
    np.testing.assert_allclose(found.transform(sparse), scores, atol=1e-10)  # raw: made the same


def test_the_transform_is_part_of_the_fingerprint() -> None:
    x = scipy.sparse.csr_array(COUNTS)
    prints = [
        matrix.fingerprint()
        for matrix in (
            streampca.open(x),
            preprocess.log1p(x),
            preprocess.log1p(x, 2.0),
            preprocess.normalize_total(x, 10.0),
            preprocess.normalize_total(x, 11.0),
            preprocess.tf_idf(x),
            preprocess.tf_idf(x, norm=None),
            preprocess.log1p(preprocess.normalize_total(x, 10.0)),
        )
    ]
    assert len(set(prints)) == len(prints)
    assert preprocess.log1p(x).fingerprint() == prints[1]


@given(st.integers(1, 20), st.integers(1, 9), st.sampled_from(list(KINDS)), st.integers(0, 999))
def test_missing_codes_become_nan_and_are_left_out(n: int, p: int, kind: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    x = draw.poisson(0.8, size=(n, p)).astype(np.int16)
    x[draw.random((n, p)) < 0.2] = -9
    matrix = streampca.open(KINDS[kind](x), missing_value=-9)
    v = np.where(x == -9, np.nan, x)
    sums = np.nansum(v, axis=1, keepdims=True)
    expected = np.where(sums > 0, v / np.where(sums > 0, sums, 1.0) * 7.0, v)
    derived = preprocess.normalize_total(matrix, 7.0)
    assert derived.missing_value is None
    np.testing.assert_allclose(whole(derived), expected.astype(np.float32), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: preprocess.normalize_total(x, -1.0), "target_sum=-1.0"),
        (lambda x: preprocess.log1p(x, 1.0), "base=1.0"),
        (lambda x: preprocess.tf_idf(x, norm="l1"), "norm='l1'"),
        (lambda x: preprocess.highly_variable(x, flavor="seurat_v3"), "flavor='seurat_v3'"),
        (lambda x: preprocess.highly_variable(x, n_top=41), "n_top=41"),
        (lambda x: preprocess.highly_variable(x * 1e4), "logarithms of counts, not counts"),
        (lambda x: preprocess.normalize_total(x, target_sum="1e4"), "target_sum='1e4'"),
        (lambda x: preprocess.log_entropy(x[:1]), "two documents"),
        (lambda x: preprocess.log1p(-x).read(0, 0, 60), "Negative values in data"),
    ],
)
def test_what_cannot_be_done_is_refused(call: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        call(COUNTS)


@pytest.mark.parametrize(
    "function",
    [
        preprocess.highly_variable,
        preprocess.normalize_total,
        preprocess.tf_idf,
        preprocess.log_entropy,
        preprocess.log1p,
    ],
)
def test_an_unknown_argument_is_refused_in_the_name_of_the_function(function: Any) -> None:
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) got an unexpected .*batch_key"):
        function(COUNTS, batch_key="batch")
    if function is not preprocess.log1p:
        function(COUNTS, memory_limit="1GiB", progress=False)
