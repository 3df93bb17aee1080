"""A kernel of Jupyter that is forked from a process which has imported what guides import.

A kernel of its own imports for three seconds, longer than most guides compute.
``python -m tests.forked_kernel SOCKET`` is the process that is forked; it ends where its input
does. The command of the kernel is this file with a socket and the words of a kernel: it asks for a
fork, and lives as long as that does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

IMPORTED = (
    *("dask.array", "distributed", "ipykernel.kernelapp", "ipykernel.ipkernel", "pandas"),
    *("matplotlib.pyplot", "scipy.io", "xarray", "zarr"),
)


def ask(place: str, words: list[str]) -> None:
    """Fork a kernel, and wait until it has ended, which a message tells it to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(place)
        line.sendall(json.dumps(request).encode() + b"\n")
        line.recv(1)


def serve(place: str) -> None:
    import gc
    import importlib
    import select

    import streampca

    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as a kernel says
    for name in IMPORTED:
        importlib.import_module(name)
    for name in streampca.__all__:
        getattr(streampca, name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(place)
        door.listen()
        while door in select.select([door, sys.stdin], [], [])[0]:
            line = door.accept()[0]
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                door.close()
                kernel(line)
            line.close()


def kernel(line: socket.socket) -> None:
    """In the fork: it ends by itself, or with the process that asked for it."""
    import threading

    import pandas
    from ipykernel.kernelapp import launch_new_instance

    with line.makefile() as text:
        request = json.loads(text.readline())

    def end_with_it() -> None:
        line.recv(1)
        os._exit(1)

    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    pandas.set_option("display.max_columns", 20)  # as where it is imported by a kernel
    sys.argv = ["ipykernel_launcher", *request["words"]]
    threading.Thread(target=end_with_it, daemon=True).start()
    launch_new_instance()
    os._exit(0)


if __name__ == "__main__":
    ask(sys.argv[1], sys.argv[2:]) if len(sys.argv) > 2 else serve(sys.argv[1])
