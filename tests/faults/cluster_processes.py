"""A Dask cluster of processes that are started, and killed, one by one."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Cluster:
    """A scheduler and a worker, each a process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.file = folder / "scheduler.json"
        self.scheduler = self._start("dask_scheduler", "--host", "127.0.0.1", "--port", "0")
        self.worker = self._start("dask_worker", "--nthreads", "1", "--no-nanny",
                                  "--host", "127.0.0.1")  # fmt: skip

    def _start(self, what: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-W", "ignore", "-m", f"distributed.cli.{what}",
                   "--scheduler-file", str(self.file), "--no-dashboard", *words]  # fmt: skip
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self) -> None:
        """Until the scheduler says where it listens."""
        while not self.file.exists():
            assert self.scheduler.poll() is None
            time.sleep(0.02)

    def client(self) -> Any:
        from distributed import Client

        self.wait()
        return Client(scheduler_file=str(self.file), set_as_default=False, timeout=60)

    def kill(self) -> None:
        for process in (self.scheduler, self.worker):
            process.send_signal(signal.SIGKILL)
            process.wait()
