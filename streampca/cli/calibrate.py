"""``streampca calibrate``: measure the speeds of this machine, for ``--rates``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from streampca.cli.commands import Parser
from streampca.models.calibration import calibrate
from streampca.passes import Rates, limited_threads, thread_count
from streampca.store.places import writing


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of the command."""
    parser = parsers["calibrate"]
    parser.add_argument(
        "--threads", type=int, metavar="N", help="default: all that a fit uses, and one beside"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="JSON file (default: print it)")
    parser.set_defaults(run=_calibrate, limited=limited_threads)


def _calibrate(arguments: argparse.Namespace) -> int:
    threads = thread_count()
    found = calibrate(threads)
    text = json.dumps(found.to_dict(), indent=1)
    if threads > 1:
        print(_gain(calibrate(1), found, threads), file=sys.stderr)
    if arguments.output is None:
        print(text)
    else:
        with writing(arguments.output):
            Path(arguments.output).write_text(text + "\n")
        print(f"{arguments.output}: use it with --rates {arguments.output}")
    return 0


def _gain(one: Rates, found: Rates, threads: int) -> str:
    """What all threads reach of as many times one."""
    shares = (
        f"{name} {value / one.to_dict()[name] / threads:.0%}"
        for name, value in found.to_dict().items()
        if name != "double"
    )
    return f"{threads} threads, of {threads} times the speed of one: {', '.join(shares)}"
