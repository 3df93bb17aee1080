"""Two hosts with addresses of their own: one loses its worker, or its network, within a pass.

The hosts are network namespaces of Linux, joined by a pair of virtual interfaces. On the first
run the scheduler, the client and a worker, on the second a worker.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import streampca

HERE = Path(__file__).parent
FIRST, SECOND = "10.211.77.1", "10.211.77.2"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Hosts:
    """Two namespaces and what runs in them."""

    def __init__(self) -> None:
        self.names = [f"streampca-{os.getpid()}-{i}" for i in (1, 2)]
        self.links = ["host1", "host2"]
        self.running: list[subprocess.Popen[str]] = []

    def make(self) -> None:
        for name in self.names:
            ip("netns", "add", name)
        first, second = self.names
        ip(
            "-n",
            first,
            "link",
            "add",
            self.links[0],
            "type",
            "veth",
            "peer",
            "name",
            self.links[1],
            "netns",
            second,
        )
        for name, link, address in zip(self.names, self.links, (FIRST, SECOND), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", link, "up")

    def start(self, host: int, *words: str) -> subprocess.Popen[str]:
        """A process of host.py on a host."""
        root = Path(streampca.__file__).parents[1]
        environment = {
            **os.environ,
            "PYTHONPATH": f"{root}:{HERE.parent / 'passes'}",
            "OPENBLAS_NUM_THREADS": "1",
        }
        inside = ["ip", "netns", "exec", self.names[host]]
        one = subprocess.Popen(
            [*inside, sys.executable, str(HERE / "host.py"), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.running.append(one)
        return one

    def cut(self, seconds: float) -> None:
        """The second host has no network for so long."""
        ip("-n", self.names[1], "link", "set", self.links[1], "down")
        time.sleep(seconds)
        ip("-n", self.names[1], "link", "set", self.links[1], "up")

    def remove(self) -> None:
        for one in self.running:
            one.kill()
            one.communicate()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the command ip (package iproute2)")
    made = Hosts()
    try:
        made.make()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"network namespaces are not allowed here: {error.stderr.strip()}")
    yield made
    made.remove()


def said(process: Any, word: str) -> str:
    """What comes after that word, on the next line that begins with it."""
    for line in process.stdout:
        if line.startswith(word + " "):
            return str(line.split()[1])
    raise AssertionError(f"the process ended without saying {word}")


def asked(process: Any, where: str, workers: int) -> None:
    print(where, workers, file=process.stdin, flush=True)


@pytest.mark.soak
def test_a_host_loses_its_worker_and_then_its_network(hosts: Hosts) -> None:
    """Killed in the middle of one pass; cut off for 20 s in the middle of another: same bits."""
    client = hosts.start(0, "client", FIRST)
    scheduler = said(client, "scheduler")
    assert scheduler.startswith(f"tcp://{FIRST}:")
    hosts.start(0, "worker", FIRST, scheduler)
    lost = hosts.start(1, "worker", SECOND, scheduler)
    asked(client, "threads", 0)
    here = said(client, "digest")

    asked(client, "cluster", 2)
    while int(said(client, "blocks")) < 10:
        pass
    lost.kill()
    hosts.start(1, "worker", SECOND, scheduler)
    assert said(client, "digest") == here

    asked(client, "cluster", 2)
    while int(said(client, "blocks")) < 10:
        pass
    hosts.cut(20)
    assert said(client, "digest") == here
