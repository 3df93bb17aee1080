"""The ``cluster:`` section of an options file: workers for as long as a command takes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from streampca.passes import started

Run = Callable[[argparse.Namespace], int]


def cluster_options(parser: Any) -> None:
    """A command that takes the section. It has no option on the command line but --scheduler,
    which goes before it."""
    parser.set_defaults(cluster=None)


def on_cluster(run: Run) -> Run:
    """The command, with its cluster as the scheduler if a file named one."""

    def inside(arguments: argparse.Namespace) -> int:
        cluster = arguments.cluster if arguments.scheduler is None else None
        with started(cluster, arguments.scheduler) as arguments.scheduler:
            return run(arguments)

    return inside
