"""``.npy`` files: read by position, in any order of storage, in flat memory."""

from __future__ import annotations

import numpy as np
import pytest

import streampca
from streampca.errors import SourceError
from streampca.passes.memory import peak_nbytes
from streampca.sources import npy
from tests.each import each
from tests.forks import forked

SHAPES = [(53, 21), (1, 7), (7, 1), (6, 5, 4), (3, 4, 5, 6)]


@each("near", [True, False])
@each("dtype", ["<f4", ">f8", "i1", "bool"])
@each("order", ["C", "F"])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_part_of_any_order(tmp_path, monkeypatch, shape, order, dtype, near):
    monkeypatch.setattr(npy, "GAP_NBYTES", 1 << 14 if near else -1)
    monkeypatch.setattr(npy, "GROUP_NBYTES", 500)
    x = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    np.save(tmp_path / "x.npy", np.asarray(x, order=order))
    for dim in range(len(shape)) if len(shape) > 2 else [0]:
        matrix = streampca.open(str(tmp_path / "x.npy"), dim=dim)
        flat = np.moveaxis(x, dim, 0).reshape(shape[dim], -1)
        for axis in (0, 1):
            n = matrix.shape[axis]
            for start in range(0, n, 5):
                stop = min(start + 5, n)
                expected = flat[:, start:stop] if axis else flat[start:stop]
                for buffer in (None, np.empty(matrix.nbytes * 2, np.uint8)):
                    found = matrix.read(axis, start, stop, buffer)
                    np.testing.assert_array_equal(found, expected)
                    assert found.dtype.isnative


def test_a_file_that_was_cut_off_meanwhile(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((100, 50)))
    matrix = streampca.open(str(tmp_path / "x.npy"))
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(data[:-400])
    with pytest.raises(SourceError, match=r"truncated: .* bytes are missing"):
        matrix.read(0, 90, 100)
    with pytest.raises(SourceError, match="truncated"):
        matrix.read(1, 40, 50)


SCRIPT = """
import sys
import streampca
from streampca.passes.memory import peak_nbytes
model = streampca.PCA(5, memory_limit="300MiB", progress=False)
plan = model.plan(sys.argv[1])
model.fit(sys.argv[1])
print(peak_nbytes(), plan.peak_nbytes)
"""


@pytest.mark.soak
@pytest.mark.skipif(not peak_nbytes(), reason="/proc is not there to measure with")
@pytest.mark.parametrize("order", [pytest.param("C", marks=pytest.mark.soak), "F"])
def test_the_peak_of_a_wide_file_is_as_projected(tmp_path, order):
    """Pages of a map would count as the process's own: 286 MiB here."""
    x = np.random.default_rng(0).standard_normal((500, 150_000), dtype="f4")
    np.save(tmp_path / "x.npy", np.asarray(x, order=order))
    peak, projected = map(int, forked(SCRIPT, str(tmp_path / "x.npy")).split())
    assert peak <= projected <= 300 * 2**20


def test_an_empty_file_is_named_as_the_file_s_fault(tmp_path):
    path = tmp_path / "empty.npy"
    path.touch()
    with pytest.raises(SourceError, match=r"empty\.npy: not a readable \.npy file"):
        streampca.open(path)
