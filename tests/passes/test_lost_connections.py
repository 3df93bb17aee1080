"""A client loses its network, or its scheduler, for a while: the pass goes on, or ends in time."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import dask
import numpy as np
import pytest
from pass_matrices import Sum, ToyMatrix, by_hand, run, same_bits, toy_plan, wild

from streampca.errors import ClusterError, NoWorkerWarning
from streampca.passes import Advance
from streampca.passes.cluster import clients, workers


def shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


class Relay:
    """An address of this host that passes bytes on to a scheduler, unless it is cut off."""

    def __init__(self, there: tuple[str, int]) -> None:
        self.there = there
        self.up, self.frozen = True, threading.Event()
        self.frozen.set()  # it is not
        self.pairs = set[tuple[socket.socket, socket.socket]]()  # of the client, of the scheduler
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if not self.up:
                near.close()
                continue
            far = socket.create_connection(self.there)
            self.pairs.add((near, far))
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        with one, contextlib.suppress(OSError):
            while content := one.recv(1 << 16):
                self.frozen.wait()
                other.sendall(content)
        if self.pairs & {(one, other), (other, one)}:  # not cut: one end has closed it
            shut(other)

    def cut(self, frozen: float = 0.0, half: float = 0.0) -> None:
        """No connection any more.  frozen : seconds before that in which nothing arrives.
        half : seconds for which the scheduler does not notice.
        """
        self.frozen.clear()
        time.sleep(frozen)
        self.up = False
        pairs, self.pairs = self.pairs, set()
        for near, _ in pairs:
            shut(near)
        threading.Timer(half, lambda: [shut(far) for _, far in pairs]).start()
        self.frozen.set()

    def mend(self) -> None:
        self.up = True


@pytest.fixture
def relay() -> Iterator[Relay]:
    """To the scheduler of two workers of this process."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        memory_limit=0,
        protocol="tcp://",
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        host, port = cluster.scheduler_address.removeprefix("tcp://").split(":")
        one = Relay((host, int(port)))
        yield one
        one.cut()
        one.listener.close()


def summed(scheduler: Any, **more: Any) -> dict[str, Any]:
    matrix = ToyMatrix(wild(200, 3), sleep=0.0 if scheduler == "threads" else 0.05)
    done = run(
        toy_plan(matrix, step=10, span=2),
        matrix,
        accumulators={"s": Sum()},
        operands={"q": np.ones(3)},
        execution=by_hand(scheduler=scheduler, **more),
    )
    return done["s"].state()


def mended_after_a_word(relay: Relay, monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[str]:
    """The warnings that come; so many seconds after each there is a network again."""
    said: list[str] = []

    def warned(message: str, kind: type[Warning]) -> None:
        assert kind is NoWorkerWarning
        said.append(message)
        threading.Timer(seconds, relay.mend).start()

    monkeypatch.setattr(workers, "warn_caller", warned)
    return said


@pytest.mark.filterwarnings("ignore")  # of distributed, whose connections break
@pytest.mark.parametrize(
    ("own", "frozen", "half", "gone"),
    [
        (False, 0.3, 0.0, 0.5),
        pytest.param(True, 0.0, 0.8, 0.4, marks=pytest.mark.slow),
        pytest.param(False, 0.0, 0.0, 61.0, marks=pytest.mark.soak),
        pytest.param(True, 25.0, 70.0, 36.0, marks=pytest.mark.soak),
    ],
)
def test_a_client_without_network_for_a_while(
    relay: Relay,
    own: bool,
    frozen: float,
    half: float,
    gone: float,
    no_kept_clients: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also for longer than the client would look for its scheduler by itself."""
    from distributed import Client

    here = summed("threads")
    said = mended_after_a_word(relay, monkeypatch, gone)
    done: list[bool] = []

    def cut(advance: Advance) -> None:
        if not done and advance.blocks_done >= 6:
            done.append(True)
            relay.cut(frozen, half)

    client = None if own else Client(relay.address, set_as_default=False, timeout=0.3)
    with dask.config.set({"streampca.pause-timeout": min(60.0, 5.0 * gone)}):
        there = summed(client or relay.address, progress=cut)
    assert "the connection to the scheduler at" in said[0]
    assert same_bits(here, there)
    if client is not None:
        assert client._timeout == 0.3
        client.close()


@pytest.mark.filterwarnings("ignore")
def test_a_network_that_does_not_come_back(relay: Relay, no_kept_clients: None) -> None:
    def cut(advance: Advance) -> None:
        if relay.up:
            relay.cut()

    with (
        dask.config.set({"streampca.pause-timeout": 0.2}),
        pytest.raises(ClusterError, match=f"scheduler is lost: {relay.address} does not answer"),
    ):
        summed(relay.address, progress=cut)


@pytest.mark.filterwarnings("ignore")
def test_between_two_passes(
    relay: Relay, no_kept_clients: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = mended_after_a_word(relay, monkeypatch, 0.0)
    here = summed("threads")
    assert same_bits(here, summed(relay.address))
    relay.cut()
    (client,) = clients._clients.values()
    while client.status == "running":
        time.sleep(0.01)
    assert same_bits(here, summed(client))
    assert "the connection to the scheduler at" in said[0]
