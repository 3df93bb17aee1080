"""Errors of commands as JSON on stdout: of every command, and of the command line's own words."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
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
        line = json.loads(said.out)
        assert set(line) == FIELDS, name
        assert code == line["exit"] > 2, name
        assert line["command"] == name
        assert line["kind"] in KINDS
        assert len(line["run"]) == 36
        assert said.err.startswith("streampca: "), name


def test_answers_are_json_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(x := tmp_path / "x.npy", np.eye(30, 8))
    (job := tmp_path / "job.yaml").write_text("n-components: 3\n")
    place, model = str(tmp_path / "run.json"), str(tmp_path / "model")

    def told(*words: object) -> Any:
        assert main([*map(str, words), "--json", "--progress-file", place]) == 0
        return json.loads(capsys.readouterr().out)

    assert "--log-file" in told("completion", "bash")["fit"]
    assert told("config", "check", job) == [{"file": str(job), "is": "options of streampca fit"}]
    assert told("config", "schema")["properties"]["logging"]
    run = told("fit", x, "-k", "2", "-o", model)["run"]
    assert json.loads(Path(place).read_text())["run"]["id"] == run
    assert told("report", model, "-o", tmp_path / "x.html")["bytes"] > 1000


def test_words_that_name_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["--json"],
        ["models", "--json"],
        ["fit", "--model", "--json"],
        ["fti", "--json"],
    ):
        with pytest.raises(SystemExit):
            main(words)
        line = json.loads(capsys.readouterr().out)
        assert (line["kind"], line["exit"]) == ("usage", 2)
    assert main(["fit", "x.npy", "--model", "no-such", "--json"]) == 65
    assert json.loads(capsys.readouterr().out)["kind"] == "invalid_input"
    with pytest.raises(SystemExit):
        main(["fit", "--no-such-option"])
    assert capsys.readouterr().out == ""


def test_every_error_has_a_kind_of_its_own() -> None:
    own = {
        one
        for one in vars(errors).values()
        if inspect.isclass(one) and issubclass(one, errors.StreamPCAError)
    }
    assert own <= {kind for kind, _, _ in errors.EXIT}
    words = [word for _, _, word in errors.EXIT]
    assert len({*words}) == len(words)
    for kind, code, word in errors.EXIT:
        assert word in KINDS or kind is errors.StreamPCAError
        assert f"{code} " in KINDS
        if issubclass(kind, errors.StreamPCAError):  # no row above takes it away
            assert (errors.exit_code(kind()), errors.error_kind(kind())) == (code, word)


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (RuntimeError("what?"), "fault", 70),
        (KeyboardInterrupt(), "interrupted", 130),
        (SystemExit(143), "terminated", 143),
        (MemoryError(), "memory", 69),
        (OSError(28, "No space left on device", "s3://user:secret@host/x"), "system", 74),
    ],
)
def test_what_no_command_expects(
    error: BaseException,
    kind: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(streampca, "open", fail)
    words = ["fit", "x.zarr", "--checkpoint", "kept", "--json"]
    if kind == "terminated":
        with pytest.raises(SystemExit):
            main(words)
    else:
        assert main(words) == code
    out = capsys.readouterr().out
    line = json.loads(out)
    assert (line["kind"], line["exit"]) == (kind, code)
    assert "secret" not in out
    assert [*map(type, line["notes"])] == [str] * (kind == "terminated")
