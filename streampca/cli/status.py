"""``streampca status``: what jobs serve, how old that is, and whether anyone should look."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from glob import escape, glob
from typing import Any

from streampca.cli.commands import Parser
from streampca.cli.config import JOBS_ONLY, WHERE
from streampca.cli.terminal import shown
from streampca.errors import InvalidInputError, OutputError, StreamPCAError
from streampca.operations.config import read_job
from streampca.operations.runs import NEVER, note_at
from streampca.operations.status import (
    EXIT,
    UNKNOWN,
    WORST,
    Status,
    status,
    status_of_run,
    stretch,
    write_status,
)
from streampca.operations.yaml_files import read_yaml


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of ``status``."""
    one = parsers["status"]
    one.set_defaults(run=run_status)
    what = f"job files: {WHERE}; or the --progress-file of any other command"
    one.add_argument("job", nargs="*", metavar="CONFIG", help=what)
    one.add_argument("--all", metavar="FOLDER", dest="folder", help="every job file in a folder")
    one.add_argument(
        "--metrics",
        action="store_true",
        help="write the files that the jobs name as metrics:, with what is true now",
    )
    form = one.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one line of JSON for each job")
    form.add_argument(
        "--oneline", action="store_true", help="one line for each job, as plugins of Nagios print"
    )


def run_status(arguments: argparse.Namespace) -> int:
    """``streampca status``. Exit code: 0 fresh, 1 warn, 2 error, 3 unknown; the worst of all."""
    paths = [*arguments.job, *(jobs_in(arguments.folder) if arguments.folder else [])]
    if not paths:
        raise InvalidInputError("no job file: streampca status JOB.yaml, or --all FOLDER")
    levels, written = set(), False
    for path in paths:
        try:
            note = note_at(path) if os.path.isfile(path) else {}
            job = None if note else read_job(path)
        except (StreamPCAError, OSError) as error:
            if len(paths) == 1 and not arguments.oneline:  # no other job, and no plugin
                raise
            job, found = None, Status(path, "", run={"state": NEVER})
            found.add(UNKNOWN, f"a refresh would fail: {error}")
        else:
            found = status_of_run(note, path) if job is None else status(job, path)
        if job is not None and arguments.metrics and job.metrics is not None:
            written = True
            try:
                write_status(job, found)
            except OutputError as error:  # the other jobs' are written all the same
                found.add(UNKNOWN, f"no metrics are written: {error}")
        levels.add(found.level)
        if arguments.json:
            print(found.to_json())
        else:
            print(one_line(found) if arguments.oneline else as_text(found))
    if arguments.metrics and not written:
        raise InvalidInputError(f"{paths[0]} names no file; add a line such as metrics: job.prom")
    return EXIT[next(level for level in WORST if level in levels)]


def jobs_in(folder: str) -> list[str]:
    """The job files of a folder: YAML with a store, a model or a source section, or unreadable."""
    if not os.path.isdir(folder):
        raise InvalidInputError(f"{folder}: no such folder")
    found = []
    for path in sorted(glob(os.path.join(escape(folder), "*.y*ml"))):
        try:
            entries, _ = read_yaml(path)
        except (StreamPCAError, OSError):  # perhaps a job
            found.append(path)
            continue
        if isinstance(entries.get("source"), dict) or entries.keys() & JOBS_ONLY:
            found.append(path)
    return found


def one_line(found: Status) -> str:
    """LEVEL - job: reasons | figures, which begin after the only bar."""
    going = f"{found.run['state']} {found.run.get('progress', '')}".rstrip()
    why = "; ".join(text for _, text in found.reasons) or (_served(found) if found.store else going)
    figures: dict[str, Any] = {"age": None, "waiting": None, "behind": None}
    if found.served:
        figures["age"] = f"{found.served['age']:.0f}s"
    figures |= {name: found.source.get(name) for name in ("waiting", "behind")}
    counted = " ".join(f"{name}={value}" for name, value in figures.items() if value is not None)
    text = shown(f"{found.level.upper()} - {found.job or found.store}: {why}")
    return " | ".join(filter(None, [text.replace("|", r"\x7c"), counted]))


def as_text(found: Status) -> str:
    """The status of a job, for people."""
    lines = [f"{shown(found.job or found.store)}: {found.level}"]
    lines += [f"  {level:<9} {text}" for level, text in found.reasons]
    if found.store:
        lines.append(f"  served    {_served(found)}")
    if found.source and "error" not in found.source:
        source = found.source
        lines.append(
            f"  source    {source['samples']:,} samples; {source['waiting']:,} wait for the next "
            f"run, {source['behind']:,} cannot be taken yet"
        )
    run = found.run
    if run["state"] != "never":
        ended = run.get("status", "") if run["state"] == "ended" else run.get("progress", "")
        lines.append(f"  last run  {run['state']}, begun {run['begun']}  {ended}".rstrip())
    for name in ("success", "failure"):
        if (one := getattr(found, name)) is not None:
            why = f": {one['why']}" if "why" in one else ""
            code = f" (exit {one['exit']}, {one['kind']})" if one.get("exit") is not None else ""
            lines.append(f"  {name:<9} {one['time']}{why}{code}")
    if found.free_bytes is not None:
        lines.append(f"  disk      {found.free_bytes / 1e9:.1f} GB free")
    if found.next:
        lines.append(f"  next      {found.next}")
    return "\n".join(lines)


def _served(found: Status) -> str:
    if found.served is None:
        return "nothing"
    one = found.served
    return f"version {one['version']}, {stretch(max(one['age'], 0))} old, {one['samples']} samples"
