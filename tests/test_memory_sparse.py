"""Measured peak <= projected for sparse sources (see ``test_memory``)."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.sparse
import zarr

from tests.peaks import Found, check, measured, needs_proc, runs_until

PROGRAM = """
warnings.simplefilter("ignore")

def made(path, k):
    settings = {"svd_solver": ask["solver"], "max_passes": 4, "memory_limit": ask["limit"]}
    model = streampca.PCA(k, progress=False, **settings)
    if ask["action"] == "transform":  # of a model that read nothing of the source
        p = streampca.open(path).shape[1]
        model.set_params(svd_solver="gram").fit(np.random.default_rng(0).normal(size=(3 * k, p)))
    return model

def act(path, model):
    source = streampca.open(path)
    if ask["action"] == "derived":
        source = streampca.preprocess.log1p(source)
    if ask["action"] == "transform":
        model.transform(source)
    else:
        model.fit(source)

act(ask["tiny"], made(ask["tiny"], 2))
model = made(ask["path"], ask["k"])
plans.clear()
base = resident_nbytes()
act(ask["path"], model)
report(base)
"""


@lru_cache(maxsize=1)
def counts(lines: int, across: int, last: float) -> scipy.sparse.csr_array:
    """3 % of the entries are stored; of the last tenth of the lines ``last`` times as many."""
    rng = np.random.default_rng(0)
    pieces = []
    for count, dense in ((lines - lines // 10, 0.03), (lines // 10, 0.03 * last)):
        cells = count * across
        gaps = rng.geometric(dense, int(1.1 * dense * cells) + 100)  # between stored entries
        places = np.cumsum(gaps) - 1
        assert places[-1] >= cells
        places = places[: np.searchsorted(places, cells)]
        bounds = np.searchsorted(places, np.arange(count + 1) * across)
        values = rng.random(len(places), dtype="f4")
        parts = (values, (places % across).astype(np.int32), bounds)
        pieces.append(scipy.sparse.csr_array(parts, shape=(count, across)))
    return scipy.sparse.vstack(pieces, format="csr")


def store(path: Path, n: int, p: int, format_: str, last: float = 1.0) -> str:
    """Such a matrix of n samples, compressed by samples or by features."""
    whole = counts(*((n, p) if format_ == "csr" else (p, n)), last)
    if path.suffix == ".h5ad":
        with h5py.File(path, "w") as file:
            write(file, whole, (n, p), format_)
    else:
        write(zarr.create_group(str(path)), whole, (n, p), format_)
    return str(path)


def write(root: Any, lines: Any, shape: tuple[int, int], format_: str) -> None:
    root.attrs.update({"encoding-type": f"{format_}_matrix", "encoding-version": "0.1.0"})
    root.attrs["shape"] = list(shape)
    for name in ("data", "indices", "indptr"):
        array = getattr(lines, name)
        chunks = (min(len(array), 100_000),)
        if isinstance(root, zarr.Group):
            made = root.create_array(name, shape=array.shape, dtype=array.dtype, chunks=chunks)
            made[...] = array
        else:
            fast = {"compression": "gzip", "compression_opts": 1}
            root.create_dataset(name, data=array, chunks=chunks, **fast)


def run(path: str, tiny: str, **ask: Any) -> Found:
    """What a fit, or scores of a model, took and planned."""
    asked = {"k": 10, "action": "fit", "solver": "randomized", "limit": None}
    return measured(PROGRAM, path=path, tiny=tiny, **asked | ask)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(suffix, format) -> the paths of a large and a tiny matrix, written when first asked for."""
    folder = tmp_path_factory.mktemp("sparse")

    @cache
    def written(suffix: str, format_: str) -> tuple[str, str]:
        large = store(folder / f"x-{format_}{suffix}", 60_000, 5000, format_)
        return large, store(folder / f"t-{format_}{suffix}", 300, 200, format_)

    return written


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("format_", "suffix", "action"),
    [  # every pair
        ("csc", ".h5ad", "fit"),
        *(
            pytest.param(*one, marks=pytest.mark.soak)
            for one in (
                ("csr", ".zarr", "fit"),
                ("csr", ".h5ad", "transform"),
                ("csc", ".zarr", "transform"),
                ("csr", ".zarr", "derived"),
                ("csc", ".h5ad", "derived"),
            )
        ),
    ],
)
def test_an_iterative_fit_stays_under_its_plan(
    stored: Any, suffix: str, format_: str, action: str
) -> None:
    check(run(*stored(suffix, format_), action=action))


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "format_"), [("scatter", "csr"), pytest.param("gram", "csc", marks=pytest.mark.soak)]
)
def test_expanded_tiles_stay_under_their_plan(tmp_path: Path, solver: str, format_: str) -> None:
    shape = (60_000, 1500) if format_ == "csr" else (1500, 60_000)
    path = store(tmp_path / "x.zarr", *shape, format_)
    check(run(path, store(tmp_path / "t.zarr", 300, 200, format_), solver=solver))


@needs_proc
@pytest.mark.soak
def test_a_dense_end_is_planned(tmp_path: Path) -> None:
    path = store(tmp_path / "x.zarr", 60_000, 4000, "csr", last=15.0)
    check(run(path, store(tmp_path / "t.zarr", 300, 200, "csr")))


@needs_proc
@pytest.mark.soak
def test_peak_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """With blocks of 4 MiB, so that both have more of them than are read ahead."""
    tiny = store(tmp_path / "t.zarr", 300, 200, "csr")
    once = counts(40_000, 2000, 1.0)
    paths = [str(tmp_path / f"{times}.zarr") for times in (1, 10)]
    for path, times in zip(paths, (1, 10), strict=True):
        whole = scipy.sparse.vstack([once] * times, format="csr")
        write(zarr.create_group(path), whole, whole.shape, "csr")
    many = run(paths[1], tiny, limit="380MiB")
    assert many["memory"]["step"]["blocks"] <= 20 << 20
    few = runs_until(
        lambda few: many["peak"] < 1.1 * few["peak"], lambda: run(paths[0], tiny, limit="380MiB")
    )
    assert many["peak"] < 1.1 * max(found["peak"] for found in few)
