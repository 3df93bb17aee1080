"""Clients of every state, inside tasks and outside: used, or refused by name, and no deadlock."""

from __future__ import annotations

import asyncio
import copy
import importlib
import pickle
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pass_matrices import same_bits
from test_cluster import slow_pass, states

import streampca
from streampca.errors import ClusterError, InvalidInputError
from streampca.passes.cluster.clients import find_client

N, P = 2000, 24


def data(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(N, P)) * np.linspace(4, 1, P)


def model(scheduler: Any, **more: Any) -> Any:
    return streampca.PCA(3, scheduler=scheduler, progress=False, **more)


# -- inside a task -------------------------------------------------------------------------------


def fit_in_a_task(x: np.ndarray, scheduler: Any) -> np.ndarray:
    return model(scheduler).fit(x).components_


def fit_in_a_thread_of_a_task(x: np.ndarray, scheduler: Any) -> np.ndarray:
    found: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: found.append(fit_in_a_task(x, scheduler)))
    thread.start()
    thread.join()
    return found[0]


def fit_with_the_client_of_a_task(x: np.ndarray, scheduler: Any) -> np.ndarray:
    from distributed import get_client

    return fit_in_a_task(x, get_client())


def other_spelling(address: str) -> str:
    return address.replace("127.0.0.1", "localhost")


WAYS: dict[str, tuple[Callable[..., np.ndarray], Callable[[str], Any]]] = {
    "ambient": (fit_in_a_task, lambda address: None),
    "address": (fit_in_a_task, str),
    "another address of it": (fit_in_a_task, other_spelling),
    "a client": (fit_with_the_client_of_a_task, lambda address: None),
    "address, in a thread": (fit_in_a_thread_of_a_task, str),
    "ambient, in a thread": (fit_in_a_thread_of_a_task, lambda address: None),
}


@pytest.mark.parametrize(("task", "named"), WAYS.values(), ids=WAYS.keys())
def test_tasks_on_all_workers_do_not_wait_for_each_other(
    two_processes: Any, task: Any, named: Any
) -> None:
    scheduler = named(two_processes.cluster.scheduler_address)
    futures = [two_processes.submit(task, data(i), scheduler, pure=False) for i in range(4)]
    found = two_processes.gather(futures)
    for i, components in enumerate(found):
        assert same_bits({"c": components}, {"c": fit_in_a_task(data(i), "threads")})


def test_a_fitted_model_is_applied_inside_map_blocks(
    two_processes: Any, small_blocks: None, no_kept_clients: None
) -> None:
    import dask.array

    x = data()
    fitted = model(two_processes.cluster.scheduler_address).fit(x)
    lazy = dask.array.from_array(x, chunks=(250, P)).map_blocks(
        fitted.transform, chunks=(250, 3), dtype=float
    )
    future = two_processes.compute(lazy)
    np.testing.assert_allclose(future.result(timeout=60), fitted.transform(x), atol=1e-10)


def test_a_task_may_use_another_cluster(
    one_process: Any, two_processes: Any, small_blocks: None
) -> None:
    address = two_processes.cluster.scheduler_address
    found = one_process.submit(has_client, address, pure=False).result(timeout=60)
    assert found is True


def has_client(address: str) -> bool:
    client = find_client(address)
    if client is not None:
        client.close()
    return client is not None


# -- functions that workers lack -----------------------------------------------------------------


