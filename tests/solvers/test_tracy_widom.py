"""The Tracy-Widom tail against published numbers, the test against NumPy and EIGENSOFT."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampca.errors import InvalidInputError, NonFiniteError
from streampca.solvers import TracyWidom, count_significant, tracy_widom_sf, tracy_widom_test

TABLE_END = 8.0  # of the one in twstats, steps of 0.1 and nine decimals


def spectrum(
    n: int = 60, p: int = 900, strong: int = 3, seed: int = 0, size: float = 0.4
) -> np.ndarray:
    """Non-zero eigenvalues of a column-centred Gram with a few real components."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, p))
    x += (rng.standard_normal((n, strong)) * size) @ rng.standard_normal((strong, p))
    x -= x.mean(axis=0)
    return np.linalg.eigvalsh(x @ x.T)[::-1][: n - 1]


def leading_only(values: np.ndarray, k: int) -> TracyWidom:
    """The test of k values and the three sums."""
    return tracy_widom_test(
        values[:k], total=values.sum(), squares=(values**2).sum(), count=len(values)
    )


def oracle(values: np.ndarray) -> tuple[list[float], list[float]]:
    """(statistic, effective features), as the paper has it, one component at a time."""
    statistics, effectives = [], []
    for i in range(len(values)):
        rest = values[i:]
        m = len(rest)
        if m < 10:
            statistics.append(math.nan)
            effectives.append(math.nan)
            continue
        n = (m + 2) * rest.sum() ** 2 / (m * (rest**2).sum() - rest.sum() ** 2)
        large, small = max(n, m), min(n, m)
        mu = (math.sqrt(large - 1) + math.sqrt(small)) ** 2
        sigma = (math.sqrt(large - 1) + math.sqrt(small)) * (
            1 / math.sqrt(large - 1) + 1 / math.sqrt(small)
        ) ** (1 / 3)
        statistics.append((n * m * rest[0] / rest.sum() - mu) / sigma)
        effectives.append(n)
    return statistics, effectives


@pytest.mark.parametrize(
    ("x", "below", "digits"),
    [
        (-3.90, 0.01, 2),
        (-3.18, 0.05, 2),
        (-2.78, 0.10, 2),
        (-1.91, 0.30, 2),
        (-1.27, 0.50, 2),
        (-0.59, 0.70, 2),
        (0.4501, 0.90, 4),
        (0.9793, 0.95, 4),
        (2.0234, 0.99, 4),
        (3.2722, 0.999, 4),
    ],
)
def test_published_quantiles(x: float, below: float, digits: int) -> None:
    """Two decimals: Johnstone 2001, Annals of Statistics 29, table 1."""
    half = 0.501 * 10.0**-digits
    assert tracy_widom_sf(x + half) <= 1 - below <= tracy_widom_sf(x - half)


