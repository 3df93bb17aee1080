"""F10: the scheduler dies in the middle of a pass; another cluster goes on from the checkpoint."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr

import streampca
from streampca.errors import ClusterError
from streampca.passes.checkpoint import Checkpoint
from streampca.passes.execution import Fold

P, ROWS, N = 16, 100, 6000
BLOCKS = N // ROWS
LOST = "scheduler-connection-lost|connection to the scheduler is lost"
INTERVAL = 3  # spans, in place of seconds


@pytest.fixture(autouse=True)
def intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The total comes to the client this often."""
    overdue = lambda self: self._left is not None and self.next >= self._left[0] + INTERVAL  # noqa: E731
    monkeypatch.setattr(Fold, "overdue", overdue)


@pytest.fixture
def without_a_word(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Within it the client leaves nothing where it is stopped: as if it had been killed too."""

    @contextlib.contextmanager
    def dies() -> Iterator[None]:
        due = lambda self, n, total: n % INTERVAL or self.save(n, total)  # noqa: E731
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "save_if_due", due)
            patch.setattr(Fold, "interrupted", lambda self, error: setattr(self, "_closed", True))
            yield

    return dies


def fit(source: Path, **more: Any) -> Any:
    return streampca.IncrementalPCA(3, batch_size=ROWS, **more).fit(str(source))


@pytest.mark.filterwarnings("ignore")  # of distributed, whose connections break
@pytest.mark.parametrize(
    "rounds", [pytest.param(1, marks=pytest.mark.slow), pytest.param(6, marks=pytest.mark.soak)]
)
def test_another_cluster_goes_on(
    rounds: int, new_cluster: Any, without_a_word: Any, tmp_path: Path
) -> None:
    """The second cluster of a round is the victim of the next one."""
    import distributed  # noqa: F401  (its settings, before one of them is changed)

    rng, draw = np.random.default_rng(10), random.Random(10)
    second, redone = new_cluster(), []
    for round_ in range(rounds):
        source, work = tmp_path / f"x{round_}", str(tmp_path / f"work{round_}")
        x = rng.standard_normal((N, P)) * np.linspace(4, 1, P) + 3
        zarr.create_array(str(source), shape=(N, P), chunks=(ROWS, P), dtype="f8")[...] = x
        whole = fit(source, scheduler="threads")
        first, second = second, new_cluster()
        alone = round_ % 2 == 0  # only the scheduler dies, or client and scheduler
        victim, at, done = first.scheduler, draw.randrange(3, BLOCKS - 20), [0]

        def kill(advance: Any, victim: Any = victim, at: int = at, done: Any = done) -> None:
            if done[-1] < at <= advance.blocks_done:
                victim.kill()
            done.append(advance.blocks_done)

        with (
            dask.config.set(
                {"distributed.comm.timeouts.connect": "2s", "streampca.pause-timeout": 2.0}
            ),
            contextlib.nullcontext() if alone else without_a_word(),
        ):
            client = first.client()
            client._timeout = 5  # a lost scheduler is looked for 6 s, not 60 s as at the start
            with pytest.raises(ClusterError, match=LOST):
                fit(source, scheduler=client, checkpoint=work, progress=kill)
            with contextlib.suppress(TimeoutError):
                client.close(timeout=1)
        assert at <= done[-1] < BLOCKS
        span = done[1]
        client = second.client()
        resumed = fit(source, scheduler=client, checkpoint=work)
        client.close()
        cost = resumed.cost_[0]
        redone.append(done[-1] - cost.resumed_blocks)
        assert 0 <= redone[-1] <= INTERVAL * span
        assert cost.reads == BLOCKS - cost.resumed_blocks
        np.testing.assert_array_equal(resumed.components_, whole.components_)
        np.testing.assert_array_equal(resumed.explained_variance_, whole.explained_variance_)
    print(f"{rounds} rounds; merged blocks that were folded again: {redone}")
