"""What several test modules use."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Files are flushed when the system likes: what ``fsync`` is for, a power failure, no test of
    this process can see, and those that count its calls put their own in its place."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(os, "fsync", lambda handle: os.fstat(handle) and None)
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of real data that lies beside the repository."""
    path = Path(__file__).parents[1].parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("the directory of real data does not lie beside the repository")
    return path
