"""Programs in processes that are forked from one that has imported what they need.

An interpreter of its own imports for two seconds, longer than most programs here run. A fork has no
threads of its parent, and the system counts its peak from what it holds when it is forked. What is
said of imports, or of a process as a whole, needs an interpreter of its own.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

IMPORTED = (
    "email.parser",
    "numba",
    "numpy",
    "scipy.linalg",
    "scipy.sparse",
    "scipy.special",
    "streampca.cli.commands",
    "streampca.models.completion.impute",
    "streampca.models.pca.incremental_pca",
    "streampca.models.pca.pca",
    "zarr",
)


def forked(program: str, *arguments: str) -> str:
    """What a program writes to its output; ``arguments`` are its ``sys.argv[1:]``."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps([program, *arguments]), file=server.stdin, flush=True)
    code, out, error = json.loads(server.stdout.readline())
    assert code == 0, error
    return str(out)


@functools.cache
def _server() -> subprocess.Popen[str]:
    """One for each process of pytest."""
    command = [sys.executable, "-m", "tests.forks"]
    root = str(Path(__file__).parents[1])
    server = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    atexit.register(server.communicate)  # it ends where its input does
    return server


def _run(words: list[str], out: Path, error: Path) -> None:
    """In the fork: the program, with its output in these files."""
    for handle, path in ((1, out), (2, error)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), handle)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    sys.argv = ["-c", *words[1:]]
    code = 1
    try:
        exec(compile(words[0], "<program>", "exec"), {"__name__": "__main__"})
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    with tempfile.TemporaryDirectory() as folder:
        out, error = Path(folder) / "out", Path(folder) / "error"
        for line in sys.stdin:
            words: list[Any] = json.loads(line)
            if not (process := os.fork()):
                _run(words, out, error)
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            print(json.dumps([code, out.read_text(), error.read_text()]), flush=True)


if __name__ == "__main__":
    _serve()
