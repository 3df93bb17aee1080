"""``--cluster FILE``: workers in the queue of a site, or on Kubernetes, from one file."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import dask
import jsonschema
import numpy as np
import pytest
import yaml

import streampca
from streampca.cli import main
from streampca.operations.sections import schema

CONFIGS = Path(__file__).parents[2] / "configs"
# what Slurm does of it: jobs start at once, and a job is a group of processes
SBATCH = """#!/bin/sh
cp "$1" "$QUEUE/$$.sh"
setsid sh "$QUEUE/$$.sh" > "$QUEUE/$$.log" 2>&1 < /dev/null &
echo $! >> "$QUEUE/submitted"
echo "Submitted batch job $!"
"""
SCANCEL = """#!/bin/sh
echo "$1" >> "$QUEUE/cancelled"
kill -- -"$1"
"""
FILE = """
class: dask_jobqueue.SLURMCluster
arguments:
  queue: night
  cores: 1
  processes: 1
  memory: 1GiB
  walltime: "00:10:00"
  interface: lo
  scheduler_options: {dashboard_address: "127.0.0.1:0", dashboard: false}
  worker_extra_args: [--no-dashboard]
workers: 1
worker_timeout: 60
"""


class Queue:
    """Programs of the names of Slurm's, and what they were asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def ids(self, word: str) -> list[int]:
        path = self.folder / word
        return [int(one) for one in path.read_text().split()] if path.exists() else []

    def end(self, job: int) -> None:
        """As at the end of its time."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job, signal.SIGKILL)


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    pytest.importorskip("dask_jobqueue")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("QUEUE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    (tmp_path / "slurm.yaml").write_text(FILE)
    x = np.random.default_rng(0).normal(size=(400, 6)) * np.arange(1, 7)
    np.save(tmp_path / "x.npy", x)
    one = Queue(tmp_path)
    yield one
    for job in one.ids("submitted"):
        one.end(job)


def fitted(queue: Queue, *more: str) -> Any:
    """The model of a fit on the jobs of the file, and of one here."""
    source, folder = str(queue.folder / "x.npy"), str(queue.folder / f"model{len(more)}")
    assert main(["fit", source, "-k", "2", "--quiet", "-o", folder, *more]) == 0
    return streampca.load(folder)


@pytest.mark.slow
def test_a_fit_in_a_queue(queue: Queue) -> None:
    """The jobs are submitted as the file says, give the bits of this process, and are cancelled."""
    there = fitted(queue, "--cluster", str(queue.folder / "slurm.yaml"))
    np.testing.assert_array_equal(there.components_, fitted(queue).components_)
    (job,) = queue.ids("submitted")
    assert queue.ids("cancelled") == [job]
    (script,) = queue.folder.glob("*.sh")
    for line in ("#SBATCH -p night", "#SBATCH --cpus-per-task=1", "#SBATCH -t 00:10:00"):
        assert line in script.read_text()


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::streampca.errors.NoWorkerWarning")
def test_a_job_whose_time_ends_is_submitted_again(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 4096)
    np.save(queue.folder / "x.npy", np.random.default_rng(0).normal(size=(400_000, 6)))

    def end() -> None:
        while not queue.ids("submitted"):
            time.sleep(0.05)
        log = next(queue.folder.glob("*.log"))
        while "at_rest" not in log.read_text():  # it was asked for its memory: the pass begins
            time.sleep(0.01)
        time.sleep(1.0)
        queue.end(queue.ids("submitted")[0])

    ending = Thread(target=end)
    ending.start()
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1s"}):
        there = fitted(queue, "--cluster", str(queue.folder / "slurm.yaml"))
    ending.join()
    assert len(queue.ids("submitted")) == 2
    np.testing.assert_array_equal(there.components_, fitted(queue).components_)


SECTION = "{class: fake_clusters.Fake, arguments: {queue: night, cores: 1}}"


@pytest.mark.parametrize("text", [SECTION, f"cluster: {SECTION}\nstore: models"])
def test_one_file(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The entries alone, or a section of a job file; a plan starts nothing."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    sys.modules.pop("fake_clusters", None)
    file, source = str(tmp_path / "night.yaml"), str(tmp_path / "x.npy")
    Path(file).write_text(text)
    np.save(source, np.random.default_rng(0).normal(size=(200, 4)))
    assert main(["plan", source, "-k", "2", "--cluster", file]) == 0
    assert "cluster   fake_clusters.Fake, which starts with the fit" in capsys.readouterr().out
    assert "fake_clusters" not in sys.modules
    assert main(["config", "check", file]) == (78 if "store" in text else 0)  # no whole job
    sys.modules.pop("fake_clusters", None)
    assert main(["fit", source, "-k", "2", "--cluster", file]) == 0
    assert [one.told["queue"] for one in sys.modules.pop("fake_clusters").made] == ["night"]
    for words, more, code in (
        ("leave one out", ["--scheduler", "tcp://127.0.0.1:1"], 65),
        ("no such file", ["--cluster", "nowhere.yaml"], 66),
    ):
        assert main(["fit", source, "--cluster", file, *more]) == code
        assert words in capsys.readouterr().err
    Path(file).write_text(f"# jobs\n{text.replace('class', 'klass')}")
    assert main(["fit", source, "--cluster", file]) == 78
    assert "night.yaml:2: cluster.klass: unknown; expected one of" in capsys.readouterr().err


def test_a_plan_asks_the_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What each takes of memory, spans and bytes; nothing is read, and nobody is waited for."""
    from distributed import LocalCluster

    source = str(tmp_path / "x.npy")
    np.save(source, np.random.default_rng(0).normal(size=(3000, 40)))
    command = ["plan", source, "-k", "2", "--client"]
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        memory_limit="8GiB",
        protocol="tcp://",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        address = cluster.scheduler_address
        assert main([*command, address, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        there = {one.worker_address for one in cluster.workers.values()}
        assert {one["worker"] for one in told["workers"]} == there
        for one in told["workers"]:
            assert 0 < one["held"] < one["planned"] < one["limit"] == 8 << 30
            assert one["spans"] == one["all_spans"] == 1
        assert sum(one["nbytes"] for one in told["workers"]) == told["bytes"]
        assert main([*command, address]) == 0
        out = capsys.readouterr().out
        assert f"cluster   {address}, 2 workers there now; a worker of 1 thread needs" in out
        assert out.count("of its 8.0 GiB (now") == 2
        (tmp_path / "there.yaml").write_text(f"address: {address}")
        assert main(["plan", source, "--cluster", str(tmp_path / "there.yaml")]) == 0
        assert "2 workers there now" in capsys.readouterr().out
        cluster.scale(0)
        while cluster.scheduler.workers:
            time.sleep(0.01)
        assert main([*command, address]) == 0
        assert "0 workers there now" in capsys.readouterr().out
        assert not any("pass" in one for one in cluster.scheduler.task_prefixes)


def test_the_examples_are_what_a_section_may_hold() -> None:
    for name in ("slurm", "kubernetes"):
        section = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())["cluster"]
        jsonschema.validate(section, schema()["properties"]["cluster"])


@pytest.mark.soak
def test_the_example_for_kubernetes_is_what_its_operator_takes() -> None:
    """By the signature of the class, and the schema of the custom resource that it makes."""
    operator = pytest.importorskip("dask_kubernetes.operator")
    section = yaml.safe_load((CONFIGS / "kubernetes.yaml").read_text())["cluster"]
    arguments = section["arguments"]
    assert arguments.keys() <= inspect.signature(operator.KubeCluster.__init__).parameters.keys()
    known = inspect.signature(operator.make_cluster_spec).parameters
    of_spec = {name: value for name, value in arguments.items() if name in known}
    spec = operator.make_cluster_spec(**of_spec, n_workers=section["workers"])
    folder = Path(inspect.getfile(operator)).parent / "deployment" / "helm"
    (path,) = folder.glob("*/crds/daskcluster.yaml")
    (version,) = yaml.safe_load(path.read_text())["spec"]["versions"]
    jsonschema.validate(spec, version["schema"]["openAPIV3Schema"])
    assert spec["spec"]["worker"]["replicas"] == 4
