"""The section ``cluster`` of job files: what is taken, what is started, what is refused."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import psutil
import pytest
import zarr

import streampca
from streampca.cli import main
from streampca.errors import ClusterError, ConfigError, InvalidInputError, MissingDependencyError
from streampca.operations import refresh as refresh_module
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh
from streampca.operations.sections import schema
from streampca.passes import started
from streampca.passes.settings import setting

JOB: dict[str, Any] = {"source": {"path": "x.zarr"}, "model": {"kind": "PCA"}, "store": "models"}


def with_cluster(**cluster: Any) -> dict[str, Any]:
    return {**JOB, "cluster": cluster}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"jobs": 3}, "cluster.jobs: unknown; expected one of address, class"),
    "two clusters": (
        {"address": "tcp://a:1", "workers": 3},
        "cluster.address: a running scheduler takes no wor",
    ),
    "not an address": ({"address": "a:8786"}, "expected tcp://host:port or tls://host:port"),
    "no port": ({"address": "tcp://a"}, "expected tcp://host:port or tls://host:port"),
    "http": ({"address": "http://a:8786"}, "expected tcp://host:port or tls://host:port"),
    "not a name": ({"class": "os.system('x')"}, "expected such as dask_jobqueue.SLURMCluster"),
    "arguments a list": ({"arguments": [1]}, "cluster.arguments: .*expected object"),
    "adapt without end": ({"adapt": {"minimum": 1}}, "cluster.adapt.maximum is missing"),
    "adapt below": ({"adapt": {"minimum": 3, "maximum": 2}}, "minimum is more than maximum"),
    "adapt a number": ({"adapt": 3}, "cluster.adapt: 3: expected object"),
    "no workers": ({"workers": 0}, "cluster.workers: 0: expected at least 1"),
    "a key": ({"security": {"key": "x"}}, "cluster.security.key: unknown; .*tls_ca_file"),
    "no patience": ({"span_timeout": 0}, "cluster.span_timeout: 0: expected more than 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_is_named(name: str) -> None:
    cluster, words = BAD[name]
    with pytest.raises(ConfigError, match=words):
        check_job(with_cluster(**cluster), "job.yaml")


def test_the_section_is_checked_without_importing() -> None:
    job = check_job(with_cluster(**{"class": "nowhere.Cluster", "arguments": {"a": [1]}}), "x")
    assert job.cluster == {"class": "nowhere.Cluster", "arguments": {"a": [1]}}
    assert check_job(with_cluster(adapt={"maximum": 3}), "x").cluster == {
        "class": "LocalCluster",
        "adapt": {"maximum": 3},
    }
    with pytest.raises(ConfigError, match="the section cluster says it"):
        check_job({**with_cluster(), "scheduler": "tcp://a:1"}, "x")
    validate = jsonschema.validate
    validate(with_cluster(adapt={"maximum": 3}, security={"tls_ca_file": "x"}), schema())
    with pytest.raises(Exception, match="maximum"):
        validate(with_cluster(adapt={"minimum": 3}), schema())


@pytest.fixture
def fake_clusters(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    yield
    sys.modules.pop("fake_clusters", None)


def test_any_class_by_name(fake_clusters: None) -> None:
    """Imported when it is named, told what the section says, closed at the end."""
    assert "fake_clusters" not in sys.modules
    cluster = {
        "class": "fake_clusters.Fake",
        "arguments": {"queue": "night", "cores": 3},
        "workers": 2,
        "adapt": {"minimum": 1, "maximum": 4},
        "span_timeout": 7,
    }
    with started(check_job(with_cluster(**cluster), "x").cluster) as client:
        (one,) = sys.modules["fake_clusters"].made
        assert one.told == {
            "queue": "night",
            "closed": 0,
            "workers": 2,
            "adapt": {"minimum": 1, "maximum": 4},
        }
        client.wait_for_workers(2)
        assert set(client.nthreads().values()) == {3}
        assert setting("span-timeout") == 7
        x = np.random.default_rng(0).normal(size=(300, 5))
        there, here = (streampca.PCA(2, scheduler=s).fit(x) for s in (client, "threads"))
        np.testing.assert_array_equal(there.components_, here.components_)
    assert one.told["closed"] >= 1
    assert client.status == "closed"
    assert setting("span-timeout") == 3600


def test_classes_that_cannot_be_had(fake_clusters: None) -> None:
    for name, arguments, error, words in (
        (
            "dask_kubernetes.operator.KubeCluster",
            {},
            MissingDependencyError,
            r"pip install 'streampca\[kubernetes\]'",
        ),
        ("no_such_site.Cluster", {}, MissingDependencyError, "pip install 'no-such-site'"),
        ("subprocess.Popen", {"args": "true"}, InvalidInputError, "is not a Dask cluster class"),
        ("fake_clusters.NoCluster", {}, InvalidInputError, "is not a Dask cluster class"),
        ("fake_clusters.Nobody", {}, InvalidInputError, "is not a Dask cluster class"),
        ("fake_clusters.Fake", {"row": 3}, InvalidInputError, "does not take them.*'row'|queue"),
        ("fake_clusters.Broken", {}, ClusterError, "could not be started: sbatch: command not"),
    ):
        with pytest.raises(error, match=words), started({"class": name, "arguments": arguments}):
            pass


def test_no_cluster_leaves_the_scheduler() -> None:
    with started({}, "threads") as scheduler:
        assert scheduler == "threads"


def listening() -> set[tuple[str, int]]:
    """Addresses and ports at which this process and its children listen."""
    me = psutil.Process()
    return {
        (one.laddr.ip, one.laddr.port)
        for process in [me, *me.children(recursive=True)]
        for one in process.net_connections("inet")
        if one.status == psutil.CONN_LISTEN
    }


@pytest.mark.slow
def test_a_refresh_on_a_local_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits as without; only loopback listens; nothing is started for nothing (F25)."""
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 16 * 1024)
    x = np.random.default_rng(0).normal(size=(3000, 8))
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(300, 8))
    seen: list[set[tuple[str, int]]] = []
    starts: list[Any] = []

    def counted(*args: Any) -> Any:
        starts.append(args)
        return started(*args)

    monkeypatch.setattr(refresh_module, "started", counted)

    def job(store: str, **more: Any) -> Any:
        source = {"path": str(tmp_path / "x.zarr")}
        return check_job(
            {
                "source": source,
                "model": {"kind": "PCA", "n_components": 3},
                "store": str(tmp_path / store),
                "settle": 0,
                **more,
            },
            "x",
        )

    before = listening()  # other tests have servers in this process too
    here = refresh(job("here"))
    cluster = {"arguments": {"threads_per_worker": 1}, "workers": 1}
    there = job("there", cluster=cluster)
    assert refresh(there, dry_run=True).status == "planned"
    assert len(starts) == 1
    outcome = refresh(there, progress=lambda advance: seen.append(listening()))
    assert outcome.status == here.status == "published"
    ours = [places - before for places in seen]
    assert any(ours)
    assert {ip for places in ours for ip, _ in places} == {"127.0.0.1"}
    for _ in range(100):  # a server that was closed lets go of its port a moment later
        if not (left := listening() - before):
            break
        time.sleep(0.1)
    assert not left
    models = [streampca.load(str(tmp_path / name)) for name in ("here", "there")]
    np.testing.assert_array_equal(models[0].components_, models[1].components_)
    assert refresh(there).status == "unchanged"
    assert len(starts) == 2


