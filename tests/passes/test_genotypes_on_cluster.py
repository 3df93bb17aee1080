"""Genotypes on worker processes: compiled kernels, cohorts and pruning give the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import streampca
from streampca import GenotypePCA
from tests.genotypes import random_calls, write_plink


@pytest.mark.soak
def test_the_same_bits_on_two_processes(two_processes: Any, tmp_path) -> None:
    path = write_plink(tmp_path / "x", random_calls(600, 20_000))
    chosen = [f"s{i}" for i in range(0, 600, 2)]
    here, there = (
        GenotypePCA(4, fit_samples=chosen, scheduler=scheduler, solver="gram").fit(path)
        for scheduler in ("threads", two_processes)
    )
    assert here.plan_.passes[0].n_blocks > 1
    for name in ("eigenvalues_", "scores_", "components_", "frequencies_"):
        np.testing.assert_array_equal(getattr(here, name), getattr(there, name), name)
    kept = [
        streampca.prune_ld(path, r2=0.05, window=50, step=5, scheduler=scheduler).kept
        for scheduler in ("threads", two_processes)
    ]
    np.testing.assert_array_equal(*kept)
    related = [
        streampca.kinship(path, scheduler=scheduler).kinship
        for scheduler in ("threads", two_processes)
    ]
    np.testing.assert_array_equal(*related)
    projected = [
        streampca.project_samples(here.result_, path, scheduler=scheduler).scores
        for scheduler in ("threads", two_processes)
    ]
    np.testing.assert_array_equal(*projected)


@pytest.mark.slow
def test_components_are_streamed_by_two_processes(two_processes: Any, tmp_path) -> None:
    import xarray

    path = write_plink(tmp_path / "x", random_calls(600, 20_000))
    stored = []
    for scheduler in ("threads", two_processes):
        out = tmp_path / f"{len(stored)}.zarr"
        model = GenotypePCA(4, scheduler=scheduler, loadings=out).fit(path)
        stored.append(xarray.open_zarr(str(out), consolidated=False).load())
        assert model.plan_.named("loadings").n_blocks > 1
    xarray.testing.assert_identical(*stored)
