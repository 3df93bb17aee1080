"""Errors of commands as JSON on stdout: of every command, and of the command line's own words."""

from __future__ import annotations

import argparse
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from streampca import errors
from streampca.cli import main
from streampca.cli.commands import build_parser
from streampca.cli.failures import KINDS
from streampca.cli.run_options import leaves

FIELDS = {"status", "exit", "kind", "message", "notes", "command", "run"}
WORDS = {  # of commands that do not fail for want of a source
    "calibrate": ["--threads", "0"],
    "demo": ["--samples", "0"],
    "lsa similar": ["nowhere", "--term", "x"],
    "models gc": ["nowhere", "--keep", "0"],
}
NEVER_FAIL = {"completion", "config schema"}


def words_of(leaf: Any) -> list[str]:
    """Words that the parser of a command takes, which name what is not there."""
    found = []
    for action in leaf._actions:
        if not action.option_strings and action.nargs != "?":
            found += [next(iter(action.choices)) if action.choices else "nowhere.npy"]
        elif action.required:
            found += [action.option_strings[-1], "out.png"]
    return found


def test_every_command_fails_in_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    every = [leaf for one in build_parser().commands.values() for leaf in leaves(one)]
    assert len(every) > 30
    for leaf in every:
        name = leaf.prog.removeprefix("streampca ")
        with pytest.raises(SystemExit) as stop:
            main([*name.split(), "--no-such-option", "--json"])
        said = capsys.readouterr()
        line = json.loads(said.out)
        assert set(line) == FIELDS, name
        assert (stop.value.code, line["exit"], line["kind"]) == (2, 2, "usage"), name
        assert said.err.startswith("streampca"), name
        if name in NEVER_FAIL:
            continue
        code = main([*name.split(), *WORDS.get(name, words_of(leaf)), "--json"])
        said = capsys.readouterr()
        assert code > 0, name
        line = json.loads(said.out)
        assert set(line) == FIELDS, name
        assert (line["exit"], line["command"]) == (code, name)
        assert line["kind"] in KINDS
        assert len(line["run"]) == 36
        assert said.err.startswith("streampca: "), name
