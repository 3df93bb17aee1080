"""A Dask cluster of processes that are started, and killed, one by one."""

from __future__ import annotations

import importlib
import json
import os
import signal
import time
import warnings
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tests.passes.local_clusters import forks_of_one


def run(what: str, words: tuple[str, ...]) -> None:
    """In the fork: a command of Dask, without what it says."""
    for handle in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), handle)
    warnings.simplefilter("ignore")
    importlib.import_module(f"distributed.cli.{what}").main(words)


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

    def start_worker(self) -> ForkServerProcess:
        return self._start("dask_worker", "--nthreads", "1", "--host", "127.0.0.1", *self.limits)

    def restart_scheduler(self) -> None:
        """At the same address, with as many new workers."""
        port = json.loads(self.file.read_text())["address"].rpartition(":")[2]
        self.signal(signal.SIGKILL, self.scheduler)
        self.scheduler.join()
        self.start_scheduler(port)
        self.workers += [self.start_worker() for _ in self.workers]

    def signal(self, number: int, *processes: ForkServerProcess) -> None:
        for one in processes:
            assert one.pid
            os.kill(one.pid, number)

    def _start(self, what: str, *words: str) -> ForkServerProcess:
        common = ("--scheduler-file", str(self.file), "--no-dashboard")
        one: ForkServerProcess = forks_of_one().Process(target=run, args=(what, (*common, *words)))
        one.start()
        return one

    def wait(self) -> None:
        """Until the scheduler says where it listens."""
        while not self.file.exists():
            assert self.scheduler.is_alive()
            time.sleep(0.02)

    def client(self) -> Any:
        from distributed import Client

        self.wait()
        return Client(scheduler_file=str(self.file), set_as_default=False, timeout=60)

    def kill(self) -> None:
        nannies = "--no-nanny" not in self.limits  # these end their workers themselves
        for process in (self.scheduler, *self.workers):
            if process.is_alive():
                self.signal(signal.SIGCONT, process)
                self.signal(signal.SIGTERM if nannies else signal.SIGKILL, process)
            process.join()
