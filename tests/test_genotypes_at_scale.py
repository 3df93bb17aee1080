"""Genotypes in the large: files by chromosome, limits at full size, memory that does not grow."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
from streampca import GenotypePCA
from streampca.errors import MemoryLimitError
from streampca.matrix import ReadCount
from streampca.sources.stacked import Reader, StackedMatrix
from tests.forks import forked
from tests.genotypes import random_calls, write_plink


def test_22_files_give_the_bits_of_one(tmp_path) -> None:
    calls = random_calls(101, 2200)
    chromosomes = [str(1 + j // 100) for j in range(2200)]
    whole = GenotypePCA(4).fit(write_plink(tmp_path / "all", calls, chromosomes=chromosomes))
    for i in range(22):
        part = slice(100 * i, 100 * (i + 1))
        write_plink(
            tmp_path / f"chr{i + 1}",
            calls[:, part],
            chromosomes=chromosomes[part],
            ids=[f"rs{j}" for j in range(part.start, part.stop)],
        )
    parts = GenotypePCA(4).fit(str(tmp_path / "chr*.bed"))
    for name in ("eigenvalues_", "scores_", "components_", "frequencies_"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name), name)


class Unread(Reader):
    """Calls of the defining case, which nothing may read."""

    into_buffer = True
    loads = ("numba",)
    shape = (500_568, 3192)
    dtype = np.dtype(np.int8)

    def read(self, index: Any, buffer: Any = None) -> Any:
        raise AssertionError("a plan reads nothing")

    def edges(self, dim: int) -> Any:
        return None if dim == 0 else np.array([0, 3192])

    def fingerprint(self) -> str:
        return "unread"

    def reads(self) -> ReadCount:
        return ReadCount()

    def restart_counts(self) -> None:
        pass


def test_a_quarter_of_a_gibibyte_is_refused_with_the_limit_that_would_do() -> None:
    matrix = StackedMatrix(Unread(), (1,), (0,), missing_value=-1)
    with pytest.raises(MemoryLimitError) as error:
        GenotypePCA(10, components=False, memory_limit="256MiB").plan(matrix)
    found = re.search(r"memory_limit='(\d+MiB)'", str(error.value))
    assert found is not None
    plan = GenotypePCA(10, components=False, memory_limit=found[1]).plan(matrix)
    assert plan.peak_nbytes <= plan.memory_limit < 500e6
    usual = GenotypePCA(10, components=False).plan(matrix)
    assert usual.solver == "gram"
    assert [one.reads for one in usual.passes] == [381]


def write_noise(stem: Path, n: int, p: int) -> str:
    """A fileset of random calls, without ever holding them; its path."""
    Path(f"{stem}.fam").write_text("".join(f"f s{i} 0 0 0 0\n" for i in range(n)))
    Path(f"{stem}.bim").write_text("".join(f"1 v{j} 0 {j} A G\n" for j in range(p)))
    with open(f"{stem}.bed", "wb") as bed:
        bed.write(b"\x6c\x1b\x01")
        rng = np.random.default_rng(0)
        for _ in range(100):
            bed.write(rng.integers(0, 256, p // 100 * n // 4, dtype=np.uint8).tobytes())
    return f"{stem}.bed"


CHILD = """
import sys
import streampca
from streampca.passes.memory import peak_nbytes
matrix = streampca.open(sys.argv[1])
step, p = 2000, matrix.shape[1]
matrix.read(1, 0, step)
before = peak_nbytes()
for start in range(0, p, step):
    matrix.read(1, start, min(start + step, p))
print((peak_nbytes() - before) / 1e6)
"""


@pytest.mark.slow
def test_resident_memory_does_not_grow_with_the_file(tmp_path) -> None:
    """A mapped .bed would count as resident: 100 MB here."""
    path = write_noise(tmp_path / "x", 4000, 100_000)
    assert float(forked(CHILD, path)) < 30


STREAMED = """
import sys
import streampca
from streampca.passes.memory import peak_nbytes
streampca.GenotypePCA(60, loadings=sys.argv[2], solver="gram").fit(sys.argv[1])
print(peak_nbytes())
"""


@pytest.mark.soak
def test_streamed_components_take_no_memory(tmp_path) -> None:
    """They would take 288 MB; what is left is within the plan."""
    path, out = write_noise(tmp_path / "x", 100, 600_000), tmp_path / "v.zarr"
    held, streamed = (
        GenotypePCA(60, solver="gram", loadings=to).plan(path).peak_nbytes for to in (None, out)
    )
    assert held - streamed > 200e6
    assert int(forked(STREAMED, path, str(out))) <= streamed


WHOLE = """
import sys
import numpy as np
import streampca
from streampca.passes.memory import peak_nbytes
stem, limit = sys.argv[1:3]
model = streampca.GenotypePCA(10, scale="hwe", loadings=stem + ".zarr", memory_limit=limit or None)
model.fit(stem + ".bed")
peak, planned = peak_nbytes(), model.plan_.peak_nbytes
model.save(stem + ".model")
saved = peak_nbytes()
v = model.components_
print(peak, planned, saved, *v.shape, np.abs(v @ v.T - np.eye(10)).max())
"""


def whole_fit(stem: Path, limit: str = "") -> list[float]:
    """(peak, plan, peak with saving, k, p, distance from orthonormal) of a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", WHOLE, str(stem), limit],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(streampca.__file__).parents[1],
    )
    return [float(word) for word in done.stdout.split()]


@pytest.mark.soak
@pytest.mark.parametrize("some", [50_000, 200_000])
def test_ten_times_the_variants_fit_in_300_mebibytes(some: int, tmp_path) -> None:
    """Labels, statistics and components stream: ten times the variants add under a tenth.

    Without a limit a tenth of them is fitted: what that takes and a tenth is in the plan for all.
    """
    peaks = []
    # the first compiles what is not compiled yet
    for p, limit in ((20_000, ""), (some, ""), (some, "300MiB"), (10 * some, "300MiB")):
        write_noise(tmp_path / "x", 300, p)
        peak, planned, saved, *shape, apart = whole_fit(tmp_path / "x", limit)
        assert shape == [10, p]
        assert apart < 1e-12
        for output in ("x.zarr", "x.model"):
            shutil.rmtree(tmp_path / output)
        peaks.append(peak)
        if p > 20_000:
            assert peak <= planned
    assert planned <= 300 * 2**20
    assert saved < 300 * 2**20
    assert peaks[3] < 1.1 * peaks[2]
    out = tmp_path / "v.zarr"
    plan = GenotypePCA(10, scale="hwe", loadings=out).plan(f"{tmp_path / 'x'}.bed")
    assert 1.1 * peaks[1] <= plan.peak_nbytes