def test_published_moments() -> None:
    """Mean, variance, skewness and excess kurtosis: Bornemann 2010, MPRF 16, 803-866."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    right, left = 10.0 * (nodes + 1.0), -5.5 * (nodes + 1.0)
    above, below = (
        10.0 * weights * tracy_widom_sf(right),
        5.5 * weights * (1 - tracy_widom_sf(left)),
    )
    moments = [
        k * ((right ** (k - 1) * above).sum() - (left ** (k - 1) * below).sum())
        for k in range(1, 5)
    ]
    mean = moments[0]
    variance = moments[1] - mean**2
    third = moments[2] - 3 * mean * moments[1] + 2 * mean**3
    fourth = moments[3] - 4 * mean * moments[2] + 6 * mean**2 * moments[1] - 3 * mean**4
    assert mean == pytest.approx(-1.2065335745820, abs=2e-13)
    assert variance == pytest.approx(1.607781034581, abs=1e-12)
    assert third / variance**1.5 == pytest.approx(0.29346452408, abs=1e-11)
    assert fourth / variance**2 - 3 == pytest.approx(0.1652429384, abs=1e-10)


def test_the_far_right_tail_follows_its_asymptote() -> None:
    """Half the integral of Ai, whose second term is 41/48 x^-1.5."""
    x = np.array([8.0, 15.999, 16.001, 40.0, 100.0, 103.0])
    tail = tracy_widom_sf(x)
    leading = -2.0 / 3.0 * x**1.5 - np.log(4.0 * np.sqrt(np.pi)) - 0.75 * np.log(x)
    assert (tail > 0).all()
    ratio = np.exp(np.log(tail) - leading)
    assert (np.abs(ratio - (1.0 - 41.0 / 48.0 / x**1.5)) < 2.5 / x**3).all()


def test_the_tail_falls_and_is_continuous_where_the_method_changes() -> None:
    x = np.concatenate([np.linspace(-12.0, 30.0, 400), [np.nextafter(16.0, 17.0), 16.0, -10.0]])
    x.sort()
    tail = tracy_widom_sf(x)
    assert (np.diff(tail) <= 1e-13).all()
    assert ((tail >= 0) & (tail <= 1)).all()
    at, after = tracy_widom_sf([16.0, np.nextafter(16.0, 17.0)])
    assert after == pytest.approx(at, rel=1e-12)


def test_shape_and_ends() -> None:
    tail = tracy_widom_sf([[-np.inf, -50.0, np.nan], [120.0, 1e200, np.inf]])
    np.testing.assert_array_equal(tail, [[1.0, 1.0, np.nan], [0.0, 0.0, 0.0]])
    assert tracy_widom_sf(0.0).shape == ()
    assert tracy_widom_sf([]).shape == (0,)


@pytest.mark.parametrize(("n", "p"), [(60, 900), (60, 61), (200, 80)])
def test_sequence_against_numpy(n: int, p: int) -> None:
    """Also where fewer features than samples swap their parts."""
    values = spectrum(n, p)[: min(n - 1, p)]
    got = tracy_widom_test(values)
    statistic, effective = oracle(values)
    np.testing.assert_allclose(got.statistic, statistic, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(got.effective_features, effective, rtol=1e-10)
    np.testing.assert_array_equal(np.isnan(got.p_value), np.isnan(statistic))
    np.testing.assert_array_equal(got.p_value, tracy_widom_sf(got.statistic))


@pytest.mark.parametrize("k", [1, 5, 58, 59])
def test_leading_values_with_totals_equal_the_whole_spectrum(k: int) -> None:
    values = spectrum()
    whole = tracy_widom_test(values)
    part = leading_only(values, k)
    for name in ("statistic", "p_value", "effective_features"):
        np.testing.assert_allclose(
            getattr(part, name), getattr(whole, name)[:k], rtol=1e-8, atol=1e-9
        )


def test_unit_and_zero_eigenvalues_change_nothing() -> None:
    values = spectrum()
    whole = tracy_widom_test(values)
    padded = tracy_widom_test(np.append(values * 1e6, [1e-9, 0.0, -1e-9]))
    np.testing.assert_allclose(padded.statistic[:-3], whole.statistic, rtol=1e-9, atol=1e-9)
    assert np.isnan(padded.statistic[-3:]).all()


def test_noise_alone_is_uniform_enough() -> None:
    """Of 200 spectra of noise about 5 % have a significant component; 5 real ones are all found."""
    wrong = sum(
        count_significant(leading_only(spectrum(40, 400, 0, seed), 1)) for seed in range(200)
    )
    assert 3 <= wrong <= 19
    assert count_significant(tracy_widom_test(spectrum(strong=5, size=0.15)), 1e-3) == 5


def test_components_of_like_size_can_hide_each_other() -> None:
    """EIGENSOFT's rule, not a fault: the others lower the effective number of features."""
    test = tracy_widom_test(spectrum(strong=5, size=0.4))
    assert count_significant(test, 1e-3) == 0
    assert (test.p_value[1:5] < 1e-3).all()


