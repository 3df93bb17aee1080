"""A cluster that a job names: found, or started for as long as the job takes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from streampca.errors import ClusterError, InvalidInputError, MissingDependencyError
from streampca.passes.address import connect
from streampca.passes.settings import SETTINGS

EXTRAS = {"dask_jobqueue": "jobqueue", "dask_kubernetes": "kubernetes"}
# of a LocalCluster: nothing that another machine could reach, no pages
LOOPBACK = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0",
            "scheduler_kwargs": {"dashboard": False}}  # fmt: skip
CONNECT_SECONDS = 10
METHODS = ("scale", "adapt", "close")  # what Dask's cluster classes have


@contextmanager
def started(cluster: Mapping[str, Any] | None, scheduler: Any = None) -> Iterator[Any]:
    """What to give as ``scheduler``: a client of the cluster, closed at the end.

    cluster : ``address`` of a running scheduler; or ``class`` (LocalCluster, or a dotted name) with
        its ``arguments``, ``workers`` to start, ``adapt`` with minimum and maximum. ``security``:
        arguments of ``distributed.Security``; without it Dask's configuration says. Entries named
        as in :data:`streampca.passes.settings.SETTINGS` hold while it runs.
    scheduler : what comes back where there is no cluster.

    A LocalCluster listens on 127.0.0.1 and has no dashboard, unless its arguments say otherwise.
    Raises MissingDependencyError, InvalidInputError, ClusterError.
    """
    if not cluster:
        yield scheduler
        return
    import dask.config

    timeouts = {
        f"streampca.{key}": cluster[name]
        for key in SETTINGS
        if (name := key.replace("-", "_")) in cluster
    }
    security = _security(cluster.get("security"))
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(timeouts))
        where = cluster.get("address") or stack.enter_context(_running(cluster, security))
        client = connect(where, CONNECT_SECONDS, security, repair="name a class")
        stack.callback(client.close)
        yield client


@contextmanager
def _running(cluster: Mapping[str, Any], security: Any) -> Iterator[Any]:
    """A new cluster, which ends with the job."""
    name = cluster.get("class", "LocalCluster")
    kind = cluster_class(name)
    arguments = dict(cluster.get("arguments") or {})
    if security is not None:
        arguments["security"] = security
    if kind is cluster_class("LocalCluster"):
        counted = {"n_workers": 0} if "workers" in cluster or "adapt" in cluster else {}
        arguments = LOOPBACK | counted | arguments
    try:
        one = kind(**arguments)
    except TypeError as error:
        raise InvalidInputError(f"cluster.arguments: {name} does not take them: {error}") from error
    except Exception as error:
        raise ClusterError(f"{name} could not be started: {error}") from error
    try:
        if "workers" in cluster:
            one.scale(cluster["workers"])
        if "adapt" in cluster:
            one.adapt(**cluster["adapt"])
        yield one
    finally:
        one.close()


def cluster_class(name: str) -> Any:
    """The class of that name; its module is imported now. Raises MissingDependencyError and
    InvalidInputError."""
    if "." not in name:
        name = f"distributed.{name}"
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        package = module.partition(".")[0]
        extra = EXTRAS.get(package)
        line = f"streampca[{extra}]" if extra else package.replace("_", "-")
        raise MissingDependencyError(
            f"cluster.class: {name} cannot be imported ({error}): pip install '{line}'"
        ) from error
    if not (isinstance(found, type) and all(hasattr(found, method) for method in METHODS)):
        raise InvalidInputError(
            f"cluster.class: {name} is no class of Dask clusters; expected such as LocalCluster, "
            "dask_jobqueue.SLURMCluster or dask_kubernetes.operator.KubeCluster"
        )
    return found


def _security(given: Mapping[str, Any] | None) -> Any:
    """Certificates for all connections; None leaves them to Dask's configuration."""
    if not given:
        return None
    from distributed.security import Security

    return Security(**{"require_encryption": True, **given})
