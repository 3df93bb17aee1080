"""Our default solvers on matrices with known answers; the answers and the judge themselves."""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from streampca.errors import StreamPCAError
from tests.conformance.__main__ import main, tried
from tests.conformance.fits import OURS, Fit, by_numpy
from tests.conformance.judge import Truth, judged, matrix_of, tolerance
from tests.conformance.matrices import CASES, as_integers
from tests.each import each

RANGE = {"huge", "near overflow", "tiny", "subnormal", "past 2^53", "past 2^62"}  # refused
SQUARES = {  # values near 1e-8 of the largest, which squares do not resolve
    "drift",
    "first row giant",
    "last row giant",
    "graded",
    "graded columns",
    "Laeuchli",
    "nearly parallel",
    "Hilbert",
    "rank 3",
}


@pytest.mark.parametrize(
    ("fit", "known"),
    [
        ("PCA auto", SQUARES | {"all equal", "one row"}),  # these two have no variance
        # the values of "all equal" that are 0 are not resolved where products round otherwise
        ("TruncatedSVD auto", SQUARES | {"offset 1e12", "offset wide", "all equal"}),
        pytest.param("PCA tsqr", {"all equal", "one row"}, marks=pytest.mark.slow),
    ],
)
def test_ours_is_right_or_names_its_limit(fit: str, known: set[str]) -> None:
    words = {name: tried(OURS[f"streampca {fit}"], name)[0] for name in CASES}
    assert {name: one for name, one in words.items() if one.word == "wrong"} == {}
    assert {name: one for name, one in words.items() if one.word != "pass"}.keys() <= RANGE | known
    assert all(words[name].word == "refuses" for name in RANGE)


@each(
    "fit, name",
    [
        ("PCA auto, sparse", "two rows"),  # means are subtracted after the products
        ("PCA randomized, sparse", "offset 1e12"),
        ("PCA gram", "giant row float32"),  # equal small terms after a large one
        ("PCA sketch", "giant row float32"),  # each step loses a little
    ],
)
def test_bounds_that_did_not_hold_do(fit: str, name: str) -> None:
    assert tried(OURS[f"streampca {fit}"], name)[0].word in ("pass", "limit")


# -- the answers -------------------------------------------------------------------


def exactly(pair: Any, unit: int = 0) -> list[Fraction]:
    """Numbers that are stored as sums of two."""
    return [(Fraction(a) + Fraction(b)) * Fraction(2) ** unit for a, b in zip(*pair.tolist())]


@each("centred", [True, False])
@each("name", ["Hilbert", "Laeuchli", "40 rows, offset", "past 2^62", "two rows"])
def test_answers_satisfy_their_equations_to_thirty_digits(name: str, centred: bool) -> None:
    """In rational arithmetic: X'X v = s^2 v, and all s^2 sum to the squares of X."""
    whole, below = as_integers(matrix_of(name))
    if centred:
        whole, below = len(whole) * whole - whole.sum(axis=0), len(whole) * below
    true = Truth.of(name, centred)
    values = exactly(true.values, true.unit)
    total = Fraction(int((whole**2).sum()), below**2)
    assert abs(sum(value**2 for value in values) - total) <= total * Fraction(1, 10**30)
    for i, value in enumerate(values[: true.vectors.shape[1]]):
        v = np.array(exactly(true.vectors[:, i]), dtype=object)
        residual = whole.T @ (whole @ v) - value**2 * below**2 * v
        assert max(map(abs, residual)) <= values[0] ** 2 * below**2 * Fraction(1, 10**29)
        assert abs(v @ v - 1) <= Fraction(1, 10**30)


# -- the judge ---------------------------------------------------------------------


def rotated(vectors: Any, i: int, j: int, angle: float) -> Any:
    turned = vectors.copy()
    turned[i] = np.cos(angle) * vectors[i] + np.sin(angle) * vectors[j]
    turned[j] = np.cos(angle) * vectors[j] - np.sin(angle) * vectors[i]
    return turned


def test_the_judge_sees_what_is_wrong_and_nothing_else() -> None:
    """Five components, the first three and the next two have equal values."""
    name, k = "equal values", 5
    x, true = matrix_of(name), Truth.of(name, True)
    rounding = tolerance(x, true.largest)
    values, vectors = by_numpy(True, x, k)
    off, far = values.copy(), vectors.copy()
    off[1] *= 1 + 1e-9
    far[4] *= 1 + 1e-9
    small, large = (np.full((2, k), bound) for bound in (1e-12, 1e-2))
    for answer, warned, word, why in [
        ((values, -vectors), set(), "pass", ""),
        ((values, rotated(vectors, 0, 2, 1.0)), set(), "pass", ""),
        ((values, rotated(vectors, 2, 3, 1e-6)), set(), "wrong", "angle 1e-06"),
        ((values, far), set(), "wrong", "not orthonormal 2e-09"),
        ((off, vectors), set(), "wrong", "values 1e-09"),
        ((off, vectors), {"not converged"}, "limit", "values 1e-09"),
        ((off, vectors, large), set(), "limit", "values 1e-09"),
        ((off, vectors, small), {"not converged"}, "wrong", "beyond its own bound"),
        ((off * np.nan, vectors), set(), "wrong", "not finite"),
        ((values[:3], vectors[:3]), set(), "wrong", "3 components of 5"),
        ((values, vectors[:3]), set(), "wrong", "shapes"),
    ]:
        found = judged(answer, warned, true, k, rounding)[0]
        assert found.word == word
        assert found.why.startswith(why)


def no_centring(x: Any, k: int) -> tuple[Any, ...]:
    return by_numpy(False, x, k)


def raises(x: Any, k: int) -> tuple[Any, ...]:
    raise StreamPCAError("not today")


def test_errors_are_refusals() -> None:
    verdict = tried(Fit(raises), "plain")[0]
    assert (verdict.word, verdict.why) == ("refuses", "StreamPCAError: not today")


def test_anyone_can_run_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["", "--fit", f"{__name__}:no_centring", "--case", "offset 1e6"]
    monkeypatch.setattr(sys, "argv", words)
    assert main() == 1
    assert "0 pass, 0 limit, 0 refuses, 1 wrong" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*words, "--as-it-is"])
    assert main() == 0