@pytest.fixture
def only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that this process can import."""
    (tmp_path / "only_here_module.py").write_text("def half(x):\n    return x / 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("only_here_module")
    sys.modules.pop("only_here_module")


def test_a_module_that_workers_lack_is_named(
    two_processes: Any, only_here: Any, small_blocks: None
) -> None:
    import cloudpickle
    import dask.array

    x = data()
    source = dask.array.from_array(x, chunks=(250, P)).map_blocks(only_here.half, dtype=float)
    before = set(two_processes.nthreads())
    begun = time.monotonic()
    with pytest.raises(ClusterError, match=r"worker tcp://.* has no module 'only_here_module'"):
        model(two_processes).fit(source)
    assert time.monotonic() - begun < 20
    assert set(two_processes.nthreads()) == before  # nobody died of it
    cloudpickle.register_pickle_by_value(only_here)
    try:
        there = model(two_processes).fit(source).components_
    finally:
        cloudpickle.unregister_pickle_by_value(only_here)
    assert same_bits({"c": there}, {"c": model("threads").fit(source).components_})


# -- states of a client --------------------------------------------------------------------------


def test_an_asynchronous_client_is_refused_in_its_loop(
    two_processes: Any, small_blocks: None
) -> None:
    """And used in a thread, as the refusal says."""
    from distributed import Client

    x = data()

    async def fits() -> np.ndarray:
        address = two_processes.cluster.scheduler_address
        async with Client(address, asynchronous=True, set_as_default=True) as client:
            for scheduler in (client, None):
                with pytest.raises(InvalidInputError, match=r"await asyncio.to_thread\(model.fit"):
                    model(scheduler).fit(x)
            model("threads").fit(x)
            fitted = await asyncio.to_thread(model(client).fit, x)
            return fitted.components_

    assert same_bits({"c": asyncio.run(fits())}, {"c": model("threads").fit(x).components_})


def test_a_closed_client_is_refused_by_name(two_processes: Any) -> None:
    from distributed import Client

    client = Client(two_processes.cluster.scheduler_address, set_as_default=False)
    client.close()
    with pytest.raises(ClusterError, match=r"this Client is closed.* scheduler=Client\(address\)"):
        model(client).fit(data())


def test_models_travel_without_their_client(two_processes: Any) -> None:
    from sklearn.base import clone

    x = data()
    fitted = model(two_processes).fit(x)
    for travelled in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        assert travelled.scheduler is None
        np.testing.assert_array_equal(travelled.transform(x), fitted.transform(x))
    assert fitted.scheduler is two_processes
    copied = clone(fitted)
    assert copied.scheduler is two_processes
    assert not hasattr(copied, "result_")
    scores = two_processes.submit(fitted.transform, x, pure=False).result(timeout=60)
    np.testing.assert_array_equal(scores, fitted.transform(x))


MODELS: list[Any] = [
    streampca.TruncatedSVD(2),
    streampca.IncrementalPCA(2),
    streampca.PPCA(2),
    streampca.FactorAnalysis(2),
    streampca.HardImpute(2),
    streampca.SoftImpute(1.0),
    streampca.GenotypePCA(2),
]


@pytest.mark.parametrize("one", MODELS, ids=lambda one: type(one).__name__)
def test_every_model_travels(two_processes: Any, one: Any) -> None:
    one = copy.copy(one).set_params(scheduler=two_processes)
    assert one.scheduler is two_processes
    assert pickle.loads(pickle.dumps(one)).scheduler is None


# -- restart ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("operands", [pytest.param(True, marks=pytest.mark.soak), False])
def test_restart_counts_as_a_death_of_workers(
    new_client: Any, small_blocks: None, operands: bool
) -> None:
    client, done = new_client(2), [0]

    def restart(advance: Any) -> None:
        if advance.blocks_done >= 4 and not done[0]:
            done[0] = 1
            client.restart()

    if operands:
        here, there = slow_pass("threads", sleep=0.0), slow_pass(client, restart)
        assert same_bits(states(here), states(there))
    else:
        x = data()
        there = streampca.PCA(3, scheduler=client, progress=restart).fit(x)
        assert same_bits({"c": there.components_}, {"c": model("threads").fit(x).components_})
    assert done == [1]


@pytest.mark.slow
def test_restart_by_another_thread(new_client: Any) -> None:
    client = new_client(2)
    timer = threading.Timer(1.0, client.restart)

    def start(advance: Any) -> None:
        if not timer.ident:
            timer.start()

    here, there = slow_pass("threads", sleep=0.0), slow_pass(client, start, sleep=0.05)
    timer.join()
    assert same_bits(states(here), states(there))