def test_fit_takes_the_section_from_its_file(
    tmp_path: Path, fake_clusters: None, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(200, 4)))
    path = tmp_path / "fit.yaml"
    text = f"""
source: {tmp_path / "x.npy"}
n-components: 2
cluster: {{class: fake_clusters.Fake, arguments: {{queue: night, cores: 1}}}}
"""
    path.write_text(text)
    assert main(["config", "check", str(path)]) == 0
    del sys.modules["fake_clusters"]  # checked to be a cluster class, and not started
    assert main(["plan", "--config", str(path)]) == 0
    assert "fake_clusters" not in sys.modules
    assert main(["fit", "--config", str(path), "--scheduler", "threads"]) == 0
    assert "fake_clusters" not in sys.modules
    assert main(["fit", "--config", str(path)]) == 0
    assert [one.told["queue"] for one in sys.modules["fake_clusters"].made] == ["night"]
    path.write_text(text.replace("cores: 1", "cores: 1, row: 2"))
    assert main(["fit", "--config", str(path)]) == 65
    path.write_text(text + "scheduler: tcp://a:1\n")
    assert main(["fit", "--config", str(path)]) == 65
    assert "leave one out" in capsys.readouterr().err
    path.write_text(text.replace("cluster: {class:", "cluster: {klass:"))
    assert main(["fit", "--config", str(path)]) == 78
