"""Refreshes of a soak of nights: in processes of their own, which can be killed, or in this one."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import subprocess
import sys
import time
import unittest.mock
from pathlib import Path
from typing import Any

import streampca
from streampca.cli import main

MODULES = ("zarr", "numcodecs", "xarray", "pyarrow.parquet", "icechunk", "dask.array")


class Processes:
    """Refreshes in processes that are forked from one which has imported everything."""

    def __enter__(self) -> Processes:
        root = str(Path(streampca.__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1"}
        self.one = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("job_server.py")), *MODULES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        return self

    def __exit__(self, *_: Any) -> None:
        assert self.one.stdin is not None
        self.one.stdin.close()
        self.one.wait()
        assert self.one.stdout is not None
        self.one.stdout.close()

    def __call__(self, **request: Any) -> list[tuple[int, str]]:
        assert self.one.stdin is not None
        assert self.one.stdout is not None
        print(json.dumps({"limit": 60, **request}), file=self.one.stdin, flush=True)
        return [tuple(answer) for answer in json.loads(self.one.stdout.readline())]


def in_this_process(job: str, options: tuple[str, ...], clock: float = 0) -> tuple[int, str]:
    """Ten times as fast as a process of its own."""
    out, real = io.StringIO(), time.time

    def now() -> float:
        return max(0.0, real() + clock)

    faulthandler.dump_traceback_later(300, exit=True, file=sys.__stderr__)
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        unittest.mock.patch("time.time", now),
    ):
        try:
            code = main(["refresh", job, *options])
        except SystemExit as stop:
            code = int(stop.code or 0)
    faulthandler.cancel_dump_traceback_later()
    return code, out.getvalue()


def answered(text: str) -> dict[str, Any]:
    for line in text.splitlines():
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            return answer
    return {}


def brief(text: str) -> str:
    said = answered(text)
    keys = (
        "status",
        "change",
        "how",
        "version",
        "served",
        "samples",
        "behind",
        "note",
        "why",
        "gate",
    )
    return str({key: said[key] for key in (*keys, "gate")}) if said else text.strip()[-600:]
