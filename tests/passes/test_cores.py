"""How many threads are used, and that nothing depends on it but time and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from streampca import PCA
from streampca.cli.commands import main
from streampca.errors import InvalidInputError
from streampca.passes import limited_threads, memory, settings, thread_count
from streampca.passes.cluster import parcel
from streampca.passes.records import Pass
from tests.forks import forked
from tests.passes.local_clusters import start_client, stop_client


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: Any) -> Any:
    """Puts fake control groups in place: their lines and the words of their files."""
    monkeypatch.setattr(memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def put(lines: str, files: dict[str, str]) -> None:
        for name, text in {"proc/self/cgroup": lines, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")

    return put


QUOTAS = {
    "150 %": ("0::/job", {"cgroup/job/cpu.max": "150000 100000"}, 2),
    "a tenth": ("0::/job", {"cgroup/job/cpu.max": "10000 100000"}, 1),
    "whole": ("0::/job", {"cgroup/job/cpu.max": "300000 100000"}, 3),
    "no limit": ("0::/job", {"cgroup/job/cpu.max": "max 100000"}, 8),
    "above the cores": ("0::/job", {"cgroup/job/cpu.max": "6400000 100000"}, 8),
    "the tightest": (
        "0::/a/b",
        {"cgroup/a/cpu.max": "200000 100000", "cgroup/a/b/cpu.max": "500000 100000"},
        2,
    ),
    "version 1": (
        "3:cpu,cpuacct:/job",
        {"cgroup/cpu/job/cpu.cfs_quota_us": "150000", "cgroup/cpu/job/cpu.cfs_period_us": "100000"},
        2,
    ),
    "version 1, none": (
        "3:cpu:/job",
        {"cgroup/cpu/job/cpu.cfs_quota_us": "-1", "cgroup/cpu/job/cpu.cfs_period_us": "100000"},
        8,
    ),
    "garbage": ("0::/job", {"cgroup/job/cpu.max": "lots 0"}, 8),
    "memory alone": ("4:memory:/job", {"cgroup/memory/job/memory.limit_in_bytes": "1"}, 8),
}


@pytest.mark.parametrize(("lines", "files", "wanted"), QUOTAS.values(), ids=QUOTAS.keys())
def test_cpu_quotas(cgroups: Any, lines: str, files: dict[str, str], wanted: int) -> None:
    cgroups(lines, files)
    assert thread_count() == wanted


@pytest.mark.parametrize(
    ("words", "wanted"), [("1", 1), ("3,2", 3), ("99", 8), ("0", 8), ("", 8), ("x", 8)]
)
def test_openmp_is_heeded(cgroups: Any, monkeypatch: Any, words: str, wanted: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", words)
    assert thread_count() == wanted


def test_what_is_asked_goes_before(cgroups: Any, monkeypatch: Any) -> None:
    import dask.config

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with dask.config.set({"streampca.threads": 5}):
        assert thread_count() == 5
        with limited_threads(16), limited_threads(None):
            assert thread_count() == 16
        assert thread_count() == 5
    assert thread_count() == 1
    for wrong in (0, -1, 1.5, "2", True):
        with pytest.raises(InvalidInputError, match="positive integer"), limited_threads(wrong):
            pass
    with dask.config.set({"streampca.threads": 0}), pytest.raises(InvalidInputError):
        thread_count()


def test_without_affinity(cgroups: Any, monkeypatch: Any) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert settings.usable_cores() == 1


# -- threads that are started --------------------------------------------------------------


@pytest.fixture
def started(monkeypatch: Any) -> set[str]:
    """Names of the threads that a fit starts, without their numbers."""
    found: set[str] = set()
    begin = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name.startswith("streampca-"):
            found.add(self.name)
        begin(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    return found


def of_kind(started: set[str], kind: str) -> int:
    return sum(name.startswith(f"streampca-{kind}") for name in started)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_small_accumulators_have_a_lane_for_each_thread(started: set[str], threads: int) -> None:
    x = np.random.default_rng(0).standard_normal((40_000, 60))
    model = PCA(2, svd_solver="scatter", progress=False, memory_limit="1GiB")
    with limited_threads(threads):
        model.fit(np.tile(x, 6))
    assert of_kind(started, "lane") == (threads if threads > 1 else 0)
    assert of_kind(started, "helper") == 0
    assert of_kind(started, "solver") == threads - 1
    assert of_kind(started, "reader") == (0 if threads == 1 else 1)  # all readers are called 0


@pytest.mark.parametrize("shape", [(2000, 100), (20_000, 20), (60, 3000)])
def test_what_takes_milliseconds_starts_no_thread(
    started: set[str], shape: tuple[int, int]
) -> None:
    with limited_threads(4):
        PCA(3, progress=False).fit(np.random.default_rng(0).standard_normal(shape))
    assert started == set()


def test_large_accumulators_are_two_and_helped(started: set[str]) -> None:
    x = np.random.default_rng(0).integers(0, 3, (2300, 4000)).astype(np.int8)
    with limited_threads(5):
        PCA(2, svd_solver="gram", progress=False, components=False).fit(x)
    assert of_kind(started, "lane") == 2
    assert of_kind(started, "helper") == 3
    assert of_kind(started, "solver") == 4


PROGRAM = """
from streampca.passes import thread_count
print(thread_count())
"""


@pytest.mark.parametrize("how", ["taskset", "openmp"])
def test_a_process_that_is_confined(how: str) -> None:
    def confine() -> None:
        if how == "taskset":
            os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no affinity")
    environment = {**os.environ, "OMP_NUM_THREADS": "1" if how == "openmp" else "64"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        preexec_fn=confine,
    )
    assert done.stdout.split() == ["1"]


MEMORY = """
import sys
import streampca as sp
from streampca.passes import limited_threads
from streampca.passes.memory import peak_nbytes
with limited_threads(16):
    model = sp.PCA(5, svd_solver="gram", components=False, progress=False).fit(sys.argv[1])
