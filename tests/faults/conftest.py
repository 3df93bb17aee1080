"""A process that starts others quickly, for tests that kill them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_processes import Cluster

import streampca

SERVER = Path(__file__).with_name("job_server.py")


@pytest.fixture(scope="session")
def server() -> Iterator[Any]:
    root = str(Path(streampca.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, str(SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as one:
        assert one.stdin is not None
        assert one.stdout is not None

        def ask(**request: Any) -> list[tuple[int, str]]:
            print(json.dumps(request), file=one.stdin, flush=True)
            assert one.stdout is not None
            return [tuple(answer) for answer in json.loads(one.stdout.readline())]

        yield ask
        one.stdin.close()


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[Callable[[], Cluster]]:
    made: list[Cluster] = []

    def start(workers: int = 1, memory: str = "") -> Cluster:
        made.append(Cluster(tmp_path / f"cluster {len(made)}", workers, memory))
        return made[-1]

    yield start
    for one in made:
        one.kill()
