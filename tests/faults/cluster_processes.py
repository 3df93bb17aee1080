"""A Dask cluster of processes that are started, and killed, one by one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Cluster:
    """A scheduler and its workers, each a process."""

    def __init__(self, folder: Path, workers: int = 1, memory: str = "") -> None:
        """memory : limit of each worker; then a nanny watches it."""
        folder.mkdir()
        self.file = folder / "scheduler.json"
        self.start_scheduler("0")
        self.limits = ("--memory-limit", memory) if memory else ("--no-nanny",)
        self.workers = [self.start_worker() for _ in range(workers)]

    def start_scheduler(self, port: str) -> None:
        """Start it; port "0" stands for any."""
        self.file.unlink(missing_ok=True)
        self.scheduler = self._start("dask_scheduler", "--host", "127.0.0.1", "--port", port)

    def start_worker(self) -> subprocess.Popen[bytes]:
        return self._start("dask_worker", "--nthreads", "1", "--host", "127.0.0.1", *self.limits)

    def restart_scheduler(self) -> None:
        """At the same address, with as many new workers."""
        port = json.loads(self.file.read_text())["address"].rpartition(":")[2]
        self.signal(signal.SIGKILL, self.scheduler)
        self.scheduler.wait()
        self.start_scheduler(port)
        self.workers += [self.start_worker() for _ in self.workers]

    def signal(self, number: int, *processes: subprocess.Popen[bytes]) -> None:
        for one in processes:
            one.send_signal(number)

    def _start(self, what: str, *words: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            f"distributed.cli.{what}",
            "--scheduler-file",
            str(self.file),
            "--no-dashboard",
            *words,
        ]
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
        nannies = "--no-nanny" not in self.limits  # these end their workers themselves
        for process in (self.scheduler, *self.workers):
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM if nannies else signal.SIGKILL)
            process.wait()