plan = model.plan_
print(peak_nbytes(), plan.peak_with(16), plan.peak_nbytes, plan.memory["gram"]["blocks"])
"""


@pytest.mark.soak
def test_memory_hardly_grows_with_threads(tmp_path: Path) -> None:
    """By blocks that are read ahead, and what each thread has in any case."""
    x = np.random.default_rng(0).integers(0, 3, (3192, 14_000)).astype(np.int8)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(3192, 1000))
    peak, planned, of_two, blocks = map(int, forked(MEMORY, str(tmp_path / "x.zarr")).split())
    assert peak <= planned <= 1.15 * (of_two + blocks)


def test_no_more_threads_than_fit() -> None:
    x = np.zeros((20_000, 60))
    plan = PCA(2, svd_solver="scatter").plan(x)
    one = plan.thread_nbytes
    assert one > 0
    assert plan.peak_with(1) == plan.peak_with(2) == plan.peak_nbytes
    assert plan.peak_with(5) == plan.peak_nbytes + 3 * one
    for room, wanted in ((0, 2), (plan.peak_nbytes + 2 * one, 4), (None, 9), (1 << 50, 9)):
        assert plan.affordable(9, room) == wanted
    assert plan.affordable(1, 0) == 1


def test_threads_on_the_command_line(tmp_path: Path, started: set[str], capsys: Any) -> None:
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=np.random.default_rng(0).standard_normal((60_000, 200)))
    for threads in (1, 3):
        started.clear()
        command = ["fit", path, "-k", "2", "--solver", "scatter", "--json"]
        assert main([*command, "--threads", str(threads)]) == 0
        assert of_kind(started, "lane") == (threads if threads > 1 else 0)
    assert main(["plan", path, "--threads", "5"]) == 0
    assert "threads   5 here" in capsys.readouterr().out
    assert main(["plan", path, "--threads", "0"]) == 65


def test_workers_without_a_spare_core_read_nothing_ahead(monkeypatch: Any, tmp_path: Path) -> None:
    """The threads of a worker are as many as compute or read at the same time."""
    busy, most, lock = [0], [0], threading.Lock()

    def counted(plain: Any) -> Any:
        def inside(*args: Any) -> Any:
            with lock:
                busy[0] += 1
                most[0] = max(most[0], busy[0])
            try:
                return plain(*args)
            finally:
                with lock:
                    busy[0] -= 1

        return inside

    monkeypatch.setattr(Pass, "read", counted(Pass.read))
    monkeypatch.setattr(Pass, "process", counted(Pass.process))
    monkeypatch.setattr(parcel, "usable_cores", lambda: 2)
    path = str(tmp_path / "x.zarr")
    x = np.random.default_rng(0).standard_normal((60_000, 200))
    zarr.create_array(path, data=x, chunks=(5000, 200))
    client = start_client(1, processes=False, threads_per_worker=2)
    try:
        cluster = PCA(2, svd_solver="scatter", progress=False, scheduler=client).fit(path)
    finally:
        stop_client(client)
    assert 1 <= most[0] <= 2
    here = PCA(2, svd_solver="scatter", progress=False).fit(path)
    assert np.array_equal(cluster.components_, here.components_)


def test_the_threads_of_a_model(started: set[str]) -> None:
    x = np.random.default_rng(0).standard_normal((6000, 400))
    model = PCA(2, svd_solver="scatter", progress=False, threads=3)
    model.fit(np.tile(x, (6, 1)))
    assert of_kind(started, "lane") == 3
    started.clear()
    model.set_params(threads=1).transform(np.tile(x, (6, 1)))
    assert of_kind(started, "lane") == 0
    for wrong in (0, "2"):
        with pytest.raises(InvalidInputError, match="threads="):
            model.set_params(threads=wrong).fit(x)
    assert "threads" not in model.result_.settings
