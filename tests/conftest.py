"""What several test modules use."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Files are flushed when the system likes: what ``fsync`` is for, a power failure, no test of
    this process can see, and those that count its calls put their own in its place."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(os, "fsync", lambda handle: os.fstat(handle) and None)
        yield


# files that start worker processes: one test process takes them all, and starts those once
ON_CLUSTERS = ("test_cluster.py", "test_toy_programs.py", "test_genotypes_on_cluster.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """``--dist loadfile``, with those files as one; any other distribution as it is."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return "clusters" if file.endswith(ON_CLUSTERS) else file

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of real data that lies beside the repository."""
    path = Path(__file__).parents[1].parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("the directory of real data does not lie beside the repository")
    return path
