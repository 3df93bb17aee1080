"""Kernel PCA of objects that are no rows of numbers: callable = precomputed."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import streampca
from streampca import KernelPCA
from streampca.errors import InvalidInputError, MemoryLimitError
from streampca.sources.memory.objects import objects_in


@cache
def triples(sequence: str) -> Counter[str]:
    return Counter(sequence[i : i + 3] for i in range(len(sequence) - 2))


def spectrum(a: str, b: str) -> float:
    """The spectrum kernel of order 3: a product of counts of triples (Leslie and others 2002)."""
    counts, others = triples(a), triples(b)
    return float(sum(count * others[triple] for triple, count in counts.items()))


def sequences(n: int, seed: int = 0) -> list[str]:
    """Of two families, which prefer other letters."""
    rng = np.random.default_rng(seed)
    shares = ([0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4])
    return ["".join(rng.choice(list("ACGT"), 40, p=shares[i % 2])) for i in range(n)]


def matrix_of(function: Any, rows: list[Any], columns: list[Any]) -> np.ndarray:
    return np.array([[function(a, b) for b in columns] for a in rows], float)


def quiet(kernel: Any = spectrum, k: int = 3, **parameters: Any) -> KernelPCA:
    return KernelPCA(k, **{"kernel": kernel, "progress": False, **parameters})


SEQUENCES, NEW = sequences(60), sequences(9, 1)


def test_a_callable_gives_what_its_matrix_gives() -> None:
    expected = quiet("precomputed").fit(matrix_of(spectrum, SEQUENCES, SEQUENCES))
    model = quiet()
    scores = model.fit_transform(SEQUENCES)
    np.testing.assert_array_equal(model.eigenvalues_, expected.eigenvalues_)
    np.testing.assert_array_equal(scores, expected.result_.fitted_scores)
    found = model.transform(NEW)
    np.testing.assert_array_equal(found, expected.transform(matrix_of(spectrum, NEW, SEQUENCES)))
    np.testing.assert_allclose(model.transform(SEQUENCES), scores, atol=1e-10)
    one, other = scores[::2, 0], scores[1::2, 0]  # the families
    assert abs(one.mean() - other.mean()) > 2 * max(one.std(), other.std())


@pytest.mark.slow
def test_the_spectrum_kernel_of_many_sequences() -> None:
    many = sequences(500)
    counts = np.array(
        [[triples(one)[a + b + c] for a in "ACGT" for b in "ACGT" for c in "ACGT"] for one in many],
        float,
    )
    expected = quiet("precomputed", 5).fit(counts @ counts.T)
    model = quiet(spectrum, 5).fit(many)
    np.testing.assert_array_equal(model.eigenvalues_, expected.eigenvalues_)
    np.testing.assert_array_equal(model.eigenvectors_, expected.eigenvectors_)


GRAPHS = [{i: (i + 1 + one) % 7 for i in range(3 + one % 4)} for one in range(12)]
SERIES = [np.random.default_rng(i).standard_normal(5 + i % 3) for i in range(12)]


@pytest.mark.parametrize(
    ("kernel", "objects"),
    [
        (lambda a, b: float(len(a.items() & b.items())), GRAPHS),
        (lambda a, b: float(min(len(a), len(b)) * a.mean() * b.mean()), SERIES),
        (spectrum, np.array(SEQUENCES)),
        (spectrum, tuple(SEQUENCES)),
        (spectrum, pd.Series(SEQUENCES)),
    ],
)
def test_objects_of_any_kind(kernel: Any, objects: Any) -> None:
    listed = list(objects)
    expected = quiet("precomputed").fit(matrix_of(kernel, listed, listed)).eigenvalues_
    np.testing.assert_array_equal(quiet(kernel).fit(objects).eigenvalues_, expected)


def test_rows_of_numbers_are_no_objects() -> None:
    rows = np.random.default_rng(0).standard_normal((20, 4))
    for numbers in (rows, rows.tolist(), list(rows), [tuple(row) for row in rows], [1, 2], []):
        assert objects_in(numbers) is None
    assert objects_in([[1.0, 2.0], [1.0]]) == [[1.0, 2.0], [1.0]]
    product = quiet(lambda a, b: float(a @ b))
    expected = quiet("linear").fit(rows).transform(rows)
    np.testing.assert_allclose(product.fit(rows.tolist()).transform(rows), expected, atol=1e-10)


def test_each_pair_is_computed_once() -> None:
    seen: Counter[tuple[str, str]] = Counter()

    def counted(a: str, b: str) -> float:
        seen[a, b] += 1
        return spectrum(a, b)

    model = quiet(counted).fit(SEQUENCES)
    assert sum(seen.values()) <= 60 * 61 // 2 + model.cost_[0].reads  # a pair again for each block
    plan = quiet(counted).plan(SEQUENCES)
    assert plan.peak_nbytes > 60 * 60 * 8
    with pytest.raises(MemoryLimitError):
        quiet(memory_limit=1000).plan(SEQUENCES)


def test_a_saved_model_takes_values_of_the_kernel(tmp_path: Path) -> None:
    model = quiet().fit(SEQUENCES)
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    values = matrix_of(spectrum, NEW, SEQUENCES)
    np.testing.assert_array_equal(loaded.transform(values), model.transform(NEW))
    with pytest.raises(InvalidInputError, match="neither the objects of its fit nor their kernel"):
        loaded.transform(NEW)


def test_an_interrupted_fit_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = quiet().fit(SEQUENCES).eigenvectors_
    seen = []

    def stopping(a: str, b: str) -> float:
        seen.append(a)
        if len(seen) == 900:
            raise KeyboardInterrupt
        return spectrum(a, b)

    place = str(tmp_path / "kept")
    with pytest.raises(KeyboardInterrupt):
        quiet(stopping, checkpoint=place).fit(SEQUENCES)
    again = quiet(stopping, checkpoint=place).fit(SEQUENCES)
    np.testing.assert_array_equal(again.eigenvectors_, expected)


def test_what_is_no_kernel_is_refused() -> None:
    for kernel, message in (
        (lambda a, b: float("nan"), "of objects 0 and 0 is nan; expected a finite number"),
        (lambda a, b: float(a < b), "expected a symmetric function"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            quiet(kernel).fit(SEQUENCES)
    with pytest.raises(InvalidInputError, match="n_components=3; expected None or a number from 1"):
        quiet().fit(SEQUENCES[:2])
    with pytest.raises(InvalidInputError, match="solver='matrix-free' would compute"):
        quiet(solver="matrix-free").fit(SEQUENCES)
    with pytest.raises(InvalidInputError, match="copies rows of numbers"):
        quiet(keep_training="rows.zarr").fit(SEQUENCES)
    model = quiet().fit(SEQUENCES)
    with pytest.raises(InvalidInputError, match="this kernel was precomputed"):
        model.inverse_transform(model.eigenvectors_)