def test_count_stops_at_the_first_that_is_not_significant() -> None:
    def test_of(*p: float) -> TracyWidom:
        return TracyWidom(np.zeros(len(p)), np.array(p), np.zeros(len(p)))

    assert count_significant(test_of(1e-9, 0.01, 0.05, 1e-9)) == 2
    assert count_significant(test_of(1e-9, 0.01, 0.05, 1e-9), 0.06) == 4
    assert count_significant(test_of(0.2, 1e-9)) == 0
    assert count_significant(test_of(1e-9, np.nan, 1e-9)) == 1
    with pytest.raises(InvalidInputError, match="between 0 and 1"):
        count_significant(test_of(0.2), 5)


def test_equal_values_are_neither_noise_nor_signal() -> None:
    assert np.isnan(tracy_widom_test(np.full(20, 0.1)).p_value).all()


VALUES = spectrum()
SUMS = {"total": VALUES.sum(), "squares": (VALUES**2).sum(), "count": len(VALUES)}


@pytest.mark.parametrize(
    ("values", "sums", "error", "message"),
    [
        (VALUES[:9], {}, InvalidInputError, "9 eigenvalues are not zero"),
        (np.append(VALUES[:9], np.zeros(50)), {}, InvalidInputError, "9 eigenvalues are not zero"),
        (np.zeros(20), {}, InvalidInputError, "0 eigenvalues are not zero"),
        ([], {}, InvalidInputError, "shape"),
        (VALUES[None], {}, InvalidInputError, "shape"),
        (VALUES[::-1], {}, InvalidInputError, "descending"),
        (VALUES - VALUES[5], {}, InvalidInputError, "not negative"),
        (np.append(VALUES, np.nan), {}, NonFiniteError, "NaN"),
        (VALUES[:3], {"total": 1.0}, InvalidInputError, "all three"),
        (VALUES[:3], {**SUMS, "total": np.nan}, NonFiniteError, "finite"),
        (VALUES[:3], {**SUMS, "total": VALUES[:2].sum()}, InvalidInputError, "no spectrum"),
        (VALUES[:3], {**SUMS, "total": SUMS["total"] * 3}, InvalidInputError, "no spectrum"),
        (VALUES[:3], {**SUMS, "squares": SUMS["total"]}, InvalidInputError, "no spectrum"),
        (VALUES[:3], {**SUMS, "count": 15}, InvalidInputError, "no spectrum"),
        (VALUES[:3], {**SUMS, "count": 5}, InvalidInputError, "no spectrum"),
    ],
)
def test_what_cannot_be_tested_is_refused(
    values: Any, sums: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tracy_widom_test(values, **sums)


@pytest.mark.skipif(
    shutil.which("twstats") is None, reason="EIGENSOFT's twstats is not installed (eigensoft)"
)
@pytest.mark.parametrize("seed", range(4))
def test_eigensoft_agrees(seed: int, tmp_path: Path) -> None:
    """To the digits that twstats prints and the precision of its table."""
    values = spectrum(300, [3000, 3000, 310, 150][seed], seed, seed)
    values = values[values > 1e-6 * values[0]]
    values /= values.mean()  # larger ones run into each other in what it prints
    np.savetxt(tmp_path / "values", values, fmt="%.15g")
    command = ["twstats", "-i", str(tmp_path / "values")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in printed.splitlines() if not line.lstrip().startswith("#")]
    theirs = np.array([[np.nan if c == "NA" else float(c) for c in row] for row in rows])
    ours = tracy_widom_test(values)
    assert len(theirs) == len(values)
    np.testing.assert_allclose(ours.statistic, theirs[:, 3], atol=6e-4)
    np.testing.assert_allclose(ours.effective_features, theirs[:, 5], rtol=1e-9, atol=6e-4)
    inside = ours.statistic < TABLE_END
    np.testing.assert_allclose(ours.p_value[inside], theirs[inside, 4], rtol=1e-4, atol=1e-6)
