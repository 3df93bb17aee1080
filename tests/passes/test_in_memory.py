"""Arrays in memory: on threads beside an ambient client; sent once where a cluster is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

import streampca
from streampca import PCA
from streampca.passes.cluster.parcel import worth_keeping
from streampca.passes.memory import in_memory


@pytest.fixture(scope="module")
def values() -> Any:
    rng = np.random.default_rng(0)
    turned, _ = np.linalg.qr(rng.standard_normal((30, 30)))
    return (rng.standard_normal((4000, 30)) * 2.0 ** -np.arange(30) @ turned).astype("f4")


@pytest.fixture
def scattered(monkeypatch: Any) -> list[Any]:
    """What any client scatters."""
    from distributed import Client

    found: list[Any] = []
    scatter = Client.scatter

    def spy(self: Any, data: Any, **more: Any) -> Any:
        found.append(more)
        return scatter(self, data, **more)

    monkeypatch.setattr(Client, "scatter", spy)
    return found


def test_beside_an_ambient_client_they_stay_here(
    two_processes: Any, values: Any, monkeypatch: Any
) -> None:
    def submit(*args: Any, **more: Any) -> Any:
        raise AssertionError("a span was sent")

    monkeypatch.setattr("distributed.Client.submit", submit)
    with two_processes.as_current():
        model = PCA(2, progress=False).fit(values)
        assert "on threads of this process, not on the cluster" in str(model.plan_)
    assert model.cost_[0].moved == 0
    assert "on threads of this process" not in str(model.plan_)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("sparse", [False, True])
def test_on_a_named_cluster_they_are_sent_once(
    two_processes: Any, values: Any, sparse: bool, scattered: list[Any]
) -> None:
    X = scipy.sparse.csr_array(np.where(np.abs(values) > 0.1, values, 0)) if sparse else values
    settings: dict[str, Any] = {"svd_solver": "randomized", "random_state": 0, "progress": False}
    there = PCA(2, scheduler=two_processes, **settings).fit(X)
    here = PCA(2, scheduler="threads", **settings).fit(X)
    np.testing.assert_array_equal(there.components_, here.components_)
    moved = [cost.moved for cost in there.cost_]
    assert len(moved) > 1
    assert moved[0] > 0
    assert set(moved[1:]) == {0}
    if not sparse:
        assert moved[0] == values.nbytes
    parts = [one for one in scattered if not one.get("broadcast") and one.get("direct")]
    assert {one["workers"][0] for one in parts} == set(two_processes.nthreads())


def test_one_pass_keeps_nothing(two_processes: Any, values: Any) -> None:
    matrix = streampca.open(values)
    assert in_memory(matrix)
    assert not worth_keeping(two_processes, matrix, 1)
    assert worth_keeping(two_processes, matrix, 2)
    matrix.carried_nbytes = 1 << 60
    assert not worth_keeping(two_processes, matrix, 2)


def test_what_lies_elsewhere_is_not_in_memory(values: Any, tmp_path: Any) -> None:
    np.save(tmp_path / "x.npy", values)
    assert not in_memory(streampca.open(tmp_path / "x.npy"))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert in_memory(streampca.open(mapped))  # its values travel
    stored = streampca.open(tmp_path / "x.npy")
    few = streampca.open(values[:, :3].copy())
    assert not in_memory(streampca.concat_features(stored, few))
