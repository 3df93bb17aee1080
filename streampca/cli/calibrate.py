"""``streampca calibrate``: measure the speeds of this machine, for ``--rates``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from streampca.cli.commands import Parser
from streampca.models.calibration import calibrate
from streampca.store.places import writing


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of the command."""
    parser = parsers["calibrate"]
    parser.add_argument("-o", "--output", metavar="FILE", help="JSON file (default: print it)")
    parser.set_defaults(run=_calibrate)


def _calibrate(arguments: argparse.Namespace) -> int:
    text = json.dumps(calibrate().to_dict(), indent=1)
    if arguments.output is None:
        print(text)
    else:
        with writing(arguments.output):
            Path(arguments.output).write_text(text + "\n")
        print(f"{arguments.output}: use it with --rates {arguments.output}")
    return 0
