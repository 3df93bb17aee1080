"""F23: Ctrl-C in a notebook: the kernel goes on, nothing is left running, and the fit resumes.

The cluster is not of the kernel's process group: Jupyter signals all of that, and the workers of a
LocalCluster that was started in the notebook end, which Dask does not make good.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BLOCKS = 3000

BEGIN = """
import threading, hashlib, numpy as np, zarr, streampca
from distributed import Client
x = np.random.default_rng(23).standard_normal((8 * {blocks}, 16)) * np.linspace(4, 1, 16) + 3
zarr.create_array({place!r}, shape=x.shape, chunks=(8, 16), dtype="f8", compressors=None)[...] = x
client = Client(scheduler_file={file!r}, set_as_default=False, timeout=60)
client.wait_for_workers(1)
wanted = 0

def tell(advance):
    global wanted
    if 0 < wanted <= advance.blocks_done:
        wanted = 0
        print("now", flush=True)

def fit(where, at=0, **more):
    global wanted
    wanted = at
    model = streampca.IncrementalPCA(3, batch_size=8, progress=tell, **more,
                                     scheduler=client if where == "cluster" else "threads")
    return model.fit({place!r})

def digest(model):
    found = (model.components_, model.singular_values_)
    return hashlib.sha256(b"".join(one.tobytes() for one in found)).hexdigest()

whole = digest(fit("threads"))
"""
AFTER = """
left = [one.name for one in threading.enumerate() if one.name.startswith("streampca")]
assert not left, left
resumed = fit({where!r}, checkpoint={work!r})
assert digest(resumed) == whole
assert len(client.nthreads()) == 1
print("resumed", resumed.cost_[0].resumed_blocks)
"""
END = """
import multiprocessing
assert not multiprocessing.active_children()
client.close()
"""


@pytest.fixture
def kernel(own_kernel: None) -> Iterator[tuple[Any, Any]]:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(startup_timeout=300, kernel_name="python3")
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(kernel: tuple[Any, Any], code: str, at_now: Callable[[], None] | None = None) -> Any:
    """(reply, what was printed) of a cell; ``at_now`` is called when it prints "now"."""
    client, text = kernel[1], ""

    def heard(message: Any) -> None:
        nonlocal text
        if message["msg_type"] == "stream":
            text += message["content"]["text"]
            if at_now is not None and "now" in message["content"]["text"]:
                at_now()

    reply = client.execute_interactive(code, output_hook=heard, timeout=600, allow_stdin=False)
    return reply["content"], text


def well(kernel: tuple[Any, Any], code: str) -> str:
    reply, text = run(kernel, code)
    assert reply["status"] == "ok", "\n".join(reply.get("traceback", ()))
    return str(text)


@pytest.mark.soak
def test_ctrl_c_leaves_a_usable_kernel(
    kernel: tuple[Any, Any], new_cluster: Any, tmp_path: Path
) -> None:
    """Twenty times, on threads and on a cluster in turn."""
    draw, caught, resumed = random.Random(23), 0, []
    cluster = new_cluster()
    cluster.wait()
    place, file = str(tmp_path / "x"), str(cluster.file)
    well(kernel, BEGIN.format(blocks=BLOCKS, place=place, file=file))
    for round_ in range(20):
        where, work = ("threads", "cluster")[round_ % 2], str(tmp_path / f"work{round_}")
        at = draw.randrange(BLOCKS // 10, BLOCKS // 2)
        code = f"fit({where!r}, at={at}, checkpoint={work!r})"
        reply, text = run(kernel, code, kernel[0].interrupt_kernel)
        assert "now" in text
        assert reply["status"] == "ok" or reply["ename"] == "KeyboardInterrupt", reply
        caught += reply["status"] != "ok"
        text = well(kernel, AFTER.format(where=where, work=work))
        resumed.append(int(text.split()[-1]))
        assert reply["status"] == "ok" or resumed[-1] >= at - 100, "all that was merged is kept"
    well(kernel, END)
    print(f"{caught} of 20 were caught at work; resumed at blocks {resumed}")
    assert caught >= 15
